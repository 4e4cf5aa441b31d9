"""Random words, a vector at a time.

A lane of 64 bits holds one word of a block's counter, so a product of 32 by 32 bits is one vpmuludq, and the next does
not look at what it leaves in a lane's upper half. A round of 8 blocks (32 words) takes two products, two shifts and two
sums modulo 2 of three terms, so ten take 60 instructions; four more bring the words into the order of the elements.
"""

from __future__ import annotations

from llvmlite import ir

from numbaprims.cpu.simd.emit import llvm_vector, splat_value
from numbaprims.cpu.simd.lanes import shuffle_value
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.formulas import random
from numbaprims.formulas.value import bits

LOW = 0xFFFFFFFF
#: Words of a block.
BLOCK = 4


def splat(scalar: Value, lanes: int) -> Value:
    """A number in every lane."""
    return scalar.new(splat_value(scalar.builder, scalar.value, lanes))


def halves(v: Value) -> tuple[Value, Value]:
    """The lanes at even places, and those at odd ones."""
    lanes = v.value.type.count
    first, second = (v.new(shuffle_value(v.builder, v.value, v.value, [*range(k, lanes, 2)])) for k in (0, 1))
    return first, second


def by_turns(a: Value, b: Value) -> Value:
    """A lane of a, one of b, the next of a, ..."""
    lanes = a.value.type.count
    return a.new(shuffle_value(a.builder, a.value, b.value, [k + half for k in range(lanes) for half in (0, lanes)]))


def _product(word: Value, m: int) -> tuple[Value, Value]:
    product = (word & LOW) * m
    return product, product.shifted_right(32)


def _blocks(place: Value, given: list[Value], lanes: int) -> list[Value]:
    """The pairs of words of as many blocks as there are lanes, from the block `place` on: (words 0 and 1, 2 and 3).

    Lane 2 k has block k and lane 2 k + 1 the one half a vector further, for `_in_order`.
    """
    b = place.builder
    seed, offset = (splat(bits(number), lanes) for number in given)
    order = ir.Constant(llvm_vector("i64", lanes), [k // 2 + k % 2 * (lanes // 2) for k in range(lanes)])
    block = splat(place, lanes) + Value(b, order)
    counter = (block, block.shifted_right(32), offset, offset.shifted_right(32))
    c0, c1, c2, c3 = random.philox(counter, (seed, seed.shifted_right(32)), _product)
    return [_lower_halves(c0, c1), _lower_halves(c2, c3)]


def _lower_halves(a: Value, b: Value) -> Value:
    """Of each lane the lower half of a and, above it, that of b."""
    words, more = _as_words(a).value, _as_words(b).value
    lanes = words.type.count
    mixed = shuffle_value(a.builder, words, more, [k + half for k in range(0, lanes, 2) for half in (0, lanes)])
    return a.new(a.builder.bitcast(mixed, a.value.type))


def _in_order(pair: list[Value]) -> Value:
    """The numbers of 64 bits in the order of the blocks: two unpacks of a register, which cross no 128 bits."""
    first, second = pair
    lanes = first.value.type.count
    order = [k + lanes * half for begin in (0, 1) for k in range(begin, lanes, 2) for half in (0, 1)]
    return first.new(shuffle_value(first.builder, first.value, second.value, order))


def _as_words(v: Value) -> Value:
    """As twice as many words of 32 bits."""
    return v.new(v.builder.bitcast(v.value, llvm_vector("i32", 2 * v.value.type.count)))


def random_words(place: Value, seed: Value, offset: Value, lanes: int, width: int = 32) -> Value:
    """The words of 32 or 64 bits of the elements from `place` on, which begins a block; of the stream whose numbers are
    the bits of two floats."""
    size = BLOCK * 32 // width
    pairs = _in_order(_blocks(place.shifted_right(size.bit_length() - 1), [seed, offset], lanes // size))
    return _as_words(pairs) if width == 32 else pairs
