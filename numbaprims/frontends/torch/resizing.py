"""Resizing with gradients of any order: it is linear, and its gradient its adjoint."""

from __future__ import annotations

from typing import Any

import numbaprims
from numbaprims.frontends.torch.pooling import in_order_of_x
from numbaprims.frontends.torch.rules import Rule, RuleFunction


def _shape(x: Any, **others: Any) -> dict[str, Any]:
    return {"shape": tuple(x.shape)}


def _forward(x: Any, *, shape: Any, **others: Any) -> Any:
    return numbaprims.resize(x, **others)


def _adjoint(dy: Any, *, size: Any, **others: Any) -> Any:
    return numbaprims.resize_backward(dy, **others)


def _again(g: Any, **others: Any) -> Any:
    return RuleFunction.apply(_rule, others, g)


_back: Rule = Rule(
    "resize_backward", "dy", "dx", "", _forward,
    _again, forward=_adjoint,
)  # fmt: skip
_rule: Rule = Rule(
    "resize", "x", "y", "", _adjoint, lambda dy, **others: RuleFunction.apply(_back, others, dy),
    forward=_forward, also=_shape,
)  # fmt: skip
resize = in_order_of_x(_rule)
