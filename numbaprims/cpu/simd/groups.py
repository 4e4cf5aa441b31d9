"""Groups of 32 bits for dot products: two bf16 or four bytes of neighbouring k, gathered into one lane."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.simd.emit import I32, first_lanes_value, least, load_value, masked_load_value, number
from numbaprims.cpu.simd.memory import int_literal
from numbaprims.cpu.simd.types import ELEMENTS, Pointer, Vec


def _shape(p: Any, W: Any) -> tuple[int, int] | None:
    """Lanes, and elements a group, or None as long as W is not literal."""
    n = int_literal(W)
    if n is None or not isinstance(p, Pointer):
        return None
    return n, 32 // ELEMENTS[p.elem][0]


@intrinsic(prefer_literal=True)
def load_group_rows(typingctx, p, row_step, count, valid, W):  # type: ignore[no-untyped-def]
    """W vectors of W groups, row r from min(r, count - 1) * row_step on: columns whose k are neighbours.

    The first `valid` elements of each row are read, the others are zero.
    """
    shape = _shape(p, W)
    if shape is None:
        return None
    n, group = shape
    result = types.UniTuple(Vec("i32", n), n)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        stored = context.get_value_type(Vec(p.elem, n * group))
        mask = first_lanes_value(builder, args[3], n * group)
        last = builder.sub(args[2], number(1))
        out = []
        for row in range(n):
            index = least(builder, number(row), last)
            value = masked_load_value(builder, args[0], builder.mul(index, args[1]), mask, stored)
            out.append(builder.bitcast(value, ir.VectorType(I32, n)))
        return context.make_tuple(builder, result, out)

    return result(p, types.int64, types.int64, types.int64, W), codegen


@intrinsic(prefer_literal=True)
def load_group_columns(typingctx, p, k_step, valid, count, W):  # type: ignore[no-untyped-def]
    """W groups of columns that are neighbours: lane j holds elements j, k_step + j, 2 k_step + j, ...

    The first `count` columns and the first `valid` of a group's rows are read, the others are zero.
    """
    shape = _shape(p, W)
    if shape is None:
        return None
    n, group = shape
    result = Vec("i32", n)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        stored = context.get_value_type(Vec(p.elem, n))
        columns = first_lanes_value(builder, args[3], n)
        off = ir.Constant(columns.type, None)
        rows = []
        for t in range(group):
            there = builder.icmp_signed("<", number(t), args[2])
            mask = builder.select(there, columns, off)
            rows.append(masked_load_value(builder, args[0], builder.mul(number(t), args[1]), mask, stored))
        # neighbours in pairs, then pairs of pairs: each stage interleaves lanes of twice the width
        while len(rows) > 1:
            half = len(rows) // 2
            rows = [_interleave(builder, rows[t], rows[t + half]) for t in range(half)]
        return builder.bitcast(rows[0], ir.VectorType(I32, n))

    return result(p, types.int64, types.int64, types.int64, W), codegen


def _interleave(builder: Any, a: Any, b: Any) -> Any:
    """a0 b0 a1 b1 ..."""
    count = a.type.count
    order = [lane for i in range(count) for lane in (i, count + i)]
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, 2 * count), order))


@intrinsic(prefer_literal=True)
def load_words(typingctx, p, i, W):  # type: ignore[no-untyped-def]
    """W words of 32 bits from element i on, as i32."""
    n = int_literal(W)
    if n is None or not isinstance(p, Pointer):
        return None
    result = Vec("i32", n)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return load_value(builder, args[0], args[1], context.get_value_type(result))

    return result(p, types.int64, W), codegen
