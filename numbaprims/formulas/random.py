"""Random numbers by counting, over Values: Philox 4x32-10 and what is made of its words (`numbaprims.philox` says what
that is). A word is a function of the element's place, so the CPU's vectors and a GPU's threads find the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from numbaprims.formulas.value import V, bits, from_bits, mad, magnitude, polynomial, select, to_float
from numbaprims.philox import MULTIPLIERS, ROUNDS, WEYL
from numbaprims.polynomials import COS_QUARTER, SIN_QUARTER


def xor(a: V, *others: V) -> V:
    for b in others:
        a = a.new(a.builder.xor(a.value, b.value))
    return a


def above_or_equal(word: V, least: V) -> V:
    """Of integers without a sign."""
    return word.new(word.builder.icmp_unsigned(">=", word.value, least.value))


def keys(low: V, high: V) -> Iterator[tuple[V, V]]:
    """The key of each round."""
    for round in range(ROUNDS):
        first, second = ((round * step + (1 << 31)) % (1 << 32) - (1 << 31) for step in WEYL)
        yield low + first, high + second


def philox(counter: tuple[V, V, V, V], key: tuple[V, V], product: Callable[[V, int], tuple[V, V]]) -> list[V]:
    """Four words. `product(word, m)` is (low, high) word of 32 by 32 bits; bits above the lowest 32 of a Value may be
    anything: a machine whose lanes are wider lets them lie there."""
    c0, c1, c2, c3 = counter
    for k0, k1 in keys(*key):
        (low0, high0), (low2, high2) = product(c0, MULTIPLIERS[0]), product(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = xor(high2, c1, k0), low2, xor(high0, c3, k1), low0
    return [c0, c1, c2, c3]


def dropout(x: V, word: V, least: V, factor: V) -> V:
    """x factor where the word is at least `least`, else x times 0: NaN stays."""
    return x * select(above_or_equal(word, least), factor, 0.0)


def uniform(word: V, digits: int) -> V:
    """The highest bits of a word as a fraction, 0 <= u < 1: exact."""
    return to_float(word.shifted_right(word.width - digits)) * 2.0**-digits


def normal_pair(a: V, b: V, log: Callable[[V], V], root: Callable[[V], V]) -> tuple[V, V]:
    """Two normal numbers of two words, by Box and Muller: sqrt(-2 log u) (cos t, sin t), t = 2 pi b / 2**width.

    u is (k + 1/4) / 2**(width - 1), k being all bits of a but the lowest: rounded as it is converted and summed, and
    never 0.
    """
    width = a.width
    unit = 2.0 ** (1 - width)
    radius = root(magnitude(log(mad(to_float(a.shifted_right(1)), unit, 0.25 * unit)) * -2.0))
    # the nearest quarter of the turn in the upper two bits, and what is left, in quarters: -1/2 <= y < 1/2
    turned = b + b.like(1 << (width - 3))
    y = to_float(b << 2) * 2.0**-width
    z = y * y
    high, low = SIN_QUARTER[width][:2]
    sine = mad(y, high, y * mad(z, polynomial(z, SIN_QUARTER[width][2:]), low))
    cosine = mad(z, polynomial(z, COS_QUARTER[width]), 1.0)
    quarter, half = 1 << (width - 2), -(1 << (width - 1))
    odd = (turned & quarter).equals(0)
    cosine, sine = select(odd, cosine, sine), select(odd, sine, cosine)
    return (
        from_bits(xor(bits(radius * cosine), (turned + quarter) & half)),
        from_bits(xor(bits(radius * sine), turned & half)),
    )


def threshold(p: float) -> tuple[int, float]:
    """(the least word that is kept, what it is multiplied by) of a dropout; words have 32 bits, so that of 2**32 is
    said by a factor of 0."""
    least = math.ceil(p * 2.0**32)
    return (least, 1.0 / (1.0 - p)) if least < 1 << 32 else (0, 0.0)
