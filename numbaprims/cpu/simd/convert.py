"""Storage <-> compute: fewer bits are widened on the way in, and rounded or saturated on the way out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from numbaprims.cpu import target
from numbaprims.cpu.simd.access import strided_value
from numbaprims.cpu.simd.emit import (
    constant,
    declare,
    first_lanes_value,
    least,
    llvm_vector,
    load_value,
    number,
    opaque,
    store_first_value,
    store_value,
    suffix,
)
from numbaprims.cpu.simd.half import like, narrow_bf16, narrow_f16, widen_bf16, widen_f16
from numbaprims.cpu.simd.memory import int_literal
from numbaprims.cpu.simd.types import ELEMENTS, Pointer, Vec, llvm_element, scalar_type

_COMPUTE = {"f16": "f32", "bf16": "f32", "i8": "i32", "u8": "i32", "i16": "i32", "u16": "i32"}


def compute_element(elem: str) -> str:
    """The element in which values of a storage type are computed."""
    return _COMPUTE.get(elem, elem)


#: Cores that widen float16 faster once it is loaded: sums of rows take 0.9 of the time so, softmax 0.94.  Intel's cores
#: need an operation more.
WIDENS_REGISTERS = ("znver5",)


def _by_two(builder: Any, halves: Any) -> Any:
    """A register of float16, which x86's LLVM is not to convert and load, or store, by one instruction."""
    cpu = target.current()
    one = getattr(halves.type, "count", 0) * 4 == cpu.vector_bytes and cpu.arch == "x86_64"
    return opaque(builder, halves) if one else halves


def widen_value(builder: Any, value: Any, elem: str) -> Any:
    """A stored scalar or vector as its compute type."""
    if elem == "bf16":
        return widen_bf16(builder, value)
    if elem == "f16":
        if not target.current().has_f16c:
            return widen_f16(builder, value)
        if target.current().microarchitecture in WIDENS_REGISTERS:
            value = _by_two(builder, value)
        return builder.fpext(builder.bitcast(value, like(value, ir.HalfType())), like(value, ir.FloatType()))
    bits, kind = ELEMENTS[elem]
    if kind in "iu" and bits < 32:
        extend = builder.sext if kind == "i" else builder.zext
        return extend(value, like(value, ir.IntType(32)))
    return value


def _limits(bits: int, kind: str) -> tuple[int, int]:
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind == "i" else (0, (1 << bits) - 1)


def _packed(builder: Any, value: Any, kind: str) -> Any:
    """64 of i32 saturated to bytes by packs of neighbouring vectors: 4 instructions in the place of 11."""

    def lanes(vector: Any, order: Sequence[int]) -> Any:
        return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(ir.IntType(32), 16), list(order)))

    def pack(word: str, a: Any, b: Any, bits: int) -> Any:
        result = ir.VectorType(ir.IntType(bits), 512 // bits)
        function = declare(builder, f"llvm.x86.avx512.pack{word}.512", result, [a.type] * 2)
        return builder.call(function, [a, b])

    parts = [lanes(value, range(k, k + 16)) for k in range(0, 64, 16)]
    low, high = (pack("ssdw", parts[k], parts[k + 1], 16) for k in (0, 2))
    found = pack("sswb" if kind == "i" else "uswb", low, high, 8)
    # of 16 bytes that packs leave together four are of one vector
    words = builder.bitcast(found, ir.VectorType(ir.IntType(32), 16))
    return builder.bitcast(lanes(words, [4 * (k % 4) + k // 4 for k in range(16)]), found.type)


def _saturate(builder: Any, value: Any, elem: str) -> Any:
    """An i32 scalar or vector limited to the range of a narrower integer, and cut down to it."""
    bits, kind = ELEMENTS[elem]
    if bits == 8 and getattr(value.type, "count", 0) == 64 and "avx512bw" in target.current().features:
        return _packed(builder, value, kind)
    low, high = _limits(bits, kind)
    for sense, limit in (("<", high), (">", low)):
        bound = constant(value.type, limit)
        value = builder.select(builder.icmp_signed(sense, value, bound), value, bound)
    return builder.trunc(value, like(value, ir.IntType(bits)))


def narrow_value(builder: Any, value: Any, elem: str) -> Any:
    """Computed scalars or vectors as they are stored: f32 to nearest even, NaN kept quiet; i32 saturated."""
    kind = value.type.element if isinstance(value.type, ir.VectorType) else value.type
    if elem == "bf16" and isinstance(kind, ir.FloatType):
        return narrow_bf16(builder, value)
    if elem == "f16" and isinstance(kind, ir.FloatType):
        if not target.current().has_f16c:
            return narrow_f16(builder, value)
        half = builder.fptrunc(value, like(value, ir.HalfType()))
        # 98,304 numbers in the second level took 3.4 us by one instruction, 2.5 by two (Zen 5)
        return _by_two(builder, builder.bitcast(half, like(value, ir.IntType(16))))
    bits, letter = ELEMENTS[elem]
    if letter in "iu" and bits < 32 and isinstance(kind, ir.IntType) and kind.width == 32:
        return _saturate(builder, value, elem)
    return value


def floats_value(builder: Any, value: Any, element: Any) -> Any:
    """Floats or signed integers as floats of an LLVM type."""
    kind = value.type.element if isinstance(value.type, ir.VectorType) else value.type
    if kind == element:
        return value
    if isinstance(kind, ir.IntType):
        return builder.sitofp(value, like(value, element))
    return (builder.fpext if isinstance(kind, ir.FloatType) else builder.fptrunc)(value, like(value, element))


def ints_value(builder: Any, value: Any, element: Any) -> Any:
    """Floats as signed integers of an LLVM type: rounded towards zero, limited to its range, 0 for NaN."""
    # llvm.fptosi.sat does the same lane by lane: some 100 instructions for 8 lanes
    kind, given = like(value, element), value.type
    most = 1 << (element.width - 1)
    low, high = constant(given, -float(most)), constant(given, float(most))
    above = builder.fcmp_ordered(">=", value, high)
    not_below = builder.fcmp_ordered(">=", value, low)
    inside = builder.and_(not_below, builder.not_(above))
    whole = builder.fptosi(builder.select(inside, value, constant(given, 0.0)), kind)
    whole = builder.select(above, constant(kind, most - 1), whole)
    below = builder.fcmp_ordered("<", value, low)
    return builder.select(below, constant(kind, -most), whole)


def _narrow_floats(builder: Any, value: Any, elem: str) -> Any:
    """Floats as integers of 8 or 16 bits: limited as floats, which takes 2 instructions in the place of 7."""
    bits, kind = ELEMENTS[elem]
    low, high = _limits(bits, kind)
    number = builder.fcmp_ordered("ord", value, value)
    for sense, limit in (("<", high), (">", low)):
        bound = constant(value.type, float(limit))
        value = builder.select(builder.fcmp_ordered(sense, value, bound), value, bound)
    whole = builder.fptosi(value, like(value, ir.IntType(32)))
    whole = builder.select(number, whole, constant(whole.type, 0))
    return builder.trunc(whole, like(value, ir.IntType(bits)))


def nearest_ints_value(builder: Any, value: Any) -> Any:
    """Floats as integers of 32 bits, halves to even; of what these do not hold, and of NaN, any."""
    kind = like(value, ir.IntType(32))
    function = declare(builder, f"llvm.lrint.{suffix(kind)}.{suffix(value.type)}", kind, [value.type])
    return builder.call(function, [value])


def _odd_value(builder: Any, value: Any) -> Any:
    """float64 as float32, what is between two of them as the one with an odd last digit: which cannot be half-way
    between two floats of 16 bits, so that rounding to those is as if once."""
    nearest = builder.fptrunc(value, like(value, ir.FloatType()))
    back, bits = builder.fpext(nearest, value.type), builder.bitcast(nearest, like(value, ir.IntType(32)))
    size = declare(builder, f"llvm.fabs.{suffix(value.type)}", value.type, [value.type])
    beyond = builder.fcmp_ordered(">", builder.call(size, [back]), builder.call(size, [value]))
    bits = builder.sub(bits, builder.zext(beyond, bits.type))
    bits = builder.or_(bits, builder.zext(builder.fcmp_ordered("!=", back, value), bits.type))
    return builder.bitcast(bits, nearest.type)


def stored_value(builder: Any, value: Any, elem: str) -> Any:
    """Floats as an array of any type holds them: rounded once to floats, towards zero and saturated to integers;
    integers as `narrow_value` has them."""
    bits, kind = ELEMENTS[elem]
    own = value.type.element if isinstance(value.type, ir.VectorType) else value.type
    if isinstance(own, ir.IntType):
        return narrow_value(builder, value, elem)
    if kind in "iu" and bits < 32:
        return _narrow_floats(builder, value, elem)
    if kind in "iu":
        return ints_value(builder, value, ir.IntType(bits))
    if bits == 16 and isinstance(own, ir.DoubleType):
        value = _odd_value(builder, value)
    return narrow_value(builder, floats_value(builder, value, llvm_element("f64" if elem == "f64" else "f32")), elem)


def load_wide_value(builder: Any, pointer: Any, index: Any, elem: str, lanes: int, mask: Any = None) -> Any:
    """As `load_value`, in the compute type."""
    return widen_value(builder, load_value(builder, pointer, index, llvm_vector(elem, lanes), mask), elem)


def store_narrow_value(
    builder: Any, pointer: Any, index: Any, value: Any, elem: str, mask: Any = None, *, stream: bool = False
) -> None:
    """As `store_value`, from the compute type."""
    store_value(builder, pointer, index, narrow_value(builder, value, elem), mask, stream=stream)


@intrinsic
def widen(typingctx, v):  # type: ignore[no-untyped-def]
    """A stored vector in its compute type: f16 and bf16 as f32, 8- and 16-bit integers as i32; exact."""
    if not isinstance(v, Vec):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return widen_value(builder, args[0], v.elem)

    return Vec(compute_element(v.elem), v.n)(v), codegen


@intrinsic(prefer_literal=True)
def narrow(typingctx, v, elem):  # type: ignore[no-untyped-def]
    """A vector as it is stored: f32 as f16 or bf16 to nearest even, NaN kept; i32 saturated to i8 ... u16."""
    if not (isinstance(v, Vec) and isinstance(elem, types.StringLiteral)):
        return None
    name = elem.literal_value
    if name not in ELEMENTS or compute_element(name) != v.elem:
        raise TypingError(f"elem is {name!r}, which is not stored from {v.elem}")

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return narrow_value(builder, args[0], name)

    return Vec(name, v.n)(v, elem), codegen


@intrinsic
def to_float(typingctx, v):  # type: ignore[no-untyped-def]
    """Integers as floats of the same size, to nearest even: i32, u32 to f32; i64, u64 to f64."""
    if not (isinstance(v, Vec) and v.elem in ("i32", "u32", "i64", "u64")):
        return None
    result = Vec("f" + v.elem[1:], v.n)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        convert = builder.sitofp if v.elem[0] == "i" else builder.uitofp
        return convert(args[0], context.get_value_type(result))

    return result(v), codegen


@intrinsic
def as_floats(typingctx, v):  # type: ignore[no-untyped-def]
    """Integers of 32 bits as f32; floats as they are."""
    if not (isinstance(v, Vec) and v.elem in ("i32", "f32", "f64")):
        return None
    result = Vec("f64" if v.elem == "f64" else "f32", v.n)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return floats_value(builder, args[0], llvm_element(result.elem))

    return result(v), codegen


@intrinsic(prefer_literal=True)
def as_computed(typingctx, v, elem):  # type: ignore[no-untyped-def]
    """Floats in the compute type of a stored one: integers to nearest even, limited to the range, 0 for NaN."""
    if not (isinstance(v, Vec) and v.elem in ("f32", "f64") and isinstance(elem, types.StringLiteral)):
        return None
    result = Vec(compute_element(elem.literal_value), v.n)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        if result.elem == v.elem:
            return args[0]
        vector = args[0].type
        whole = builder.call(declare(builder, f"llvm.roundeven.{suffix(vector)}", vector, [vector]), [args[0]])
        return ints_value(builder, whole, llvm_element(result.elem))

    return result(v, elem), codegen


@intrinsic
def to_int(typingctx, v):  # type: ignore[no-untyped-def]
    """Floats as signed integers of the same size: rounded towards zero, limited to the range, 0 for NaN."""
    if not (isinstance(v, Vec) and v.elem in ("f32", "f64")):
        return None
    result = Vec("i" + v.elem[1:], v.n)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return ints_value(builder, args[0], context.get_value_type(result).element)

    return result(v), codegen


@intrinsic(prefer_literal=True)
def bitcast(typingctx, v, elem):  # type: ignore[no-untyped-def]
    """The same bits as another type: 16 of f32 are 16 of i32 or 64 of u8, the lowest bits first."""
    if not (isinstance(v, Vec) and isinstance(elem, types.StringLiteral)):
        return None
    bits, size = v.n * ELEMENTS[v.elem][0], ELEMENTS[elem.literal_value][0]
    if bits % size:
        return None
    result = Vec(elem.literal_value, bits // size)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], context.get_value_type(result))

    return result(v, elem), codegen


@intrinsic(prefer_literal=True)
def load_wide_strided(typingctx, p, i, stride, W):  # type: ignore[no-untyped-def]
    """Elements i, i + stride, ..., i + (W - 1) * stride in their compute type, read one by one."""
    n = int_literal(W)
    if n is None or not isinstance(p, Pointer):
        return None
    stored, result = Vec(p.elem, n), Vec(compute_element(p.elem), n)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        value = strided_value(builder, args[0], args[1], args[2], context.get_value_type(stored))
        return widen_value(builder, value, p.elem)

    return result(p, types.int64, types.int64, W), codegen


@intrinsic(prefer_literal=True)
def load_wide(typingctx, p, i, W):  # type: ignore[no-untyped-def]
    """Elements i ... i + W - 1 in their compute type."""
    n = int_literal(W)
    if n is None or not isinstance(p, Pointer):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return load_wide_value(builder, args[0], args[1], p.elem, n)

    return Vec(compute_element(p.elem), n)(p, types.int64, W), codegen


@intrinsic(prefer_literal=True)
def load_wide_first(typingctx, p, i, count, W):  # type: ignore[no-untyped-def]
    """The first `count` of them, then zeros."""
    n = int_literal(W)
    if n is None or not isinstance(p, Pointer):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return load_wide_value(builder, args[0], args[1], p.elem, n, first_lanes_value(builder, args[2], n))

    return Vec(compute_element(p.elem), n)(p, types.int64, types.int64, W), codegen


@intrinsic
def store_narrow(typingctx, p, i, v):  # type: ignore[no-untyped-def]
    """Write a computed vector in the pointer's element type."""
    if not (isinstance(p, Pointer) and isinstance(v, Vec)):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        store_narrow_value(builder, *args, p.elem)
        return context.get_dummy_value()

    return types.void(p, types.int64, v), codegen


@intrinsic(prefer_literal=True)
def leave(typingctx, p, i, v, past):  # type: ignore[no-untyped-def]
    """As `store_narrow`; if the literal `past` says so past the caches, as `store_stream`."""
    if not (isinstance(p, Pointer) and isinstance(v, Vec) and isinstance(past, types.BooleanLiteral)):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        store_narrow_value(builder, *args[:3], p.elem, stream=past.literal_value)
        return context.get_dummy_value()

    return types.void(p, types.int64, v, past), codegen


@intrinsic
def store_narrow_first(typingctx, p, i, count, v):  # type: ignore[no-untyped-def]
    """Write its first `count` lanes."""
    if not (isinstance(p, Pointer) and isinstance(v, Vec)):
        return None

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        store_first_value(builder, *args[:3], narrow_value(builder, args[3], p.elem))
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

    Rows past `count` repeat the last one, so that no memory past it is touched.  Only the first `valid` lanes
    of each row are read; the others are zero.
    """
    n = int_literal(W)
    if n is None or not isinstance(p, Pointer):
        return None
    result = types.UniTuple(Vec(compute_element(p.elem), n), n)
    all_valid = int_literal(valid) == n

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        last = builder.sub(args[2], number(1))
        mask = None if all_valid else first_lanes_value(builder, args[3], n)
        out = []
        for row in range(n):
            start = builder.mul(args[1], least(builder, number(row), last))
            out.append(load_wide_value(builder, args[0], start, p.elem, n, mask))
        return context.make_tuple(builder, result, out)

    return result(p, types.int64, types.int64, valid if all_valid else types.int64, W), codegen
