"""What a thread draws: the words of a block of Philox, and what is made of those of its elements."""

from __future__ import annotations

from llvmlite import ir

from numbaprims.formulas import random
from numbaprims.formulas.value import mad, select
from numbaprims.gpu.device.emit import I32, I64, intrinsic, string_literal, tuple_of, types, unpack
from numbaprims.gpu.device.math import log_value, sqrt_value
from numbaprims.gpu.device.value import Value
from numbaprims.philox import DIGITS


def _product(word: Value, m: int) -> tuple[Value, Value]:
    b = word.builder
    product = b.mul(b.zext(word.value, I64), ir.Constant(I64, m))
    return word.new(b.trunc(product, I32)), word.new(b.trunc(b.lshr(product, ir.Constant(I64, 32)), I32))


def _picked(parts: list[Value], place: Value, count: int) -> list[Value]:
    """Of a block's parts those of the elements from `place` on."""
    while len(parts) > count:
        half = len(parts) // 2
        first = (place & half).equals(0)
        parts = [select(first, one, other) for one, other in zip(parts[:half], parts[half:], strict=True)]
    return parts


def _drawn(kind: str, dtype: str, place: Value, given: list[Value], x: list[Value]) -> list[Value]:
    b, (s0, s1, o0, o1, least, one, two) = place.builder, given
    size = 2 if dtype == "f64" and kind != "dropout" else 4
    block = place.shifted_right(size.bit_length() - 1)
    low, high = (place.new(b.trunc(half.value, I32)) for half in (block, block.shifted_right(32)))
    words = random.philox((low, high, o0, o1), (s0, s1), _product)
    if size == 2:
        wide = [place.new(b.zext(word.value, I64)) for word in words]
        words = [wide[0] | (wide[1] << 32), wide[2] | (wide[3] << 32)]
    if kind == "normal":
        pairs = (random.normal_pair(words[k], words[k + 1], log_value, sqrt_value) for k in range(0, size, 2))
        return [mad(z, two, one) for z in _picked([z for pair in pairs for z in pair], place, len(x))]
    words = _picked(words, place, len(x))
    if kind == "uniform":
        return [mad(random.uniform(word, DIGITS[dtype]), two, one) for word in words]
    return [random.dropout(each, word, least, one) for each, word in zip(x, words, strict=True)]


@intrinsic
def draw(typingctx, kind, dtype, place, s0, s1, o0, o1, least, one, two, x):  # type: ignore[no-untyped-def]
    """The results of x's elements, a tuple or a number, of which the first stands at `place`.

    s0 ... o1 are the words of seed and offset; a dropout reads x, `least` and the factor `one`, what is drawn is one +
    two u.
    """
    word, name, stored = types.uint32, string_literal(kind), string_literal(dtype)
    if name is None or stored is None:
        return None
    element = types.unliteral(x)
    number = element.dtype if isinstance(element, types.UniTuple) else element

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        place, *given = (Value(builder, arg) for arg in args[2:-1])
        lanes = [Value(builder, part) for part in unpack(builder, args[-1], element)]
        found = [value.value for value in _drawn(name, stored, place, given, lanes)]
        return tuple_of(context, builder, element, found) if isinstance(element, types.UniTuple) else found[0]

    return element(kind, dtype, types.uint64, *[word] * 5, number, number, element), codegen
