"""log and log1p: x = m 2**e with 3/4 <= m < 3/2, and a polynomial for log m."""

from __future__ import annotations

import math

from numbaprims.cpu.simd.math.emit import (
    MANTISSA,
    Value,
    bits,
    float_bits,
    from_bits,
    mad,
    magnitude,
    polynomial,
    select,
    to_float,
    vector_function,
)
from numbaprims.polynomials import LN2, LOG_F32, LOG_F64


def _split(i: Value) -> tuple[Value, Value]:
    """(bits of m, e 2**mantissa bits) of the number with the bits i."""
    low = (1 << MANTISSA[i.width]) - 1
    i = i - float_bits(0.75, i.width)
    return (i & low) + float_bits(0.75, i.width), i & ~low


def _log_of(f: Value, e: Value) -> Value:
    """log((1 + f) 2**e), where e ln 2 + log(1 + f) does not cancel."""
    high, low = LN2[f.width]
    if f.width == 32:
        rest = (f * f) * mad(f, polynomial(f, LOG_F32), -0.5)
        return mad(e, high, f + mad(e, low, rest))
    # 8 coefficients and a division instead of some 20 coefficients
    s = f / (f + 2.0)
    z = s * s
    half = (f * 0.5) * f
    # log(1 + f) = 2 s + s R = f - f**2 / 2 + s (f**2 / 2 + R)
    rest = mad(s, mad(z, polynomial(z, LOG_F64), half), e * low)
    return mad(e, high, f + mad(f * -0.5, f, rest))


def _log_cases(x: Value, result: Value, zero: float) -> Value:
    """The result with that of `zero`, of what is below it, of inf and of NaN put in."""
    result = select(x < math.inf, result, x)
    result = select(x < zero, math.nan, result)
    return select(x.equals(zero), -math.inf, result)


def log_value(x: Value) -> Value:
    """log x."""
    mantissa = MANTISSA[x.width]
    subnormal = x < {32: 2.0**-126, 64: 2.0**-1022}[x.width]
    m, e = _split(bits(select(subnormal, x * 2.0**mantissa, x)))
    e = to_float(e >> mantissa)
    e = select(subnormal, e - float(mantissa), e)
    return _log_cases(x, _log_of(from_bits(m) - 1.0, e), 0.0)


def log1p_value(x: Value) -> Value:
    """log(1 + x)."""
    mantissa, width = MANTISSA[x.width], x.width
    # 1 + x = (1 + f) 2**e with e taken from the rounded sum and f from x itself, rounded once.
    # 4 / 2**e is a normal number for every e; 1 / 2**e is not.
    _, e = _split(bits(x + 1.0))
    power = from_bits(float_bits(4.0, width) - e)
    f = mad(power, x * 0.25, mad(power, 0.25, -1.0))
    result = _log_cases(x, _log_of(f, to_float(e >> mantissa)), -1.0)
    # what is so small is its own result; a quarter of a subnormal number is not exact, and -0 has become 0
    return select(magnitude(x) < 1e-30, x, result)


@vector_function(log_value)
def log(x):  # type: ignore[no-untyped-def]
    """The natural logarithm of every lane, for f32 and f64, within 1.0 ULP.

    That of 0 is -inf, that of a negative number NaN.
    """


@vector_function(log1p_value)
def log1p(x):  # type: ignore[no-untyped-def]
    """log(1 + x) of every lane, for f32 and f64, within 1.0 ULP, near 0 too."""
