"""Stacks of layers by definition, in float64, one operation after another over (n, c, height, width)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from numbaprims.ops.activation_kinds import KINDS, SPECIAL
from numbaprims.reference import pooling
from numbaprims.reference.activation import activation, activation_backward
from numbaprims.stacks.operations import Operation, Size, Window


class _Pool(NamedTuple):
    """A window as `pooling.forward` reads it."""

    op: str
    size: Size
    out: Size
    kernel: Size
    stride: Size
    before: Size
    after: Size
    dilation: Size
    count_include_pad: bool
    adaptive: bool = False


def _pool(window: Window, size: Size) -> _Pool:
    return _Pool(window.op, size, window.out_size(size), *window[1:6], window.count_include_pad)


def _depthwise(window: Window, x: np.ndarray, weights: Sequence[np.ndarray]) -> np.ndarray:
    """A sum with weights, an element of the window after the other; padding is 0."""
    padded = np.pad(x, [(0, 0), (0, 0), *zip(window.before, window.after, strict=True)])
    (h, w), (s0, s1), (d0, d1) = window.out_size(x.shape[2:]), window.stride, window.dilation
    taps = np.ndindex(*window.kernel)
    return sum(
        (p * padded[:, :, i * d0 :: s0, j * d1 :: s1][:, :, :h, :w] for (i, j), p in zip(taps, weights, strict=True)),
        np.zeros((*x.shape[:2], h, w)),
    )


def _depthwise_backward(
    window: Window, dy: np.ndarray, x: np.ndarray, weights: Sequence[np.ndarray]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """(dx, the gradient of each weight (c,))"""
    pads = [(0, 0), (0, 0), *zip(window.before, window.after, strict=True)]
    padded = np.pad(x, pads)
    dx, found = np.zeros_like(padded), []
    (h, w), (s0, s1), (d0, d1) = dy.shape[2:], window.stride, window.dilation
    for (i, j), p in zip(np.ndindex(*window.kernel), weights, strict=True):
        seen = (..., slice(i * d0, i * d0 + (h - 1) * s0 + 1, s0), slice(j * d1, j * d1 + (w - 1) * s1 + 1, s1))
        found.append((dy * padded[seen]).sum((0, 2, 3)))
        dx[seen] += dy * p
    return dx[:, :, pads[2][0] :, pads[3][0] :][:, :, : x.shape[2], : x.shape[3]], found


#: Element-wise operations that are no activation: of x, the parameters and what is added.
_FORMULAS: dict[str, Any] = {
    "batch_norm": lambda x, p, a: (x - p[0]) * p[1] + p[2],
    "affine": lambda x, p, a: x * p[0] + p[1],
    "bias": lambda x, p, a: x + p[0],
    "scale": lambda x, p, a: x * p[0],
    "add": lambda x, p, a: x + a,
}


def _named(kind: str, p: Sequence[float]) -> tuple[str, dict[str, Any]]:
    """A kernel's name of an activation and its parameters as those of the definition."""
    name = SPECIAL.get(kind, "leaky_relu" if kind == "prelu" else kind)
    words: dict[str, Any] = dict(zip(KINDS[name].parameters, p, strict=False))
    if kind == "gelu_tanh":
        words = {"approximate": "tanh"}
    elif kind == "power_2":
        words["gamma"] = 2.0
    return name, words


def _by_channel(kind: str, p: Sequence[np.ndarray], function: Any) -> np.ndarray:
    """``function(channels, name, words)`` of the channels that have an activation's parameters in common."""
    if not p:
        found: np.ndarray = function(slice(None), *_named(kind, ()))
        return found
    each = (function(slice(k, k + 1), *_named(kind, [float(v[k, 0, 0]) for v in p])) for k in range(len(p[0])))
    return np.concatenate(list(each), 1)


def walk(
    operations: Sequence[Operation], x: np.ndarray, parameters: Any = None, added: Sequence[np.ndarray] = ()
) -> Iterator[tuple[Operation, np.ndarray]]:
    """(operation, its result) of one after another; `parameters` is (c, numbers)."""
    at, more = 0, iter(added)
    for each in operations:
        p = [] if parameters is None else [parameters[:, at + k, None, None] for k in range(each.numbers)]
        at += each.numbers
        if isinstance(each, Window):
            x = _depthwise(each, x, p) if each.op == "depthwise" else pooling.forward(_pool(each, x.shape[2:]), x)[0]
        else:
            if each.kind in _FORMULAS:
                x = _FORMULAS[each.kind](x, p, next(more) if each.kind == "add" else None)
            else:
                before = x
                x = _by_channel(each.kind, p, lambda c, name, words, of=before: activation(of[:, c], name, **words))
        yield each, x


def stack(
    operations: Sequence[Operation], x: np.ndarray, parameters: Any = None, added: Sequence[np.ndarray] = ()
) -> np.ndarray:
    """The result of the last operation."""
    for _, each in walk(operations, x, parameters, added):
        x = each
    return x


#: Operations -> the gradients of their parameters, of dy, x and the parameters.
_OF_PARAMETERS: dict[str, Any] = {
    "batch_norm": lambda dy, x, p: (-dy * p[1], dy * (x - p[0]), dy),
    "affine": lambda dy, x, p: (dy * x, dy),
    "bias": lambda dy, x, p: (dy,),
    "scale": lambda dy, x, p: (dy * x,),
    "prelu": lambda dy, x, p: (np.where(x > 0, 0.0, dy * x),),
    "leaky_relu": lambda dy, x, p: (np.where(x > 0, 0.0, dy * x),),
}
#: The same of dx.
_OF_X: dict[str, Any] = {
    "batch_norm": lambda dy, p: dy * p[1],
    "affine": lambda dy, p: dy * p[0],
    "bias": lambda dy, p: dy,
    "scale": lambda dy, p: dy * p[0],
    "add": lambda dy, p: dy,
}


def stack_backward(
    operations: Sequence[Operation], dy: np.ndarray, x: np.ndarray, parameters: Any = None,
    added: Sequence[np.ndarray] = (),
) -> tuple[np.ndarray, dict[int, np.ndarray], list[np.ndarray]]:  # fmt: skip
    """(dx, parameter -> its gradient (c,), dy as it arrives at each array that is added), from the last operation to
    the first."""
    taken, at = [x], 0
    for _, y in walk(operations, x, parameters, added):
        taken.append(y)
    ends = []
    for each in operations:
        at += each.numbers
        ends.append(at)
    found, arrived = dict[int, np.ndarray](), list[np.ndarray]()
    for each, x, end in zip(reversed(operations), reversed(taken[:-1]), reversed(ends), strict=True):
        numbers = range(end - each.numbers, end)
        p = [parameters[:, k, None, None] for k in numbers]
        if isinstance(each, Window):
            if each.op == "depthwise":
                dy, sums = _depthwise_backward(each, dy, x, p)
                found |= zip(numbers, sums, strict=True)
            else:
                dy = pooling.backward(_pool(each, x.shape[2:]), dy, x)
            continue
        if p and each.kind in _OF_PARAMETERS:
            for k, values in zip(numbers, _OF_PARAMETERS[each.kind](dy, x, p), strict=True):
                found[k] = values.sum((0, 2, 3))
        if each.kind == "add":
            arrived.insert(0, dy)
        if each.kind in _OF_X:
            dy = _OF_X[each.kind](dy, p)
        else:
            dy = _by_channel(
                each.kind, p,
                lambda c, name, words, dy=dy, x=x: activation_backward(dy[:, c], x[:, c], name, **words),
            )  # fmt: skip
    return dy, found, arrived
