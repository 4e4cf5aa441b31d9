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


def word64(value: Any, name: str) -> int:
    try:
        word = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; it must be an integer") from None
    if not 0 <= word < 1 << 64:
        raise ValueError(f"{name} is {word}; it must be 0 to 2**64 - 1")
    return word
