"""Random bits by counting: Philox 4x32-10, and the masks of dropout that are made of it.

A word of randomness is a function of a key and a counter, so a mask needs no state and no order: every kernel finds the
word of its own element, and the CPU and the GPU find the same one.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

ROUNDS = 10
#: Multipliers of the counter's words 0 and 2, and what the key's words grow by from round to round.
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)

_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox4x32(counter: Any, key: Any) -> np.ndarray:
    """Encrypt counters: four random words each.

    Args:
        counter: (..., 4) integers of 32 bits, the lowest word first.
        key: (2,) or (..., 2) integers of 32 bits.

    Returns:
        (..., 4) uint32.

    Example:
        >>> [f"{word:08x}" for word in philox4x32([0, 0, 0, 0], [0, 0])]
        ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']

    References:
        Salmon, Moraes, Dror and Shaw, Parallel random numbers: as easy as 1, 2, 3, 2011.
    """
    c0, c1, c2, c3 = np.moveaxis(np.asarray(counter, np.uint64), -1, 0)
    k0, k1 = np.moveaxis(np.asarray(key, np.uint64), -1, 0)
    m0, m1 = (np.uint64(word) for word in MULTIPLIERS)
    w0, w1 = (np.uint64(word) for word in WEYL)
    for _ in range(ROUNDS):
        p0, p1 = m0 * c0, m1 * c2  # of 32 by 32 bits: exact
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _LOW, (p0 >> _HALF) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + w0) & _LOW, (k1 + w1) & _LOW
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3), -1).astype(np.uint32)


def random_words(count: int, seed: int, offset: int = 0) -> np.ndarray:
    """The first `count` words (uint32) of the stream (seed, offset): word ``index % 4`` of block ``index // 4``.

    The key of a block is ``(seed mod 2**32, seed // 2**32)``, its counter ``(block mod 2**32, block // 2**32,
    offset mod 2**32, offset // 2**32)``: offsets name streams that share no block, whatever their length.
    """
    seed, offset = (word64(value, name) for value, name in ((seed, "seed"), (offset, "offset")))
    block = np.arange((count + 3) // 4, dtype=np.uint64)
    low, high = (np.full_like(block, word) for word in (offset & 0xFFFFFFFF, offset >> 32))
    counter = np.stack((block & _LOW, block >> _HALF, low, high), -1)
    return philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32)).ravel()[:count]


def dropout_mask(shape: Any, p: float, seed: int, offset: int = 0) -> np.ndarray:
    """What dropout keeps: element `index`, in C order, where ``word(seed, offset, index) >= ceil(p * 2**32)``.

    `random_words` says which word that is. The threshold is an integer of 33 bits: p = 1 keeps nothing, p = 0 all.

    Args:
        shape: of the mask, or a count of elements.
        p: the probability of an element to be dropped, 0 to 1.
        seed, offset: 0 to 2**64 - 1; the mask is a function of them and the index only.

    Returns:
        bool, True where the element is kept.

    Raises:
        ValueError: p, seed or offset is out of range.

    Example:
        >>> dropout_mask((2, 4), 0.5, seed=1).astype(int)
        array([[1, 1, 1, 1],
               [1, 1, 0, 1]])
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p is {p!r}; a probability lies between 0 and 1")
    shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    words = random_words(math.prod(shape), seed, offset)
    return (words >= np.uint64(math.ceil(p * 2.0**32))).reshape(shape)


#: Bits of a uniform number by its dtype: what its mantissa holds.
DIGITS = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}


def _count(shape: Any) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _wide_words(count: int, seed: int, offset: int, wide: bool) -> np.ndarray:
    """A word for each number: of 32 bits, or of 64 that are two words, the lower one first."""
    words = random_words(2 * count if wide else count, seed, offset).astype(np.uint64)
    return words[::2] | words[1::2] << _HALF if wide else words


def uniform(shape: Any, seed: int, offset: int = 0, dtype: str = "f32") -> np.ndarray:
    """What `numbaprims.random_uniform` draws from: the upper bits of each element's word as a fraction below 1.

    `DIGITS` says how many bits. An element of float64 has two words of 32 bits, ``2 * index`` and the next, which is
    the upper half; of the others each has the word of its index.

    Returns:
        float64: exact.

    Example:
        >>> uniform(3, seed=1) * 2.0**24
        array([14936070., 15010318.,  9826850.])
    """
    width, digits = 64 if dtype == "f64" else 32, DIGITS[dtype]
    words = _wide_words(_count(shape), seed, offset, dtype == "f64")
    return ((words >> np.uint64(width - digits)) * 2.0**-digits).reshape(shape)


def normal(shape: Any, seed: int, offset: int = 0, dtype: str = "f32") -> np.ndarray:
    """What `numbaprims.random_normal` draws: by Box and Muller, elements 2 k and 2 k + 1 from their words a and b.

    They are ``sqrt(-2 log u)`` times the cosine and the sine of b's fraction of a turn, u being ``(a // 2 + 1/4) /
    2**31``, where a // 2 is rounded to the type that is computed in, and the sum again; of float64 with words of 64
    bits and 2**63.

    Returns:
        float64.

    Example:
        >>> normal(2, seed=1).round(6)
        array([ 0.380401, -0.296278])
    """
    wide, count = dtype == "f64", _count(shape)
    words = _wide_words(count + count % 2, seed, offset, wide)
    a, b = words[::2], words[1::2]
    width, kind = (64, "f8") if wide else (32, "f4")
    unit: Any = np.array(2.0 ** (1 - width), kind)
    u = ((a >> np.uint64(1)).astype(kind) * unit + unit / 4).astype(np.float64)
    radius = np.sqrt(np.abs(2.0 * np.log(u)))
    # quarters of a turn are taken off before the rest is rounded
    turned = b + np.uint64(1 << width - 3) & np.uint64((1 << width) - 1)
    rest = (turned << np.uint64(66 - width) >> np.uint64(66 - width)).astype(np.int64) - (1 << width - 3)
    angle = rest.astype(kind).astype(np.float64) * 2.0 ** (2 - width) * (np.pi / 2)
    quarter = turned >> np.uint64(width - 2)
    sine, cosine = np.sin(angle), np.cos(angle)
    odd = quarter % np.uint64(2) == 1
    x, y = np.where(odd, -sine, cosine), np.where(odd, cosine, sine)
    sign = np.where(quarter >= np.uint64(2), -1.0, 1.0)
    return (np.stack((x, y), -1) * (sign * radius)[:, None]).ravel()[:count].reshape(shape)


def word64(value: Any, name: str) -> int:
    try:
        word = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; it must be an integer") from None
    if not 0 <= word < 1 << 64:
        raise ValueError(f"{name} is {word}; it must be 0 to 2**64 - 1")
    return word
