"""Cumulative sums with gradients of any order: the sums of the gradient from the other end."""

from __future__ import annotations

from typing import Any

import numbaprims
from numbaprims.frontends.torch.rules import Rule, RuleFunction, wrapped


def _turned(words: dict[str, Any]) -> dict[str, Any]:
    return {**words, "reverse": not words["reverse"]}


def _backward(dy: Any, **words: Any) -> Any:
    return numbaprims.cumsum(dy, **_turned(words))


def _again(dy: Any, **words: Any) -> Any:
    return RuleFunction.apply(_RULE, _turned(words), dy)


_RULE = Rule("cumsum", "x", "y", "", _backward, _again)
cumsum = wrapped(_RULE)
