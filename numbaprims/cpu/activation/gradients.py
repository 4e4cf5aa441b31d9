"""dx of every kind from dy and from what its gradient reads, x or y, over vectors of float32 or float64."""

from __future__ import annotations

import math

from numbaprims.cpu.activation.formulas import MACHINE
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.math.exponential import exp_and_sum_in_range
from numbaprims.formulas.activations import GELU_TANH_RANGE, Formula, gelu_tanh_argument
from numbaprims.formulas.gradients import ARITHMETIC, Slopes, of_machine
from numbaprims.formulas.value import between, mad, magnitude
from numbaprims.polynomials import EXP_RANGE

# e**x is 0 at the lower one, and not infinite yet at the upper one, where 1 / (1 + e**x) is next to nothing.
_RANGE = {32: (EXP_RANGE[32][0], 85.0), 64: (EXP_RANGE[64][0], 700.0)}


def _sigmoid_and_rest(x: Value) -> tuple[Value, Value]:
    """(s, 1 - s) of s = sigmoid x in the range, both with small relative errors."""
    e, one_more = exp_and_sum_in_range(x, 1.0, 1.0)
    rest = 1.0 / one_more
    return e * rest, rest


def softsign(dy: Value, x: Value) -> Value:
    r = 1.0 / (magnitude(x) + 1.0)
    return (dy * r) * r


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


_SLOPES = Slopes(
    sigmoid=MACHINE.sigmoid,
    sigmoid_and_rest=lambda x: _sigmoid_and_rest(between(x, _RANGE[x.width])),
    exp_and_2=lambda x: exp_and_sum_in_range(x, 1.0, 2.0),
    reciprocal=MACHINE.reciprocal,
    lowest={width: least for width, (least, _) in _RANGE.items()},
)

#: kind -> (formula of dy and what the table says that it reads, how many of the parameters it takes)
BACKWARD: dict[str, tuple[Formula, int]] = {
    **ARITHMETIC,
    **of_machine(MACHINE, _SLOPES),
    "softsign": (softsign, 0),
    "gelu_tanh": (gelu_tanh, 0),
    "silu": (silu, 0),
}
glu = BACKWARD.pop("glu")[0]
