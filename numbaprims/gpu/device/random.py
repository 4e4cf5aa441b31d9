"""What a thread draws: the words of a block of Philox, and what is made of those of its elements."""

from __future__ import annotations

from llvmlite import ir

from numbaprims.formulas import random
from numbaprims.formulas.value import mad, select
from numbaprims.gpu.device.emit import I32, I64
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


def drawn(
    kind: str, dtype: str, place: Value, given: list[Value], x: list[list[Value]], numbers: list[Value], count: int
) -> list[list[Value]]:
    """The results of so many elements, of which the first stands at `place`, as a formula of the pointwise engine.

    `given` are the words of seed and offset, and the least of an element that a dropout of x keeps, times the first
    number; what is drawn is one + two u.
    """
    b, (s0, s1, o0, o1, least), (one, two) = place.builder, given, numbers
    size = 2 if dtype == "f64" and kind != "dropout" else 4
    block = place.shifted_right(size.bit_length() - 1)
    low, high = (place.new(b.trunc(half.value, I32)) for half in (block, block.shifted_right(32)))
    words = random.philox((low, high, o0, o1), (s0, s1), _product)
    if size == 2:
        wide = [place.new(b.zext(word.value, I64)) for word in words]
        words = [wide[0] | (wide[1] << 32), wide[2] | (wide[3] << 32)]
    if kind == "normal":
        pairs = (random.normal_pair(words[k], words[k + 1], log_value, sqrt_value) for k in range(0, size, 2))
        return [[mad(z, two, one) for z in _picked([z for pair in pairs for z in pair], place, count)]]
    words = _picked(words, place, count)
    if kind == "uniform":
        return [[mad(random.uniform(word, DIGITS[dtype]), two, one) for word in words]]
    return [[random.dropout(each, word, least, one) for each, word in zip(x[0], words, strict=True)]]
