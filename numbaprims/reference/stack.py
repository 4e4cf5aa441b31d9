"""Stacks of layers by definition, in float64, one operation after another over (n, c, height, width)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from numbaprims.ops.activation_kinds import KINDS
from numbaprims.reference import pooling
from numbaprims.reference.activation import activation
from numbaprims.stacks.operations import Operation, Size, Window

#: Kinds that kernels know by names of their own.
SPECIAL = {"gelu_tanh": "gelu", "softplus_1": "softplus", "power_2": "power"}


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


def _pool(window: Window, x: np.ndarray) -> np.ndarray:
    h, w = x.shape[2:]
    problem = _Pool(window.op, (h, w), window.out_size((h, w)), *window[1:6], window.count_include_pad)
    return pooling.forward(problem, x)[0]


#: Element-wise operations that are no activation: of x, the parameters and what is added.
_FORMULAS: dict[str, Any] = {
    "batch_norm": lambda x, p, a: (x - p[0]) * p[1] + p[2],
    "affine": lambda x, p, a: x * p[0] + p[1],
    "bias": lambda x, p, a: x + p[0],
    "scale": lambda x, p, a: x * p[0],
    "add": lambda x, p, a: x + a,
}


def _activate(kind: str, x: np.ndarray, p: Sequence[float]) -> np.ndarray:
    """An activation by the names of kernels and their parameters."""
    name = SPECIAL.get(kind, kind)
    words: dict[str, Any] = dict(zip(KINDS[name].parameters, p, strict=False))
    if kind == "gelu_tanh":
        words = {"approximate": "tanh"}
    elif kind == "power_2":
        words["gamma"] = 2.0
    y: np.ndarray = activation(x, name, **words)
    return y


def walk(
    operations: Sequence[Operation], x: np.ndarray, parameters: Any = None, added: Sequence[np.ndarray] = ()
) -> Iterator[tuple[Operation, np.ndarray]]:
    """(operation, its result) of one after another; `parameters` is (c, numbers)."""
    at, more = 0, iter(added)
    for each in operations:
        if isinstance(each, Window):
            x = _pool(each, x)
        else:
            p = [] if parameters is None else [parameters[:, at + k, None, None] for k in range(each.numbers)]
            at += each.numbers
            if each.kind in _FORMULAS:
                x = _FORMULAS[each.kind](x, p, next(more) if each.kind == "add" else None)
            elif not p:
                x = _activate(each.kind, x, ())
            else:  # each channel has its own
                channels = (
                    _activate(each.kind, x[:, k : k + 1], [float(values[k, 0, 0]) for values in p])
                    for k in range(x.shape[1])
                )
                x = np.concatenate(list(channels), 1)
        yield each, x


def stack(
    operations: Sequence[Operation], x: np.ndarray, parameters: Any = None, added: Sequence[np.ndarray] = ()
) -> np.ndarray:
    """The result of the last operation."""
    for _, each in walk(operations, x, parameters, added):
        x = each
    return x
