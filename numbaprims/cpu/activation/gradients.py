"""dx of every kind from dy and from what its gradient reads, x or y, over vectors of float32 or float64.

Those that are arithmetic alone are shared with the GPU.
"""

from __future__ import annotations

import math

from numbaprims.cpu.activation.formulas import sigmoid as _sigmoid, tanh as _tanh
from numbaprims.cpu.simd.math import functions
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.math.exponential import exp, exp_and_sum_in_range
from numbaprims.cpu.simd.math.power import power_value
from numbaprims.formulas.activations import GELU_TANH_RANGE, Formula, gelu_tanh_argument
from numbaprims.formulas.gradients import ARITHMETIC, of_machine, tanh_shrink
from numbaprims.formulas.value import between, mad, magnitude, negative, select
from numbaprims.ops.activation_kinds import SELU_ALPHA, SELU_SCALE

# e**x is 0 at the lower one, and not infinite yet at the upper one, where 1 / (1 + e**x) is next to nothing.
_RANGE = {32: (-104.0, 85.0), 64: (-746.0, 700.0)}


def _sigmoid_and_rest(x: Value) -> tuple[Value, Value]:
    """(s, 1 - s) of s = sigmoid x in the range, both with small relative errors."""
    e, one_more = exp_and_sum_in_range(x, 1.0, 1.0)
    rest = 1.0 / one_more
    return e * rest, rest


def _exp_below_0(x: Value) -> Value:
    """e**min(x, 0)."""
    return exp(x, highest=0.0)


def softsign(dy: Value, x: Value) -> Value:
    r = 1.0 / (magnitude(x) + 1.0)
    return (dy * r) * r


def elu(dy: Value, x: Value, alpha: Value) -> Value:
    return select(x.not_above(0.0), (dy * alpha) * _exp_below_0(x), dy)


def selu(dy: Value, x: Value) -> Value:
    scaled = dy * SELU_SCALE
    return select(x.not_above(0.0), (scaled * SELU_ALPHA) * _exp_below_0(x), scaled)


def celu(dy: Value, x: Value, alpha: Value) -> Value:
    return select(x.not_above(0.0), dy * exp(x / alpha), dy)


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
    below, e = functions.normal_distribution(x)
    return dy * mad(x, e * (1.0 / math.sqrt(2.0 * math.pi)), below)


def gelu_tanh(dy: Value, x: Value) -> Value:
    # with s = sigmoid v, v = 2 sqrt(2 / pi) (x + 0.044715 x**3): s + x s (1 - s) v'
    k = 2.0 * math.sqrt(2.0 / math.pi)
    z = between(x, GELU_TANH_RANGE[x.width])
    s, rest = _sigmoid_and_rest(gelu_tanh_argument(z))
    slope = mad(z * z, 3.0 * 0.044715 * k, k)
    return dy * mad((z * slope) * rest, s, s)


def silu(dy: Value, x: Value) -> Value:
    z = between(x, _RANGE[x.width])
    s, rest = _sigmoid_and_rest(z)
    return dy * mad(z * rest, s, s)


def mish(dy: Value, x: Value) -> Value:
    # e = e**x, w = e (e + 2): tanh(log(1 + e)) = w / (w + 2) and its derivative is 4 e (1 + e) / (w + 2)**2
    z = between(x, (_RANGE[x.width][0], 24.0))
    e, two_more = exp_and_sum_in_range(z, 1.0, 2.0)
    r = 1.0 / mad(e, two_more, 2.0)
    return dy * (mad((z * 4.0) * mad(e, e, e), r, e * two_more) * r)


def glu(dy: Value, x: Value, gate: Value) -> tuple[Value, Value]:
    s, rest = _sigmoid_and_rest(between(gate, _RANGE[gate.width]))
    first = dy * s
    return first, (first * x) * rest


#: kind -> (formula of dy and what the table says that it reads, how many of the parameters it takes)
BACKWARD: dict[str, tuple[Formula, int]] = {
    **ARITHMETIC,
    **of_machine(Value.__truediv__, functions.sqrt),
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
    "log_sigmoid": (lambda dy, x: dy * _sigmoid(negative(x)), 0),
    "tanh_shrink": (tanh_shrink(_tanh), 0),
    "log": (lambda dy, x: dy / x, 0),
    "log1p": (lambda dy, x: dy / (x + 1.0), 0),
    "sqrt": (lambda dy, y: dy / (y + y), 0),
}
