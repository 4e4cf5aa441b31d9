"""log: x = m 2**e with 3/4 <= m < 3/2, and a polynomial for log m."""

from __future__ import annotations

import math

from numbaprims.cpu.simd.math.emit import (
    MANTISSA,
    Value,
    bits,
    float_bits,
    from_bits,
    mad,
    polynomial,
    select,
    to_float,
    vector_function,
)
from numbaprims.cpu.simd.math.exp import LN2_HIGH_F32, LN2_LOW_F32

# log(1 + f) - f + f**2 / 2 over f**3, minimax relative to log(1 + f) on [-1/4, 1/2]: 2**-27.5
_LOG_F32 = (
    0.3333345055580139,
    -0.25000065565109253,
    0.1999068558216095,
    -0.1664842963218689,
    0.14484038949012756,
    -0.1315465271472931,
    0.10409770905971527,
    -0.0445074737071991,
)


def split(x: Value) -> tuple[Value, Value]:
    """(m - 1, e) with x = m 2**e and 3/4 <= m < 3/2, for finite positive x."""
    mantissa = MANTISSA[x.width]
    smallest_normal = 2.0**-126 if x.width == 32 else 2.0**-1022
    subnormal = x < smallest_normal
    i = bits(select(subnormal, x * 2.0**mantissa, x)) - float_bits(0.75, x.width)
    m = from_bits((i & ((1 << mantissa) - 1)) + float_bits(0.75, x.width))
    e = to_float(i >> mantissa)
    return m - 1.0, select(subnormal, e - float(mantissa), e)


def special_cases(x: Value, result: Value) -> Value:
    """log's result with those of 0, negative numbers, inf and NaN put in."""
    result = select(x < math.inf, result, x)
    result = select(x < 0.0, math.nan, result)
    return select(x.equals(0.0), -math.inf, result)


def log_f32(x: Value) -> Value:
    """log of float32 lanes."""
    f, e = split(x)
    low = (f * f) * mad(f, polynomial(f, _LOG_F32), -0.5)
    # e ln 2 + f is exact as long as it is below 1
    return special_cases(x, mad(e, LN2_HIGH_F32, f) + mad(e, LN2_LOW_F32, low))


@vector_function(f32=log_f32)
def log(x):  # type: ignore[no-untyped-def]
    """The natural logarithm of every lane; log(0) is -inf, that of a negative number NaN."""
