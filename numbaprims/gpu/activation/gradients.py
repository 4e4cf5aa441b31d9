"""dx of every kind from dy and from what its gradient reads, x or y, of one number in float32 or float64."""

from __future__ import annotations

import math

from numbaprims.formulas.activations import GELU_TANH_RANGE, Formula, gelu_tanh_argument
from numbaprims.formulas.gradients import ARITHMETIC, Slopes, of_machine
from numbaprims.formulas.value import at_most, between, mad, magnitude
from numbaprims.gpu.activation.formulas import MACHINE
from numbaprims.gpu.device.math import exp_and_sum_value, reciprocal_value, sigmoid_and_rest
from numbaprims.gpu.device.value import Value

# e**x below counts as 0: there the slopes are what they are at infinity.
_LOWEST = {32: -88.0, 64: -746.0}


def softsign(dy: Value, x: Value) -> Value:
    # from 2**60 on the slope is nothing, and the reciprocal not yet subnormal
    r = reciprocal_value(at_most(magnitude(x) + 1.0, {32: 2.0**120, 64: 2.0**1000}[x.width]))
    return (dy * r) * r


def gelu_tanh(dy: Value, x: Value) -> Value:
    # with s = sigmoid v, v = 2 sqrt(2 / pi) (x + 0.044715 x**3): s + x s (1 - s) v'
    k = 2.0 * math.sqrt(2.0 / math.pi)
    z = between(x, GELU_TANH_RANGE[x.width])
    s, rest = sigmoid_and_rest(gelu_tanh_argument(z))
    slope = mad(z * z, 3.0 * 0.044715 * k, k)
    return dy * mad((z * slope) * s, rest, s)


def silu(dy: Value, x: Value) -> Value:
    lowest = _LOWEST[x.width]
    z = between(x, (lowest, -lowest))
    s, rest = sigmoid_and_rest(z)
    return dy * mad(z * s, rest, s)


_SLOPES = Slopes(
    sigmoid=lambda x: sigmoid_and_rest(x)[0],
    sigmoid_and_rest=sigmoid_and_rest,
    exp_and_2=lambda x: exp_and_sum_value(x, 2.0),
    reciprocal=reciprocal_value,
    lowest=_LOWEST,
)

#: kind -> (formula of dy and what the table says that it reads, how many of the parameters it takes)
BACKWARD: dict[str, tuple[Formula, int]] = {
    **ARITHMETIC,
    **of_machine(MACHINE, _SLOPES),
    "softsign": (softsign, 0),
    "gelu_tanh": (gelu_tanh, 0),
    "silu": (silu, 0),
}
glu = BACKWARD.pop("glu")[0]

#: As in `formulas`: one kernel holds them all.
CHEAP = (
    "identity", "relu", "leaky_relu", "prelu", "clipped_relu", "sigmoid", "tanh", "abs", "power_2", "hard_sigmoid",
    "hard_swish", "hard_tanh", "exp", "square", "round", "clip", "threshold",
)  # fmt: skip
