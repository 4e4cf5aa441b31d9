"""``config(device="reference")``: an activation by its float64 definition, past the dispatcher."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims.ops._activation_problem import Posed
from numbaprims.ops.activation_kinds import KINDS
from numbaprims.reference import activation as reference
from numbaprims.reference.convert import from_float64, to_float64

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


def named_parameters(kind: str, values: tuple[float, float, float]) -> tuple[str, dict[str, Any]]:
    """A kernel's kind and its three numbers as the table's kind and named parameters."""
    if kind == "gelu_tanh":
        return "gelu", {"approximate": "tanh"}
    if kind == "softplus_1":
        return "softplus", {}
    if kind == "power_2":
        return "power", {"alpha": values[0], "beta": values[1], "gamma": 2.0}
    names = [name for name in KINDS[kind].parameters if name not in ("weight", "axis", "approximate")]
    return kind, dict(zip(names, values, strict=False))


def compute(posed: Posed, parameters: tuple[float, float, float]) -> None:
    """The result of a checked call, written into its output."""
    inputs = {name: to_float64(x, posed.dtype) for name, x in posed.inputs.items()}
    kind, named = named_parameters(posed.kind, parameters)
    if kind == "glu":
        named["axis"] = posed.axis
    if kind == "prelu":
        weight = inputs.get("weight")
        # the broadcast weight again as one value a channel
        named["weight"] = (
            parameters[0] if weight is None else np.moveaxis(weight, 1, 0).reshape(weight.shape[1], -1)[:, 0]
        )
        if posed.direction == "weight":
            named["weight"] = np.zeros(posed.out.shape)
    with np.errstate(all="ignore"):
        if posed.direction == "forward":
            values = reference.activation(inputs["x"], kind, **named)
        else:
            inverse: Any = _INVERSE.get(kind, np.zeros_like)
            x = inputs["x"] if "x" in inputs else inverse(inputs.get("y", inputs["dy"]))
            values = reference.activation_backward(inputs["dy"], x, kind, **named)
            if kind == "prelu":
                values = values[1 if posed.direction == "weight" else 0]
        posed.out[...] = from_float64(values, posed.dtype)
