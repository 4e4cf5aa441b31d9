"""Pooling with gradients of any order.

A maximum's gradient goes to its place, an average's and its own gradient are each other's adjoints,
and a norm is composed of powers and averages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import numbaprims
from numbaprims.frontends.torch import activations
from numbaprims.frontends.torch.recording import differentiable, product
from numbaprims.frontends.torch.rules import Rule, adjoint, through, wide, wrapped
from numbaprims.shapes import channels_last


def _sizes(x: Any, layout: str, **others: Any) -> dict[str, Any]:
    """The spatial sizes, which gradients need of x."""
    return {"size": tuple(x.shape[1:-1] if channels_last(layout, x.ndim - 2) else x.shape[2:])}


# ---------------------------------------------------------------- maxima


def _max_rule(name: str) -> Rule:
    """Of a maximum. Its gradient looks for the places again: to keep them costs 10 to 60 % more, and x, which most
    often is the result of an activation, is kept for that."""

    def again(dy: Any, x: Any, *, layout: str, **others: Any) -> Any:
        find = numbaprims.max_pool if name == "max_pool" else numbaprims.adaptive_max_pool
        given = {"output_size": 1} if name == "global_max_pool" else others
        indices = find(x.detach(), layout=layout, **{**given, "return_indices": True})[1]
        last = channels_last(layout, dy.ndim - 2)
        if last:
            dy, x, indices = (each.movedim(-1, 1) for each in (dy, x, indices))
        dx = torch.zeros_like(x).flatten(2).scatter_add(2, indices.flatten(2), dy.flatten(2)).unflatten(2, x.shape[2:])
        return dx.movedim(1, -1) if last else dx

    return Rule(name, "x", "y indices", "x", again)


# ---------------------------------------------------------------- norms


def _composed_norm(x: Any, y: Any, *, p: float, **window: Any) -> Any:
    """From averages, times what they were divided by: a window may reach over the border."""
    ones = torch.ones_like(x)
    counted = numbaprims.lp_pool(ones, p=1.0, **window) / numbaprims.avg_pool(ones, **window)
    sums = product(avg_pool(activations.power(activations.abs(x), 0.0, 1.0, p), **window), counted)
    return activations.power(sums, 0.0, 1.0, 1.0 / p)


# ---------------------------------------------------------------- the public functions


def in_order_of_x(rule: Rule) -> Callable[..., Any]:
    """The public function of a rule, whose results lie in memory as x does, channels first or last."""
    original = getattr(numbaprims, rule.name)
    inner = wrapped(rule)

    @differentiable(original)
    def function(x: Any, *args: Any, **words: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.ndim == 5:
            x = wide(x, ("cpu",))  # torch has no volumes of halves there
        if "out" in words or not _lies_last(x, words.get("layout", "NCHW")):
            return inner(x, *args, **words)
        found = inner(x.movedim(1, -1), *args, **{**words, "layout": "NHWC"})
        return tuple(y.movedim(-1, 1) for y in found) if isinstance(found, tuple) else found.movedim(-1, 1)

    return function


def _lies_last(x: Any, layout: Any) -> bool:
    """Whether channels are meant to be first and lie last, as the result then does, too."""
    if not isinstance(x, torch.Tensor) or not 3 <= x.ndim <= 5 or channels_last(layout, x.ndim - 2):
        return False
    return x.stride(1) == 1 and not x.is_contiguous() and x.movedim(1, -1).is_contiguous()


max_pool, adaptive_max_pool, global_max_pool = (
    in_order_of_x(_max_rule(f"{kind}max_pool")) for kind in ("", "adaptive_", "global_")
)
avg_pool, adaptive_avg_pool, global_avg_pool = (
    in_order_of_x(adjoint(f"{kind}avg_pool", "x", also=_sizes)) for kind in ("", "adaptive_", "global_")
)
lp_pool = in_order_of_x(Rule("lp_pool", "x", "y", "x y", through(_composed_norm)))
