"""power: b**g as e**(g log |b|) in float64, with the signs and special cases of IEEE 754's pow."""

from __future__ import annotations

from llvmlite import ir

from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.math.log import log_value
from numbaprims.formulas.elementary import exp_value, power_cases
from numbaprims.formulas.value import magnitude


def power_value(base: Value, exponent: Value) -> Value:
    """base**exponent.  float32 is computed in float64; there, the relative error is that of exponent log base."""
    vector = base.value.type
    double = ir.VectorType(ir.DoubleType(), vector.count)
    wide = base.width == 64
    b, g = (v if wide else v.new(v.builder.fpext(v.value, double)) for v in (base, exponent))
    result = power_cases(b, g, exp_value(g * log_value(magnitude(b))))
    return result if wide else base.new(base.builder.fptrunc(result.value, vector))
