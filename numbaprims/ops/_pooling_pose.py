"""Calls of pooling as problems: sizes, padding, layouts, and the arrays of a launch."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from numbaprims.dtypes import FLOATS
from numbaprims.ops import examples
from numbaprims.ops._pooling_problem import ARRAYS, PoolingProblem
from numbaprims.ops.primitive import Given, Pose, Primitive, Result, scalar, truth
from numbaprims.reference import pooling as reference
from numbaprims.shapes import (
    channels_last,
    element_strides,
    output_size,
    per_dimension,
    resolve_padding,
    sees_nothing,
    window_extent,
)

Numbers = tuple[int, ...]
MOST = 2**31 - 1
"""Of a window and of the steps between windows and between their elements."""


def options(
    *, kernel: Any = None, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil: Any = False, layout: str,
    every: Any = True, p: Any = 2.0, output: Any = ..., indexed: Any = False, size: Any = None,
) -> tuple[Any, ...]:  # fmt: skip
    """What a call says beside its arrays, to be hashed; `output` is of windows that adapt, ... of others."""
    said = (
        kernel, stride, padding, dilation, truth(ceil, "ceil_mode"), layout, truth(every, "count_include_pad"),
        scalar(p, "p"), output, truth(indexed, "return_indices"), size,
    )  # fmt: skip
    try:
        hash(said)
    except TypeError:
        return _plain(said)
    return said


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, (tuple, list)) else value


def _windows(size: Numbers, said: tuple[Any, ...]) -> dict[str, Any]:
    """The fields of a problem that say where windows lie."""
    kernel, stride, padding, dilation, ceil, _, every, p, output, _, _ = said
    rank = len(size)
    if output is not ...:
        none = (0,) * rank
        out = per_dimension(output, rank, "output_size", 1)
        return dict(
            out=out, kernel=none, stride=none, before=none, after=none, dilation=none, adaptive=True
        )  # fmt: skip
    kernel = per_dimension(kernel, rank, "kernel_size", 1)
    stride = kernel if stride is None else per_dimension(stride, rank, "stride", 1)
    dilation = per_dimension(dilation, rank, "dilation", 1)
    for name, values in (("kernel_size", kernel), ("stride", stride), ("dilation", dilation)):
        if max(values) > MOST:
            raise ValueError(f"{name} is {values}; {MOST} is the most")
    pads = resolve_padding(padding, size, kernel, stride, dilation)
    outs = []
    for d, (length, k, s, step, pad) in enumerate(zip(size, kernel, stride, dilation, pads, strict=True)):
        extent = window_extent(k, step)
        if max(pad) > extent // 2:
            raise ValueError(f"padding is {padding!r}; at most half of a window, here {extent // 2}, is allowed")
        # with ceil_mode the last window may reach out behind, but begins inside or in the padding in front
        number = output_size(length, k, s, step, (pad[0], pad[1] + (s - 1 if ceil else 0)))
        if number < 1:
            raise ValueError(f"windows span {extent} elements of dimension {d}, which has {length} and {sum(pad)} more")
        number -= int((number - 1) * s >= length + pad[0])
        if sees_nothing(number, length, k, s, step, pad[0]):
            raise ValueError(f"padding is {padding!r}, dilation {dilation}; a window would have no element")
        outs.append(number)
    if not (math.isfinite(p) and p > 0):
        raise ValueError(f"p is {p}; it must be a positive number")
    before, after = zip(*pads, strict=True)
    return dict(
        out=tuple(outs), kernel=kernel, stride=stride, before=before, after=after, dilation=dilation,
        count_include_pad=every, p=p,
    )  # fmt: skip


def _geometry(op: str, direction: str, dtype: str, shape: Numbers, said: tuple[Any, ...]) -> PoolingProblem:
    """The problem of x's shape, without strides."""
    last = channels_last(said[5], len(shape) - 2)
    size = shape[1:-1] if last else shape[2:]
    if 0 in size:
        raise ValueError(f"x has shape {shape}; windows need one element at least")
    fields = _windows(size, said)
    return PoolingProblem(op, direction, dtype, shape[0], shape[-1 if last else 1], size, layout="", **fields)


def _shape(p: PoolingProblem, size: Numbers, layout: str) -> Numbers:
    last = channels_last(layout, len(size))
    return (p.n, *size, p.c) if last else (p.n, p.c, *size)


def _contiguous(sizes: Numbers, strides: Numbers, step: int) -> bool:
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


def _completed(p: PoolingProblem, layout: str, storages: dict[str, Any], **more: Any) -> PoolingProblem:
    """The problem with the strides of its arrays."""
    strides: list[Any] = []
    orders = {"channels_first", "channels_last"}
    for name in ARRAYS:
        storage = storages.get(name)
        if storage is None:
            strides.append(None)
            continue
        steps = element_strides(storage)
        sizes = storage.shape
        if channels_last(layout, len(p.size)):
            steps, sizes = (steps[0], steps[-1], *steps[1:-1]), (sizes[0], sizes[-1], *sizes[1:-1])
        strides.append(steps)
        orders &= {
            *(["channels_first"] if _contiguous(sizes[2:], steps[2:], 1) else []),
            *(
                ["channels_last"]
                if (sizes[1] == 1 or steps[1] == 1) and _contiguous(sizes[2:], steps[2:], sizes[1])
                else []
            ),
        }
    return dataclasses.replace(p, layout=min(orders, default="strided"), strides=tuple(strides), **more)


def _check_rank(given: Given, at: int) -> Numbers:
    shape: Numbers = given.storages[at].shape
    if not 3 <= len(shape) <= 5:
        raise ValueError(f"{given.words(at)}; pooling takes one to three dimensions beside N and C")
    return shape


def _forward(op: str, given: Given, said: tuple[Any, ...]) -> Pose:
    layout, indexed = said[5], said[9]
    dtype = given.dtypes[0]
    p = _geometry(op, "forward", dtype, _check_rank(given, 0), said)  # type: ignore[arg-type]
    shape = _shape(p, p.out, layout)
    results = (Result(shape, dtype), *([Result(shape, "i64")] if indexed else []))  # type: ignore[arg-type]

    def problem(made: Any) -> PoolingProblem:
        storages = {"x": given.storages[0], **dict(zip(("out", "indices"), made, strict=False))}
        return _completed(p, layout, storages, indices="i64" if indexed else "")

    return Pose(results, problem, (0, 1, 2) if indexed else (0, 2))


#: The arrays of a gradient's call.
BACKWARD = ("dy", "x", "y", "indices")


def _backward(op: str, given: Given, said: tuple[Any, ...]) -> Pose:
    layout, size = said[5], said[10]
    dy, x, y, indices = given.storages
    shape = _check_rank(given, 0)
    rank = len(shape) - 2
    last = channels_last(layout, rank)
    if x is not None:
        shape = x.shape
        if len(shape) != rank + 2:
            raise ValueError(f"{given.words(0)} and {given.words(1)}; they must have as many dimensions")
    else:
        size = per_dimension(size, rank, "size", 1)
        shape = (shape[0], *size, shape[-1]) if last else (*shape[:2], *size)
    if said[8] is not ...:  # windows that adapt to what dy has
        said = (*said[:8], dy.shape[1:-1] if last else dy.shape[2:], *said[9:])
    p = _geometry(op, "backward", given.dtypes[0], shape, said)  # type: ignore[arg-type]
    wanted = _shape(p, p.out, layout)
    for at, storage in ((0, dy), (2, y), (3, indices)):
        if storage is not None and storage.shape != wanted:
            raise ValueError(f"{given.words(at)}; for x of shape {shape} it must have shape {wanted}")
    if indices is not None and given.dtypes[3] != "i64":
        raise TypeError(f"{given.words(3)}; it must be int64")

    def problem(made: Any) -> PoolingProblem:
        storages = {"out": made[0], "dy": dy, "indices": indices, "y": y}
        storages["x"] = x if op == "lp" or indices is None else None
        return _completed(p, layout, storages, indices="" if indices is None else "i64")

    slots = [at for at, storage in zip((3, 2, 4, 1), given.storages, strict=True) if storage is not None]
    return Pose((Result(shape, given.dtypes[0]),), problem, (0, *slots))  # type: ignore[arg-type]


# ---------------------------------------------------------------- definitions


def _canonical(x: Any, layout: str) -> Any:
    return np.moveaxis(x, -1, 1) if x is not None and channels_last(layout, x.ndim - 2) else x


def _back(x: Any, layout: str) -> Any:
    return np.moveaxis(x, 1, -1) if channels_last(layout, x.ndim - 2) else x


def _define_forward(op: str, values: Any, said: Any, numbers: Any) -> Any:
    p = _geometry(op, "forward", "f64", values[0].shape, said)
    found = reference.forward(p, _canonical(values[0], said[5]))
    y, places = (_back(each, said[5]) for each in found)
    return (y, places) if said[9] else y


def _define_backward(op: str, values: Any, said: Any, numbers: Any) -> Any:
    dy, x, y, indices = (_canonical(each, said[5]) for each in values)
    size = x.shape[2:] if x is not None else per_dimension(said[10], dy.ndim - 2, "size", 1)
    if said[8] is not ...:
        said = (*said[:8], dy.shape[2:], *said[9:])
    fields = _windows(size, said)
    p = PoolingProblem(op, "backward", "f64", dy.shape[0], dy.shape[1], size, layout="channels_first", **fields)
    indices = None if indices is None else indices.astype(np.int64)
    return _back(reference.backward(p, dy, x, y, indices), said[5])


def _make(op: str) -> tuple[Primitive, Primitive]:
    forward = Primitive(
        f"{op}_pool", ("x",), functools.partial(_forward, op), functools.partial(_define_forward, op),
        dtypes=FLOATS if op == "lp" else (*FLOATS, "i8", "u8"),
    )  # fmt: skip
    backward = Primitive(
        f"{op}_pool_backward", BACKWARD, functools.partial(_backward, op), functools.partial(_define_backward, op),
        others=("indices",), required=3 if op == "lp" else 1,
    )  # fmt: skip
    return forward, backward


FORWARD_OF, BACKWARD_OF = ({op: _make(op)[way] for op in ("max", "avg", "lp")} for way in (0, 1))


# ---------------------------------------------------------------- calls from problems


def example_call(problem: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """A call that poses the problem (`numbaprims.dispatch.examples` has the contract)."""
    p = problem
    rank = len(p.size)
    last = p.layout != "channels_first"  # a gap behind each channel is none behind an element of a plane of one
    layout = ("NWC", "NHWC", "NDHWC")[rank - 1] if last else ("NCW", "NCHW", "NCDHW")[rank - 1]

    def make(size: Any, dtype: str = p.dtype) -> Any:
        shape = (p.n, *size, p.c) if last else (p.n, p.c, *size)
        if p.layout == "strided":
            return examples.array((*shape[:-1], 2 * shape[-1] + 2), dtype)[..., :-2:2]
        return examples.array(shape, dtype)

    words: dict[str, Any] = {"layout": layout}
    name = f"adaptive_{p.op}_pool" if p.adaptive else f"{p.op}_pool"
    where: tuple[Any, ...] = (tuple(p.out),) if p.adaptive else (tuple(p.kernel),)
    if not p.adaptive:
        words["stride"], words["padding"] = tuple(p.stride), tuple(zip(p.before, p.after, strict=True))
        words["dilation"] = tuple(p.dilation)
        plain = [
            output_size(*each)
            for each in zip(p.size, p.kernel, p.stride, p.dilation, words["padding"], strict=True)
        ]  # fmt: skip
        words["ceil_mode"] = plain != list(p.out)
        words |= {"count_include_pad": p.count_include_pad} if p.op == "avg" else {"p": p.p} if p.op == "lp" else {}
    if p.direction == "forward":
        return name, (make(p.size), *where), words | ({"return_indices": True} if p.indices else {})
    where = () if p.adaptive else where
    dy = make(p.out)
    if p.op == "avg":
        return f"{name}_backward", (dy, tuple(p.size), *where), words
    if p.op == "lp":
        return f"{name}_backward", (dy, make(p.size), make(p.out), *where), words
    if p.indices:
        places = _first_places(p)
        places = places[..., None] if last else places
        indices = np.broadcast_to(places, (p.n, *p.out, p.c) if last else (p.n, p.c, *p.out)).copy()
        return f"{name}_backward", (dy, None, *where), words | {"indices": indices, "size": tuple(p.size)}
    return f"{name}_backward", (dy, make(p.size), *where), words


def _first_places(p: Any) -> np.ndarray:
    """Where the first element of each window lies in its plane."""
    found = np.zeros((), np.int64)
    for at, (size, out) in enumerate(zip(p.size, p.out, strict=True)):
        if p.adaptive:
            starts = np.arange(out) * size // out
        else:
            starts = np.arange(out) * p.stride[at] - p.before[at]
            starts += np.maximum(0, -(starts // p.dilation[at])) * p.dilation[at]
        found = found[..., None] * size + starts
    return found
