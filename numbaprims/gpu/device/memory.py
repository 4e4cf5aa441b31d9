"""Loads and stores of up to 16 bytes a thread, and what float16, bfloat16 and int8 become in registers.

A warp that loads 16 bytes a lane moves 512 bytes with one instruction, four 128-byte lines; with 4 bytes a lane it
needs four instructions for the same lines, and four times the address arithmetic.  Every such access must be aligned
to its own size, which the caller guarantees.

float16 and bfloat16 are storage only: arrays of uint16 in kernels, float32 in registers.  Rounding is to nearest, ties
to even, and NaN stays NaN: the conversions are single instructions (cvt), bfloat16 to float32 is a shift.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from numbaprims.gpu.device.emit import (
    F32,
    I8,
    I16,
    I32,
    I64,
    SHARED,
    asm,
    element_pointer,
    element_type,
    int_literal,
    intrinsic,
    read_only,
    string_literal,
    tuple_of,
    types,
    unpack,
    void,
)  # fmt: skip
from numbaprims.gpu.jit import STORAGE

REGISTER = {
    "f64": types.float64, "f32": types.float32, "f16": types.float32, "bf16": types.float32, "i8": types.int32,
    "u8": types.int32, "i32": types.int32,
}  # fmt: skip
"""What an element of a dtype is computed in."""


def _words(builder: Any, pointer: Any, nbytes: int, *, readonly: bool) -> Any:
    """Load `nbytes` as one vector of floats, int32 or int64, the only ones that are one instruction for certain."""
    element = pointer.type.pointee
    if readonly:
        pointer = read_only(builder, pointer)
    if isinstance(element, (ir.FloatType, ir.DoubleType)) or element == I64 or nbytes < 4:
        word, count = element, nbytes // (4 if isinstance(element, ir.FloatType) else 8)
        if nbytes < 4:
            word, count = ir.IntType(8 * nbytes), 1
    else:
        word, count = I32, nbytes // 4
    loaded = word if count == 1 else ir.VectorType(word, count)
    value = builder.load(builder.bitcast(pointer, ir.PointerType(loaded, pointer.type.addrspace)))
    value.align = nbytes
    if readonly:
        value.set_metadata("invariant.load", builder.module.add_metadata([]))
    return value


def _load(context: Any, builder: Any, place: tuple[Any, ...], count: int, *, readonly: bool) -> list[Any]:
    """`count` consecutive elements, in the type of the storage."""
    pointer = element_pointer(context, builder, *place)
    element = pointer.type.pointee
    size = {"float": 4, "double": 8}.get(str(element)) or element.width // 8
    value = _words(builder, pointer, count * size, readonly=readonly)
    if isinstance(value.type, ir.VectorType) and value.type.element == element:
        return [builder.extract_element(value, ir.Constant(I32, lane)) for lane in range(count)]
    if value.type == element:
        return [value]
    parts = []
    for position in range(count):
        word, shift = divmod(position * 8 * size, 32)
        whole = builder.extract_element(value, ir.Constant(I32, word)) if count * size > 4 else value
        shifted = builder.lshr(whole, ir.Constant(whole.type, shift)) if shift else whole
        parts.append(builder.trunc(shifted, element))
    return parts


def _store(context: Any, builder: Any, place: tuple[Any, ...], values: list[Any]) -> None:
    """Consecutive elements, given in the type of the storage."""
    pointer = element_pointer(context, builder, *place)
    element = pointer.type.pointee
    size = {"float": 4, "double": 8}.get(str(element)) or element.width // 8
    if size < 4 and len(values) > 1:
        per_word = max(1, 4 // size) if len(values) * size >= 4 else len(values)
        word = ir.IntType(8 * size * per_word)
        words = []
        for first in range(0, len(values), per_word):
            whole = builder.zext(values[first], word)
            for position in range(1, per_word):
                part = builder.zext(values[first + position], word)
                whole = builder.or_(whole, builder.shl(part, ir.Constant(word, 8 * size * position)))
            words.append(whole)
        values, element = words, word
        size *= per_word
    if len(values) == 1:
        builder.store(values[0], builder.bitcast(pointer, element.as_pointer())).align = size
        return
    vector: Any = ir.Constant(ir.VectorType(element, len(values)), ir.Undefined)
    for lane, value in enumerate(values):
        vector = builder.insert_element(vector, value, ir.Constant(I32, lane))
    builder.store(vector, builder.bitcast(pointer, vector.type.as_pointer())).align = size * len(values)


def _widen(builder: Any, value: Any, dtype: str) -> Any:
    if dtype == "f16":
        return asm(builder, "cvt.f32.f16 $0, $1;", [value], [F32])[0]
    if dtype == "bf16":
        return builder.bitcast(builder.shl(builder.zext(value, I32), ir.Constant(I32, 16)), F32)
    if dtype == "i8":
        return builder.sext(value, I32)
    if dtype == "u8":
        return builder.zext(value, I32)
    return value


def _narrow(builder: Any, values: list[Any], dtype: str) -> list[Any]:
    if dtype in ("i8", "u8"):
        return [builder.trunc(value, I8) for value in values]
    if dtype == "f16":
        return [asm(builder, "cvt.rn.f16.f32 $0, $1;", [value], [I16])[0] for value in values]
    if dtype == "bf16":
        parts = []
        for first in range(0, len(values) - 1, 2):  # two values an instruction
            pair = asm(builder, "cvt.rn.bf16x2.f32 $0, $1, $2;", [values[first + 1], values[first]], [I32])[0]
            parts += [builder.trunc(pair, I16), builder.trunc(builder.lshr(pair, ir.Constant(I32, 16)), I16)]
        if len(values) % 2:
            parts += asm(builder, "cvt.rn.bf16.f32 $0, $1;", [values[-1]], [I16])
        return parts
    return values


def _fits(place: Any, count: int | None) -> bool:
    """Whether `count` elements are one access of 1, 2, 4, 8 or 16 bytes."""
    element = element_type(place)
    if element is None or count is None:
        return False
    return count * element.bitwidth // 8 in (1, 2, 4, 8, 16)


@intrinsic
def load_vector(typingctx, place, index, count):  # type: ignore[no-untyped-def]
    """Elements index ... index + count - 1, one access of at most 16 bytes: a tuple."""
    n = int_literal(count)
    if n is None or not _fits(place, n):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        values = _load(context, builder, (sig.args[0], args[0], sig.args[1], args[1]), n, readonly=False)
        return tuple_of(context, builder, sig.return_type, values)

    return types.UniTuple(element_type(place), n)(place, index, count), codegen


def _define_load_wide(readonly: bool, doc: str) -> Any:
    def load_wide(typingctx, place, index, count, dtype):  # type: ignore[no-untyped-def]
        n, name = int_literal(count), string_literal(dtype)
        if n is None or name is None or not _fits(place, n) or element_type(place) != STORAGE[name]:
            return None

        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            where = (sig.args[0], args[0], sig.args[1], args[1])
            values = _load(context, builder, where, n, readonly=readonly)
            return tuple_of(context, builder, sig.return_type, [_widen(builder, value, name) for value in values])

        return types.UniTuple(REGISTER[name], n)(place, index, count, dtype), codegen

    load_wide.__doc__ = doc
    return intrinsic(load_wide)


load_wide = _define_load_wide(
    False,
    """As `load_vector`, converted: load_wide(p, i, 8, "bf16") is 8 float32.

    float16 and bfloat16 become float32, int8 and uint8 int32; float32, float64 and int32 stay what they are.
    """,
)
load_wide_readonly = _define_load_wide(True, "As `load_wide`, from global memory that nothing writes meanwhile.")


@intrinsic
def store_vector(typingctx, place, index, values):  # type: ignore[no-untyped-def]
    """Write a tuple of elements to index, index + 1, ...: one access of at most 16 bytes."""
    element = element_type(place)
    if not isinstance(values, types.UniTuple) or values.dtype != element or not _fits(place, len(values)):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        parts = unpack(builder, args[2], sig.args[2])
        _store(context, builder, (sig.args[0], args[0], sig.args[1], args[1]), parts)
        return void(context)

    return types.void(place, index, values), codegen


@intrinsic
def store_narrow(typingctx, place, index, values, dtype):  # type: ignore[no-untyped-def]
    """Round a tuple of numbers to `dtype` and write them to index, index + 1, ...: one access of at most 16 bytes.

    float32 to float16 and bfloat16 rounds to nearest even; int32 to int8 and uint8 keeps the low byte.
    """
    name = string_literal(dtype)
    if name is None or not isinstance(values, types.UniTuple) or values.dtype != REGISTER[name]:
        return None
    if element_type(place) != STORAGE[name] or not _fits(place, len(values)):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        parts = _narrow(builder, unpack(builder, args[2], sig.args[2]), name)
        _store(context, builder, (sig.args[0], args[0], sig.args[1], args[1]), parts)
        return void(context)

    return types.void(place, index, values, dtype), codegen


@intrinsic
def widen(typingctx, x, dtype):  # type: ignore[no-untyped-def]
    """One stored element as a number: widen(bits, "bf16") is a float32."""
    name = string_literal(dtype)
    if name is None or types.unliteral(x) != STORAGE[name]:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return _widen(builder, args[0], name)

    return REGISTER[name](STORAGE[name], dtype), codegen


@intrinsic
def narrow(typingctx, x, dtype):  # type: ignore[no-untyped-def]
    """One number as it is stored: narrow(y, "f16") is a uint16, rounded to nearest even."""
    name = string_literal(dtype)
    if name is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return _narrow(builder, [args[0]], name)[0]

    return STORAGE[name](REGISTER[name], dtype), codegen


@intrinsic
def pack_halves(typingctx, low, high, dtype):  # type: ignore[no-untyped-def]
    """Two float32 as one register of two float16 or bfloat16, as tensor cores take them."""
    name = string_literal(dtype)
    if name not in ("f16", "bf16"):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return asm(builder, f"cvt.rn.{name}x2.f32 $0, $1, $2;", [args[1], args[0]], [I32])[0]

    return types.uint32(types.float32, types.float32, dtype), codegen


@intrinsic
def float_bits(typingctx, x):  # type: ignore[no-untyped-def]
    """The bits of a float32 as uint32."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], I32)

    return types.uint32(types.float32), codegen


@intrinsic
def bits_float(typingctx, x):  # type: ignore[no-untyped-def]
    """The float32 of the bits of a uint32."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], F32)

    return types.float32(types.uint32), codegen


@intrinsic
def advance(typingctx, pointer, count):  # type: ignore[no-untyped-def]
    """The pointer `count` elements further."""
    if not isinstance(pointer, types.CPointer):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return element_pointer(context, builder, sig.args[0], args[0], sig.args[1], args[1])

    return pointer(pointer, count), codegen


@intrinsic
def opaque(typingctx, x):  # type: ignore[no-untyped-def]
    """An int32 of which the compiler knows nothing: what is computed from it is computed where it stands, instead of
    being kept in registers from before a loop."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return asm(builder, "mov.b32 $0, $1;", [args[0]], [I32], memory=True)[0]

    return types.int32(types.int32), codegen


def _tuple_function(name: str, doc: str) -> Any:
    def build(typingctx, value, count):  # type: ignore[no-untyped-def]
        n = int_literal(count)
        if n is None:
            return None
        element = types.unliteral(value)

        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            return tuple_of(context, builder, sig.return_type, [args[0]] * n)

        return types.UniTuple(element, n)(element, count), codegen

    build.__name__ = name
    build.__doc__ = doc
    return intrinsic(build)


repeat = _tuple_function("repeat", "A tuple of `count` times the value.")


@intrinsic
def elements_of(typingctx, array, first, count):  # type: ignore[no-untyped-def]
    """A tuple of `count` elements of a local array from `first` on; both are literals where it stays in registers."""
    n = int_literal(count)
    if n is None or element_type(array) is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        base = element_pointer(context, builder, sig.args[0], args[0], sig.args[1], args[1])
        values = [builder.load(builder.gep(base, [ir.Constant(I32, place)])) for place in range(n)]
        return tuple_of(context, builder, sig.return_type, values)

    return types.UniTuple(element_type(array), n)(array, first, count), codegen


@intrinsic
def set_elements(typingctx, array, first, values):  # type: ignore[no-untyped-def]
    """Put a tuple into a local array, from `first` on: a loop over more than 32 elements would leave it in memory."""
    if element_type(array) is None or not isinstance(values, types.UniTuple) or values.dtype != element_type(array):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        base = element_pointer(context, builder, sig.args[0], args[0], sig.args[1], args[1])
        for place, value in enumerate(unpack(builder, args[2], sig.args[2])):
            builder.store(value, builder.gep(base, [ir.Constant(I32, place)]))
        return void(context)

    return types.void(array, first, values), codegen


@intrinsic
def load_shared(typingctx, address):  # type: ignore[no-untyped-def]
    """The uint32 at an address (`copy.shared_address`) of shared memory, a multiple of 4."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return builder.load(builder.inttoptr(args[0], ir.PointerType(I32, SHARED)))

    return types.uint32(types.uint32), codegen


@intrinsic
def store_shared(typingctx, address, value):  # type: ignore[no-untyped-def]
    """Write a number to an address of shared memory that is a multiple of its size."""
    number = types.unliteral(value)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        builder.store(args[1], builder.inttoptr(args[0], ir.PointerType(args[1].type, SHARED)))
        return void(context)

    return types.void(types.uint32, number), codegen


@intrinsic
def load_shared_vectors(typingctx, array, address, count, vectors, apart):  # type: ignore[no-untyped-def]
    """`vectors` accesses of `count` elements of a shared array's type, `apart` elements from one to the next, from an
    address on: one tuple.  Constants that are added to the address become immediates of the loads."""
    n, many, step = int_literal(count), int_literal(vectors), int_literal(apart)
    if n is None or many is None or step is None or not _fits(array, n):
        return None
    element = element_type(array)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        storage, size = context.get_data_type(element), element.bitwidth // 8
        values = []
        for v in range(many):
            at = builder.add(args[1], ir.Constant(I32, v * step * size))
            whole = storage if n == 1 else ir.VectorType(storage, n)
            loaded = builder.load(builder.inttoptr(at, ir.PointerType(whole, SHARED)))
            loaded.align = n * size
            lanes = [ir.Constant(I32, lane) for lane in range(n)]
            values += [loaded] if n == 1 else [builder.extract_element(loaded, lane) for lane in lanes]
        return tuple_of(context, builder, sig.return_type, values)

    return types.UniTuple(element, n * many)(array, types.uint32, count, vectors, apart), codegen
