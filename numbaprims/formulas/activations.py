"""y of the kinds of activation: those that are arithmetic alone, and the others from what a machine has.

A formula takes x and the kind's parameters in the order of the table of kinds. Comparisons are written so that NaN
falls through to the branch that keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from numbaprims.formulas.elementary import erf_value, exp2_value, expm1_value
from numbaprims.formulas.hyperbolic import (
    Quotient,
    Root,
    acosh_value,
    asinh_value,
    atanh_value,
    cosh_value,
    erfc_value,
    log2_value,
    log10_value,
    sinh_value,
    tanh_shrink_value,
)
from numbaprims.formulas.trigonometric import acos_value, asin_value, atan_value, cos_value, sin_value, tan_value
from numbaprims.formulas.value import V, at_least, at_most, mad, magnitude, negative, select, with_sign_of
from numbaprims.ops.activation_kinds import SELU_ALPHA, SELU_SCALE

Formula = Callable[..., Any]


def relu(x: V) -> V:
    return at_least(x, 0)


def leaky_relu(x: V, slope: V) -> V:
    return select(x > 0.0, x, x * slope)


def clipped_relu(x: V, alpha: V) -> V:
    return at_most(at_least(x, 0.0), alpha)


def hard_tanh(x: V, least: V, most: V) -> V:
    return at_most(at_least(x, least), most)


def hard_sigmoid(x: V) -> V:
    return at_most(at_least(x + 3.0, 0.0), 6.0) * (1.0 / 6.0)


def hard_swish(x: V) -> V:
    # 6 times the float next to 1/6 is 1: large x come out as they went in
    return x * hard_sigmoid(x)


def threshold(x: V, limit: V, value: V) -> V:
    return select(x <= limit, value, x)


def power_2(x: V, alpha: V, beta: V) -> V:
    base = mad(beta, x, alpha)
    return base * base


def gelu_tanh_argument(x: V) -> V:
    """2 sqrt(2 / pi) (x + 0.044715 x**3): twice the argument of the tanh."""
    k = 2.0 * math.sqrt(2.0 / math.pi)
    return x * mad(x * x, 0.044715 * k, k)


#: Beyond, as far as a float is concerned, the sigmoid of that argument is 0 and 1: by bits of a float.
GELU_TANH_RANGE = {32: (-10.7, 9.0), 64: (-21.6, 21.0)}


def sign(x: V) -> V:
    return select(x > 0.0, 1.0, select(x < 0.0, -1.0, x))


def shrink(x: V, lambd: V, by: V) -> V:
    return select(magnitude(x) <= lambd, 0.0, select(x > 0.0, x - by, x + by))


class Machine(NamedTuple):
    """What a machine computes in its own way, of numbers as `Value`s."""

    divide: Quotient[Any]
    quotient: Quotient[Any]
    """Of numbers that are neither subnormal nor infinite."""
    reciprocal: Formula
    root: Root[Any]
    nearest: Formula
    exp: Formula
    exp_below_0: Formula
    """e**min(x, 0)."""
    expm1: Formula
    expm1_below_0: Formula
    """e**x - 1 for x <= 0; -0 stays -0."""
    exp_and_2: Formula
    """(e**x, e**x + 2) for x up to 20, of which it takes what is more for 20."""
    softplus: Formula
    sigmoid: Formula
    times_sigmoid: Formula
    """x, z -> x sigmoid z."""
    tanh: Formula
    power: Formula
    normal_distribution: Formula
    """(the distribution, e**(-x**2 / 2))."""


def of_machine(m: Machine) -> dict[str, tuple[Formula, int]]:
    """The kinds that stand on exponentials, quotients and roots."""
    quotient, root = m.quotient, m.root

    def elu(x: V, alpha: V) -> V:
        return select(x > 0.0, x, m.expm1_below_0(x) * alpha)

    def selu(x: V) -> V:
        return select(x > 0.0, x * SELU_SCALE, m.expm1_below_0(x) * (SELU_SCALE * SELU_ALPHA))

    def celu(x: V, alpha: V) -> V:
        # a negative alpha turns the curve round: x / alpha is large where x is small
        return select(x > 0.0, x, m.expm1(m.divide(x, alpha)) * alpha)

    def softplus_1(x: V) -> V:
        y = m.softplus(x)
        # e**-20 is nothing beside 20 in float32
        return y if x.width == 32 else select(x > 20.0, x, y)

    def softplus(x: V, beta: V, limit: V) -> V:
        z = x * beta
        return select(z > limit, x, m.divide(m.softplus(z), beta))

    def mish(x: V) -> V:
        # tanh(log(1 + e)) = w / (w + 2) with w = e (e + 2), which is 1 in all its digits long before e**20
        e, two_more = m.exp_and_2(x)
        return x * quotient(e * two_more, mad(e, two_more, 2.0))

    def floor(x: V) -> V:
        n = m.nearest(x)
        return select(n > x, n - 1.0, n)

    def ceil(x: V) -> V:
        n = m.nearest(x)
        return with_sign_of(select(n < x, n + 1.0, n), x)  # of -1/2 it is -0

    return {
        "elu": (elu, 1),
        "selu": (selu, 0),
        "celu": (celu, 1),
        "sigmoid": (m.sigmoid, 0),
        "tanh": (m.tanh, 0),
        "softplus": (softplus, 2),
        "softplus_1": (softplus_1, 0),
        "softsign": (lambda x: m.divide(x, magnitude(x) + 1.0), 0),
        "power": (lambda x, alpha, beta, gamma: m.power(mad(beta, x, alpha), gamma), 3),
        "gelu": (lambda x: x * m.normal_distribution(x)[0], 0),
        # (1 + tanh u) / 2 = sigmoid 2u
        "gelu_tanh": (lambda x: m.times_sigmoid(x, gelu_tanh_argument(x)), 0),
        "silu": (lambda x: m.times_sigmoid(x, x), 0),
        "mish": (mish, 0),
        "sqrt": (root, 0),
        "round": (m.nearest, 0),
        "floor": (floor, 0),
        "ceil": (ceil, 0),
        "log_sigmoid": (lambda x: negative(m.softplus(negative(x))), 0),
        "tanh_shrink": (lambda x: tanh_shrink_value(x, m.tanh(x)), 0),
        "reciprocal": (m.reciprocal, 0),
        "rsqrt": (lambda x: m.reciprocal(root(x)), 0),
        "tan": (lambda x: tan_value(x, quotient), 0),
        "asin": (lambda x: asin_value(x, root), 0),
        "acos": (lambda x: acos_value(x, root), 0),
        "atan": (lambda x: atan_value(x, quotient), 0),
        "asinh": (lambda x: asinh_value(x, quotient, root), 0),
        "acosh": (lambda x: acosh_value(x, quotient, root), 0),
        "atanh": (lambda x: atanh_value(x, quotient), 0),
        "log2": (lambda x: log2_value(x, quotient), 0),
        "log10": (lambda x: log10_value(x, quotient), 0),
        "erfc": (lambda x: erfc_value(x, quotient), 0),
    }


#: kind -> (formula, how many of the parameters it takes)
ARITHMETIC: dict[str, tuple[Formula, int]] = {
    "identity": (lambda x: x, 0),
    "relu": (relu, 0),
    "leaky_relu": (leaky_relu, 1),
    "prelu": (leaky_relu, 1),
    "clipped_relu": (clipped_relu, 1),
    "abs": (magnitude, 0),
    "power_2": (power_2, 2),
    "hard_sigmoid": (hard_sigmoid, 0),
    "hard_swish": (hard_swish, 0),
    "hard_tanh": (hard_tanh, 2),
    "square": (lambda x: x * x, 0),
    "clip": (hard_tanh, 2),
    "threshold": (threshold, 2),
    "exp2": (exp2_value, 0),
    "expm1": (expm1_value, 0),
    "erf": (erf_value, 0),
    "sign": (sign, 0),
    "sin": (sin_value, 0),
    "cos": (cos_value, 0),
    "sinh": (sinh_value, 0),
    "cosh": (cosh_value, 0),
    "neg": (negative, 0),
    "shrink": (shrink, 2),
    "soft_shrink": (lambda x, lambd: shrink(x, lambd, lambd), 1),
}
