"""16-bit floats in 32-bit integer arithmetic: bf16 on every target, f16 where the target has no instruction.

Without F16C LLVM turns a conversion of f16 into a call of a library routine for every lane.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from numbaprims.cpu.simd.emit import constant


def like(value: Any, element: Any) -> Any:
    """`element`, or a vector of it with as many lanes as `value` has."""
    return ir.VectorType(element, value.type.count) if isinstance(value.type, ir.VectorType) else element


def widen_bf16(builder: Any, value: Any) -> Any:
    """The upper half of a float32."""
    bits = builder.zext(value, like(value, ir.IntType(32)))
    return builder.bitcast(builder.shl(bits, constant(bits.type, 16)), like(value, ir.FloatType()))


def narrow_bf16(builder: Any, value: Any) -> Any:
    """Rounded to nearest even by adding half a unit, less one where the result is even; NaN kept quiet."""
    bits = builder.bitcast(value, like(value, ir.IntType(32)))

    def c(x: int) -> Any:
        return constant(bits.type, x)

    odd = builder.and_(builder.lshr(bits, c(16)), c(1))
    rounded = builder.lshr(builder.add(builder.add(bits, c(0x7FFF)), odd), c(16))
    quiet = builder.or_(builder.lshr(bits, c(16)), c(0x40))
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(is_nan, quiet, rounded), like(value, ir.IntType(16)))


def widen_f16(builder: Any, value: Any) -> Any:
    """The instruction's result, NaN quiet with its payload; no subnormal float32 comes up on the way."""
    bits = builder.zext(value, like(value, ir.IntType(32)))

    def c(x: int) -> Any:
        return constant(bits.type, x)

    floats = like(value, ir.FloatType())
    magnitude = builder.and_(bits, c(0x7FFF))
    sign = builder.shl(builder.xor(bits, magnitude), c(16))
    moved = builder.shl(magnitude, c(13))
    normal = builder.add(moved, c((127 - 15) << 23))
    special = builder.add(moved, c((255 - 31) << 23))
    is_special = builder.icmp_unsigned(">=", magnitude, c(0x7C00))
    is_nan = builder.icmp_unsigned(">", magnitude, c(0x7C00))
    result = builder.select(is_special, special, normal)
    result = builder.select(is_nan, builder.or_(result, c(0x400000)), result)
    small = builder.fmul(builder.sitofp(magnitude, floats), constant(floats, 2.0**-24))
    is_small = builder.icmp_unsigned("<", magnitude, c(0x400))
    result = builder.select(is_small, builder.bitcast(small, bits.type), result)
    return builder.bitcast(builder.or_(result, sign), floats)


def narrow_f16(builder: Any, value: Any) -> Any:
    """As the instruction does: to nearest even, infinity from 65520 on, subnormals, NaN quiet."""
    bits = builder.bitcast(value, like(value, ir.IntType(32)))

    def c(x: int) -> Any:
        return constant(bits.type, x)

    magnitude = builder.and_(bits, c(0x7FFFFFFF))
    sign = builder.lshr(builder.xor(bits, magnitude), c(16))
    odd = builder.and_(builder.lshr(magnitude, c(13)), c(1))
    rounded = builder.add(builder.add(magnitude, c(0xFFF - ((127 - 15) << 23))), odd)
    normal = builder.lshr(rounded, c(13))
    normal = builder.select(builder.icmp_unsigned(">=", magnitude, c(0x477FF000)), c(0x7C00), normal)
    # 2**-24, the unit of subnormal f16, is the unit of float32 at 1/2: the sum is rounded to it
    floats = value.type
    sum_ = builder.fadd(builder.bitcast(magnitude, floats), constant(floats, 0.5))
    small = builder.sub(builder.bitcast(sum_, bits.type), c(0x3F000000))
    result = builder.select(builder.icmp_unsigned("<", magnitude, c((127 - 14) << 23)), small, normal)
    payload = builder.and_(builder.lshr(magnitude, c(13)), c(0x3FF))
    is_nan = builder.icmp_unsigned(">", magnitude, c(0x7F800000))
    result = builder.select(is_nan, builder.or_(payload, c(0x7E00)), result)
    return builder.trunc(builder.or_(result, sign), like(value, ir.IntType(16)))
