"""What the two transform kernels share: how N x N tiles lie in shared memory, and which thread does what.

A block takes G tiles, N / 2 threads each: a thread transforms two real rows, then, after a turn through shared memory,
one complex column.  Rows are half-complex (numbaprims.fourier): slot s of a row is the real part of frequency s, slot
N / 2 + s the imaginary one.  Slots 0 and N / 2 are real both, so their columns are transformed as one complex column;
what it mixes is told apart on the way out: no thread idles, and none has a program of its own.

A spectrum of N * N reals is kept as N * N / 2 pairs, q < N / 2 of the column of slot 0, q < N of that of slot N / 2,
then N of each complex column.  Pairs 0 and N / 2 are two real numbers, the others the two parts of a complex one.

Rows are N + 1 words apart and tiles 8 (N = 32: 16) off a multiple of 32 banks, so that the rows of a warp's tiles, and
their columns, meet all banks: 17 r + 8 a are different for 8 rows and 4 tiles.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.jit import device_function, types

I32, I64, U32 = types.int32, types.int64, types.uint32
SIZES = (16, 32)


def tiles_of(acc: str, n: int) -> int:
    """Tiles of a block: neighbours in memory, 8 of which are a sector of 32 bytes."""
    return {(16, 4): 16, (16, 8): 16, (32, 4): 8, (32, 8): 4}[n, DTYPES[acc].itemsize]


def threads_of(acc: str, n: int) -> int:
    """Threads of a block."""
    return tiles_of(acc, n) * n // 2


def room_of(n: int) -> int:
    """Words from one tile to the next."""
    return n * (n + 1) + {16: 24, 32: 16}[n]


def residents(acc: str, n: int) -> int:
    """Blocks of a multiprocessor that registers must suffice for: 64 a thread for N = 16 in float32, else 128."""
    return 8 if (n, acc) == (16, "f32") else 4


@functools.cache
def make_lanes(tiles: int) -> Any:
    """A device function: thread -> (tile, first pair) of the passes over spectra.

    A quarter of a warp has 8 tiles of a pair, whose elements are neighbours in memory; one pair is N + 1 banks behind
    the last, so that only two tiles of a warp share a bank (N = 16).
    """
    G, LOW = tiles, min(tiles, 8)
    HIGH = G // LOW
    PAIRS = 32 // LOW

    @device_function
    def lanes(t):  # type: ignore[no-untyped-def]
        low, rest = U32(t % U32(LOW)), U32(t // U32(LOW))
        near, far = U32(rest % U32(PAIRS)), U32(rest // U32(PAIRS))
        high = U32(far % U32(HIGH))
        return I32(low + high * U32(LOW)), I32(near + U32(far // U32(HIGH)) * U32(PAIRS))

    return lanes


@device_function
def decode_tiles(item, inner):  # type: ignore[no-untyped-def]
    """(channel, tile) of an item, tiles being neighbours."""
    outer = quotient(U32(item), U32(inner))
    return I32(outer), I32(U32(item) - outer * U32(inner))


@device_function
def decode_channels(item, inner):  # type: ignore[no-untyped-def]
    """(channel, tile) of an item, channels being neighbours."""
    outer = quotient(U32(item), U32(inner))
    return I32(U32(item) - outer * U32(inner)), I32(outer)


DECODE = {"tiles": decode_tiles, "channels": decode_channels}


@device_function
def corner(tile, tiles_h, tiles_w, step_h, step_w):  # type: ignore[no-untyped-def]
    """(image, row, column) where a tile of all images begins."""
    rest = quotient(U32(tile), U32(tiles_w))
    column = U32(U32(tile) - rest * U32(tiles_w))
    image = quotient(rest, U32(tiles_h))
    return I32(image), I32(U32(rest - image * U32(tiles_h)) * U32(step_h)), I32(column * U32(step_w))
