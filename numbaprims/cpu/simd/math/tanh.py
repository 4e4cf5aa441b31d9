"""tanh and sigmoid: quotients of exponentials whose arguments cannot overflow."""

from __future__ import annotations

from numbaprims.cpu.simd.math.emit import (
    SHIFTER,
    Value,
    at_least,
    at_most,
    bits,
    float_bits,
    from_bits,
    mad,
    magnitude,
    negative_magnitude,
    polynomial,
    select,
    vector_function,
    with_sign_of,
)
from numbaprims.cpu.simd.math.exp import LN2_HIGH_F32, LN2_LOW_F32, LOG2_E, exp_in_range_f32

# (e**2r - 1) / 2 - r over r**2, minimax relative to (e**2r - 1) / 2 on |r| <= ln(2)/4: 2**-31
_EXPM1_HALF_F32 = (
    1.0,
    0.6666666269302368,
    0.33333173394203186,
    0.13333828747272491,
    0.044592175632715225,
    0.012585129588842392,
)


def tanh_f32(x: Value) -> Value:
    """tanh of float32 lanes: h / (h + 1) with h = (e**2|x| - 1) / 2, whose relative error is small near 0 too."""
    a = at_most(magnitude(x), 9.1)  # tanh is 1 from 9.011 on
    shifted = mad(a, 2 * LOG2_E, SHIFTER[32])
    n = shifted - SHIFTER[32]
    r = mad(n, -LN2_LOW_F32 / 2, mad(n, -LN2_HIGH_F32 / 2, a))
    half = mad(r * r, polynomial(r, _EXPM1_HALF_F32), r)
    power = from_bits((bits(shifted) << 23) + float_bits(1.0, 32))
    h = mad(power, half, mad(power, 0.5, -0.5))
    return with_sign_of(h / (h + 1.0), x)


def sigmoid_f32(x: Value) -> Value:
    """1 / (1 + e**-x) of float32 lanes, from e**-|x|, which does not overflow and may be subnormal."""
    e = exp_in_range_f32(at_least(negative_magnitude(x), -104.0))
    return select(x < 0.0, e, 1.0) / (e + 1.0)


@vector_function(f32=tanh_f32)
def tanh(x):  # type: ignore[no-untyped-def]
    """The hyperbolic tangent of every lane."""


@vector_function(f32=sigmoid_f32)
def sigmoid(x):  # type: ignore[no-untyped-def]
    """1 / (1 + e**-x) of every lane."""
