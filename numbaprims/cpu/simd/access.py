"""More ways to memory: aligned, past the caches, masked, scattered; and pointers as Python writes them."""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu import target
from numbaprims.cpu.simd.emit import (
    I32,
    alignment,
    declare,
    load_value,
    masked_load_value,
    masked_store_value,
    number,
    prefetch_value,
    splat_value,
    store_value,
    suffix,
)
from numbaprims.cpu.simd.memory import int_literal
from numbaprims.cpu.simd.operands import define_operator
from numbaprims.cpu.simd.types import ELEMENTS, Mask, Pointer, Vec, llvm_element, scalar_type


@intrinsic(prefer_literal=True)
def load_aligned(typingctx, p, i, W):  # type: ignore[no-untyped-def]
    """Elements i ... i + W - 1, whose address must be a multiple of the vector's size."""
    n = int_literal(W)
    if n is None or not isinstance(p, Pointer):
        return None
    result = Vec(p.elem, n)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return load_value(builder, args[0], args[1], context.get_value_type(result), align=n * ELEMENTS[p.elem][0] // 8)

    return result(p, types.int64, W), codegen


def _aligned_store(name: str, doc: str, streaming: bool) -> Any:
    def typer(typingctx, p, i, v):  # type: ignore[no-untyped-def]
        if not (isinstance(p, Pointer) and isinstance(v, Vec) and p.elem == v.elem):
            return None

        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            store_value(builder, *args, align=alignment(args[2].type), stream=streaming)
            return context.get_dummy_value()

        return types.void(p, types.int64, v), codegen

    typer.__name__ = typer.__qualname__ = name
    typer.__doc__ = doc
    return intrinsic(typer)


store_aligned = _aligned_store(
    "store_aligned", "Write a vector where the address is a multiple of its size, or of 64 bytes.", False
)
store_stream = _aligned_store(
    "store_stream",
    "Write a vector past the caches, at a multiple of its size or of 64 bytes; before others read it: `stream_fence`.",
    True,
)


@intrinsic
def stream_fence(typingctx):  # type: ignore[no-untyped-def]
    """Streamed stores before it become visible before anything that is written after it."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        if "sse" in target.current().features:
            builder.call(declare(builder, "llvm.x86.sse.sfence", ir.VoidType(), []), [])
        else:
            builder.fence("release")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def load_masked(typingctx, p, i, mask):  # type: ignore[no-untyped-def]
    """Element i + l in the lanes l that are set, zeros elsewhere; memory of the others is not touched."""
    if not (isinstance(p, Pointer) and isinstance(mask, Mask)):
        return None
    result = Vec(p.elem, mask.n)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return masked_load_value(builder, args[0], args[1], args[2], context.get_value_type(result))

    return result(p, types.int64, mask), codegen


@intrinsic
def store_masked(typingctx, p, i, mask, v):  # type: ignore[no-untyped-def]
    """Write the lanes l that are set to elements i + l; memory of the others is not touched."""
    if not (isinstance(p, Pointer) and isinstance(v, Vec) and p.elem == v.elem and mask == Mask(v.n)):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        masked_store_value(builder, args[0], args[1], args[2], args[3])
        return context.get_dummy_value()

    return types.void(p, types.int64, mask, v), codegen


def gather_value(builder: Any, pointer: Any, index: Any, vector: Any) -> Any:
    """Element index[l] in lane l."""
    n = vector.count
    addresses = builder.gep(pointer, [index], source_etype=vector.element)
    addresses.type = ir.VectorType(pointer.type, n)  # llvmlite gives it the type of one address
    mask = ir.Constant(ir.VectorType(ir.IntType(1), n), [1] * n)
    operands = [addresses, ir.Constant(I32, 1), mask, ir.Constant(vector, None)]
    name = f"llvm.masked.gather.{suffix(vector)}.v{n}p0"
    return builder.call(declare(builder, name, vector, [value.type for value in operands]), operands)


@intrinsic
def gather(typingctx, p, index):  # type: ignore[no-untyped-def]
    """Element index[l] in lane l, for i32 or i64 indices from p."""
    if not (isinstance(p, Pointer) and isinstance(index, Vec) and index.elem in ("i32", "i64")):
        return None
    result = Vec(p.elem, index.n)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return gather_value(builder, args[0], args[1], context.get_value_type(result))

    return result(p, index), codegen


def strided_value(builder: Any, pointer: Any, index: Any, stride: Any, vector: Any) -> Any:
    """Elements index, index + stride, ... as a vector."""
    value: Any = ir.Constant(vector, ir.Undefined)
    for lane in range(vector.count):
        at = builder.add(index, builder.mul(stride, number(lane)))
        value = builder.insert_element(value, builder.load(builder.gep(pointer, [at])), ir.Constant(I32, lane))
    return value


@intrinsic(prefer_literal=True)
def load_strided(typingctx, p, i, stride, W):  # type: ignore[no-untyped-def]
    """Elements i, i + stride, ..., i + (W - 1) * stride, read one by one."""
    n = int_literal(W)
    if n is None or not isinstance(p, Pointer):
        return None
    result = Vec(p.elem, n)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return strided_value(builder, args[0], args[1], args[2], context.get_value_type(result))

    return result(p, types.int64, types.int64, W), codegen


@intrinsic(prefer_literal=True)
def broadcast_load(typingctx, p, i, W):  # type: ignore[no-untyped-def]
    """Element i in every lane."""
    n = int_literal(W)
    if n is None or not isinstance(p, Pointer):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return splat_value(builder, builder.load(builder.gep(args[0], [args[1]])), n)

    return Vec(p.elem, n)(p, types.int64, W), codegen


@intrinsic(prefer_literal=True)
def prefetch_write(typingctx, p, i, locality):  # type: ignore[no-untyped-def]
    """Ask for element i's line in order to write it: locality 3 into all caches, 0 past them."""
    level = int_literal(locality)
    if level is None or not isinstance(p, Pointer):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        prefetch_value(builder, args[0], args[1], level, True)
        return context.get_dummy_value()

    return types.void(p, types.int64, locality), codegen


@intrinsic(prefer_literal=True)
def cast_pointer(typingctx, p, elem):  # type: ignore[no-untyped-def]
    """The same address as a pointer to elements of another type ("u8")."""
    if not (isinstance(p, Pointer) and isinstance(elem, types.StringLiteral)):
        return None
    result = Pointer(elem.literal_value)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], llvm_element(result.elem).as_pointer())

    return result(p, elem), codegen


def _is_index(t: Any) -> bool:
    return isinstance(types.unliteral(t), types.Integer)


def _step(context: Any, builder: Any, sig: Any, args: Any, at: int) -> Any:
    return context.cast(builder, args[at], sig.args[at], types.int64)


def _emit_add(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    at = 0 if isinstance(sig.args[0], Pointer) else 1
    return builder.gep(args[at], [_step(context, builder, sig, args, 1 - at)])


def _type_add(a: Any, b: Any) -> Any:
    if isinstance(a, Pointer) and _is_index(b):
        return a
    return b if isinstance(b, Pointer) and _is_index(a) else None


def _emit_get(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.load(builder.gep(args[0], [_step(context, builder, sig, args, 1)]))


def _emit_set(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    value = context.cast(builder, args[2], sig.args[2], scalar_type(sig.args[0].elem))
    builder.store(value, builder.gep(args[0], [_step(context, builder, sig, args, 1)]))


define_operator((operator.add, operator.iadd), _type_add, _emit_add, (Pointer, types.Integer), (types.Integer, Pointer))
define_operator(
    (operator.getitem,),
    lambda p, i: scalar_type(p.elem) if isinstance(p, Pointer) and _is_index(i) else None,
    _emit_get,
    (Pointer, types.Integer),
)
define_operator(
    (operator.setitem,),
    lambda p, i, x: types.void if isinstance(p, Pointer) and _is_index(i) and isinstance(x, types.Number) else None,
    _emit_set,
    (Pointer, types.Integer, types.Number),
)
