"""dx of the kinds of activation whose gradient is arithmetic alone, from dy and from what it reads, x or y.

Comparisons are written so that at a kink the same side counts as in torch, and so that NaN gives what it gives in
torch's vector code (which differs from its scalar code): NaN, but for slopes that are constant on both sides of a kink.
"""

from __future__ import annotations

import math
from typing import Any

from numbaprims.formulas.activations import Formula
from numbaprims.formulas.elementary import exp_value
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
    "floor": (lambda dy, _: dy * 0.0, 0),
    "ceil": (lambda dy, _: dy * 0.0, 0),
}
