"""Calls whose arguments inside `@njit` are not those of the public function."""

from __future__ import annotations

import functools
from typing import Any

import numbaprims
from numbaprims.ops._activation_call import prelu_backward as prelu_backward
from numbaprims.ops.random import of_number
from numbaprims.recurrent.parts import RnnPart, ending


def dropout(seed: float, offset: float, **words: Any) -> None:
    """`numbaprims.dropout`, whose seed and offset come as floats of their bits."""
    numbaprims.dropout(seed=of_number(seed), offset=of_number(offset), **words)


def dropout_backward(seed: float, offset: float, **words: Any) -> None:
    """The same of its gradient."""
    numbaprims.dropout_backward(seed=of_number(seed), offset=of_number(offset), **words)


def _recurrent(function: str, weights: tuple[Any, ...], **given: Any) -> Any:
    """A recurrent network whose weights come one by one, by their names."""
    cell, directions, *more = weights
    parts: list[RnnPart] = []
    while f"w_hh_{ending(len(parts), directions)}" in given:
        end = ending(len(parts), directions)
        parts.append(RnnPart(*(given.pop(f"{field}_{end}", None) for field in RnnPart._fields)))
    network = numbaprims.RnnWeights(cell, tuple(parts), directions, *more)
    return getattr(numbaprims, function)(weights=network, **given)


lstm, gru, rnn = (functools.partial(_recurrent, function) for function in ("lstm", "gru", "rnn"))
