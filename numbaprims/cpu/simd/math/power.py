"""power: b**g as e**(g log |b|) in float64, with the signs and special cases of IEEE 754's pow."""

from __future__ import annotations

import math

from llvmlite import ir

from numbaprims.cpu.simd.math.emit import Value, magnitude, select, with_sign_of
from numbaprims.cpu.simd.math.exp import exp_value
from numbaprims.cpu.simd.math.log import log_value


def _nearest(x: Value) -> Value:
    """|x| rounded to an integer."""
    # from 2**52 on there are no fractions, so a sum with it is rounded to an integer
    a = magnitude(x)
    return select(a < 2.0**52, (a + 2.0**52) - 2.0**52, a)


def power_value(base: Value, exponent: Value) -> Value:
    """base**exponent.  float32 is computed in float64; there, the relative error is that of exponent log base."""
    vector = base.value.type
    double = ir.VectorType(ir.DoubleType(), vector.count)
    wide = base.width == 64
    b, g = (v if wide else Value(v.builder, v.builder.fpext(v.value, double)) for v in (base, exponent))
    size = select(magnitude(b).equals(1.0), 1.0, exp_value(g * log_value(magnitude(b))))
    whole = _nearest(g)
    half = whole * 0.5
    even = _nearest(half).equals(half)
    signed = select(even, size, with_sign_of(size, b))
    undefined = select(b < 0.0, select(b.equals(-math.inf), size, math.nan), size)
    result = select(whole.equals(magnitude(g)), signed, undefined)
    result = select(g.equals(0.0), 1.0, result)  # whatever the base is
    return result if wide else Value(base.builder, base.builder.fptrunc(result.value, vector))
