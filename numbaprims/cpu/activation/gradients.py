"""dx of every kind from dy and from what its gradient reads, x or y, over vectors of float32 or float64.

Those that are arithmetic alone are shared with the GPU.
"""

from __future__ import annotations

import math

from numbaprims.cpu.activation import functions
from numbaprims.cpu.activation.exponential import exp
from numbaprims.cpu.activation.formulas import exp_minus
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.math.power import power_value
from numbaprims.formulas.activations import Formula, gelu_tanh_argument
from numbaprims.formulas.gradients import ARITHMETIC
from numbaprims.formulas.value import at_least, between, mad, magnitude, select
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


def softsign(dy: Value, x: Value) -> Value:
    r = 1.0 / (magnitude(x) + 1.0)
    return (dy * r) * r


def elu(dy: Value, x: Value, alpha: Value) -> Value:
    return select(x <= 0.0, (dy * alpha) * _exp_below_0(x), dy)


def selu(dy: Value, x: Value) -> Value:
    scaled = dy * SELU_SCALE
    return select(x <= 0.0, (scaled * SELU_ALPHA) * _exp_below_0(x), scaled)


def celu(dy: Value, x: Value, alpha: Value) -> Value:
    return select(x <= 0.0, dy * exp(x / alpha), dy)


def softplus(dy: Value, x: Value, beta: Value, limit: Value) -> Value:
    z = x * beta
    return select(z > limit, dy, dy * _sigmoid(z))


def softplus_1(dy: Value, x: Value) -> Value:
    # sigmoid 20 is 1 less 2e-9, which is 1 in float32
    slope = _sigmoid(x)
    return dy * (slope if x.width == 32 else select(x > 20.0, 1.0, slope))


def power(dy: Value, x: Value, alpha: Value, beta: Value, gamma: Value) -> Value:
    return (dy * (beta * gamma)) * power_value(mad(beta, x, alpha), gamma - 1.0)


def gelu(dy: Value, x: Value) -> Value:
    density = exp((x * x) * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
    return dy * mad(x, density, functions.normal_distribution(x))


def gelu_tanh(dy: Value, x: Value) -> Value:
    # with s = sigmoid v, v = 2 sqrt(2 / pi) (x + 0.044715 x**3): s + x s (1 - s) v'.  From 9 on (21 in float64) s is as
    # good as 1 or 0, and e**-v not infinite yet.
    limit = 9.0 if x.width == 32 else 21.0
    k = 2.0 * math.sqrt(2.0 / math.pi)
    z = between(x, (-limit, limit))
    s, rest = _sigmoid_and_rest(gelu_tanh_argument(z))
    slope = mad(z * z, 3.0 * 0.044715 * k, k)
    return dy * mad((z * slope) * rest, s, s)


def silu(dy: Value, x: Value) -> Value:
    z = at_least(x, _LOWEST[x.width])
    s, rest = _sigmoid_and_rest(z)
    return dy * mad(z * rest, s, s)


def mish(dy: Value, x: Value) -> Value:
    # e = e**x, w = e (e + 2): tanh(log(1 + e)) = w / (w + 2) and its derivative is 4 e (1 + e) / (w + 2)**2
    z = between(x, (_LOWEST[x.width], 20.0))
    e = exp(z)
    w = mad(e, e, e + e)
    r = 1.0 / (w + 2.0)
    rest = ((z * 4.0) * mad(e, e, e)) * r
    return dy * ((w + rest) * r)


def glu(dy: Value, x: Value, gate: Value) -> tuple[Value, Value]:
    s, rest = _sigmoid_and_rest(at_least(gate, _LOWEST[gate.width]))
    first = dy * s
    return first, (first * x) * rest


#: kind -> (formula of dy and what the table says that it reads, how many of the parameters it takes)
BACKWARD: dict[str, tuple[Formula, int]] = {
    **ARITHMETIC,
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
    "log": (lambda dy, x: dy / x, 0),
    "sqrt": (lambda dy, y: dy / (y + y), 0),
}
