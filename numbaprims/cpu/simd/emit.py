"""What code that is emitted is said with: numbers, constant vectors, words of arguments, vectors from and to memory.

The engines say theirs by this, by `loops` and `convert`, and by the arithmetic of a builder or of Values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils

from numbaprims.cpu import target
from numbaprims.cpu.simd.types import llvm_element
from numbaprims.formulas.value import V, Value, at_most

# for `copy_string_value`, whether it is compiled here or comes out of a cache into a caller's code
binding.initialize_native_asmparser()

I64 = ir.IntType(64)
I32 = ir.IntType(32)
I1 = ir.IntType(1)
#: Bytes of a line of the caches.
LINE = 64


# ---------------------------------------------------------------- constants


def number(n: int) -> Any:
    """An int64: an index, a count, an offset."""
    return ir.Constant(I64, n)


def raw(x: Any) -> Any:
    """What a builder takes: the LLVM value of a Value, an int as a number."""
    return x.value if isinstance(x, Value) else number(x) if isinstance(x, int) else x


def llvm_vector(elem: str, lanes: int) -> Any:
    """The LLVM type of a vector."""
    return ir.VectorType(llvm_element(elem), lanes)


def constant(kind: Any, value: Any) -> Any:
    """A number in every lane of an LLVM vector type, or the number itself in a scalar type."""
    if not isinstance(kind, ir.VectorType):
        return ir.Constant(kind, value)
    # by their texts: 0.0 and -0.0, 1 and 1.0 and True are equal
    key = str(kind.element), kind.count, type(value), str(value)
    if key not in _constants:
        _constants[key] = ir.Constant(kind, [value] * kind.count)
    return _constants[key]


#: A constant knows its text once it has been written: of 16 lanes it took as long to write as ten instructions.
_constants: dict[tuple[str, int, type, str], Any] = {}


def counting(vector: Any) -> Any:
    """0, 1, 2, ..."""
    return ir.Constant(vector, list(range(vector.count)))


def element_bits(element: Any) -> int:
    """Bits of an LLVM type of numbers."""
    return int(element.width) if isinstance(element, ir.IntType) else 32 if isinstance(element, ir.FloatType) else 64


# ---------------------------------------------------------------- lanes


def splat_value(builder: Any, scalar: Any, lanes: int) -> Any:
    """A vector with `scalar` in every lane."""
    undefined = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))


def insert_lane(builder: Any, vector: Any, scalar: Any, lane: int) -> Any:
    """A vector with a number in one lane."""
    return builder.insert_element(vector, scalar, ir.Constant(I32, lane))


def first_lane(builder: Any, vector: Any) -> Any:
    """A vector's first number."""
    return builder.extract_element(vector, ir.Constant(I32, 0))


def first_lanes_value(builder: Any, count: Any, lanes: int) -> Any:
    """The mask of the lanes below `count`."""
    limit = splat_value(builder, builder.trunc(raw(count), I32), lanes)
    return builder.icmp_signed("<", counting(limit.type), limit)


def any_lane(builder: Any, mask: Any) -> Any:
    """Whether a lane of a mask is set."""
    bits = ir.IntType(mask.type.count)
    return builder.icmp_unsigned("!=", builder.bitcast(mask, bits), ir.Constant(bits, 0))


def lanes_before(builder: Any, masks: Sequence[Any]) -> Any:
    """How many lanes of masks side by side lie before the first that is set; one is."""
    count = sum(mask.type.count for mask in masks)
    word = ir.IntType(max(64, count))
    found, at = ir.Constant(word, 0), 0
    for mask in masks:
        lanes = builder.zext(builder.bitcast(mask, ir.IntType(mask.type.count)), word)
        found = builder.or_(found, builder.shl(lanes, ir.Constant(word, at)))
        at += mask.type.count
    bit = ir.IntType(1)
    zeros = builder.call(declare(builder, f"llvm.cttz.i{word.width}", word, [word, bit]), [found, ir.Constant(bit, 1)])
    return zeros if word == I64 else builder.trunc(zeros, I64)


def least(builder: Any, a: Any, b: Any) -> Any:
    """The smaller of two signed integers."""
    return builder.select(builder.icmp_signed("<", a, b), a, b)


# ---------------------------------------------------------------- LLVM's intrinsics


def suffix(vector: Any) -> str:
    """How LLVM's intrinsics name a vector type: v16f32."""
    letter = "i" if isinstance(vector.element, ir.IntType) else "f"
    return f"v{vector.count}{letter}{element_bits(vector.element)}"


def declare(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """An LLVM intrinsic by its full name (llvmlite's declare_intrinsic cannot name vector types)."""
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


# ---------------------------------------------------------------- memory


def argument(builder: Any, block: Any, slot: int, kind: Any = I64) -> Any:
    """A word of a block at an address which no one writes while kernels run."""
    loaded = builder.load(builder.gep(builder.inttoptr(block, kind.as_pointer()), [number(slot)]))
    loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
    return loaded


def element_at(builder: Any, pointer: Any, index: Any) -> Any:
    """The address of element `index`."""
    return builder.gep(pointer, [raw(index)])


def vector_at(builder: Any, pointer: Any, index: Any, vector: Any) -> Any:
    """The address of element `index` as a pointer to a vector."""
    return builder.bitcast(element_at(builder, pointer, index), vector.as_pointer())


def alignment(vector: Any) -> int:
    """Bytes of a vector, or of the registers that it is written from: none is larger than a line."""
    return min(LINE, int(vector.count) * element_bits(vector.element) // 8)


def load_value(builder: Any, pointer: Any, index: Any, vector: Any, mask: Any = None, align: int = 1) -> Any:
    """Elements from `index` on; of a mask the lanes that are set, zeros elsewhere, whose memory is not touched."""
    if mask is not None:
        return masked_load_value(builder, pointer, index, mask, vector)
    loaded = builder.load(vector_at(builder, pointer, index, vector))
    loaded.align = align
    return loaded


def store_value(
    builder: Any, pointer: Any, index: Any, value: Any, mask: Any = None, *, align: int = 1, stream: bool = False
) -> None:
    """Write the lanes that are set from element `index` on; without a mask all, if asked past the caches, for which
    the address must be a multiple of the vector's `alignment`."""
    if mask is not None:
        masked_store_value(builder, pointer, index, mask, value)
        return
    count, own = value.type.count, max(1, 8 * target.current().vector_bytes // element_bits(value.type.element))
    own = own if count % own == 0 else count
    # register by register: of a wider vector LLVM writes the last one first, and the parts of a line no longer leave
    # the core together (ReLU of 200 KB that begins within one: 6.3 us, 8.5 so, Emerald Rapids)
    first = element_at(builder, pointer, index)
    for at in range(0, count, own):
        order = ir.Constant(ir.VectorType(I32, own), list(range(at, at + own)))
        part = value if own == count else builder.shuffle_vector(value, value, order)
        written = builder.store(part, vector_at(builder, first, number(at), part.type))
        written.align = alignment(part.type) if stream else min(align, alignment(part.type))
        if stream:
            written.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))


def masked_load_value(builder: Any, pointer: Any, index: Any, mask: Any, vector: Any, other: Any = None) -> Any:
    at = vector_at(builder, pointer, index, vector)
    name = f"llvm.masked.load.{suffix(vector)}.p0"
    load = declare(builder, name, vector, [vector.as_pointer(), I32, mask.type, vector])
    other = ir.Constant(vector, None) if other is None else other
    return builder.call(load, [at, ir.Constant(I32, 1), mask, other])


def opaque(builder: Any, value: Any) -> Any:
    """A vector of integers, of which a compiler does not know how it was made; of more than a register as it is."""
    size = value.type.count * value.type.element.width
    if size > 512:
        return value
    kind, letter = (value.type, "v") if size >= 128 else (ir.IntType(size), "r")
    whole = builder.asm(ir.FunctionType(kind, [kind]), "", f"={letter},0", [builder.bitcast(value, kind)], False)
    return builder.bitcast(whole, value.type)


def masked_store_value(builder: Any, pointer: Any, index: Any, mask: Any, value: Any) -> None:
    """Write the lanes that are set.

    A masked store of AVX2 is 42 micro-operations on Zen 2 to 4, whatever its mask: there whole vectors, and those whose
    first or last lanes are set, go another way.
    """
    vector = value.type
    if not _avx2(vector):
        _masked_store(builder, pointer, index, mask, value)
        return
    kind = ir.IntType(vector.count)
    bits = builder.bitcast(mask, kind)
    with builder.if_else(builder.icmp_unsigned("==", bits, ir.Constant(kind, -1)), likely=True) as (whole, part):
        with whole:
            store_value(builder, pointer, index, value)
        with part:
            _store_part(builder, pointer, index, bits, mask, value)


def _store_part(builder: Any, pointer: Any, index: Any, bits: Any, mask: Any, value: Any) -> None:
    """Write the lanes whose bits are set, not all of them."""
    others, one, none = builder.not_(bits), bits.type(1), bits.type(0)
    first, last = (builder.icmp_unsigned("==", builder.and_(b, builder.add(b, one)), none) for b in (bits, others))
    count = builder.zext(builder.ctpop(bits), I64)
    with builder.if_else(first, likely=True) as (begins, rest):
        with begins:
            _store_pieces(builder, element_at(builder, pointer, index), count, value)
        with rest, builder.if_else(last, likely=True) as (ends, any_lanes):
            with ends:
                end = element_at(builder, pointer, builder.add(raw(index), number(value.type.count)))
                _store_pieces(builder, end, count, value, last=True)
            with any_lanes:
                _masked_store(builder, pointer, index, mask, value)


def _avx2(vector: Any) -> bool:
    """Whether the CPU is one whose masked stores are slow, and a vector is of a register of it."""
    return target.current().isa == "avx2" and 64 <= vector.count * element_bits(vector.element) <= 256


def _masked_store(builder: Any, pointer: Any, index: Any, mask: Any, value: Any) -> None:
    vector = value.type
    if element_bits(vector.element) < 32 and target.current().isa == "avx512":
        # LLVM 22 stores the whole i32 where one lane of a mask is known to be set and the value is an i32 as i16
        value = opaque(builder, value)
    at = vector_at(builder, pointer, index, vector)
    name = f"llvm.masked.store.{suffix(vector)}.p0"
    store = declare(builder, name, ir.VoidType(), [vector, vector.as_pointer(), I32, mask.type])
    builder.call(store, [value, at, ir.Constant(I32, 1), mask])


def _store_pieces(builder: Any, at: Any, count: Any, value: Any, last: bool = False) -> None:
    """Write the first lanes of a vector from `at` on, or the last ones that end there, not all of them: half of it, a
    quarter, and so on, whichever are there."""
    half = value.type.count // 2
    while half:
        low, high = (
            builder.shuffle_vector(value, value, ir.Constant(ir.VectorType(I32, half), list(range(k, k + half))))
            for k in (0, half)
        )
        near, far = (high, low) if last else (low, high)
        there = builder.icmp_signed("!=", builder.and_(count, number(half)), number(0))
        beyond = builder.gep(at, [number(-half if last else half)])
        with builder.if_then(there):
            store_value(builder, beyond if last else at, number(0), near)
        value, at = builder.select(there, far, near), builder.select(there, beyond, at)
        half //= 2


def store_first_value(builder: Any, pointer: Any, index: Any, count: Any, value: Any) -> None:
    """Write the lanes below `count`."""
    count, lanes = raw(count), number(value.type.count)
    if not _avx2(value.type):
        _masked_store(builder, pointer, index, first_lanes_value(builder, count, value.type.count), value)
        return
    with builder.if_else(builder.icmp_signed(">=", count, lanes), likely=True) as (whole, part):
        with whole:
            store_value(builder, pointer, index, value)
        with part:
            there = builder.select(builder.icmp_signed(">", count, number(0)), count, number(0))
            _store_pieces(builder, element_at(builder, pointer, index), there, value)


def prefetch_value(builder: Any, pointer: Any, index: Any, locality: int, write: bool) -> None:
    """Emit a prefetch of the line that holds element `index`."""
    at = builder.bitcast(element_at(builder, pointer, index), ir.IntType(8).as_pointer())
    function = declare(builder, "llvm.prefetch.p0", ir.VoidType(), [at.type, I32, I32, I32])
    builder.call(function, [at, ir.Constant(I32, int(write)), ir.Constant(I32, locality), ir.Constant(I32, 1)])


def prefetch_lines(builder: Any, pointer: Any, index: Any, vector: Any, write: bool, locality: int = 3) -> None:
    """Ask for the lines of a vector from element `index` on, into a cache as `prefetch` counts them."""
    for at in range(0, vector.count, LINE * 8 // element_bits(vector.element)):
        prefetch_value(builder, pointer, builder.add(raw(index), number(at)), locality, write)


def copy_string_value(builder: Any, target: Any, source: Any, size: V) -> None:
    """Copy so many bytes by a string instruction of x86, which reads no line that it is going to write whole."""
    kind = ir.FunctionType(ir.LiteralStructType([I64] * 3), [I64] * 3)
    places = [builder.ptrtoint(pointer, I64) for pointer in (target, source)]
    builder.asm(kind, "rep movsb", "={di},={si},={cx},0,1,2,~{memory}", [*places, raw(size)], True)


def _place(builder: Any, pointer: Any, vector: Any) -> tuple[Any, Any]:
    """(address, mask of what is behind a multiple of the vector's `alignment`), both counted in elements."""
    size = element_bits(vector.element) // 8
    at = builder.lshr(builder.ptrtoint(pointer, I64), number(size.bit_length() - 1))
    return at, number(alignment(vector) // size - 1)


def elements_behind(builder: Any, pointer: Any, vector: Any) -> Any:
    """Elements from the multiple of the vector's `alignment` at or before an address to the address."""
    return builder.and_(*_place(builder, pointer, vector))


def elements_ahead(builder: Any, pointer: Any, index: V, vector: Any, most: V) -> V:
    """Elements, at most `most`, from element `index` to the multiple of the vector's `alignment` at or behind it."""
    at, mask = (index.new(x) for x in _place(builder, pointer, vector))
    return at_most((0 - (at + index)) & mask, most)
