"""Sums over paths, whose probabilities need more exponents than floats have: a mantissa, and an integer exponent beside
it, of the same size.

Additions take 9 operations, where those of logarithms take two exponentials and a logarithm, and lose a digit for each
that the logarithm has before its point.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from numbaprims.formulas.value import MANTISSA, V, bits, float_bits, from_bits, mad, select

LOG2_E = math.log2(math.e)
LN2_HIGH = 0.693145751953125  # of 17 bits: its product with an exponent, fused, loses nothing beside a log-probability
LN2_LOW = math.log(2.0) - LN2_HIGH
BIAS = {32: 127, 64: 1023}
#: The exponent that nothing is below, that of zeros: so they outweigh nothing. Three of them are still an integer.
FLOOR = {32: -(1 << 29), 64: -(1 << 58)}
#: What logarithms are taken to be at least (less is 0), and at most (more is infinite).
RANGE = {32: (-(2.0**27), 2.0**15), 64: (-(2.0**50), 2.0**40)}


def power(d: V) -> V:
    """2**d of integers in the range of exponents; what is below it is the smallest normal number."""
    bias = BIAS[d.width]
    return from_bits((select(d > 1 - bias, d, 1 - bias) + bias) << MANTISSA[d.width])


def add(am: V, ae: V, bm: V, be: V) -> tuple[V, V]:
    """The sum of two values."""
    e = select(ae > be, ae, be)
    return mad(am, power(ae - e), bm * power(be - e)), e


def product(am: V, ae: V, bm: V, be: V) -> tuple[V, V]:
    """The product of two values."""
    e, floor = ae + be, FLOOR[ae.width]
    return am * bm, select(e > floor, e, floor)


def normal(m: V, e: V) -> tuple[V, V]:
    """The same value with a mantissa in [1, 2); 0, infinity and NaN stay as they are."""
    width = m.width
    b, inside = bits(m), select(m > 0.0, m, math.inf) < math.inf
    mantissa = from_bits((b & ((1 << MANTISSA[width]) - 1)) | float_bits(1.0, width))
    return select(inside, mantissa, m), select(inside, e + (b.shifted_right(MANTISSA[width]) - BIAS[width]), e)


def split(x: V, exp: Callable[[V], V], nearest: Callable[[V], V]) -> tuple[V, V]:
    """e**x; NaN, 0 and infinity where it is."""
    low, high = RANGE[x.width]
    z = select(x > low, x, low)  # NaN takes the limit, too
    n = nearest(select(z < high, z, high) * LOG2_E)
    rest = mad(n, -LN2_LOW, mad(n, -LN2_HIGH, x))
    return exp(rest), n.new(n.builder.fptosi(n.value, n.integers))
