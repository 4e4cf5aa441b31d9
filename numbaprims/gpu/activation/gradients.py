"""dx of every kind from dy and from what its gradient reads, x or y, of one number in float32 or float64.

Those that are arithmetic alone are shared with the CPU.
"""

from __future__ import annotations

import math

from numbaprims.formulas.activations import GELU_TANH_RANGE, Formula, gelu_tanh_argument
from numbaprims.formulas.elementary import exp_value
from numbaprims.formulas.gradients import ARITHMETIC, of_machine, tanh_shrink
from numbaprims.formulas.value import at_most, between, mad, magnitude, negative, select
from numbaprims.gpu.device.math import (
    divide_value,
    exp_and_sum_value,
    exp_normal_value,
    normal_distribution,
    power_value,
    reciprocal_value,
    sigmoid_and_rest,
    sqrt_value,
    tanh_value,
)
from numbaprims.gpu.device.value import Value
from numbaprims.ops.activation_kinds import SELU_ALPHA, SELU_SCALE

# e**x below counts as 0: there the slopes are what they are at infinity.
_LOWEST = {32: -88.0, 64: -746.0}


def _exp_below_0(x: Value) -> Value:
    """e**min(x, 0)."""
    return exp_normal_value(at_most(x, 0.0))


def softsign(dy: Value, x: Value) -> Value:
    # from 2**60 on the slope is nothing, and the reciprocal not yet subnormal
    r = reciprocal_value(at_most(magnitude(x) + 1.0, {32: 2.0**120, 64: 2.0**1000}[x.width]))
    return (dy * r) * r


def elu(dy: Value, x: Value, alpha: Value) -> Value:
    return select(x.not_above(0.0), (dy * alpha) * _exp_below_0(x), dy)


def selu(dy: Value, x: Value) -> Value:
    scaled = dy * SELU_SCALE
    return select(x.not_above(0.0), (scaled * SELU_ALPHA) * _exp_below_0(x), scaled)


def celu(dy: Value, x: Value, alpha: Value) -> Value:
    return select(x.not_above(0.0), dy * exp_value(divide_value(x, alpha)), dy)


def softplus(dy: Value, x: Value, beta: Value, limit: Value) -> Value:
    z = x * beta
    return select(z > limit, dy, dy * sigmoid_and_rest(z)[0])


def softplus_1(dy: Value, x: Value) -> Value:
    # sigmoid 20 is 1 less 2e-9, which is 1 in float32
    slope = sigmoid_and_rest(x)[0]
    return dy * (slope if x.width == 32 else select(x > 20.0, 1.0, slope))


def power(dy: Value, x: Value, alpha: Value, beta: Value, gamma: Value) -> Value:
    return (dy * (beta * gamma)) * power_value(mad(beta, x, alpha), gamma - 1.0)


def gelu(dy: Value, x: Value) -> Value:
    below, e = normal_distribution(x)
    return dy * mad(x, e * (1.0 / math.sqrt(2.0 * math.pi)), below)


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


def mish(dy: Value, x: Value) -> Value:
    # e = e**x, w = e (e + 2): tanh(log(1 + e)) = w / (w + 2) and its derivative is 4 e (1 + e) / (w + 2)**2
    z = between(x, (_LOWEST[x.width], 24.0))
    e, two_more = exp_and_sum_value(z, 2.0)
    r = reciprocal_value(mad(e, two_more, 2.0))
    return dy * (mad((z * 4.0) * mad(e, e, e), r, e * two_more) * r)


def glu(dy: Value, x: Value, gate: Value) -> tuple[Value, Value]:
    s, rest = sigmoid_and_rest(gate)
    first = dy * s
    return first, (first * x) * rest


#: kind -> (formula of dy and what the table says that it reads, how many of the parameters it takes)
BACKWARD: dict[str, tuple[Formula, int]] = {
    **ARITHMETIC,
    **of_machine(divide_value, sqrt_value),
    "elu": (elu, 1),
    "selu": (selu, 0),
    "celu": (celu, 1),
    "softplus": (softplus, 2),
    "softplus_1": (softplus_1, 0),
    "softsign": (softsign, 0),
    "power": (power, 3),
    "gelu": (gelu, 0),
    "gelu_tanh": (gelu_tanh, 0),
    "silu": (silu, 0),
    "mish": (mish, 0),
    "log_sigmoid": (lambda dy, x: dy * sigmoid_and_rest(negative(x))[0], 0),
    "tanh_shrink": (tanh_shrink(tanh_value), 0),
    "log": (divide_value, 0),
    "log1p": (lambda dy, x: divide_value(dy, x + 1.0), 0),
    "sqrt": (lambda dy, y: divide_value(dy, y + y), 0),
}

#: As in `formulas`: one kernel holds them all.
CHEAP = (
    "identity", "relu", "leaky_relu", "prelu", "clipped_relu", "sigmoid", "tanh", "abs", "power_2", "hard_sigmoid",
    "hard_swish", "hard_tanh", "exp", "square", "round", "clip", "threshold",
)  # fmt: skip
