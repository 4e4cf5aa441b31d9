"""dx of the kinds of activation whose gradient is arithmetic alone, from dy and from what it reads, x or y.

Comparisons are written so that at a kink the same side counts as in torch, and so that NaN gives what it gives in
torch's vector code (which differs from its scalar code): NaN, but for slopes that are constant on both sides of a kink.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from numbaprims.formulas.activations import Formula
from numbaprims.formulas.elementary import exp_value
from numbaprims.formulas.hyperbolic import Quotient, Root, cosh_value, sinh_value
from numbaprims.formulas.trigonometric import cos_value, sin_value
from numbaprims.formulas.value import V, at_most, mad, magnitude, negative, select


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


def tanh_shrink(tanh: Callable[[V], V]) -> Formula:
    def slope(dy: V, x: V) -> V:
        t = tanh(x)
        return (dy * t) * t

    return slope


def of_machine(quotient: Quotient[V], root: Root[V]) -> dict[str, tuple[Formula, int]]:
    """Those of a machine's own quotients and roots, of all numbers."""

    def leg(x: V) -> V:
        return root((1.0 - x) * (x + 1.0))

    def hypotenuse(x: V, one: float) -> V:
        # beyond, 1 is nothing beside x**2, which may be infinite
        a = magnitude(x)
        return select(a < 2.0**30, root(mad(x, x, 1.0) if one > 0 else (a - 1.0) * (a + 1.0)), a)

    return {
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
