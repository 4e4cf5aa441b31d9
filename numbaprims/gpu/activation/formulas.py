"""y of every kind, of one number in float32 or float64.

Those that are arithmetic alone are shared with the CPU. The shapes of the others are the CPU's too; what differs is
what is cheap: a division is six instructions, and no exponential may overflow, because the division that follows is not
the one of IEEE 754.
"""

from __future__ import annotations

from numbaprims.formulas.activations import ARITHMETIC, Formula, ceil, floor, gelu_tanh_argument, leaky_relu, of_machine
from numbaprims.formulas.elementary import exp_value, expm1_value
from numbaprims.formulas.hyperbolic import tanh_shrink_value
from numbaprims.formulas.value import at_most, mad, magnitude, nearest, negative, select
from numbaprims.gpu.device.math import (
    divide_value,
    exp_and_sum_value,
    log1p_value,
    log_value,
    normal_distribution,
    power_value,
    quotient_value,
    sigmoid_and_rest,
    sigmoid_value,
    softplus_value,
    sqrt_value,
    tanh_value,
)
from numbaprims.gpu.device.value import Value
from numbaprims.ops.activation_kinds import SELU_ALPHA, SELU_SCALE


def expm1_below_0(x: Value) -> Value:
    """e**x - 1 for x <= 0; as on the CPU not at most 0, lest -0 become 0."""
    return expm1_value(at_most(x, 1.0))


def softsign(x: Value) -> Value:
    return divide_value(x, magnitude(x) + 1.0)


def elu(x: Value, alpha: Value) -> Value:
    return select(x > 0.0, x, expm1_below_0(x) * alpha)


def selu(x: Value) -> Value:
    return select(x > 0.0, x * SELU_SCALE, expm1_below_0(x) * (SELU_SCALE * SELU_ALPHA))


def celu(x: Value, alpha: Value) -> Value:
    # a negative alpha turns the curve round: x / alpha is large where x is small
    z = divide_value(x, alpha)
    return select(x > 0.0, x, expm1_value(z) * alpha)


def silu(x: Value) -> Value:
    return x * sigmoid_and_rest(x)[0]


def softplus_1(x: Value) -> Value:
    y = softplus_value(x)
    # e**-20 is nothing beside 20 in float32
    return y if x.width == 32 else select(x > 20.0, x, y)


def softplus(x: Value, beta: Value, limit: Value) -> Value:
    z = x * beta
    return select(z > limit, x, divide_value(softplus_value(z), beta))


def power(x: Value, alpha: Value, beta: Value, gamma: Value) -> Value:
    return power_value(mad(beta, x, alpha), gamma)


def gelu(x: Value) -> Value:
    return x * normal_distribution(x)[0]


def gelu_tanh(x: Value) -> Value:
    # (1 + tanh u) / 2 = sigmoid 2u
    return x * sigmoid_and_rest(gelu_tanh_argument(x))[0]


def mish(x: Value) -> Value:
    # tanh(log(1 + e)) = w / (w + 2) with w = e (e + 2), which is 1 in all its digits long before e**20
    e, two_more = exp_and_sum_value(at_most(x, 20.0), 2.0)
    return x * quotient_value(e * two_more, mad(e, two_more, 2.0))


def glu(x: Value, gate: Value) -> Value:
    return x * sigmoid_and_rest(gate)[0]


#: kind -> (formula, how many of the parameters it takes)
FORWARD: dict[str, tuple[Formula, int]] = {
    **ARITHMETIC,
    **of_machine(quotient_value, sqrt_value),
    "elu": (elu, 1),
    "selu": (selu, 0),
    "celu": (celu, 1),
    "sigmoid": (sigmoid_value, 0),
    "tanh": (tanh_value, 0),
    "softplus": (softplus, 2),
    "softplus_1": (softplus_1, 0),
    "softsign": (softsign, 0),
    "power": (power, 3),
    "gelu": (gelu, 0),
    "gelu_tanh": (gelu_tanh, 0),
    "silu": (silu, 0),
    "mish": (mish, 0),
    "exp": (exp_value, 0),
    "log": (log_value, 0),
    "sqrt": (sqrt_value, 0),
    "round": (nearest, 0),
    "log1p": (log1p_value, 0),
    "log_sigmoid": (lambda x: negative(softplus_value(negative(x))), 0),
    "tanh_shrink": (lambda x: tanh_shrink_value(x, tanh_value(x)), 0),
    "reciprocal": (lambda x: divide_value(x.like(1.0), x), 0),
    "rsqrt": (lambda x: divide_value(x.like(1.0), sqrt_value(x)), 0),
    "floor": (lambda x: floor(x, nearest), 0),
    "ceil": (lambda x: ceil(x, nearest), 0),
}

#: Kinds of two arrays: prelu with a slope a channel, glu with its gate.
BINARY: dict[str, Formula] = {"prelu": leaky_relu, "glu": glu}

#: Kinds whose arithmetic is a few instructions: one kernel holds them all and is told which at run time.
CHEAP = (
    "identity", "relu", "leaky_relu", "prelu", "clipped_relu", "abs", "power_2", "hard_sigmoid", "hard_swish",
    "hard_tanh", "square", "round", "clip", "threshold",
)  # fmt: skip
