"""Calls whose arguments inside `@njit` are not those of the public function."""

from __future__ import annotations

from typing import Any

from numbaprims.ops import _activation_call as _call
from numbaprims.ops._activation_problem import Posed


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
