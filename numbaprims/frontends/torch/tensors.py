"""Reductions and functions of elements with gradients: those of torch's own functions of the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import numbaprims
from numbaprims import arrays
from numbaprims.frontends.torch.recording import differentiable
from numbaprims.frontends.torch.rules import Rule, through, wrapped
from numbaprims.ops.reduce import REDUCTIONS
from numbaprims.ops.tensor import BINARY


def _composed(x: Any, *, op: str, axis: Any, keepdims: bool, nan: str) -> Any:
    """The definition by functions that torch differentiates."""
    axes = list(range(x.ndim)) if axis is None else list(axis) if isinstance(axis, (tuple, list)) else [axis]
    if not axes:  # of which torch makes all of them
        x, axes, keepdims = x[..., None], [-1], False
    how: Any = {"dim": axes, "keepdim": keepdims}
    if op == "logsumexp":
        return torch.logsumexp(_filled(x, nan, float("-inf")), **how)
    if op in ("mean", "var", "std"):
        mean = torch.nanmean if nan == "omit" else torch.mean
        if op == "mean":
            return mean(x, **how)
        d = x - mean(x, dim=axes, keepdim=True)
        var = mean(d * d, **how)
        return var if op == "var" else var.sqrt()
    if op == "prod":
        y = _filled(x, nan, 1.0)
        for axis in sorted((axis % x.ndim for axis in axes), reverse=True):
            y = y.prod(axis, keepdim=keepdims)
        return y
    if op == "min":
        return torch.amin(_filled(x, nan, float("inf")), **how)
    if op in ("max", "amax"):
        return torch.amax(_filled(x if op == "max" else x.abs(), nan, float("-inf")), **how)
    x = _filled(x, nan, 0.0)
    if op in ("sum", "sum_square", "log_sum"):
        y = (x * x if op == "sum_square" else x).sum(**how)
        return y.log() if op == "log_sum" else y
    return torch.linalg.vector_norm(x, 1.0 if op == "norm1" else 2.0, **how)


def _filled(x: Any, nan: str, fill: float) -> Any:
    return torch.where(x.isnan(), fill, x) if nan == "omit" else x


_again = through(_composed)
_wrapped = wrapped(Rule("reduce", "x", "y", "x", _again, _again))


@differentiable(numbaprims.reduce)
def reduce(x: Any, op: str, *args: Any, **words: Any) -> Any:
    if op in REDUCTIONS and REDUCTIONS[op].gives and isinstance(x, torch.Tensor):
        x = x.detach()  # a place and a truth have no gradient
    return _wrapped(x, op, *args, **words)


# ---------------------------------------------------------------- elements


def _composed_binary(a: Any, b: Any, c: Any, *, op: str, alpha1: float, alpha2: float, beta: float) -> Any:
    names = {"min": "minimum", "max": "maximum", "mod": "remainder", "floor_div": "floor_divide"}
    found = getattr(torch, names.get(op, op))(a * alpha1, b * alpha2)
    return found if c is None else found + beta * c


def _rule(name: str, inputs: str, composed: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    again = through(composed)
    return wrapped(Rule(name, inputs, "y", inputs, again, again, covers=len(inputs.split()), **more))


_binary = _rule(
    "binary", "a b c", _composed_binary, forward=lambda a, b, c, **others: numbaprims.binary(a, b, c=c, **others)
)
where = _rule("where", "condition a b", lambda condition, a, b: torch.where(condition != 0, a, b))
scale = _rule("scale", "x", lambda x, alpha: x * alpha)
_cast = _rule("cast", "x", lambda x, dtype: x.to(dtype))


@differentiable(numbaprims.binary)
def binary(a: Any, b: Any, op: str, **words: Any) -> Any:
    if op in BINARY and (BINARY[op].gives or op == "floor_div"):
        a, b = (x.detach() if isinstance(x, torch.Tensor) else x for x in (a, b))
    return _binary(a, b, op, **words)


@differentiable(numbaprims.cast)
def cast(x: Any, dtype: Any, **words: Any) -> Any:
    own = getattr(torch, arrays.LONG_NAMES[arrays.dtype_name(dtype, "dtype")])
    return _cast(x if own.is_floating_point or not isinstance(x, torch.Tensor) else x.detach(), own, **words)
