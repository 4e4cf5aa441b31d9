"""Loads and stores: whole vectors, tails, single elements; addresses."""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.simd.emit import (
    I64,
    first_lanes_value,
    load_value,
    masked_load_value,
    prefetch_value,
    store_first_value,
    store_value,
)
from numbaprims.cpu.simd.types import Pointer, Vec, llvm_element, scalar_type, stack_block


def int_literal(t: Any) -> int | None:
    """The value of a literal int type, or None as long as Numba has not made it literal."""
    return t.literal_value if isinstance(t, types.IntegerLiteral) else None


@intrinsic(prefer_literal=True)
def load(typingctx, p, i, W):  # type: ignore[no-untyped-def]
    """Elements i ... i + W - 1; no alignment is assumed."""
    n = int_literal(W)
    if n is None or not isinstance(p, Pointer):
        return None
    result = Vec(p.elem, n)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return load_value(builder, args[0], args[1], context.get_value_type(result))

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
        store_value(builder, *args)
        return context.get_dummy_value()

    return types.void(p, types.int64, v), codegen


@intrinsic
def store_first(typingctx, p, i, count, v):  # type: ignore[no-untyped-def]
    """Write the first `count` lanes; memory past them is not touched."""
    if not (isinstance(p, Pointer) and isinstance(v, Vec)):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        store_first_value(builder, *args)
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
