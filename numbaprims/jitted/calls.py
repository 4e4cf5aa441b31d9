"""Calls whose arguments inside `@njit` are not those of the public function."""

from __future__ import annotations

import functools
from typing import Any

import numbaprims
from numbaprims.ops import _activation_call as _call
from numbaprims.ops._activation_problem import Posed
from numbaprims.ops.random import of_number
from numbaprims.recurrent.parts import RnnPart, ending


def dropout(seed: float, offset: float, **words: Any) -> None:
    """`numbaprims.dropout`, whose seed and offset come as floats of their bits."""
    numbaprims.dropout(seed=of_number(seed), offset=of_number(offset), **words)


def dropout_backward(seed: float, offset: float, **words: Any) -> None:
    """The same of its gradient."""
    numbaprims.dropout_backward(seed=of_number(seed), offset=of_number(offset), **words)


def prelu_backward(dy: Any, x: Any, weight: Any, out: Any, dweight: Any) -> None:
    """`numbaprims.prelu_backward` with both results given."""
    storage = _call.enter_weight(weight, x)
    single = _call.is_number(storage)
    posed = _call.pose("prelu", "backward", {"dy": dy, "x": x}, out, weight=None if single else storage)
    inputs = {name: posed.inputs[name] for name in ("dy", "x")}
    # the weight's gradient first: dx may overwrite dy or x
    _call.run(Posed("prelu", "weight", posed.dtype, posed.origin, inputs, dweight, dweight), _call.NO_PARAMETERS)
    slope = float(storage.reshape(())[()]) if single else 0.0
    _call.run(posed, (slope, 0.0, 0.0))


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
