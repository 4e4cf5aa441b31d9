"""y of every kind, of one number in float32 or float64.

A formula takes x and the kind's parameters in the order of the table of kinds. Comparisons are written so that NaN
falls through to the branch that keeps it. The shapes of the formulas are those of the CPU; what differs is what is
cheap: a minimum or maximum is one instruction, a division six, and no exponential may overflow, because the division
that follows is not the one of IEEE 754.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from numbaprims.gpu.device.math import (
    divide_value,
    erf_value,
    exp_normal_value,
    exp_value,
    expm1_value,
    log_value,
    nearest_value,
    power_value,
    quotient_value,
    sigmoid_and_rest,
    sigmoid_value,
    softplus_value,
    sqrt_value,
    tanh_value,
)
from numbaprims.gpu.device.value import Value, at_least, at_most, mad, magnitude, select
from numbaprims.ops.activation_kinds import SELU_ALPHA, SELU_SCALE

Formula = Callable[..., Value]


def expm1_below_0(x: Value) -> Value:
    """e**min(x, 0) - 1."""
    return expm1_value(at_most(x, 0.0))


# ---------------------------------------------------------------- arithmetic alone


def relu(x: Value) -> Value:
    return at_least(x, 0.0)


def leaky_relu(x: Value, slope: Value) -> Value:
    return select(x > 0.0, x, x * slope)


def clipped_relu(x: Value, alpha: Value) -> Value:
    return at_most(at_least(x, 0.0), alpha)


def hard_tanh(x: Value, least: Value, most: Value) -> Value:
    return at_most(at_least(x, least), most)


def hard_sigmoid(x: Value) -> Value:
    return at_most(at_least(x + 3.0, 0.0), 6.0) * (1.0 / 6.0)


def hard_swish(x: Value) -> Value:
    # 6 times the float next to 1/6 is 1: large x come out as they went in
    return x * (at_most(at_least(x + 3.0, 0.0), 6.0) * (1.0 / 6.0))


def threshold(x: Value, limit: Value, value: Value) -> Value:
    return select(x <= limit, value, x)


def power_2(x: Value, alpha: Value, beta: Value) -> Value:
    base = mad(beta, x, alpha)
    return base * base


# ---------------------------------------------------------------- divisions, exponentials, logarithms


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


def normal_distribution(x: Value) -> Value:
    """The normal distribution with an absolute error of half a unit in the last place of 1; 0 far below 0."""
    return mad(erf_value(x * math.sqrt(0.5)), 0.5, 0.5)


def gelu(x: Value) -> Value:
    return x * normal_distribution(x)


def gelu_tanh_argument(x: Value) -> Value:
    """2 sqrt(2 / pi) (x + 0.044715 x**3): twice the argument of the tanh."""
    k = 2.0 * math.sqrt(2.0 / math.pi)
    return x * mad(x * x, 0.044715 * k, k)


def gelu_tanh(x: Value) -> Value:
    # (1 + tanh u) / 2 = sigmoid 2u
    return x * sigmoid_and_rest(gelu_tanh_argument(x))[0]


def mish(x: Value) -> Value:
    # tanh(log(1 + e)) = w / (w + 2) with w = e (e + 2), which is 1 in all its digits long before e**20
    e = exp_value(at_most(x, 20.0)) if x.width == 64 else exp_normal_value(at_most(x, 20.0))
    w = mad(e, e, e + e)
    return x * quotient_value(w, w + 2.0)


def glu(x: Value, gate: Value) -> Value:
    return x * sigmoid_and_rest(gate)[0]


#: kind -> (formula, how many of the parameters it takes)
FORWARD: dict[str, tuple[Formula, int]] = {
    "identity": (lambda x: x, 0),
    "relu": (relu, 0),
    "leaky_relu": (leaky_relu, 1),
    "prelu": (leaky_relu, 1),
    "clipped_relu": (clipped_relu, 1),
    "elu": (elu, 1),
    "selu": (selu, 0),
    "celu": (celu, 1),
    "sigmoid": (sigmoid_value, 0),
    "tanh": (tanh_value, 0),
    "softplus": (softplus, 2),
    "softplus_1": (softplus_1, 0),
    "softsign": (softsign, 0),
    "abs": (magnitude, 0),
    "power": (power, 3),
    "power_2": (power_2, 2),
    "gelu": (gelu, 0),
    "gelu_tanh": (gelu_tanh, 0),
    "silu": (silu, 0),
    "mish": (mish, 0),
    "hard_sigmoid": (hard_sigmoid, 0),
    "hard_swish": (hard_swish, 0),
    "hard_tanh": (hard_tanh, 2),
    "exp": (exp_value, 0),
    "log": (log_value, 0),
    "sqrt": (sqrt_value, 0),
    "square": (lambda x: x * x, 0),
    "round": (nearest_value, 0),
    "clip": (hard_tanh, 2),
    "threshold": (threshold, 2),
}

#: Kinds of two arrays: prelu with a slope a channel, glu with its gate.
BINARY: dict[str, Formula] = {"prelu": leaky_relu, "glu": glu}

#: Kinds whose arithmetic is a few instructions: one kernel holds them all and is told which at run time.
CHEAP = (
    "identity", "relu", "leaky_relu", "prelu", "clipped_relu", "abs", "power_2", "hard_sigmoid", "hard_swish",
    "hard_tanh", "square", "round", "clip", "threshold",
)  # fmt: skip
