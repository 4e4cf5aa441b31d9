"""A table of 16 float32 numbers in one AVX-512 register, which a permutation looks up for every lane."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from numbaprims.cpu import target
from numbaprims.cpu.simd.lanes import shuffle_value
from numbaprims.cpu.simd.math.emit import Value, _scale_avx512
from numbaprims.cpu.simd.memory import declare

SIZE = 16


def has_lookup(x: Value) -> bool:
    """Whether `lookup` works for vectors such as x: whole AVX-512 registers of float32."""
    return x.width == 32 and x.value.type.count % SIZE == 0 and "avx512f" in target.current().features


def lookup(table: Sequence[float], index: Value) -> Value:
    """table[index mod 16] of every lane; see `has_lookup`."""
    assert len(table) == SIZE
    builder = index.builder
    numbers = ir.Constant(ir.VectorType(ir.FloatType(), SIZE), list(table))
    indices = ir.VectorType(ir.IntType(32), SIZE)
    permute = declare(builder, "llvm.x86.avx512.permvar.sf.512", numbers.type, [numbers.type, indices])
    parts = []
    for start in range(0, index.value.type.count, SIZE):
        part = shuffle_value(builder, index.value, index.value, list(range(start, start + SIZE)))
        parts.append(builder.call(permute, [numbers, part]))
    while len(parts) > 1:
        together = list(range(2 * parts[0].type.count))
        parts = [shuffle_value(builder, a, b, together) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return Value(builder, parts[0])


def scale_by_floor(x: Value, n: Value) -> Value:
    """x * 2**floor(n), rounded once: infinite and subnormal where it should be; see `has_lookup`."""
    scaled = _scale_avx512(x, n)
    assert scaled is not None
    return scaled
