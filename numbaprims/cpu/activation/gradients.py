"""dx of every kind from dy and from what its gradient reads, x or y, over vectors of float32 or float64.

Comparisons are written so that at a kink the same side counts as in torch, and so that NaN gives what it
gives there.
"""

from __future__ import annotations

import math

from numbaprims.cpu.activation import functions
from numbaprims.cpu.activation.exponential import exp
from numbaprims.cpu.activation.formulas import Formula, exp_minus, gelu_tanh_argument, high, low
from numbaprims.cpu.activation.functions import at_or_above, at_or_below, negative
from numbaprims.cpu.simd.math.emit import Value, mad, magnitude, select
from numbaprims.cpu.simd.math.power import power_value
from numbaprims.ops.activation_kinds import SELU_ALPHA, SELU_SCALE

# e**x below is next to nothing, and e**-x is not infinite yet.
_LOWEST = {32: -85.0, 64: -700.0}


def _sigmoid(x: Value) -> Value:
    return 1.0 / (exp_minus(x) + 1.0)


def _sigmoid_and_rest(x: Value) -> tuple[Value, Value]:
    """(s, 1 - s) of s = sigmoid x, both with small relative errors; x must not be so low that e**-x is infinite."""
    e = exp_minus(x)
    s = 1.0 / (e + 1.0)
    return s, e * s


def _exp_below_0(x: Value) -> Value:
    """e**min(x, 0)."""
    return exp(x, highest=0.0)


# ---------------------------------------------------------------- arithmetic alone


def relu(dy: Value, y: Value) -> Value:
    return select(at_or_below(y, 0.0), 0.0, dy)


def leaky_relu(dy: Value, x: Value, slope: Value) -> Value:
    return select(x > 0.0, dy, dy * slope)


def between(dy: Value, x: Value, least: Value | float, most: Value) -> Value:
    """dy inside of (least, most), 0 outside."""
    return select(at_or_below(x, least), 0.0, select(at_or_above(x, most), 0.0, dy))


def clipped_relu(dy: Value, x: Value, alpha: Value) -> Value:
    return between(dy, x, 0.0, alpha)


def clip(dy: Value, x: Value, least: Value, most: Value) -> Value:
    return select(at_or_above(x, least), select(at_or_below(x, most), dy, 0.0), 0.0)


def hard_sigmoid(dy: Value, x: Value) -> Value:
    return select(magnitude(x) < 3.0, dy * (1.0 / 6.0), 0.0)


def hard_swish(dy: Value, x: Value) -> Value:
    middle = dy * mad(x, 1.0 / 3.0, 0.5)
    return select(at_or_below(x, -3.0), 0.0, select(x < 3.0, middle, dy))


def softsign(dy: Value, x: Value) -> Value:
    r = 1.0 / (magnitude(x) + 1.0)
    return (dy * r) * r


def abs_(dy: Value, x: Value) -> Value:
    return select(x > 0.0, dy, select(x < 0.0, negative(dy), dy * x))


def threshold(dy: Value, x: Value, limit: Value, value: Value) -> Value:
    return select(at_or_below(x, limit), 0.0, dy)


# ---------------------------------------------------------------- exp and its relatives


def elu(dy: Value, x: Value, alpha: Value) -> Value:
    return select(at_or_below(x, 0.0), (dy * alpha) * _exp_below_0(x), dy)


def selu(dy: Value, x: Value) -> Value:
    scaled = dy * SELU_SCALE
    return select(at_or_below(x, 0.0), (scaled * SELU_ALPHA) * _exp_below_0(x), scaled)


def celu(dy: Value, x: Value, alpha: Value) -> Value:
    return select(at_or_below(x, 0.0), dy * exp(x / alpha), dy)


def sigmoid(dy: Value, y: Value) -> Value:
    return dy * (y * (1.0 - y))


def tanh(dy: Value, y: Value) -> Value:
    return dy * mad(negative(y), y, 1.0)


def softplus(dy: Value, x: Value, beta: Value, limit: Value) -> Value:
    z = x * beta
    return select(z > limit, dy, dy * _sigmoid(z))


def softplus_1(dy: Value, x: Value) -> Value:
    # sigmoid 20 is 1 less 2e-9, which is 1 in float32
    slope = _sigmoid(x)
    return dy * (slope if x.width == 32 else select(x > 20.0, 1.0, slope))


def power(dy: Value, x: Value, alpha: Value, beta: Value, gamma: Value) -> Value:
    return (dy * (beta * gamma)) * power_value(mad(beta, x, alpha), gamma - 1.0)


def power_2(dy: Value, x: Value, alpha: Value, beta: Value) -> Value:
    return (dy * (beta + beta)) * mad(beta, x, alpha)


def gelu(dy: Value, x: Value) -> Value:
    density = exp((x * x) * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
    return dy * mad(x, density, functions.normal_distribution(x))


def gelu_tanh(dy: Value, x: Value) -> Value:
    # with s = sigmoid v, v = 2 sqrt(2 / pi) (x + 0.044715 x**3): s + x s (1 - s) v'.  From 9 on (21 in float64) s is as
    # good as 1 or 0, and e**-v not infinite yet.
    limit = 9.0 if x.width == 32 else 21.0
    k = 2.0 * math.sqrt(2.0 / math.pi)
    z = high(low(x, -limit), limit)
    s, rest = _sigmoid_and_rest(gelu_tanh_argument(z))
    slope = mad(z * z, 3.0 * 0.044715 * k, k)
    return dy * mad((z * slope) * rest, s, s)


def silu(dy: Value, x: Value) -> Value:
    z = low(x, _LOWEST[x.width])
    s, rest = _sigmoid_and_rest(z)
    return dy * mad(z * rest, s, s)


def mish(dy: Value, x: Value) -> Value:
    # e = e**x, w = e (e + 2): tanh(log(1 + e)) = w / (w + 2) and its derivative is 4 e (1 + e) / (w + 2)**2
    z = low(high(x, 20.0), _LOWEST[x.width])
    e = exp(z)
    w = mad(e, e, e + e)
    r = 1.0 / (w + 2.0)
    rest = ((z * 4.0) * mad(e, e, e)) * r
    return dy * ((w + rest) * r)


def glu(dy: Value, x: Value, gate: Value) -> tuple[Value, Value]:
    s, rest = _sigmoid_and_rest(low(gate, _LOWEST[gate.width]))
    first = dy * s
    return first, (first * x) * rest


#: kind -> (formula of dy and what the table says that it reads, how many of the parameters it takes)
BACKWARD: dict[str, tuple[Formula, int]] = {
    "identity": (lambda dy, _: dy, 0),
    "relu": (relu, 0),
    "leaky_relu": (leaky_relu, 1),
    "prelu": (leaky_relu, 1),
    "clipped_relu": (clipped_relu, 1),
    "elu": (elu, 1),
    "selu": (selu, 0),
    "celu": (celu, 1),
    "sigmoid": (sigmoid, 0),
    "tanh": (tanh, 0),
    "softplus": (softplus, 2),
    "softplus_1": (softplus_1, 0),
    "softsign": (softsign, 0),
    "abs": (abs_, 0),
    "power": (power, 3),
    "power_2": (power_2, 2),
    "gelu": (gelu, 0),
    "gelu_tanh": (gelu_tanh, 0),
    "silu": (silu, 0),
    "mish": (mish, 0),
    "hard_sigmoid": (hard_sigmoid, 0),
    "hard_swish": (hard_swish, 0),
    "hard_tanh": (between, 2),
    "exp": (lambda dy, y: dy * y, 0),
    "log": (lambda dy, x: dy / x, 0),
    "sqrt": (lambda dy, y: dy / (y + y), 0),
    "square": (lambda dy, x: (dy + dy) * x, 0),
    "round": (lambda dy, _: dy * 0.0, 0),
    "clip": (clip, 2),
    "threshold": (threshold, 2),
}
