"""Dot-product instructions: groups of four 8-bit or two bf16 lanes multiplied and added to one 32-bit lane.

The portable forms are exact for integers.  They do not use vpmaddubsw, which saturates its 16-bit sums:
255 * 127 + 255 * 127 does not fit.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from numbaprims.cpu import target
from numbaprims.cpu.simd.arithmetic import multiply_add_value
from numbaprims.cpu.simd.emit import I32, declare
from numbaprims.cpu.simd.types import Vec

I8, I16, F32 = ir.IntType(8), ir.IntType(16), ir.FloatType()


def dot_feature(kind: str, lanes: int) -> str:
    """How groups are multiplied here: "vnni", "vnni_int8", "bf16", "sdot", "usdot" or "portable".

    kind is "u8s8", "s8s8" or "bf16"; lanes counts the 32-bit sums of one vector.
    """
    features, bits = target.current().features, 32 * lanes
    if bits not in (128, 256, 512):
        return "portable"
    full = "avx512f" in features and (bits == 512 or "avx512vl" in features)
    if kind == "bf16":
        return "bf16" if full and "avx512bf16" in features else "portable"
    if kind == "s8s8" and bits < 512 and "avxvnniint8" in features:
        return "vnni_int8"
    if (full and "avx512vnni" in features) or (bits < 512 and "avxvnni" in features):
        return "vnni"
    if bits == 128 and kind == "s8s8" and "dotprod" in features:
        return "sdot"
    if bits == 128 and kind == "u8s8" and "i8mm" in features:
        return "usdot"
    return "portable"


def byte_kind(signed: bool, lanes: int) -> tuple[str, int]:
    """How bytes are multiplied with signed ones here, "s8s8" or "u8s8", and what is added to the first for it.

    AVX-VNNI takes unsigned bytes, ARM without I8MM signed ones, AVX-VNNI-INT8 both.
    """
    native = dot_feature("s8s8", lanes) in ("vnni_int8", "sdot")
    if signed:
        return ("s8s8", 0) if native else ("u8s8", 128)
    return ("s8s8", -128) if native and dot_feature("u8s8", lanes) == "portable" else ("u8s8", 0)


def dot_value(kind: str) -> Any:
    """What emits the products of a kind."""
    return {"u8s8": dot_u8s8_value, "s8s8": dot_s8s8_value, "bf16": dot_bf16_value}[kind]


def _constant(element: Any, lanes: int, number: int) -> Any:
    return ir.Constant(ir.VectorType(element, lanes), [number] * lanes)


def _words(builder: Any, name: str, acc: Any, a: Any, b: Any) -> Any:
    """Groups of bytes or bfloats as words of 32 bits: LLVM 20 takes vpdpbusd's so, and 22, which takes bytes, still."""
    words = ir.VectorType(I32, acc.type.count)
    function = declare(builder, f"llvm.x86.{name}.{32 * words.count}", acc.type, [acc.type, words, words])
    return builder.call(function, [acc, builder.bitcast(a, words), builder.bitcast(b, words)])


def _vpdpbusd(builder: Any, acc: Any, a: Any, b: Any) -> Any:
    return _words(builder, "avx512.vpdpbusd", acc, a, b)


def _neon_dot(builder: Any, name: str, acc: Any, a: Any, b: Any) -> Any:
    function = declare(builder, f"llvm.aarch64.neon.{name}.v4i32.v16i8", acc.type, [acc.type, a.type, b.type])
    return builder.call(function, [acc, a, b])


def _multiply_pairs(builder: Any, a: Any, b: Any) -> Any:
    """a[2i] * b[2i] + a[2i+1] * b[2i+1] of 16-bit lanes, exact in 32 bits."""
    lanes = a.type.count // 2
    wide, features = ir.VectorType(I32, lanes), target.current().features
    names = {
        4: ("sse2", "sse2.pmadd.wd"),
        8: ("avx2", "avx2.pmadd.wd"),
        16: ("avx512bw", "avx512.pmaddw.d.512"),
    }
    feature, name = names.get(lanes, ("", ""))
    if feature in features:
        return builder.call(declare(builder, f"llvm.x86.{name}", wide, [a.type, b.type]), [a, b])
    count = _constant(I32, lanes, 16)

    def halves(v: Any) -> tuple[Any, Any]:
        both = builder.bitcast(v, wide)
        return builder.ashr(builder.shl(both, count), count), builder.ashr(both, count)

    (a_low, a_high), (b_low, b_high) = halves(a), halves(b)
    return builder.add(builder.mul(a_low, b_low), builder.mul(a_high, b_high))


def _portable_bytes(builder: Any, acc: Any, a: Any, b: Any, a_signed: bool) -> Any:
    """Even and odd bytes widened to 16 bits, whose products of pairs are exact in 32."""
    lanes = 2 * acc.type.count
    half, eight = ir.VectorType(I16, lanes), _constant(I16, lanes, 8)

    def even_odd(v: Any, signed: bool) -> tuple[Any, Any]:
        both = builder.bitcast(v, half)
        shift = builder.ashr if signed else builder.lshr
        return shift(builder.shl(both, eight), eight), shift(both, eight)

    (a_even, a_odd), (b_even, b_odd) = even_odd(a, a_signed), even_odd(b, True)
    even, odd = _multiply_pairs(builder, a_even, b_even), _multiply_pairs(builder, a_odd, b_odd)
    return builder.add(acc, builder.add(even, odd))


def dot_u8s8_value(builder: Any, acc: Any, a: Any, b: Any, feature: str) -> Any:
    """acc + the sums of four products of unsigned and signed bytes."""
    if feature == "vnni":
        return _vpdpbusd(builder, acc, a, b)
    if feature == "usdot":
        return _neon_dot(builder, "usdot", acc, a, b)
    return _portable_bytes(builder, acc, a, b, False)


def dot_s8s8_value(builder: Any, acc: Any, a: Any, b: Any, feature: str) -> Any:
    """acc + the sums of four products of signed bytes."""
    if feature == "vnni":
        # a + 128 is unsigned, and 128 * (sum of b) is taken off again; both are exact modulo 2**32
        flip = _constant(I8, a.type.count, -128)
        shifted = _vpdpbusd(builder, acc, builder.xor(a, flip), b)
        return builder.sub(shifted, _vpdpbusd(builder, ir.Constant(acc.type, None), flip, b))
    if feature == "vnni_int8":
        return _words(builder, "avx2.vpdpbssd", acc, a, b)
    if feature == "sdot":
        return _neon_dot(builder, "sdot", acc, a, b)
    return _portable_bytes(builder, acc, a, b, True)


def dot_bf16_value(builder: Any, acc: Any, a: Any, b: Any, feature: str) -> Any:
    """acc + the sums of two products of bf16."""
    lanes = acc.type.count
    if feature == "bf16":
        return _words(builder, "avx512bf16.dpbf16ps", acc, a, b)

    def halves(v: Any) -> tuple[Any, Any]:
        both = builder.bitcast(v, ir.VectorType(I32, lanes))
        odd = builder.and_(both, _constant(I32, lanes, -65536))
        even = builder.shl(both, _constant(I32, lanes, 16))
        return builder.bitcast(odd, acc.type), builder.bitcast(even, acc.type)

    (a_odd, a_even), (b_odd, b_even) = halves(a), halves(b)
    acc = multiply_add_value(builder, a_odd, b_odd, acc)  # the instruction adds the odd product first, too
    return multiply_add_value(builder, a_even, b_even, acc)


def _checked(feature: Any, kind: str, lanes: int) -> str | None:
    """The literal feature if this target has it."""
    if not isinstance(feature, types.StringLiteral):
        return None
    found, best = feature.literal_value, dot_feature(kind, lanes)
    if found not in ("portable", best):
        raise TypingError(f"feature is {found!r}; for {lanes} sums of {kind} this target has 'portable', {best!r}")
    return str(found)


@intrinsic(prefer_literal=True)
def dot_u8s8(typingctx, acc, a, b, feature):  # type: ignore[no-untyped-def]
    """acc[i] + sum of a[4i + j] * b[4i + j] over j < 4, exact: i32 + u8 * i8."""
    if not (isinstance(acc, Vec) and acc.elem == "i32"):
        return None
    name = _checked(feature, "u8s8", acc.n)
    if name is None or a != Vec("u8", 4 * acc.n) or b != Vec("i8", 4 * acc.n):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return dot_u8s8_value(builder, args[0], args[1], args[2], name)

    return acc(acc, a, b, feature), codegen


@intrinsic(prefer_literal=True)
def dot_s8s8(typingctx, acc, a, b, feature):  # type: ignore[no-untyped-def]
    """acc[i] + sum of a[4i + j] * b[4i + j] over j < 4, exact: i32 + i8 * i8."""
    if not (isinstance(acc, Vec) and acc.elem == "i32"):
        return None
    name = _checked(feature, "s8s8", acc.n)
    if name is None or not (a == b == Vec("i8", 4 * acc.n)):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return dot_s8s8_value(builder, args[0], args[1], args[2], name)

    return acc(acc, a, b, feature), codegen


@intrinsic(prefer_literal=True)
def dot_bf16(typingctx, acc, a, b, feature):  # type: ignore[no-untyped-def]
    """acc[i] + a[2i + 1] * b[2i + 1] + a[2i] * b[2i]: f32 + bf16 * bf16.

    "bf16" (vdpbf16ps) takes subnormal numbers as zeros; "portable" is two multiply-adds in float32.
    """
    if not (isinstance(acc, Vec) and acc.elem == "f32"):
        return None
    name = _checked(feature, "bf16", acc.n)
    if name is None or not (a == b == Vec("bf16", 2 * acc.n)):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return dot_bf16_value(builder, args[0], args[1], args[2], name)

    return acc(acc, a, b, feature), codegen
