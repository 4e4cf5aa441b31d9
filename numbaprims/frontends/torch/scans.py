"""Cumulative sums, whose gradients are sums from the other end, and topk, whose gradients go where it took from."""

from __future__ import annotations

from typing import Any

import torch

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


def _put(dy: Any, x: Any, indices: Any, *, axis: int, **words: Any) -> Any:
    """The gradient at the places that were taken, 0 elsewhere; torch differentiates it again."""
    return torch.zeros_like(x, dtype=dy.dtype).scatter(axis, indices, dy)


topk = wrapped(Rule("topk", "x", "values indices", "x indices", _put, _put))
