"""exp: x = n ln 2 + r with |r| <= ln(2)/2, a polynomial for e**r, and 2**n by its exponent."""

from __future__ import annotations

import math

from numbaprims.cpu.simd.math.emit import (
    SHIFTER,
    Value,
    at_least,
    at_most,
    mad,
    polynomial,
    scale,
    vector_function,
)

LOG2_E = math.log2(math.e)
# ln 2 in two parts (Cody and Waite).  The upper one has so few bits that n times it is exact even where it is rounded.
LN2_HIGH_F32 = 0.693145751953125
LN2_LOW_F32 = 1.428606765330187e-06

# e**r - 1 - r over r**2, minimax relative to e**r on |r| <= ln(2)/2: 2**-28.2
_EXP_F32 = (0.4999999403953552, 0.16666516661643982, 0.0416681170463562, 0.008369199931621552, 0.001383748953230679)


def reduce_f32(x: Value) -> tuple[Value, Value]:
    """(r, SHIFTER + n) with x = n ln 2 + r; |x| < 2**21."""
    shifted = mad(x, LOG2_E, SHIFTER[32])
    n = shifted - SHIFTER[32]
    return mad(n, -LN2_LOW_F32, mad(n, -LN2_HIGH_F32, x)), shifted


def exp_in_range_f32(x: Value) -> Value:
    """exp where -104 <= x <= 89."""
    r, shifted = reduce_f32(x)
    return scale(polynomial(r, (1.0, 1.0, *_EXP_F32)), shifted)


def exp_f32(x: Value) -> Value:
    """exp of float32 lanes."""
    # e**89 is infinite and e**-104 is 0 already
    return exp_in_range_f32(at_least(at_most(x, 89.0), -104.0))


@vector_function(f32=exp_f32)
def exp(x):  # type: ignore[no-untyped-def]
    """e**x of every lane."""
