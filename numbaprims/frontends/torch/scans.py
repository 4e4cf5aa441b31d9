"""Cumulative sums, whose gradients are sums from the other end, products, and topk, whose gradients go where
it took from."""

from __future__ import annotations

from typing import Any

import torch

import numbaprims
from numbaprims.frontends.torch.rules import Rule, adjoint, through, wrapped

cumsum = wrapped(
    adjoint("cumsum", "x", backward=lambda dy, *, reverse, **words: numbaprims.cumsum(dy, reverse=not reverse, **words))
)


def _products(x: Any, *, axis: int, exclusive: bool, reverse: bool) -> Any:
    """The definition by functions that torch differentiates, zeros among the elements too."""
    x = x.flip(axis) if reverse else x
    y = torch.cumprod(x, axis)
    if exclusive:
        y = torch.cat(
            [torch.ones_like(y.narrow(axis, 0, min(1, y.shape[axis]))), y.narrow(axis, 0, max(0, y.shape[axis] - 1))],
            axis,
        )
    return y.flip(axis) if reverse else y


_differentiated = through(_products)
cumprod = wrapped(Rule("cumprod", "x", "y", "x", _differentiated, _differentiated))


def _put(dy: Any, x: Any, indices: Any, *, axis: int, **words: Any) -> Any:
    """The gradient at the places that were taken, 0 elsewhere; torch differentiates it again."""
    return torch.zeros_like(x, dtype=dy.dtype).scatter(axis, indices, dy)


topk = wrapped(Rule("topk", "x", "values indices", "x indices", _put, _put))
