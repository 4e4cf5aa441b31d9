"""Loads and stores: whole vectors, tails, single elements; addresses."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from numbaprims.cpu.simd.types import Pointer, Vec, llvm_element, scalar_type, stack_block

I64 = ir.IntType(64)
I32 = ir.IntType(32)
I1 = ir.IntType(1)


def int_literal(t: Any) -> int | None:
    """The value of a literal int type, or None as long as Numba has not made it literal."""
    return t.literal_value if isinstance(t, types.IntegerLiteral) else None


def vector_at(builder: Any, pointer: Any, index: Any, vector: Any) -> Any:
    """The address of element `index` as a pointer to a vector."""
    return builder.bitcast(builder.gep(pointer, [index]), vector.as_pointer())


def suffix(vector: Any) -> str:
    """How LLVM's intrinsics name a vector type: v16f32."""
    element = vector.element
    if isinstance(element, ir.FloatType):
        return f"v{vector.count}f32"
    if isinstance(element, ir.DoubleType):
        return f"v{vector.count}f64"
    return f"v{vector.count}i{element.width}"


def declare(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """An LLVM intrinsic by its full name (llvmlite's declare_intrinsic cannot name vector types)."""
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


def splat_value(builder: Any, scalar: Any, lanes: int) -> Any:
    """A vector with `scalar` in every lane."""
    undefined = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))


def first_lanes_value(builder: Any, count: Any, lanes: int) -> Any:
    """The mask of the lanes below `count`."""
    index = ir.Constant(ir.VectorType(I32, lanes), list(range(lanes)))
    limit = splat_value(builder, builder.trunc(count, I32), lanes)
    return builder.icmp_signed("<", index, limit)


def masked_load_value(builder: Any, pointer: Any, index: Any, mask: Any, vector: Any, other: Any = None) -> Any:
    at = vector_at(builder, pointer, index, vector)
    name = f"llvm.masked.load.{suffix(vector)}.p0"
    load = declare(builder, name, vector, [vector.as_pointer(), I32, mask.type, vector])
    other = ir.Constant(vector, None) if other is None else other
    return builder.call(load, [at, ir.Constant(I32, 1), mask, other])


def masked_store_value(builder: Any, pointer: Any, index: Any, mask: Any, value: Any) -> None:
    vector = value.type
    at = vector_at(builder, pointer, index, vector)
    name = f"llvm.masked.store.{suffix(vector)}.p0"
    store = declare(builder, name, ir.VoidType(), [vector, vector.as_pointer(), I32, mask.type])
    builder.call(store, [value, at, ir.Constant(I32, 1), mask])


@intrinsic(prefer_literal=True)
def load(typingctx, p, i, W):  # type: ignore[no-untyped-def]
    """Elements i ... i + W - 1; no alignment is assumed."""
    n = int_literal(W)
    if n is None or not isinstance(p, Pointer):
        return None
    result = Vec(p.elem, n)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        value = builder.load(vector_at(builder, args[0], args[1], context.get_value_type(result)))
        value.align = 1
        return value

    return result(p, types.int64, W), codegen


@intrinsic(prefer_literal=True)
def load_first(typingctx, p, i, count, W):  # type: ignore[no-untyped-def]
    """Elements i ... i + count - 1, then zeros; memory past them is not touched."""
    n = int_literal(W)
    if n is None or not isinstance(p, Pointer):
        return None
    result = Vec(p.elem, n)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        mask = first_lanes_value(builder, args[2], n)
        return masked_load_value(builder, args[0], args[1], mask, context.get_value_type(result))

    return result(p, types.int64, types.int64, W), codegen


@intrinsic
def store(typingctx, p, i, v):  # type: ignore[no-untyped-def]
    """Write a vector to elements i, i + 1, ...; no alignment is assumed."""
    if not (isinstance(p, Pointer) and isinstance(v, Vec)):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        builder.store(args[2], vector_at(builder, args[0], args[1], args[2].type)).align = 1
        return context.get_dummy_value()

    return types.void(p, types.int64, v), codegen


@intrinsic
def store_first(typingctx, p, i, count, v):  # type: ignore[no-untyped-def]
    """Write the first `count` lanes; memory past them is not touched."""
    if not (isinstance(p, Pointer) and isinstance(v, Vec)):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        mask = first_lanes_value(builder, args[2], v.n)
        masked_store_value(builder, args[0], args[1], mask, args[3])
        return context.get_dummy_value()

    return types.void(p, types.int64, types.int64, v), codegen


@intrinsic
def load_scalar(typingctx, p, i):  # type: ignore[no-untyped-def]
    """Element i."""
    if not isinstance(p, Pointer):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.load(builder.gep(args[0], [args[1]]))

    return scalar_type(p.elem)(p, types.int64), codegen


@intrinsic
def store_scalar(typingctx, p, i, x):  # type: ignore[no-untyped-def]
    """Write element i."""
    if not isinstance(p, Pointer):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        value = context.cast(builder, args[2], signature.args[2], scalar_type(p.elem))
        builder.store(value, builder.gep(args[0], [args[1]]))
        return context.get_dummy_value()

    return types.void(p, types.int64, x), codegen


@intrinsic
def advance(typingctx, p, n):  # type: ignore[no-untyped-def]
    """The address n elements further."""
    if not isinstance(p, Pointer):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.gep(args[0], [args[1]])

    return p(p, types.int64), codegen


@intrinsic
def address_of(typingctx, p):  # type: ignore[no-untyped-def]
    """The address as an int64."""
    if not isinstance(p, Pointer):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.ptrtoint(args[0], I64)

    return types.int64(p), codegen


@intrinsic(prefer_literal=True)
def pointer_from_address(typingctx, address, elem):  # type: ignore[no-untyped-def]
    """The pointer to elements of a type ("f32") at an address."""
    if not isinstance(elem, types.StringLiteral):
        return None
    result = Pointer(elem.literal_value)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.inttoptr(args[0], llvm_element(result.elem).as_pointer())

    return result(types.int64, elem), codegen


@intrinsic(prefer_literal=True)
def stack_array(typingctx, elem, n):  # type: ignore[no-untyped-def]
    """n uninitialised elements on the stack, 64-byte aligned."""
    if not (isinstance(elem, types.StringLiteral) and isinstance(n, types.IntegerLiteral)):
        return None
    result = Pointer(elem.literal_value)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        element = llvm_element(result.elem)
        return builder.bitcast(stack_block(context, builder, element, n.literal_value), element.as_pointer())

    return result(elem, n), codegen


def prefetch_value(builder: Any, pointer: Any, index: Any, locality: int, write: bool) -> None:
    """Emit a prefetch of the line that holds element `index`."""
    at = builder.bitcast(builder.gep(pointer, [index]), ir.IntType(8).as_pointer())
    function = declare(builder, "llvm.prefetch.p0", ir.VoidType(), [at.type, I32, I32, I32])
    builder.call(function, [at, ir.Constant(I32, int(write)), ir.Constant(I32, locality), ir.Constant(I32, 1)])


@intrinsic(prefer_literal=True)
def prefetch(typingctx, p, i, locality):  # type: ignore[no-untyped-def]
    """Ask for element i's line: locality 3 into all caches, 0 past them."""
    level = int_literal(locality)
    if level is None or not isinstance(p, Pointer):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        prefetch_value(builder, args[0], args[1], level, False)
        return context.get_dummy_value()

    return types.void(p, types.int64, locality), codegen
