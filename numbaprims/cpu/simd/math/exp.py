"""exp and expm1: x = n ln 2 + r with a small r, a polynomial for e**r, and 2**n by its exponent.

The coefficients are minimax polynomials; docs/notes/minimax.py finds them again.
"""

from __future__ import annotations

import math

from numbaprims.cpu.simd.math.emit import (
    MANTISSA,
    SHIFTER,
    Value,
    at_least,
    at_most,
    bits,
    float_bits,
    from_bits,
    mad,
    magnitude,
    polynomial,
    scale,
    select,
    vector_function,
)

LOG2_E = math.log2(math.e)
# ln 2 in two parts (Cody and Waite).  The upper one has 16 or 42 bits, so that n times it is exact where products
# are rounded too; the lower one is correctly rounded.
LN2 = {32: (0.693145751953125, 1.428606765330187e-06), 64: (0.6931471805598903, 5.497923018708371e-14)}

# (e**r - 1 - r) / r**2, minimax relative to e**r on |r| <= ln(2) / 2: 2**-28.2 and 2**-57.9
_EXP = {
    32: (0.4999999403953552, 0.16666516661643982, 0.0416681170463562, 0.008369199931621552, 0.001383748953230679),
    64: (
        0.5000000000000011, 0.16666666666666463, 0.041666666666528525, 0.008333333333471851, 0.0013888888943807884,
        0.0001984126954334309, 2.4801493040516724e-05, 2.7557560465135565e-06, 2.763024509312715e-07,
        2.5006764650216462e-08,
    ),
}  # fmt: skip
# e**x is infinite from ln(largest number) on, which is less than the upper bound, and 0 below the lower one
_EXP_RANGE = {32: (-104.0, 89.0), 64: (-746.0, 710.0)}

# (e**r - 1 - r) / r**2, minimax relative to e**r - 1 on [ln(3/4), ln(3/2)]: 2**-31.3 and 2**-61.3
_EXPM1 = {
    32: (0.5, 0.16666670143604279, 0.04166658967733383, 0.008332042023539543, 0.0013917820760980248,
         0.00020942490664310753),
    64: (
        0.5, 0.16666666666666666, 0.04166666666666755, 0.008333333333334565, 0.001388888888816658,
        0.00019841269839239952, 2.4801589345124994e-05, 2.7557310077131353e-06, 2.755486218407462e-07,
        2.5077455384764167e-08, 2.19601475146298e-09,
    ),
}  # fmt: skip
# e**x - 1 is -1 in all its digits below the lower bound
_EXPM1_RANGE = {32: (-18.0, 89.0), 64: (-38.0, 710.0)}
# Where n of expm1 changes.  Between ln(3/4) and ln(3/2), where n is 0, the result is that of the polynomial; with the
# borders there, e**r - 1 is at most half as precise, in absolute terms, as a result with another n can be.
_EXPM1_BORDER = -0.085


def reduce(x: Value, factor: float = 1.0, border: float = 0.0) -> tuple[Value, Value]:
    """(r, SHIFTER + n) with factor x = n ln 2 + factor r; |n| < 2**21.  The factor is a power of 2."""
    high, low = LN2[x.width]
    shifter = SHIFTER[x.width]
    if border:
        shifted = mad(x, factor * LOG2_E, border) + shifter
    else:
        shifted = mad(x, factor * LOG2_E, shifter)
    n = shifted - shifter
    return mad(n, -low / factor, mad(n, -high / factor, x)), shifted


def exp_in_range(x: Value) -> Value:
    """exp where 2**n is below the square of the largest and above that of the smallest number."""
    r, shifted = reduce(x)
    return scale(polynomial(r, (1.0, 1.0, *_EXP[x.width])), shifted)


def exp_value(x: Value) -> Value:
    """e**x."""
    lowest, highest = _EXP_RANGE[x.width]
    return exp_in_range(at_least(at_most(x, highest), lowest))


def expm1_value(x: Value) -> Value:
    """e**x - 1."""
    lowest, highest = _EXPM1_RANGE[x.width]
    r, shifted = reduce(at_least(at_most(x, highest), lowest), border=_EXPM1_BORDER)
    q = mad(r * r, polynomial(r, _EXPM1[x.width]), r)
    # half of 2**n (1 + q) - 1, because n may be one more than exponents reach
    power = from_bits((bits(shifted) << MANTISSA[x.width]) + float_bits(0.5, x.width))
    half = mad(power, q, power - 0.5)
    # what is so small is its own result; half of a subnormal number is not exact, and -0 has become 0
    return select(magnitude(x) < 1e-30, x, half + half)


exp_f32 = exp_value


@vector_function(exp_value)
def exp(x):  # type: ignore[no-untyped-def]
    """e**x of every lane, for f32 and f64."""


@vector_function(expm1_value)
def expm1(x):  # type: ignore[no-untyped-def]
    """e**x - 1 of every lane, for f32 and f64; its relative error is small near 0 too."""
