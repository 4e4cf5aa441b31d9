"""Dropout with gradients of any order: each is the same function of the gradient."""

from __future__ import annotations

from typing import Any

import numbaprims
from numbaprims.frontends.torch.rules import Rule, RuleFunction, wrapped


def _backward(dy: Any, **others: Any) -> Any:
    return numbaprims.dropout_backward(dy, **others)


def _again(dy: Any, **others: Any) -> Any:
    return RuleFunction.apply(_RULE, others, dy)


_RULE = Rule("dropout", "x", "y", "", _backward, _again)
dropout = wrapped(_RULE)
