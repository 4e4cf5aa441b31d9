"""Arithmetic on vectors.  Operators come through `operator`; fused operations are written out, never inferred."""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload

from numbaprims.cpu import target
from numbaprims.cpu.simd.memory import declare, int_literal, splat_value, suffix
from numbaprims.cpu.simd.types import ELEMENTS, Vec, scalar_type

_ELEM_OF = {
    types.float64: "f64", types.float32: "f32", types.int8: "i8", types.uint8: "u8", types.int16: "i16",
    types.uint16: "u16", types.int32: "i32", types.uint32: "u32", types.int64: "i64", types.uint64: "u64",
}  # fmt: skip


@intrinsic(prefer_literal=True)
def splat(typingctx, x, W):  # type: ignore[no-untyped-def]
    """x in every lane; the element type is that of the scalar."""
    n = int_literal(W)
    elem = _ELEM_OF.get(types.unliteral(x))
    if n is None or elem is None:
        return None
    scalar = types.unliteral(x)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return splat_value(builder, context.cast(builder, args[0], signature.args[0], scalar), n)

    return Vec(elem, n)(x, W), codegen


@intrinsic(prefer_literal=True)
def zeros(typingctx, elem, W):  # type: ignore[no-untyped-def]
    """A vector of zeros."""
    n = int_literal(W)
    if n is None or not isinstance(elem, types.StringLiteral):
        return None
    result = Vec(elem.literal_value, n)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return ir.Constant(context.get_value_type(result), None)

    return result(elem, W), codegen


def _kind(v: Any) -> str:
    return ELEMENTS[v.elem][1]


def _binary(name: str, emit: dict[str, str]) -> Any:
    def typer(typingctx, a, b):  # type: ignore[no-untyped-def]
        if not (isinstance(a, Vec) and a == b) or _kind(a) not in emit:
            return None
        method = emit[_kind(a)]

        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return getattr(builder, method)(args[0], args[1])

        return a(a, b), codegen

    typer.__name__ = typer.__qualname__ = name
    return intrinsic(typer)


_add = _binary("vector_add", {"f": "fadd", "i": "add", "u": "add"})
_sub = _binary("vector_sub", {"f": "fsub", "i": "sub", "u": "sub"})
_mul = _binary("vector_mul", {"f": "fmul", "i": "mul", "u": "mul"})
_div = _binary("vector_div", {"f": "fdiv"})


def _operator(op: Any, function: Any) -> None:
    @overload(op)
    def implementation(a, b):  # type: ignore[no-untyped-def]
        if isinstance(a, Vec) and isinstance(b, Vec):
            return lambda a, b: function(a, b)
        return None


for _op, _function in (
    (operator.add, _add), (operator.sub, _sub), (operator.mul, _mul), (operator.truediv, _div),
):  # fmt: skip
    _operator(_op, _function)


def multiply_add_value(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c of float vectors: rounded once where the target has fused multiply-add, else twice.

    Without the instruction LLVM would call libm for every lane, some 50 times as slow.
    """
    if not target.current().has_fma:
        return builder.fadd(builder.fmul(a, b), c)
    vector = a.type
    return builder.call(declare(builder, f"llvm.fma.{suffix(vector)}", vector, [vector] * 3), [a, b, c])


@intrinsic
def fma(typingctx, a, b, c):  # type: ignore[no-untyped-def]
    """a * b + c: rounded once where the target has fused multiply-add, else twice."""
    if not (isinstance(a, Vec) and a == b == c and _kind(a) == "f"):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return multiply_add_value(builder, *args)

    return a(a, b, c), codegen


@intrinsic
def minimum(typingctx, a, b):  # type: ignore[no-untyped-def]
    """The smaller; NaN where either is NaN."""
    return _extreme(a, b, "<")


@intrinsic
def maximum(typingctx, a, b):  # type: ignore[no-untyped-def]
    """The larger; NaN where either is NaN."""
    return _extreme(a, b, ">")


def _extreme(a: Any, b: Any, sense: str) -> Any:
    if not (isinstance(a, Vec) and a == b):
        return None
    kind = _kind(a)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        x, y = args
        if kind == "f":
            name = "minimum" if sense == "<" else "maximum"
            return builder.call(declare(builder, f"llvm.{name}.{suffix(x.type)}", x.type, [x.type] * 2), args)
        compare = builder.icmp_signed if kind == "i" else builder.icmp_unsigned
        return builder.select(compare(sense, x, y), x, y)

    return a(a, b), codegen


@intrinsic(prefer_literal=True)
def scalar(typingctx, x, elem):  # type: ignore[no-untyped-def]
    """A number as a scalar of an element type ("f32")."""
    if not isinstance(elem, types.StringLiteral) or not isinstance(types.unliteral(x), types.Number):
        return None
    result = scalar_type(elem.literal_value)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return context.cast(builder, args[0], signature.args[0], result)

    return result(x, elem), codegen


@intrinsic
def multiply_add(typingctx, a, b, c):  # type: ignore[no-untyped-def]
    """a * b + c: fused for floats, wrapping for integers."""
    if not (isinstance(a, Vec) and a == b == c):
        return None
    is_float = _kind(a) == "f"

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        if is_float:
            return multiply_add_value(builder, *args)
        return builder.add(builder.mul(args[0], args[1]), args[2])

    return a(a, b, c), codegen
