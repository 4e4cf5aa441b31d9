"""Arithmetic on vectors: Python's operators, functions for what has none; fused operations are written out."""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu import target
from numbaprims.cpu.simd.emit import I1, declare, splat_value, suffix
from numbaprims.cpu.simd.memory import int_literal
from numbaprims.cpu.simd.operands import as_vector, common, define_operator, fits, kind_of
from numbaprims.cpu.simd.types import Vec, scalar_type

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


def _define_binary(ops: tuple[Any, ...], emit: dict[str, str]) -> None:
    """An operator on two vectors, or vector and scalar; `emit` maps the elements' kind to the instruction."""

    def typer(a: Any, b: Any) -> Any:
        vec = common(a, b)
        return vec if vec is not None and kind_of(vec) in emit else None

    def emit_operator(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vec = sig.return_type
        x, y = (as_vector(context, builder, *operand, vec) for operand in zip(args, sig.args, strict=True))
        return getattr(builder, emit[kind_of(vec)])(x, y)

    define_operator(ops, typer, emit_operator, (Vec, Vec), (Vec, types.Number), (types.Number, Vec))


_define_binary((operator.add, operator.iadd), {"f": "fadd", "i": "add", "u": "add"})
_define_binary((operator.sub, operator.isub), {"f": "fsub", "i": "sub", "u": "sub"})
_define_binary((operator.mul, operator.imul), {"f": "fmul", "i": "mul", "u": "mul"})
_define_binary((operator.truediv, operator.itruediv), {"f": "fdiv"})
_define_binary((operator.and_, operator.iand), {"i": "and_", "u": "and_"})
_define_binary((operator.or_, operator.ior), {"i": "or_", "u": "or_"})
_define_binary((operator.xor, operator.ixor), {"i": "xor", "u": "xor"})
_define_binary((operator.lshift, operator.ilshift), {"i": "shl", "u": "shl"})
_define_binary((operator.rshift, operator.irshift), {"i": "ashr", "u": "lshr"})
define_operator(
    (operator.neg,),
    lambda a: a if isinstance(a, Vec) and kind_of(a) in "fiu" else None,
    lambda context, builder, sig, args: (builder.fneg if kind_of(sig.args[0]) == "f" else builder.neg)(args[0]),
    (Vec,),
)
define_operator(
    (operator.invert,),
    lambda a: a if isinstance(a, Vec) and kind_of(a) in "iu" else None,
    lambda context, builder, sig, args: builder.not_(args[0]),
    (Vec,),
)


def multiply_add_value(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c of float vectors: rounded once where the target has fused multiply-add, else twice.

    Without the instruction LLVM would call libm for every lane, some 50 times as slow.
    """
    if not target.current().has_fma:
        return builder.fadd(builder.fmul(a, b), c)
    vector = a.type
    return builder.call(declare(builder, f"llvm.fma.{suffix(vector)}", vector, [vector] * 3), [a, b, c])


def _fused(name: str, doc: str, emit: Any) -> Any:
    def typer(typingctx, a, b, c):  # type: ignore[no-untyped-def]
        vec = next((t for t in (a, b, c) if isinstance(t, Vec)), None)
        given = (a, b, c)
        if vec is None or kind_of(vec) != "f" or not all(t == vec or fits(t, vec) for t in given):
            return None

        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            operands = zip(args, signature.args, strict=True)
            return emit(builder, *(as_vector(context, builder, *operand, vec) for operand in operands))

        return vec(*(types.unliteral(t) for t in given)), codegen

    typer.__name__ = typer.__qualname__ = name
    typer.__doc__ = doc
    return intrinsic(typer)


fma = _fused("fma", "a * b + c: rounded once where the target has fused multiply-add, else twice.", multiply_add_value)
fms = _fused(
    "fms",
    "a * b - c, rounded like fma.",
    lambda builder, a, b, c: multiply_add_value(builder, a, b, builder.fneg(c)),
)
fnma = _fused(
    "fnma",
    "c - a * b, rounded like fma.",
    lambda builder, a, b, c: multiply_add_value(builder, builder.fneg(a), b, c),
)


def extreme_value(builder: Any, a: Any, b: Any, sense: str, kind: str, number: bool = False) -> Any:
    """The smaller ("<") or larger (">") of two vectors; NaN wins, or loses where `number` is set."""
    if kind == "f":
        name = ("minnum" if number else "minimum") if sense == "<" else ("maxnum" if number else "maximum")
        return builder.call(declare(builder, f"llvm.{name}.{suffix(a.type)}", a.type, [a.type] * 2), [a, b])
    compare = builder.icmp_signed if kind == "i" else builder.icmp_unsigned
    return builder.select(compare(sense, a, b), a, b)


def greatest_value(builder: Any, best: Any, x: Any, ordered: bool = False) -> Any:
    """The larger of two vectors of floats, -0 being 0; NaN where either is NaN, which is not asked where all are
    `ordered`.

    Two instructions with AVX-512, of which one waits for `best`: vmaxps, which gives its second operand where either is
    NaN, for the lanes where x is none.  As comparisons and selects LLVM joins the two conditions: four instructions.
    """
    vector = x.type
    double = isinstance(vector.element, ir.DoubleType)
    size, most = vector.count * (8 if double else 4), target.current().vector_bytes
    if target.current().isa in ("avx512", "avx2", "sse4", "sse2") and size > most and vector.count % 2 == 0:
        half = vector.count // 2
        parts = []
        for first in (0, half):
            lanes = ir.Constant(ir.VectorType(ir.IntType(32), half), list(range(first, first + half)))
            a, b = (builder.shuffle_vector(v, v, lanes) for v in (best, x))
            parts.append(greatest_value(builder, a, b, ordered))
        both = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), list(range(vector.count)))
        return builder.shuffle_vector(*parts, both)
    kind = "pd" if double else "ps"
    name = {64: f"avx512.max.{kind}.512", 32: f"avx.max.{kind}.256", 16: f"sse{'2' * double}.max.{kind}"}.get(size)
    if name is None or target.current().arch not in ("x86_64", "amd64"):
        most = builder.select(builder.fcmp_ordered("<", best, x), x, best)  # NaN in `best` stays
    else:
        rounding = [ir.Constant(ir.IntType(32), 4)] if size == 64 else []
        operands = [x, best, *rounding]
        function = declare(builder, f"llvm.x86.{name}", vector, [operand.type for operand in operands])
        most = builder.call(function, operands)
    return most if ordered else builder.select(builder.fcmp_ordered("ord", x, x), most, x)


def _extreme(name: str, doc: str, sense: str, number: bool) -> Any:
    def typer(typingctx, a, b):  # type: ignore[no-untyped-def]
        vec = common(a, b)
        if vec is None or kind_of(vec) == "h":
            return None

        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            operands = zip(args, signature.args, strict=True)
            x, y = (as_vector(context, builder, *operand, vec) for operand in operands)
            return extreme_value(builder, x, y, sense, kind_of(vec), number)

        return vec(types.unliteral(a), types.unliteral(b)), codegen

    typer.__name__ = typer.__qualname__ = name
    typer.__doc__ = doc
    return intrinsic(typer)


minimum = _extreme("minimum", "The smaller; NaN where either is NaN, and -0 below +0.", "<", False)
maximum = _extreme("maximum", "The larger; NaN where either is NaN, and +0 above -0.", ">", False)
min_number = _extreme("min_number", "The smaller; the other one where one is NaN.", "<", True)
max_number = _extreme("max_number", "The larger; the other one where one is NaN.", ">", True)


def sqrt_value(builder: Any, value: Any) -> Any:
    """The square roots of the lanes."""
    return builder.call(declare(builder, f"llvm.sqrt.{suffix(value.type)}", value.type, [value.type]), [value])


def _unary(name: str, doc: str, llvm_name: str) -> Any:
    def typer(typingctx, v):  # type: ignore[no-untyped-def]
        if not (isinstance(v, Vec) and kind_of(v) == "f"):
            return None

        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            vector = args[0].type
            return builder.call(declare(builder, f"llvm.{llvm_name}.{suffix(vector)}", vector, [vector]), args)

        return v(v), codegen

    typer.__name__ = typer.__qualname__ = name
    typer.__doc__ = doc
    return intrinsic(typer)


sqrt = _unary("sqrt", "The square root, correctly rounded; NaN below zero.", "sqrt")
floor = _unary("floor", "The largest integer not above.", "floor")
ceil = _unary("ceil", "The smallest integer not below.", "ceil")
round_even = _unary("round_even", "The nearest integer, halves to the even one.", "roundeven")
trunc = _unary("trunc", "The integer part: rounded towards zero.", "trunc")


@intrinsic
def abs_(typingctx, v):  # type: ignore[no-untyped-def]
    """|v|: the sign bit cleared, NaN and its payload kept; the smallest signed integer stays as it is."""
    if not isinstance(v, Vec) or kind_of(v) == "h":
        return None
    kind = kind_of(v)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        vector = args[0].type
        if kind == "u":
            return args[0]
        if kind == "f":
            return builder.call(declare(builder, f"llvm.fabs.{suffix(vector)}", vector, [vector]), args)
        function = declare(builder, f"llvm.abs.{suffix(vector)}", vector, [vector, I1])
        return builder.call(function, [args[0], ir.Constant(I1, 0)])

    return v(v), codegen


@intrinsic
def copysign(typingctx, a, b):  # type: ignore[no-untyped-def]
    """|a| with the sign bit of b; one of the two may be a scalar."""
    vec = common(a, b)
    if vec is None or kind_of(vec) != "f":
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        operands = zip(args, signature.args, strict=True)
        x, y = (as_vector(context, builder, *operand, vec) for operand in operands)
        return builder.call(declare(builder, f"llvm.copysign.{suffix(x.type)}", x.type, [x.type] * 2), [x, y])

    return vec(types.unliteral(a), types.unliteral(b)), codegen


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
    """a * b + c: `fma` for floats, wrapping for integers."""
    if not (isinstance(a, Vec) and a == b == c and kind_of(a) != "h"):
        return None
    is_float = kind_of(a) == "f"

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        if is_float:
            return multiply_add_value(builder, *args)
        return builder.add(builder.mul(args[0], args[1]), args[2])

    return a(a, b, c), codegen
