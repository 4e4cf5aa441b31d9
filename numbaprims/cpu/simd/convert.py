"""Storage <-> compute: f16 and bf16 widen to f32 on the way in and are rounded on the way out."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload, register_jitable

from numbaprims.cpu.simd.memory import (
    first_lanes_value,
    int_literal,
    masked_load_value,
    masked_store_value,
    vector_at,
)
from numbaprims.cpu.simd.types import ELEMENTS, Pointer, Vec, scalar_type

_COMPUTE = {"f16": "f32", "bf16": "f32", "i8": "i32", "u8": "i32", "i16": "i32", "u16": "i32"}


def compute_element(elem: str) -> str:
    """The element in which values of a storage type are computed."""
    return _COMPUTE.get(elem, elem)


def _like(value: Any, element: Any) -> Any:
    """`element`, or a vector of it with as many lanes as `value` has."""
    return ir.VectorType(element, value.type.count) if isinstance(value.type, ir.VectorType) else element


def widen_value(builder: Any, value: Any, elem: str) -> Any:
    """A stored scalar or vector as its compute type."""
    if elem == "bf16":
        bits = builder.zext(value, _like(value, ir.IntType(32)))
        shift = ir.Constant(
            bits.type, 16 if not isinstance(bits.type, ir.VectorType) else [16] * bits.type.count
        )
        return builder.bitcast(builder.shl(bits, shift), _like(value, ir.FloatType()))
    if elem == "f16":
        return builder.fpext(
            builder.bitcast(value, _like(value, ir.HalfType())), _like(value, ir.FloatType())
        )
    bits, kind = ELEMENTS[elem]
    if kind in "iu" and bits < 32:
        extend = builder.sext if kind == "i" else builder.zext
        return extend(value, _like(value, ir.IntType(32)))
    return value


def narrow_value(builder: Any, value: Any, elem: str) -> Any:
    """A computed f32 scalar or vector as f16 or bf16 bits, rounded to nearest even, NaN kept quiet."""
    if elem == "f16":
        half = builder.fptrunc(value, _like(value, ir.HalfType()))
        return builder.bitcast(half, _like(value, ir.IntType(16)))
    if elem != "bf16":
        return value

    def constant(x: int) -> Any:
        kind = _like(value, ir.IntType(32))
        return ir.Constant(kind, [x] * kind.count if isinstance(kind, ir.VectorType) else x)

    bits = builder.bitcast(value, _like(value, ir.IntType(32)))
    odd = builder.and_(builder.lshr(bits, constant(16)), constant(1))
    rounded = builder.lshr(builder.add(builder.add(bits, constant(0x7FFF)), odd), constant(16))
    quiet = builder.or_(builder.lshr(bits, constant(16)), constant(0x40))
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(is_nan, quiet, rounded), _like(value, ir.IntType(16)))


@intrinsic(prefer_literal=True)
def load_wide(typingctx, p, i, W):  # type: ignore[no-untyped-def]
    """Elements i ... i + W - 1 in their compute type."""
    n = int_literal(W)
    if n is None or not isinstance(p, Pointer):
        return None
    stored, result = Vec(p.elem, n), Vec(compute_element(p.elem), n)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        value = builder.load(vector_at(builder, args[0], args[1], context.get_value_type(stored)))
        value.align = 1
        return widen_value(builder, value, p.elem)

    return result(p, types.int64, W), codegen


@intrinsic(prefer_literal=True)
def load_wide_first(typingctx, p, i, count, W):  # type: ignore[no-untyped-def]
    """The first `count` of them, then zeros."""
    n = int_literal(W)
    if n is None or not isinstance(p, Pointer):
        return None
    stored, result = Vec(p.elem, n), Vec(compute_element(p.elem), n)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        mask = first_lanes_value(builder, args[2], n)
        value = masked_load_value(builder, args[0], args[1], mask, context.get_value_type(stored))
        return widen_value(builder, value, p.elem)

    return result(p, types.int64, types.int64, W), codegen


@intrinsic
def store_narrow(typingctx, p, i, v):  # type: ignore[no-untyped-def]
    """Write a computed vector in the pointer's element type."""
    if not (isinstance(p, Pointer) and isinstance(v, Vec)):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        value = narrow_value(builder, args[2], p.elem)
        builder.store(value, vector_at(builder, args[0], args[1], value.type)).align = 1
        return context.get_dummy_value()

    return types.void(p, types.int64, v), codegen


@intrinsic
def store_narrow_first(typingctx, p, i, count, v):  # type: ignore[no-untyped-def]
    """Write its first `count` lanes."""
    if not (isinstance(p, Pointer) and isinstance(v, Vec)):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        value = narrow_value(builder, args[3], p.elem)
        masked_store_value(builder, args[0], args[1], first_lanes_value(builder, args[2], v.n), value)
        return context.get_dummy_value()

    return types.void(p, types.int64, types.int64, v), codegen


@intrinsic
def load_wide_scalar(typingctx, p, i):  # type: ignore[no-untyped-def]
    """Element i in its compute type."""
    if not isinstance(p, Pointer):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return widen_value(builder, builder.load(builder.gep(args[0], [args[1]])), p.elem)

    return scalar_type(compute_element(p.elem))(p, types.int64), codegen


@intrinsic
def store_narrow_scalar(typingctx, p, i, x):  # type: ignore[no-untyped-def]
    """Write element i from its compute type."""
    if not isinstance(p, Pointer):
        return None
    wide = scalar_type(compute_element(p.elem))

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        value = context.cast(builder, args[2], signature.args[2], wide)
        builder.store(narrow_value(builder, value, p.elem), builder.gep(args[0], [args[1]]))
        return context.get_dummy_value()

    return types.void(p, types.int64, x), codegen


@intrinsic(prefer_literal=True)
def load_wide_rows(typingctx, p, row_stride, count, valid, W):  # type: ignore[no-untyped-def]
    """W vectors, row r at min(r, count - 1) * row_stride: what `transpose` takes.

    Rows past `count` repeat the last one, so that no memory past it is touched.  Only the first `valid` lanes of each
    row are read; the others are zero.
    """
    n = int_literal(W)
    if n is None or not isinstance(p, Pointer):
        return None
    stored = Vec(p.elem, n)
    result = types.UniTuple(Vec(compute_element(p.elem), n), n)
    all_valid = int_literal(valid) == n

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vector = context.get_value_type(stored)
        i64 = ir.IntType(64)
        last = builder.sub(args[2], ir.Constant(i64, 1))
        mask = None if all_valid else first_lanes_value(builder, args[3], n)
        out = []
        for row in range(n):
            index = ir.Constant(i64, row)
            index = builder.select(builder.icmp_signed("<", index, last), index, last)
            start = builder.mul(args[1], index)
            if mask is None:
                value = builder.load(vector_at(builder, args[0], start, vector))
                value.align = 1
            else:
                value = masked_load_value(builder, args[0], start, mask, vector)
            out.append(widen_value(builder, value, p.elem))
        return context.make_tuple(builder, result, out)

    return result(p, types.int64, types.int64, valid if all_valid else types.int64, W), codegen
