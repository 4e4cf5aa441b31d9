"""Rows of functions that move elements: other orders, parts, borders, indices; and of those that fill arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numbaprims import arrays
from numbaprims.jitted.rows import Row, said, shaped
from numbaprims.ops._gather_index_problem import STATUS


def dtype_of(word: str | None) -> str:
    """A literal dtype as an expression; float32 for what the public call refuses."""
    try:
        return f"np.{arrays.LONG_NAMES[arrays.dtype_name(word)].replace('bool', 'bool_')}"
    except TypeError:
        return "np.float32"


def _at_axis(rank: int, expression: Callable[[int], str]) -> str:
    """What an axis that is known at run time chooses; where there is none, the public call says so."""
    words = [f"{expression(axis)} if axis_ == {axis} or axis_ == {axis - rank} else" for axis in range(rank)]
    return f"({' '.join(words)} 0)"


def _size(name: str, d: int) -> str:
    return f"{name}.shape[{d}]"


def _transformed(types: dict[str, Any]) -> str:
    ndim, axes = types["x"].ndim, types.get("axes")
    listed = axes if isinstance(axes, list) and len(axes) == ndim else ["0"] * ndim
    sizes = {}
    for at, axis in enumerate(listed):
        words = [f"x.shape[{d}] if {axis} == {d} else" for d in range(ndim)]
        sizes[at] = f"({' '.join(words)} 0)"
    return shaped("x", sizes, ndim, "x.dtype")


def _concatenated(types: dict[str, Any]) -> str:
    """Of the first part's shape, but for the axis."""
    parts = [name for name in types if name.startswith("part_")]
    ndim = types["part_0"].ndim
    same = all(types[name].ndim == ndim for name in parts)
    sizes = {}
    for d in range(ndim if same else 0):
        total = " + ".join(_size(name, d) for name in parts)
        sizes[d] = f"({total} if axis_ == {d} or axis_ == {d - ndim} else {_size('part_0', d)})"
    return shaped("part_0", sizes, ndim, "part_0.dtype")


def _split(types: dict[str, Any]) -> dict[str, Callable[[dict[str, Any]], str]]:
    """Each of the parts."""
    sizes, ndim = types["sizes"], types["x"].ndim
    if isinstance(sizes, str):
        raise TypeError("numbaprims.split inside @njit: sizes must be a literal int or a tuple of ints")
    count = sizes if isinstance(sizes, int) else len(sizes)

    def part(at: int) -> Callable[[dict[str, Any]], str]:
        def length(d: int) -> str:
            if isinstance(sizes, list):
                return sizes[at]
            each, whole = f"-(-x.shape[{d}] // {sizes})", f"x.shape[{d}]"
            return each if at < count - 1 else f"{whole} - {count - 1} * ({each})"

        lengths = {
            d: f"(max({length(d)}, 0) if axis_ == {d} or axis_ == {d - ndim} else x.shape[{d}])" for d in range(ndim)
        }
        return lambda types: shaped("x", lengths, ndim, "x.dtype")

    return {f"=part_{at}": part(at) for at in range(count)} or {"=part_0": lambda types: "np.empty_like(x)"}


# ---------------------------------------------------------------- borders


def _pads(pads: Any, rank: int) -> list[list[str]]:
    """A pair for each axis; of what the public call refuses, zeros."""
    if isinstance(pads, str):
        return [[pads, pads]] * rank
    if len(pads) in (1, 2) and all(isinstance(each, str) for each in pads):
        return [[pads[0], pads[-1]]] * rank
    pairs = [each for each in pads if isinstance(each, list) and len(each) == 2]
    pairs = pairs * rank if len(pairs) == 1 else pairs
    return pairs if len(pairs) == rank else [["0", "0"]] * rank


def _padded(types: dict[str, Any]) -> str:
    ndim = types["x"].ndim
    pairs = _pads(types.get("pads", []), ndim)
    return shaped("x", {d: f"padded_along(x.shape[{d}], {a}, {b})" for d, (a, b) in enumerate(pairs)}, ndim, "x.dtype")


# ---------------------------------------------------------------- indices


def _gathered(types: dict[str, Any]) -> str:
    """The axis of x gives way to those of the indices."""
    x = "weight" if "weight" in types else "x"
    rank, more = types[x].ndim, types["indices"].ndim

    def of(at: int, axis: int) -> str:
        inside = axis <= at < axis + more
        return _size("indices", at - axis) if inside else _size(x, at if at < axis else at - more + 1)

    if rank == 0:
        return f"np.empty({x}.shape, {x}.dtype)"  # refused by the public call
    ndim = rank + more - 1
    sizes = {at: of(at, 0) if x == "weight" else _at_axis(rank, functools.partial(of, at)) for at in range(ndim)}
    return shaped(x, sizes, ndim, f"{x}.dtype")


def _scattered(types: dict[str, Any]) -> str:
    """The axes of the indices give way to one."""
    more, size = types["indices"].ndim, types.get("size", types.get("num_embeddings"))
    rank = types["dy"].ndim - more + 1
    if rank < 1 or not isinstance(size, str):
        return "np.empty((0,), dy.dtype)"  # refused by the public call

    def of(at: int, axis: int) -> str:
        return f"max({size}, 0)" if at == axis else _size("dy", at if at < axis else at + more - 1)

    fixed = "num_embeddings" in types
    sizes = {at: of(at, 0) if fixed else _at_axis(rank, functools.partial(of, at)) for at in range(rank)}
    return shaped("dy", sizes, rank, "dy.dtype")


def _one_hot(types: dict[str, Any]) -> str:
    rank, depth = types["indices"].ndim + 1, types["depth"]
    depth = depth if isinstance(depth, str) else "0"  # refused by the public call

    def of(at: int, axis: int) -> str:
        return f"max({depth}, 0)" if at == axis else _size("indices", at if at < axis else at - 1)

    sizes = {at: _at_axis(rank, functools.partial(of, at)) for at in range(rank)}
    return shaped("indices", sizes, rank, dtype_of(types.get("dtype")))


def _by_indices(result: Callable[[dict[str, Any]], str], *whole: str, **more: Any) -> Row:
    """With the status that says which index is out of range: -1 for none, which is all that a call that Python makes
    leaves there."""
    status = {"=status": lambda types: f"np.full(({STATUS},), -1)"}
    return Row(
        {"out": result, **status},
        whole=(*whole, "indices", "out"),
        own=("=status",),
        refused="result_1[0] >= 0",
        **more,
    )


# ---------------------------------------------------------------- random numbers


def _drawn(types: dict[str, Any]) -> str:
    if "shape" not in types:
        raise TypeError("random numbers inside @njit: shape is None and so is out; one of them says how many are drawn")
    return said("shape", dtype_of(types.get("dtype", "float32")))(types)


_RANDOM: dict[str, Any] = {"arrays": ("out",), "windows": ("shape",)}

MOVE_ROWS: dict[str, Row] = {
    "transform": Row({"out": _transformed}, windows=("axes",)),
    "fill": Row({"x": lambda types: ""}),
    "concat": Row({"out": _concatenated}),
    "split": Row(_split, windows=("sizes",), counted=("sizes",)),
    "pad": Row({"out": _padded}, windows=("pads",), keyed=("value",)),
    "pad_backward": Row({"out": said("shape", "dy.dtype")}, windows=("shape", "pads")),
    "gather": _by_indices(_gathered),
    "gather_backward": _by_indices(_scattered, "dy"),
    "embedding": _by_indices(_gathered, optional=("padding_idx",)),
    "embedding_backward": _by_indices(_scattered, "dy", windows=("num_embeddings",), optional=("padding_idx",)),
    "one_hot": Row({"out": _one_hot}, windows=("depth",), keyed=("on_value", "off_value"), whole=("indices", "out")),
    "random_uniform": Row({"out": _drawn}, keyed=("low", "high"), **_RANDOM),
    "random_normal": Row({"out": _drawn}, keyed=("mean", "std"), **_RANDOM),
}
