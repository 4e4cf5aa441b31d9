"""op(A) with contiguous rows: dot products of rows with x, which stays in the first-level cache."""

from __future__ import annotations

import functools

from numbaprims.cpu.gemv.arguments import ARGS, accumulate
from numbaprims.cpu.gemv.finish import deliver, packed_x
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    fma,
    load_scalar,
    load_wide,
    load_wide_first,
    load_wide_last,
    reduce_add,
    scalar,
    stack_array,
    store_scalar,
    zeros,
)
from numbaprims.dtypes import DTYPES

MOST_ROWS = 1024
"""Outputs of one tile at most; their sums lie on the stack."""
PIECE_BYTES = 8192
"""What is read of a row in the caches before the next rows: their part of x stays in the first-level cache, and four
pages at a time are read to their ends. 128 x 8192 takes 44 us; by whole rows 52, by halves of this the same, by
quarters 47.
"""
UNROLL = 8
"""Pairs of vectors of a row that the loop over four rows takes at once. A loop that only reads four rows out of the
second-level cache gets 110 GB/s with one pair and 200 with eight, probably because the first-level cache's prefetcher
follows single load instructions: where each leaps by two lines, it fetches what is on its way already.
"""


@helper
def head(a, n, size, W):  # type: ignore[no-untyped-def]
    """Elements before the first vector that does not straddle a cache line; 0 where they would not pay.

    NumPy's large arrays begin 16 bytes past a line, and a load that straddles two takes two cycles: a tenth of the
    time where A comes from the second-level cache, as much as two masked vectors of a row of 64.
    """
    if n < 64 * W:
        return 0
    return (-(address_of(a) // size)) % W


@helper
def dot_one(a, x, n, size, W, acc):  # type: ignore[no-untyped-def]
    """The dot product of one row with x: W lanes in four registers, then a tree.

    The bits don't depend on the alignment: a head moves every term to a later register and another lane,
    round and round, and both trees add the same pairs wherever they begin.
    """
    s0, s1, s2, s3 = zeros(acc, W), zeros(acc, W), zeros(acc, W), zeros(acc, W)
    j = head(a, n, size, W)
    if j:
        s3 = fma(load_wide_last(a, 0, j, W), load_wide_last(x, 0, j, W), s3)
    while j + 4 * W <= n:
        s0 = fma(load_wide(a, j, W), load_wide(x, j, W), s0)
        s1 = fma(load_wide(a, j + W, W), load_wide(x, j + W, W), s1)
        s2 = fma(load_wide(a, j + 2 * W, W), load_wide(x, j + 2 * W, W), s2)
        s3 = fma(load_wide(a, j + 3 * W, W), load_wide(x, j + 3 * W, W), s3)
        j += 4 * W
    if j < n:
        s0 = fma(load_wide_first(a, j, min(n - j, W), W), load_wide_first(x, j, min(n - j, W), W), s0)
        j += W
    if j < n:
        s1 = fma(load_wide_first(a, j, min(n - j, W), W), load_wide_first(x, j, min(n - j, W), W), s1)
        j += W
    if j < n:
        s2 = fma(load_wide_first(a, j, min(n - j, W), W), load_wide_first(x, j, min(n - j, W), W), s2)
        j += W
    if j < n:
        s3 = fma(load_wide_first(a, j, n - j, W), load_wide_first(x, j, n - j, W), s3)
    return reduce_add((s0 + s2) + (s1 + s3))


@helper
def dot_four(sums, a, row, x, n, size, W, acc):  # type: ignore[no-untyped-def]
    """Four rows, `row` elements apart: a vector of x serves four; eight sums hide the latency of fma."""
    b, c, d = advance(a, row), advance(a, 2 * row), advance(a, 3 * row)
    s0, s1, s2, s3 = zeros(acc, W), zeros(acc, W), zeros(acc, W), zeros(acc, W)
    t0, t1, t2, t3 = zeros(acc, W), zeros(acc, W), zeros(acc, W), zeros(acc, W)
    j = head(a, n, size, W)
    if j:
        u = load_wide_last(x, 0, j, W)
        t0 = fma(load_wide_last(a, 0, j, W), u, t0)
        t1 = fma(load_wide_last(b, 0, j, W), u, t1)
        t2 = fma(load_wide_last(c, 0, j, W), u, t2)
        t3 = fma(load_wide_last(d, 0, j, W), u, t3)
    while j + 2 * UNROLL * W <= n:
        for k in range(UNROLL):
            i = j + 2 * k * W
            u, v = load_wide(x, i, W), load_wide(x, i + W, W)
            s0, t0 = fma(load_wide(a, i, W), u, s0), fma(load_wide(a, i + W, W), v, t0)
            s1, t1 = fma(load_wide(b, i, W), u, s1), fma(load_wide(b, i + W, W), v, t1)
            s2, t2 = fma(load_wide(c, i, W), u, s2), fma(load_wide(c, i + W, W), v, t2)
            s3, t3 = fma(load_wide(d, i, W), u, s3), fma(load_wide(d, i + W, W), v, t3)
        j += 2 * UNROLL * W
    while j + 2 * W <= n:
        u, v = load_wide(x, j, W), load_wide(x, j + W, W)
        s0, t0 = fma(load_wide(a, j, W), u, s0), fma(load_wide(a, j + W, W), v, t0)
        s1, t1 = fma(load_wide(b, j, W), u, s1), fma(load_wide(b, j + W, W), v, t1)
        s2, t2 = fma(load_wide(c, j, W), u, s2), fma(load_wide(c, j + W, W), v, t2)
        s3, t3 = fma(load_wide(d, j, W), u, s3), fma(load_wide(d, j + W, W), v, t3)
        j += 2 * W
    if j < n:
        left = min(n - j, W)
        u = load_wide_first(x, j, left, W)
        s0 = fma(load_wide_first(a, j, left, W), u, s0)
        s1 = fma(load_wide_first(b, j, left, W), u, s1)
        s2 = fma(load_wide_first(c, j, left, W), u, s2)
        s3 = fma(load_wide_first(d, j, left, W), u, s3)
        j += W
    if j < n:
        left = n - j
        u = load_wide_first(x, j, left, W)
        t0 = fma(load_wide_first(a, j, left, W), u, t0)
        t1 = fma(load_wide_first(b, j, left, W), u, t1)
        t2 = fma(load_wide_first(c, j, left, W), u, t2)
        t3 = fma(load_wide_first(d, j, left, W), u, t3)
    store_scalar(sums, 0, load_scalar(sums, 0) + reduce_add(s0 + t0))
    store_scalar(sums, 1, load_scalar(sums, 1) + reduce_add(s1 + t1))
    store_scalar(sums, 2, load_scalar(sums, 2) + reduce_add(s2 + t2))
    store_scalar(sums, 3, load_scalar(sums, 3) + reduce_add(s3 + t3))


@functools.cache
def make_rows(dtype: str, W: int, group: int, piece_bytes: int = PIECE_BYTES) -> RangeKernel:
    """Dot products of rows, `group` (1 or 4) at a time, in pieces."""
    acc, size = accumulate(dtype), DTYPES[dtype].itemsize
    piece = piece_bytes // size
    types = ARGS.types(out=dtype, a=dtype, x=dtype, y=dtype, sums=acc, packed_x=dtype)

    @range_kernel("gemv_rows", types, spec=(dtype, W, group, piece_bytes))
    def rows(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        room = stack_array(acc, MOST_ROWS)
        whole_x = packed_x(args)
        for tile in range(lo, hi):
            chunk = tile // args.blocks
            i = (tile - chunk * args.blocks) * args.tile
            count = min(args.tile, args.m - i)
            j = chunk * args.length
            n = min(args.length, args.n - j)
            a = advance(args.a, args.a_start + i * args.a_rs + j)
            x = advance(whole_x, j)
            for r in range(count):
                store_scalar(room, r, scalar(0.0, acc))
            for p in range(0, n, piece):
                part, length, r = advance(a, p), min(piece, n - p), 0
                if group == 4:
                    while r + 4 <= count:
                        four = advance(part, r * args.a_rs)
                        dot_four(advance(room, r), four, args.a_rs, advance(x, p), length, size, W, acc)
                        r += 4
                while r < count:
                    total = dot_one(advance(part, r * args.a_rs), advance(x, p), length, size, W, acc)
                    store_scalar(room, r, load_scalar(room, r) + total)
                    r += 1
            deliver(args, room, chunk, i, count, W, acc)

    return rows
