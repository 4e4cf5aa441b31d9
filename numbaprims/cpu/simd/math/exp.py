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
# ln 2 in two parts (Cody and Waite).  The upper one has 16 or 42 bits, so that n times it is exact where
# there is no fused operation too; the lower one is correctly rounded.
LN2 = {32: (0.693145751953125, 1.428606765330187e-06), 64: (0.6931471805598903, 5.497923018708371e-14)}

# (e**r - 1 - r) / r**2, minimax relative to e**r on |r| <= ln(2) / 2: 2**-28.2 and 2**-57.9
_EXP = {
    32: (
        0.4999999403953552, 0.1666652262210846, 0.04166829213500023, 0.008368532173335552,
        0.001381830545142293,
    ),
    64: (
        0.5000000000000011, 0.16666666666666466, 0.041666666666528754, 0.008333333333469892,
        0.001388888894371348, 0.0001984126954715545, 2.480149315883182e-05, 2.7557557618194424e-06,
        2.763019850468678e-07, 2.500748660277363e-08,
    ),
}  # fmt: skip
# e**x is infinite from ln(largest number) on, which is less than the upper bound, and 0 below the lower one
_EXP_RANGE = {32: (-104.0, 89.0), 64: (-746.0, 710.0)}

# (e**r - 1 - r) / r**2, minimax relative to e**r - 1 on [ln(3/4), ln(3/2)]: 2**-31.3 and 2**-61.3
_EXPM1 = {
    32: (
        0.5, 0.16666670143604279, 0.04166658967733383, 0.008332042023539543, 0.0013917820760980248,
        0.00020942490664310753,
    ),
    64: (
        0.5, 0.16666666666666666, 0.04166666666666755, 0.008333333333334565, 0.001388888888816658,
        0.00019841269839239843, 2.4801589345129524e-05, 2.7557310077144885e-06, 2.755486217839646e-07,
        2.5077455527380712e-08, 2.196014639064185e-09,
    ),
}  # fmt: skip
# e**x - 1 is -1 in all its digits below the lower bound
_EXPM1_RANGE = {32: (-18.0, 89.0), 64: (-38.0, 710.0)}
# n of expm1 is 0 between ln(3/4) and ln(3/2), where e**r - 1 is the result.  With other borders some results
# with another n are smaller than the numbers that they are sums of: 1.8 instead of 1.2 ULP.
_EXPM1_BORDER = 0.5 - math.log2(1.5)


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
    """exp where |n| of 2**n is at most twice the range of exponents."""
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


@vector_function(exp_value)
def exp(x):  # type: ignore[no-untyped-def]
    """e**x of every lane, for f32 and f64, within 1.0 ULP (1.2 without fused multiply-add)."""


@vector_function(expm1_value)
def expm1(x):  # type: ignore[no-untyped-def]
    """e**x - 1 of every lane, for f32 and f64, within 1.3 ULP, near 0 too."""
