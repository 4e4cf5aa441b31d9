"""exp and expm1: x = n ln 2 + r with a small r, a polynomial for e**r, and 2**n by its exponent.

The coefficients are minimax polynomials; docs/notes/minimax.py finds them again.
"""

from __future__ import annotations

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
from numbaprims.polynomials import EXP, EXP_RANGE, EXPM1, EXPM1_BORDER, EXPM1_RANGE, LN2, LOG2_E


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
    return scale(polynomial(r, (1.0, 1.0, *EXP[x.width])), shifted)


def exp_value(x: Value) -> Value:
    """e**x."""
    lowest, highest = EXP_RANGE[x.width]
    return exp_in_range(at_least(at_most(x, highest), lowest))


def expm1_value(x: Value) -> Value:
    """e**x - 1."""
    lowest, highest = EXPM1_RANGE[x.width]
    r, shifted = reduce(at_least(at_most(x, highest), lowest), border=EXPM1_BORDER)
    q = mad(r * r, polynomial(r, EXPM1[x.width]), r)
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
    """e**x - 1 of every lane, for f32 and f64, within 1.4 ULP (f64 1.3), near 0 too."""
