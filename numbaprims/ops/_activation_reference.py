"""``config(device="reference")``: an activation by its float64 definition, past the dispatcher."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims.ops.activation_kinds import KINDS
from numbaprims.reference import activation as reference

# x from y, for the gradients that are given y only.
_INVERSE = {
    "relu": lambda y: y,
    "sigmoid": lambda y: np.log(y) - np.log1p(-y),
    "tanh": np.arctanh,
    "exp": np.log,
    "sqrt": np.square,
    "exp2": np.log2,
    "expm1": np.log1p,
    "reciprocal": lambda y: 1 / y,
    "rsqrt": lambda y: y**-2,
    "tan": np.arctan,
}


def named_parameters(kind: str, values: tuple[float, ...]) -> tuple[str, dict[str, Any]]:
    """A kernel's kind and its numbers as the table's kind and named parameters."""
    if kind == "gelu_tanh":
        return "gelu", {"approximate": "tanh"}
    if kind == "softplus_1":
        return "softplus", {}
    if kind == "power_2":
        return "power", {"alpha": values[0], "beta": values[1], "gamma": 2.0}
    names = [name for name in KINDS[kind].parameters if name not in ("axis", "approximate")]
    return kind, dict(zip(names, values, strict=False))


def define(direction: str, names: tuple[str, ...], values: Any, options: Any, numbers: tuple[float, ...]) -> Any:
    """The result of a call on arrays of these names."""
    inputs = dict(zip(names, values, strict=True))
    kind, named = ("glu", {"axis": options[1]}) if type(options) is tuple else named_parameters(options, numbers)
    if "weight" in inputs:
        named["weight"] = inputs["weight"]
    if direction == "forward":
        return reference.activation(inputs["x"], kind, **named)
    inverse: Any = _INVERSE.get(kind, np.zeros_like)
    x = inputs["x"] if "x" in inputs else inverse(inputs.get("y", inputs["dy"]))
    found = reference.activation_backward(inputs["dy"], x, kind, **named)
    return found[direction == "weight"] if kind == "prelu" else found
