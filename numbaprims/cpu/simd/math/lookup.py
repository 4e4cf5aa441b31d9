"""A table of 16 float32 numbers in one AVX-512 register, 8 in one of AVX2, which a permutation looks up for lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from numbaprims.cpu import target
from numbaprims.cpu.simd.emit import declare
from numbaprims.cpu.simd.lanes import shuffle_value
from numbaprims.cpu.simd.math.emit import Value, _scale_avx512

SIZE = 16
SHORT = 8
"""Of AVX2."""
_PERMUTATIONS = {SIZE: "llvm.x86.avx512.permvar.sf.512", SHORT: "llvm.x86.avx2.permps"}


def has_lookup(x: Value) -> bool:
    """Whether `lookup` works for vectors such as x: whole AVX-512 registers of float32."""
    return x.width == 32 and x.value.type.count % SIZE == 0 and "avx512f" in target.current().features


def has_short_lookup(x: Value) -> bool:
    """Whether `lookup` takes tables of 8 for vectors such as x: whole AVX2 registers of float32, with fused operations
    for what the longer steps of such a table leave."""
    features = target.current().features
    whole = x.width == 32 and x.value.type.count % SHORT == 0
    return whole and x.fused and "avx2" in features and "avx512f" not in features


def lookup(table: Sequence[float], index: Value) -> Value:
    """table[index mod its length] of every lane; see `has_lookup`, `has_short_lookup`."""
    builder, size = index.builder, len(table)
    numbers = ir.Constant(ir.VectorType(ir.FloatType(), size), list(table))
    indices = ir.VectorType(ir.IntType(32), size)
    permute = declare(builder, _PERMUTATIONS[size], numbers.type, [numbers.type, indices])
    parts = []
    for start in range(0, index.value.type.count, size):
        part = shuffle_value(builder, index.value, index.value, list(range(start, start + size)))
        parts.append(builder.call(permute, [numbers, part]))
    return Value(builder, _together(builder, parts))


def scale_by_floor(x: Value, n: Value, kept: Value) -> Value:
    """x * 2**floor(n), rounded once: infinite and subnormal where it should be; 0 where `kept` is not set; see
    `has_lookup`."""
    scaled = _scale_avx512(x, n, kept)
    assert scaled is not None
    return scaled


def _of_registers(x: Value, name: str, *before: int) -> Value:
    """An AVX-512 operation on float32 of each register: `before` are its constants after the operand."""
    builder = x.builder
    register = ir.VectorType(ir.FloatType(), SIZE)
    i32 = ir.IntType(32)
    rest = [ir.Constant(i32, number) for number in before]
    # all lanes, the current rounding mode
    rest += [ir.Constant(register, ir.Undefined), ir.Constant(ir.IntType(16), -1), ir.Constant(i32, 4)]
    function = declare(builder, name, register, [register, *(value.type for value in rest)])
    parts = []
    for start in range(0, x.value.type.count, SIZE):
        part = shuffle_value(builder, x.value, x.value, list(range(start, start + SIZE)))
        parts.append(builder.call(function, [part, *rest]))
    return Value(builder, _together(builder, parts))


def _together(builder: Any, parts: list[Any]) -> Any:
    """Registers as one vector."""
    while len(parts) > 1:
        both = list(range(2 * parts[0].type.count))
        parts = [shuffle_value(builder, a, b, both) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def exponent(x: Value) -> Value:
    """floor(log2 |x|), of subnormal numbers too; -inf of 0, inf of inf; see `has_lookup`."""
    return _of_registers(x, "llvm.x86.avx512.mask.getexp.ps.512")


def mantissa(x: Value) -> Value:
    """x / 2**n in [3/4, 3/2) for an integer n, of subnormal numbers too; see `has_lookup`.

    That of 0 and of inf is 1, that of negative numbers NaN.
    """
    interval, nan_below_0 = 3, 2
    return _of_registers(x, "llvm.x86.avx512.mask.getmant.ps.512", interval | nan_below_0 << 2)
