"""y of the kinds of activation that are arithmetic alone.

A formula takes x and the kind's parameters in the order of the table of kinds. Comparisons are written so that NaN
falls through to the branch that keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

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
)
from numbaprims.formulas.trigonometric import acos_value, asin_value, atan_value, cos_value, sin_value, tan_value
from numbaprims.formulas.value import V, at_least, at_most, mad, magnitude, negative, select, with_sign_of

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


def floor(x: V, nearest: Callable[[V], V]) -> V:
    n = nearest(x)
    return select(n > x, n - 1.0, n)


def ceil(x: V, nearest: Callable[[V], V]) -> V:
    n = nearest(x)
    return with_sign_of(select(n < x, n + 1.0, n), x)  # of -1/2 it is -0


def shrink(x: V, lambd: V, by: V) -> V:
    return select(magnitude(x) <= lambd, 0.0, select(x > 0.0, x - by, x + by))


def of_machine(quotient: Quotient[V], root: Root[V]) -> dict[str, tuple[Formula, int]]:
    """Those of a machine's own quotients and roots, of numbers that are neither subnormal nor infinite."""
    return {
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
