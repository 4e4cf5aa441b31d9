"""dx of the kinds of activation, from dy and from what it reads, x or y.

Comparisons are written so that at a kink the same side counts as in torch, and so that NaN gives what it gives in
torch's vector code (which differs from its scalar code): NaN, but for slopes that are constant on both sides of a kink.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numbaprims.formulas.activations import Formula, Machine
from numbaprims.formulas.elementary import exp_value
from numbaprims.formulas.hyperbolic import cosh_value, sinh_value
from numbaprims.formulas.trigonometric import cos_value, sin_value
from numbaprims.formulas.value import V, at_most, between as within, mad, magnitude, negative, select
from numbaprims.ops.activation_kinds import SELU_ALPHA, SELU_SCALE


def relu(dy: V, y: V) -> V:
    return select(y <= 0.0, 0.0, dy)


def leaky_relu(dy: V, x: V, slope: V) -> V:
    return select(x > 0.0, dy, dy * slope)


def between(dy: V, x: V, least: Any, most: V) -> V:
    """dy inside of (least, most), 0 elsewhere."""
    return select(x > least, select(x < most, dy, 0.0), 0.0)


def clipped_relu(dy: V, x: V, alpha: V) -> V:
    return between(dy, x, 0.0, alpha)


def clip(dy: V, x: V, least: V, most: V) -> V:
    return select(x >= least, select(x <= most, dy, 0.0), 0.0)


def hard_sigmoid(dy: V, x: V) -> V:
    return select(magnitude(x) < 3.0, dy * (1.0 / 6.0), 0.0)


def hard_swish(dy: V, x: V) -> V:
    middle = dy * mad(x, 1.0 / 3.0, 0.5)
    return select(x <= -3.0, 0.0, select(x >= 3.0, dy, middle))


def absolute(dy: V, x: V) -> V:
    return select(x > 0.0, dy, select(x < 0.0, negative(dy), dy * x))


def threshold(dy: V, x: V, limit: V, value: V) -> V:
    return select(x <= limit, 0.0, dy)


def sigmoid(dy: V, y: V) -> V:
    return dy * (y * (1.0 - y))


def tanh(dy: V, y: V) -> V:
    return dy * mad(negative(y), y, 1.0)


def power_2(dy: V, x: V, alpha: V, beta: V) -> V:
    return (dy * (beta + beta)) * mad(beta, x, alpha)


def erf(dy: V, x: V) -> V:
    # what rounding x**2 took is a factor of its own; beyond, the slope is 0
    a = at_most(magnitude(x), {32: 11.0, 64: 28.0}[x.width])
    square = a * a
    e = exp_value(negative(square))
    return dy * (mad(negative(e), mad(a, a, negative(square)), e) * (2.0 / math.sqrt(math.pi)))


def shrink(dy: V, x: V, *parameters: V) -> V:
    return select(magnitude(x) > parameters[0], dy, 0.0)


class Slopes(NamedTuple):
    """What a machine has for gradients alone."""

    sigmoid: Formula
    sigmoid_and_rest: Formula
    """(s, 1 - s) of s = sigmoid x, both with small relative errors."""
    exp_and_2: Formula
    """(e**x, e**x + 2) of numbers from `lowest` to 24."""
    reciprocal: Formula
    """Of numbers that are neither subnormal nor infinite."""
    lowest: dict[int, float]
    """Below, e**x counts as 0: by bits of a float."""


def of_machine(m: Machine, own: Slopes) -> dict[str, tuple[Formula, int]]:
    """Those that stand on exponentials, quotients and roots."""
    quotient, root = m.divide, m.root

    def elu(dy: V, x: V, alpha: V) -> V:
        return select(x.not_above(0.0), (dy * alpha) * m.exp_below_0(x), dy)

    def selu(dy: V, x: V) -> V:
        scaled = dy * SELU_SCALE
        return select(x.not_above(0.0), (scaled * SELU_ALPHA) * m.exp_below_0(x), scaled)

    def celu(dy: V, x: V, alpha: V) -> V:
        return select(x.not_above(0.0), dy * m.exp(quotient(x, alpha)), dy)

    def softplus(dy: V, x: V, beta: V, limit: V) -> V:
        z = x * beta
        return select(z > limit, dy, dy * own.sigmoid(z))

    def softplus_1(dy: V, x: V) -> V:
        # sigmoid 20 is 1 less 2e-9, which is 1 in float32
        slope = own.sigmoid(x)
        return dy * (slope if x.width == 32 else select(x > 20.0, 1.0, slope))

    def power(dy: V, x: V, alpha: V, beta: V, gamma: V) -> V:
        return (dy * (beta * gamma)) * m.power(mad(beta, x, alpha), gamma - 1.0)

    def gelu(dy: V, x: V) -> V:
        below, e = m.normal_distribution(x)
        return dy * mad(x, e * (1.0 / math.sqrt(2.0 * math.pi)), below)

    def mish(dy: V, x: V) -> V:
        # e = e**x, w = e (e + 2): tanh(log(1 + e)) = w / (w + 2) and its derivative is 4 e (1 + e) / (w + 2)**2
        z = within(x, (own.lowest[x.width], 24.0))
        e, two_more = own.exp_and_2(z)
        r = own.reciprocal(mad(e, two_more, 2.0))
        return dy * (mad((z * 4.0) * mad(e, e, e), r, e * two_more) * r)

    def glu(dy: V, x: V, gate: V) -> tuple[V, V]:
        s, rest = own.sigmoid_and_rest(gate)
        first = dy * s
        return first, (first * x) * rest

    def tanh_shrink(dy: V, x: V) -> V:
        t = m.tanh(x)
        return (dy * t) * t

    def leg(x: V) -> V:
        return root((1.0 - x) * (x + 1.0))

    def hypotenuse(x: V, one: float) -> V:
        # beyond, 1 is nothing beside x**2, which may be infinite
        a = magnitude(x)
        return select(a < 2.0**30, root(mad(x, x, 1.0) if one > 0 else (a - 1.0) * (a + 1.0)), a)

    return {
        "elu": (elu, 1),
        "selu": (selu, 0),
        "celu": (celu, 1),
        "softplus": (softplus, 2),
        "softplus_1": (softplus_1, 0),
        "power": (power, 3),
        "gelu": (gelu, 0),
        "mish": (mish, 0),
        "glu": (glu, 0),
        "log_sigmoid": (lambda dy, x: dy * own.sigmoid(negative(x)), 0),
        "tanh_shrink": (tanh_shrink, 0),
        "log": (quotient, 0),
        "log1p": (lambda dy, x: quotient(dy, x + 1.0), 0),
        "sqrt": (lambda dy, y: quotient(dy, y + y), 0),
        "asin": (lambda dy, x: quotient(dy, leg(x)), 0),
        "acos": (lambda dy, x: quotient(negative(dy), leg(x)), 0),
        "atan": (lambda dy, x: quotient(dy, mad(x, x, 1.0)), 0),
        "asinh": (lambda dy, x: quotient(dy, hypotenuse(x, 1.0)), 0),
        "acosh": (lambda dy, x: quotient(dy, hypotenuse(x, -1.0)), 0),
        "atanh": (lambda dy, x: quotient(dy, (1.0 - x) * (x + 1.0)), 0),
        "log2": (lambda dy, x: quotient(dy * (1.0 / math.log(2.0)), x), 0),
        "log10": (lambda dy, x: quotient(dy * (1.0 / math.log(10.0)), x), 0),
    }


#: kind -> (formula of dy and what the table says that it reads, how many of the parameters it takes)
ARITHMETIC: dict[str, tuple[Formula, int]] = {
    "identity": (lambda dy, _: dy, 0),
    "relu": (relu, 0),
    "leaky_relu": (leaky_relu, 1),
    "prelu": (leaky_relu, 1),
    "clipped_relu": (clipped_relu, 1),
    "sigmoid": (sigmoid, 0),
    "tanh": (tanh, 0),
    "abs": (absolute, 0),
    "power_2": (power_2, 2),
    "hard_sigmoid": (hard_sigmoid, 0),
    "hard_swish": (hard_swish, 0),
    "hard_tanh": (between, 2),
    "exp": (lambda dy, y: dy * y, 0),
    "square": (lambda dy, x: (dy + dy) * x, 0),
    "round": (lambda dy, _: dy * 0.0, 0),
    "clip": (clip, 2),
    "threshold": (threshold, 2),
    "exp2": (lambda dy, y: dy * (y * math.log(2.0)), 0),
    "expm1": (lambda dy, y: dy * (y + 1.0), 0),
    "erf": (erf, 0),
    "reciprocal": (lambda dy, y: negative(dy * y) * y, 0),
    "rsqrt": (lambda dy, y: ((dy * -0.5) * y) * (y * y), 0),
    "sign": (lambda dy, _: dy * 0.0, 0),
    "sin": (lambda dy, x: dy * cos_value(x), 0),
    "cos": (lambda dy, x: negative(dy * sin_value(x)), 0),
    "tan": (lambda dy, y: dy * mad(y, y, 1.0), 0),
    "sinh": (lambda dy, x: dy * cosh_value(x), 0),
    "cosh": (lambda dy, x: dy * sinh_value(x), 0),
    "erfc": (lambda dy, x: negative(erf(dy, x)), 0),
    "neg": (lambda dy, _: negative(dy), 0),
    "shrink": (shrink, 2),
    "soft_shrink": (shrink, 1),
    "floor": (lambda dy, _: dy * 0.0, 0),
    "ceil": (lambda dy, _: dy * 0.0, 0),
}
