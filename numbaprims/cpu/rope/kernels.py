"""The kernel of rotary position embedding.

Bound: x is read and out written once; six operations a pair are nothing beside that.  Rows of a block take the same
rows of cos and sin in all heads, one block after the other, so that those come from the caches.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    Arguments,
    address_of,
    advance,
    fma,
    fms,
    interleave_high,
    interleave_low,
    leave,
    load_scalar,
    load_wide,
    load_wide_first,
    load_word,
    shuffle,
    store_narrow,
    store_narrow_first,
    stream_fence,
)
from numbaprims.dtypes import DTYPES

# A tile is a block of `block` rows, of `rows` evenly apart; `outer` of these begin where `starts` (the address of
# int64[outer][arrays]) says, and take turns.  `_row`, `_col`: elements from one row, or column, to the next.
ARRAYS = ("out", "x", "cos", "sin")
ARGS = Arguments(
    arrays=(*ARRAYS, "positions"),
    ints=(
        "rows", "block", "outer", "starts", "width", "half", "limit", *(f"{name}_row" for name in ARRAYS),
        "positions_row", *(f"{name}_col" for name in ARRAYS),
    ),
)  # fmt: skip


@helper
def turned(a, b, c, s):  # type: ignore[no-untyped-def]
    """A pair turned by an angle."""
    return fms(a, c, b * s), fma(a, s, b * c)


@helper
def whole(out, x, cos, sin, half, x_col, out_col, cos_col, sin_col, W, PAIRS, INVERSE, EVEN, ODD, PAST):  # type: ignore[no-untyped-def]
    """Turn the pairs of a row, whole vectors of them."""
    for v in range(0, half - W + 1, W):
        c, s = load_wide(cos, v * cos_col, W), load_wide(sin, v * sin_col, W)
        if INVERSE:
            s = -s
        if PAIRS and W > 1:
            low, high = load_wide(x, 2 * v, W), load_wide(x, 2 * v + W, W)
            a, b = turned(shuffle(low, high, EVEN), shuffle(low, high, ODD), c, s)
            leave(out, 2 * v, interleave_low(a, b), PAST)
            leave(out, 2 * v + W, interleave_high(a, b), PAST)
        else:
            one, two = (2 * v, 2 * v + 1) if PAIRS else (v, half + v)
            a, b = turned(load_wide(x, one * x_col, W), load_wide(x, two * x_col, W), c, s)
            leave(out, one * out_col, a, PAST)
            leave(out, two * out_col, b, PAST)


@helper
def part(out, x, cos, sin, v, count, half, W, PAIRS, INVERSE, EVEN, ODD):  # type: ignore[no-untyped-def]
    """Turn `count` pairs from v on, fewer than a vector of them."""
    c, s = load_wide_first(cos, v, count, W), load_wide_first(sin, v, count, W)
    if INVERSE:
        s = -s
    if PAIRS and W > 1:
        low, high = load_wide_first(x, 2 * v, 2 * count, W), load_wide_first(x, 2 * v + W, 2 * count - W, W)
        a, b = turned(shuffle(low, high, EVEN), shuffle(low, high, ODD), c, s)
        store_narrow_first(out, 2 * v, 2 * count, interleave_low(a, b))
        store_narrow_first(out, 2 * v + W, 2 * count - W, interleave_high(a, b))
    else:
        a, b = turned(load_wide_first(x, v, count, W), load_wide_first(x, half + v, count, W), c, s)
        store_narrow_first(out, v, count, a)
        store_narrow_first(out, half + v, count, b)


@functools.cache
def make_kernel(
    dtype: str, cache: str, positions: str, interleaved: bool, inverse: bool, pairs: int, W: int, past: bool = False
) -> RangeKernel:
    """Tiles of rows of `pairs` pairs, 0 for any number; with W = 1 the elements of a row may lie any step apart.

    `past`: rows that begin with a line, of whole vectors that are a line each, leave past the caches.

    Where the loop over a row of 64 elements is not counted at run time, it takes 8.1 ns and not 9.4 (Zen 4).
    """
    PLACES, PAIRS, INVERSE, KNOWN = positions != "", interleaved, inverse, pairs
    EVEN, ODD = (" ".join(str(lane) for lane in range(first, 2 * W, 2)) for first in (0, 1))
    ITEM = DTYPES[dtype].itemsize
    STARTS = 8 * len(ARGS.arrays if PLACES else ARRAYS)
    types = ARGS.types(out=dtype, x=dtype, cos=cache, sin=cache, positions=positions or "i64")

    @range_kernel("rope", types, spec=(dtype, cache, positions, interleaved, inverse, pairs, W, past))
    def rope(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        # kept in registers: a store might be to the arguments, for all the compiler knows
        half, width, x_col, out_col, cos_col, sin_col = args.half, args.width, 1, 1, 1, 1
        if W == 1:
            x_col, out_col, cos_col, sin_col = args.x_col, args.out_col, args.cos_col, args.sin_col
        out_row, x_row, cos_row, sin_row = args.out_row, args.x_row, args.cos_row, args.sin_row
        positions, limit, positions_row = args.positions, args.limit, args.positions_row
        rest = 2 * half
        for tile in range(lo, hi):
            first = tile // args.outer
            start = args.starts + STARTS * (tile - first * args.outer)
            first *= args.block
            out = advance(args.out, load_word(start, 0) + first * out_row)
            x = advance(args.x, load_word(start, 1) + first * x_row)
            cos, sin = args.cos, args.sin
            if PLACES:
                positions = advance(args.positions, load_word(start, 4) + first * positions_row)
            else:
                cos = advance(cos, load_word(start, 2) + first * cos_row)
                sin = advance(sin, load_word(start, 3) + first * sin_row)
            for r in range(min(args.block, args.rows - first)):
                if PLACES:
                    place = max(0, min(int(load_scalar(positions, r * positions_row)), limit - 1))
                    cos, sin = advance(args.cos, place * cos_row), advance(args.sin, place * sin_row)
                if KNOWN > 0:
                    half = KNOWN
                if past and address_of(out) % (ITEM * W) == 0 and address_of(out) != address_of(x):
                    whole(out, x, cos, sin, half, x_col, out_col, cos_col, sin_col, W, PAIRS, INVERSE, EVEN, ODD, True)
                else:
                    whole(out, x, cos, sin, half, x_col, out_col, cos_col, sin_col, W, PAIRS, INVERSE, EVEN, ODD, False)
                if W > 1:
                    v = half - half % W
                    if v < half:
                        part(out, x, cos, sin, v, half - v, half, W, PAIRS, INVERSE, EVEN, ODD)
                for at in range(rest, width - W + 1, W):
                    store_narrow(out, at * out_col, load_wide(x, at * x_col, W))
                if W > 1:
                    at = width - (width - rest) % W
                    if at < width:
                        store_narrow_first(out, at, width - at, load_wide_first(x, at, width - at, W))
                out, x = advance(out, out_row), advance(x, x_row)
                if not PLACES:
                    cos, sin = advance(cos, cos_row), advance(sin, sin_row)
        if past:
            stream_fence()

    return rope
