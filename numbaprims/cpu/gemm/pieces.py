"""Numbers as sums of bf16, which AMX's tiles multiply: float16 exactly, float32 with 16 or 24 bits.

A number is its nearest bf16, plus the bf16 nearest to what is left, and again: each piece has 8 bits, its own sign and
float32's exponents.  Of float16 two are exact, and so are the four products of two numbers; of float32 two leave at
most 2^-17 of it and three nothing.  `x3` omits the product of two second pieces, so that a term is off by at most 2^-15
of itself; `x6` omits what is below 2^-24, so that it is off by at most 2^-23.9.  The sums are float32's.

Infinity and NaN have no pieces: the first is themselves and the others are zeros, whose products are NaN.  No finite
sum comes of them, so only what is not finite is multiplied again, from the sums of the pieces.  Numbers and products
below 2^-126 are zeros, as the instruction has them, and so are pieces: below 2^-110 a float32 loses its last ones.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.gemm.arguments import PACK
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    advance,
    any_lane,
    bitcast,
    cast_pointer,
    fma,
    load,
    load_scalar,
    load_wide_first,
    load_wide_rows,
    load_wide_scalar,
    load_words,
    scalar,
    select,
    splat,
    stack_tile,
    store,
    store_first,
    store_narrow_first,
    store_rows,
    store_scalar,
    transpose,
    zeros,
)
from numbaprims.cpu.simd.loops import keep_rolled

#: Rows and columns of a tile of sums, in 2 x 2 registers; words of 32 bits of a row of A's, and of a step's block.
EDGE, WORDS, BLOCK = 32, 16, 512


@helper
def _word(value, W):  # type: ignore[no-untyped-def]
    return splat(scalar(value, "i32"), W)


@helper
def of_f16(bits, W):  # type: ignore[no-untyped-def]
    """The f16 in the lower half of each word, exactly."""
    moved = (bits & _word(0x7FFF, W)) << 13
    # the exponents differ by 112; a subnormal float32 becomes a normal one
    finite = bitcast(bitcast(moved, "f32") * splat(scalar(2.0**112, "f32"), W), "i32")
    special = _word(0x7F800000, W)
    found = select(moved >= _word(0x0F800000, W), moved | special, finite)
    return bitcast(found | ((bits & _word(0x8000, W)) << 16), "f32")


@helper
def _magnitude(x, W):  # type: ignore[no-untyped-def]
    return bitcast(x, "i32") & _word(0x7FFFFFFF, W)


@helper
def _piece(x, W):  # type: ignore[no-untyped-def]
    """x rounded to bf16, halves away from zero; cut where that would be infinity, and NaN stays NaN."""
    bits = bitcast(x, "i32")
    size = _magnitude(x, W)
    cut = select(size > _word(0x7F800000, W), bits | _word(0x400000, W), bits)
    return bitcast(select(size >= _word(0x7F7F8000, W), cut, bits + _word(0x8000, W)) & _word(-65536, W), "f32")


@helper
def _rest(x, piece, W):  # type: ignore[no-untyped-def]
    """What is left of x, exactly: of infinity and NaN nothing."""
    return select(_magnitude(x, W) < _word(0x7F800000, W), x - piece, zeros("f32", W))


@helper
def _fill(room, source, row_step, lane_step, rows, count, W):  # type: ignore[no-untyped-def]
    """room = 32 x 32 numbers as float32: source[r * row_step + j * lane_step], zeros where there are none."""
    if lane_step == 1:
        for r in range(EDGE):
            for v in range(0, EDGE, W):
                there = max(min(count - v, W), 0) if r < rows else 0
                store(room, r * EDGE + v, load_wide_first(source, min(r, rows - 1) * row_step + v, there, W))
    elif row_step == 1 and rows == EDGE and count == EDGE:
        for v in range(0, EDGE, W):
            for r in range(0, EDGE, W):
                keep_rolled()
                block = transpose(load_wide_rows(advance(source, v * lane_step + r), lane_step, W, W, W))
                store_rows(advance(room, r * EDGE + v), EDGE, block)
    else:
        for i in range(0, EDGE * EDGE, W):
            store(room, i, zeros("f32", W))
        for r in range(rows):
            for j in range(count):
                store_scalar(room, r * EDGE + j, load_wide_scalar(source, r * row_step + j * lane_step))


@helper
def _pair(even, odd, W):  # type: ignore[no-untyped-def]
    """Two pieces as a word."""
    return ((bitcast(even, "i32") >> 16) & _word(0xFFFF, W)) | bitcast(odd, "i32")


@helper
def store_pairs(blocks, at, count, x, y, PIECES, W):  # type: ignore[no-untyped-def]
    """Words of a piece of x and one of y, `count` of them from `at` on, in a block for each piece."""
    for p in range(PIECES):
        even, odd = _piece(x, W), _piece(y, W)
        store_first(blocks, p * BLOCK + at, count, _pair(even, odd, W))
        x, y = _rest(x, even, W), _rest(y, odd, W)


@helper
def store_pieces(blocks, at, count, x, PIECES, W):  # type: ignore[no-untyped-def]
    """Pieces of neighbours of x, from half word `at` on."""
    halves = cast_pointer(blocks, "bf16")
    for p in range(PIECES):
        piece = _piece(x, W)
        store_narrow_first(halves, p * 2 * BLOCK + at, count, piece)
        x = _rest(x, piece, W)


@functools.cache
def make_pack_pieces(dtype: str, side: str, PIECES: int, W: int) -> RangeKernel:
    """Panels of 32 rows of A, or columns of B (`side`), as those of bf16: of each 32 of k a block for each piece."""
    rows, NV = side == "a", EDGE // W

    @range_kernel(
        "gemm_pack_pieces", PACK.types(panels="i32", source=dtype), spec=(dtype, side, PIECES, W), contract=False
    )
    def gemm_pack_pieces(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        width_step = args.width_step
        k_step = args.k_step
        blocks = (args.k + EDGE - 1) // EDGE
        room = stack_tile("f32", EDGE, NV, W)
        for at in range((hi - lo) * blocks):
            # neighbouring columns: the rows of a block from end to end, which prefetchers follow
            if width_step == 1:
                t = at // (hi - lo)
                q = lo + at % (hi - lo)
            else:
                q = lo + at // blocks
                t = at % blocks
            source = advance(args.source, q * EDGE * width_step + t * EDGE * k_step)
            panel = advance(args.panels, (q * blocks + t) * PIECES * BLOCK)
            width = min(args.width - q * EDGE, EDGE)
            k = min(args.k - t * EDGE, EDGE)
            if rows:
                _fill(room, source, width_step, k_step, width, k, W)
                for i in range(0, width * EDGE, W):
                    store_pieces(panel, i, W, load(room, i, W), PIECES, W)
            else:
                _fill(room, source, k_step, width_step, k, width, W)
                for g in range(WORDS):
                    for v in range(0, EDGE, W):
                        x = load(room, 2 * g * EDGE + v, W)
                        y = load(room, 2 * g * EDGE + EDGE + v, W)
                        store_pairs(panel, g * EDGE + v, W, x, y, PIECES, W)

    return gemm_pack_pieces


@helper
def not_finite(total, rows, columns, W):  # type: ignore[no-untyped-def]
    """Whether any of `rows` x `columns` sums, 32 a row, is infinite or NaN."""
    largest = _word(0, W)
    for r in range(rows):
        for v in range(0, columns, W):
            size = _magnitude(load(total, r * EDGE + v, W), W)
            largest = select(size > largest, size, largest)
    return any_lane(largest >= _word(0x7F800000, W))


@helper
def _value(total, first, W):  # type: ignore[no-untyped-def]
    """The sum of pieces: at the end of the range, where two of them add up to infinity, the largest number."""
    finite = _word(0x7F800000, W)
    largest = bitcast(bitcast(first, "i32") | _word(0xFFFF, W), "f32")
    return select(_magnitude(total, W) < finite, total, select(_magnitude(first, W) < finite, largest, first))


@helper
def by_values(total, a, b, steps, rows, columns, pieces, W):  # type: ignore[no-untyped-def]
    """The sums again, of numbers put together from their pieces: fused multiply-adds in the order of k."""
    high = _word(-65536, W)
    for r in range(rows):
        for v in range(0, columns, W):
            c = zeros("f32", W)
            for g in range(2 * steps * WORDS):
                keep_rolled()
                at = g // (2 * WORDS) * pieces * BLOCK
                left = advance(a, at + r * WORDS + g // 2 % WORDS)
                right = advance(b, at + g // 2 % WORDS * EDGE + v)
                up = (1 - g % 2) * 16
                x, y = zeros("f32", W), zeros("f32", W)
                x_first, y_first = x, y
                for p in range(pieces - 1, -1, -1):
                    x_first = bitcast(_word(load_scalar(left, p * BLOCK) << up, W) & high, "f32")
                    y_first = bitcast((load_words(right, p * BLOCK, W) << _word(up, W)) & high, "f32")
                    x, y = x + x_first, y + y_first
                c = fma(_value(x, x_first, W), _value(y, y_first, W), c)
            store(total, r * EDGE + v, c)
