"""Trigonometric functions and their inverses, for float32 and float64.

Angles are reduced to n pi / 2 + r, r in two parts: by Cody and Waite's multiples of pi / 2 where x is moderate, else by
Payne and Hanek's product of x with the digits of 2 / pi that matter, in integers, which is right for every finite x.
The second is computed only where a lane needs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from numbaprims.formulas.value import (
    MANTISSA,
    SHIFTER,
    V,
    at_most,
    bits,
    from_bits,
    mad,
    magnitude,
    negative,
    polynomial,
    rarely,
    select,
    to_float,
    with_sign_of,
)
from numbaprims.polynomials import (
    ASIN,
    ATAN,
    COS,
    HALF_PI,
    HALF_PI_LARGEST,
    HALF_PI_SHORT,
    HALF_PI_SHORT_LARGEST,
    SIN,
    TWO_OVER_PI,
)

Quotient = Callable[[V, V], V]
Root = Callable[[V], V]
#: Below, a function that is x at 0 is x in all its digits.
_TINY = {32: 2.0**-13, 64: 2.0**-27}
_WORD = 0xFFFFFFFF

# ---------------------------------------------------------------- x = n pi / 2 + r


def _near(x: V) -> tuple[V, V, V]:
    """(n, r, what r was rounded by) of a moderate x; n is right modulo 4."""
    width = x.width
    parts = (HALF_PI if x.fused else HALF_PI_SHORT)[width]
    shifted = mad(x, 2.0 / math.pi, SHIFTER[width])
    n = shifted - SHIFTER[width]
    r = mad(n, -parts[0], x)
    if x.fused:
        # as a sum with 0, lest a compiler fuse it with the differences
        product = mad(n, parts[1], 0.0)
        less = r - product
        lost = ((r - less) - product) - mad(n, parts[1], negative(product))
        return bits(shifted), less, mad(n, -parts[2], lost)
    low = x.like(0.0)
    for part in parts[1:-1]:
        less = mad(n, -part, r)
        low, r = low + mad(n, -part, r - less), less
    low = mad(n, -parts[-1], low)
    whole = r + low
    return bits(shifted), whole, low - (whole - r)


def _digits(x: V) -> list[V]:
    """x 2 / pi modulo 4, in words of 32 from the lowest on; the two highest bits are the integer.

    x is m 2**e with an integer m, and of 2 / pi matter the digits from 2**(1 - e) down: m times those above is a
    multiple of 4. They are found by the bits of e, without a table in memory.
    """
    mantissa = MANTISSA[x.width]
    i = bits(x) & ((1 << (x.width - 1)) - 1)
    m = _wide((i & ((1 << mantissa) - 1)) | (1 << mantissa))
    # the table begins with 48 zeros, so that the first digit's place is not negative
    place = _wide((i >> mantissa) - {32: 127 + 23 - 46, 64: 1023 + 52 - 46}[x.width])
    count, last = {32: (3, 4), 64: (6, 16)}[x.width]
    words = [m.like((TWO_OVER_PI >> (1184 - 32 * k)) & _WORD) for k in range(count + 2 * last)]
    while last:
        odd = (place & (32 * last)).equals(0)
        words = [select(odd, words[k], words[k + last]) for k in range(count + last)]
        last //= 2
    left = m.like(32) - (place & 31)
    taken = [
        m.new(m.builder.lshr(((above << 32) | below).value, left.value)) & _WORD
        for above, below in zip(words, words[1:], strict=False)
    ][:count]
    taken.reverse()
    parts = [m] if x.width == 32 else [m & _WORD, m >> 32]
    found, carry = [], m.like(0)
    for column in range(count):
        low, high = carry, m.like(0)
        for k, part in enumerate(parts[: column + 1]):
            product = part * taken[column - k]
            low, high = low + (product & _WORD), high + product.shifted_right(32)
        found.append(low & _WORD)
        carry = high + low.shifted_right(32)
    return found


def _wide(i: V) -> V:
    """Positive integers in lanes of 64 bits."""
    return i if i.width == 64 else i.new(i.builder.zext(i.value, i.integers_of(64)))


def _far(x: V) -> tuple[V, V, V]:
    """The same of a large x."""
    *_, fourth, third, second, first = (None, *_digits(x))
    assert first is not None and second is not None and third is not None
    top = (first << 32) | second
    n = (top + (1 << 61)).shifted_right(62)
    # what is left, in quarters of a turn: a fraction of 2**64 with a sign
    rest = (top << 2) | third.shifted_right(30)

    def part(i: V, exponent: int) -> V:
        narrow = i if x.width == 64 else i.new(i.builder.trunc(i.value, x.integers))
        return to_float(narrow) * 2.0**exponent

    if x.width == 64:
        assert fourth is not None
        below = ((third << 34) | (fourth << 2)).shifted_right(12)
        sizes = [part(rest >> 32, -32), part(rest & _WORD, -64), part(below, -116)]
    else:
        low = (1 << 24) - 1
        sizes = [part(rest >> 40, -24), part((rest >> 16) & low, -48), part(rest & 0xFFFF, -64)]
        n = n.new(n.builder.trunc(n.value, x.integers))
    whole = sizes[0] + sizes[1]
    lost = (sizes[1] - (whole - sizes[0])) + sizes[2]
    y = whole + lost
    lost = lost - (y - whole)
    half = HALF_PI[x.width]
    r = y * half[0]
    return n, r, mad(y, half[0], negative(r)) + mad(y, half[1], lost * half[0])


def reduced(x: V) -> tuple[V, V, V]:
    """(n, r, low) with x = n pi / 2 + r + low and |r| <= pi / 4, low what rounding r took; n is right modulo 4."""
    largest = (HALF_PI_LARGEST if x.fused else HALF_PI_SHORT_LARGEST)[x.width]
    a = magnitude(x)
    n, r, low = _near(x)

    def far() -> list[V]:
        at, less, lost = _far(a)
        # of -x it is the same with another sign
        less = select(a < math.inf, with_sign(less, x), math.nan)
        return [select(x < 0.0, at.like(0) - at, at), less, with_sign(lost, x)]

    n, r, low = rarely(a > largest, [n, r, low], far)
    return n, r, low


def with_sign(x: V, sign: V) -> V:
    """x times the sign of another number."""
    return from_bits(bits(x) ^ (bits(sign) & -(1 << (x.width - 1))))


def _series(r: V, low: V) -> tuple[V, V, V]:
    """(sin(r + low) - r, the square, what makes mad(square, that, 1) the cosine) of what `reduced` leaves."""
    z = mad(r, r, (low + low) * r)
    tail = mad(r * z, polynomial(z, SIN[r.width]), low)
    return tail, z, mad(z, polynomial(z, COS[r.width]), -0.5)


def _wave(n: V, r: V, low: V) -> V:
    """sin(n pi / 2 + r + low)."""
    tail, z, q = _series(r, low)
    value = select((n & 1).equals(0), r + tail, mad(z, q, 1.0))
    return from_bits(bits(value) ^ ((n & 2) << (r.width - 2)))


def sin_value(x: V) -> V:
    """sin x."""
    return select(magnitude(x) < _TINY[x.width], x, _wave(*reduced(x)))


def cos_value(x: V) -> V:
    """cos x."""
    n, r, low = reduced(x)
    return _wave(n + 1, r, low)


def tan_value(x: V, quotient: Quotient[V]) -> V:
    """tan x: the quotient of sine and cosine, both in two parts."""
    n, r, low = reduced(x)
    tail, z, q = _series(r, low)
    even = (n & 1).equals(0)
    sine, cosine = r + tail, mad(z, q, 1.0)
    sine_low, cosine_low = tail - (sine - r), mad(z, q, 1.0 - cosine)
    above, below = select(even, sine, cosine), select(even, cosine, sine)
    above_low, below_low = select(even, sine_low, cosine_low), select(even, cosine_low, sine_low)
    inverse = quotient(below.like(1.0), below)
    t = above * inverse
    rest = mad(negative(t), below_low, mad(negative(t), below, above) + above_low)
    t = mad(rest, inverse, t)
    t = from_bits(bits(t) ^ ((n & 1) << (x.width - 1)))
    return select(magnitude(x) < _TINY[x.width], x, t)


# ---------------------------------------------------------------- inverses: base + k (s + tail)


def _from(base: V, factor: V, s: V, tail: V, low: V) -> V:
    """base + low + factor (s + tail), rounded about once; factor is a power of 2 and a base is the larger term."""
    whole = mad(s, factor, base)
    lost = mad(s, factor, base - whole)
    return whole + (lost + mad(tail, factor, low))


def _arcsine(x: V, root: Root[V]) -> tuple[V, V, V]:
    """(where |x| > 1/2, s, tail): s + tail is asin |x|, there half of acos |x|."""
    a = magnitude(x)
    far = a > 0.5
    z = select(far, mad(a, -0.5, 0.5), a * a)
    s = select(far, root(z), a)
    return far, s, (s * z) * polynomial(z, ASIN[x.width])


def asin_value(x: V, root: Root[V]) -> V:
    """asin x."""
    far, s, tail = _arcsine(x, root)
    half, low, _ = HALF_PI[x.width]
    base, rest = select(far, x.like(half), 0.0), select(far, x.like(low), 0.0)
    return with_sign_of(_from(base, select(far, x.like(-2.0), 1.0), s, tail, rest), x)


def acos_value(x: V, root: Root[V]) -> V:
    """acos x."""
    far, s, tail = _arcsine(x, root)
    half, low, _ = HALF_PI[x.width]
    minus = x < 0.0
    whole, rest = select(minus, x.like(2.0 * half), 0.0), select(minus, x.like(2.0 * low), 0.0)
    base, rest = select(far, whole, half), select(far, rest, low)
    factor = select(far, x.like(2.0), 1.0)
    # pi - 2 s and pi / 2 - x
    factor = with_sign(factor, select(far, negative(x), x))
    return _from(base, negative(factor), s, tail, rest)


def atan2_value(y: V, x: V, quotient: Quotient[V]) -> V:
    """The angle of (x, y): atan(y / x) in the right quadrant, special cases as C's."""
    width = x.width
    a, b = magnitude(x), magnitude(y)
    far = b > a
    above, below = select(far, a, b), select(far, b, a)
    t = quotient(above, below)
    t = select(above.equals(below), select(below.equals(0.0), below, 1.0), t)
    z = t * t
    tail = (t * z) * polynomial(z, ATAN[width])
    half, low, _ = HALF_PI[width]
    left = bits(x) < 0
    base = select(far, x.like(half), select(left, x.like(2.0 * half), 0.0))
    rest = select(far, x.like(low), select(left, x.like(2.0 * low), 0.0))
    factor = with_sign(with_sign(x.like(1.0), x), select(far, x.like(-1.0), 1.0))
    return with_sign_of(_from(base, factor, t, tail, rest), y)


def atan_value(x: V, quotient: Quotient[V]) -> V:
    """atan x: beyond 1 pi / 2 - atan(1 / x)."""
    width = x.width
    a = at_most(magnitude(x), {32: 2.0**100, 64: 2.0**1000}[width])
    far = a > 1.0
    inverse = quotient(x.like(1.0), a)
    t = select(far, inverse, a)
    # what rounding the quotient took
    lost = select(far, mad(negative(inverse), a, 1.0) * inverse, 0.0)
    z = t * t
    tail = mad(t * z, polynomial(z, ATAN[width]), lost)
    half, low, _ = HALF_PI[width]
    base, rest = select(far, x.like(half), 0.0), select(far, x.like(low), 0.0)
    return with_sign_of(_from(base, select(far, x.like(-1.0), 1.0), t, tail, rest), x)
