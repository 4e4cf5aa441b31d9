"""op(A) with contiguous columns, as the transpose of a C-ordered matrix has: nothing is read with a stride.

out is a sum of columns, each times an element of x. Two ways to keep the sums at hand: `panel` keeps a block of out
in the first-level cache and adds four columns at a time, which reads long pieces; `narrow` keeps an out of at most 4
vectors in registers, each in four sums. In a panel every element of out is added up in the order of the columns, so
that its bits don't depend on where blocks begin; these begin where vectors don't straddle cache lines.

Tried and left: sums in 8 or 16 registers along all columns (no long pieces: 128 x 2048 ran at 45 GB/s, panels at 118;
at 256 x 256, where it reads everything in order, 2.3 us against 2.1), and prefetches (nothing in the third-level
cache or from memory, 5 % lost in the second).
"""

from __future__ import annotations

import functools

from numbaprims.cpu.gemv.arguments import ARGS, accumulate
from numbaprims.cpu.gemv.finish import deliver
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    fma,
    load,
    load_first,
    load_wide,
    load_wide_first,
    load_wide_scalar,
    splat,
    stack_array,
    store,
    store_first,
    zeros,
)
from numbaprims.dtypes import DTYPES

UNROLL = 8
"""Vectors of sums that the loop over four columns takes at once: 128 x 1024 runs at 183 GB/s, with two at 114."""
NARROW_VECTORS = 4
PANEL_BYTES = 8192
"""Sums of a panel at most. At 16 KiB the four columns that pass by push them out: 128 x 8192 takes 51 us instead of 43.
"""
LONG_PANEL_BYTES = 16384
"""Of columns longer than this, of which eight are taken at once: each comes in pieces, and longer ones are fewer jumps.
Zen 4, AVX2 and AVX-512 alike, eight and 16 KiB against four and 8 KiB: 128 x 8192 56 us and 66, 4096 x 4096 2.48 ms and
2.99. Columns of one piece are faster by four: 1024 x 1024 53 and 57 us.
"""


@helper
def skew(a, size, W):  # type: ignore[no-untyped-def]
    """Elements from the last vector boundary to `a`; large NumPy arrays begin 16 bytes past a line."""
    return (address_of(a) // size) % W


@helper
def clear(sums, count, W, acc):  # type: ignore[no-untyped-def]
    """sums[0 : count] = 0."""
    for i in range(0, count, W):
        store_first(sums, i, min(count - i, W), zeros(acc, W))


@helper
def add_scaled(s, a, i, count, x, j, W):  # type: ignore[no-untyped-def]
    """s + a[i : i + count] x[j]"""
    return fma(load_wide_first(a, i, count, W), splat(load_wide_scalar(x, j), W), s)


@helper
def spread_four(x, step, W):  # type: ignore[no-untyped-def]
    """Four elements of x, each in all lanes of a vector."""
    first, second = splat(load_wide_scalar(x, 0), W), splat(load_wide_scalar(x, step), W)
    return first, second, splat(load_wide_scalar(x, 2 * step), W), splat(load_wide_scalar(x, 3 * step), W)


@helper
def plus_four(s, columns, x, i, W):  # type: ignore[no-untyped-def]
    """s + the vectors at i of four columns times four vectors."""
    s = fma(load_wide(columns[0], i, W), x[0], s)
    s = fma(load_wide(columns[1], i, W), x[1], s)
    s = fma(load_wide(columns[2], i, W), x[2], s)
    return fma(load_wide(columns[3], i, W), x[3], s)


@helper
def add_four_edge(sums, columns, x, i, left, W):  # type: ignore[no-untyped-def]
    s = load_first(sums, i, left, W)
    s = fma(load_wide_first(columns[0], i, left, W), x[0], s)
    s = fma(load_wide_first(columns[1], i, left, W), x[1], s)
    s = fma(load_wide_first(columns[2], i, left, W), x[2], s)
    s = fma(load_wide_first(columns[3], i, left, W), x[3], s)
    store_first(sums, i, left, s)


@helper
def add_column(sums, a, x, count, first, W):  # type: ignore[no-untyped-def]
    """sums[0 : count] += one column times one element of x; vectors are aligned from `first` on."""
    v = splat(load_wide_scalar(x, 0), W)
    if first:
        store_first(sums, 0, first, fma(load_wide_first(a, 0, first, W), v, load_first(sums, 0, first, W)))
    i = first
    while i + UNROLL * W <= count:
        for k in range(UNROLL):
            store(sums, i + k * W, fma(load_wide(a, i + k * W, W), v, load(sums, i + k * W, W)))
        i += UNROLL * W
    while i < count:
        left = min(count - i, W)
        store_first(sums, i, left, fma(load_wide_first(a, i, left, W), v, load_first(sums, i, left, W)))
        i += W


@helper
def add_group(sums, a, column, x, step, count, first, W, group):  # type: ignore[no-untyped-def]
    """sums[0 : count] += 4 or 8 columns times as many elements of x; vectors are aligned from `first` on."""
    if group == 1:
        add_column(sums, a, x, count, first, W)
        return
    e, y = advance(a, (group - 4) * column), advance(x, (group - 4) * step)
    near = (a, advance(a, column), advance(a, 2 * column), advance(a, 3 * column))
    far = (e, advance(e, column), advance(e, 2 * column), advance(e, 3 * column))
    xs, ys = spread_four(x, step, W), spread_four(y, step, W)
    if first:
        add_four_edge(sums, near, xs, 0, first, W)
        if group == 8:
            add_four_edge(sums, far, ys, 0, first, W)
    i = first
    while i + UNROLL * W <= count:
        for k in range(UNROLL):
            s = plus_four(load(sums, i + k * W, W), near, xs, i + k * W, W)
            if group == 8:
                s = plus_four(s, far, ys, i + k * W, W)
            store(sums, i + k * W, s)
        i += UNROLL * W
    while i < count:
        left = min(count - i, W)
        add_four_edge(sums, near, xs, i, left, W)
        if group == 8:
            add_four_edge(sums, far, ys, i, left, W)
        i += W


@helper
def add_one(sums, a, x, count, W):  # type: ignore[no-untyped-def]
    """sums[0 : count] += one column times one element of x."""
    v = splat(load_wide_scalar(x, 0), W)
    for i in range(0, count, W):
        left = min(count - i, W)
        store_first(sums, i, left, fma(load_wide_first(a, i, left, W), v, load_first(sums, i, left, W)))


@helper
def add_by_one(sums, a, column, x, step, j, n, count, W):  # type: ignore[no-untyped-def]
    """sums[0 : count] += columns j ... n - 1 times elements of x."""
    while j < n:
        add_one(sums, advance(a, j * column), advance(x, j * step), count, W)
        j += 1


@helper
def add_by_groups(sums, a, column, x, step, n, count, first, W, group):  # type: ignore[no-untyped-def]
    """The same from column 0 on, `group` at a time."""
    j = 0
    while j + group <= n:
        add_group(sums, advance(a, j * column), column, advance(x, j * step), step, count, first, W, group)
        j += group
    add_by_one(sums, a, column, x, step, j, n, count, W)


@functools.cache
def make_panel(dtype: str, W: int, group: int) -> RangeKernel:
    """A block of out in the first-level cache, `group` columns at a time: 1, 4 or 8."""
    acc, size = accumulate(dtype), DTYPES[dtype].itemsize
    room_for = (LONG_PANEL_BYTES if group == 8 else PANEL_BYTES) // DTYPES[acc].itemsize + 2 * W
    types = ARGS.types(out=dtype, a=dtype, x=dtype, y=dtype, sums=acc)

    @range_kernel("gemv_panel", types, spec=(dtype, W, group))
    def panel(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        room = stack_array(acc, room_for)
        for tile in range(lo, hi):
            chunk = tile // args.blocks
            j = chunk * args.length
            n = min(args.length, args.n - j)
            a = advance(args.a, args.a_start + j * args.a_cs)
            x = advance(args.x, args.x_start + j * args.x_step)
            begin = (tile - chunk * args.blocks) * args.tile - skew(a, size, W)
            i = max(begin, 0)
            count = min(begin + args.tile, args.m) - i
            if count > 0:
                a = advance(a, i)
                past = skew(a, size, W)
                sums = advance(room, past)  # as far past a boundary as a, so that both are aligned further on
                first = min(-past % W, count)
                clear(sums, count, W, acc)
                add_by_groups(sums, a, args.a_cs, x, args.x_step, n, count, first, W, group)
                deliver(args, sums, chunk, i, count, W, acc)

    return panel


@functools.cache
def make_narrow(dtype: str, W: int) -> RangeKernel:
    """A whole out of few elements, a vector at a time; four columns in four sums hide the latency of fma."""
    acc = accumulate(dtype)
    types = ARGS.types(out=dtype, a=dtype, x=dtype, y=dtype, sums=acc)

    @range_kernel("gemv_narrow", types, spec=(dtype, W))
    def narrow(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        sums = stack_array(acc, W)
        column, step = args.a_cs, args.x_step
        for chunk in range(lo, hi):
            first = chunk * args.length
            n = min(args.length, args.n - first)
            x = advance(args.x, args.x_start + first * step)
            for i in range(0, args.m, W):
                count = min(args.m - i, W)
                a = advance(args.a, args.a_start + i + first * column)
                s0, s1, s2, s3 = zeros(acc, W), zeros(acc, W), zeros(acc, W), zeros(acc, W)
                j = 0
                while j + 4 <= n:
                    p, q = advance(a, j * column), advance(x, j * step)
                    s0 = add_scaled(s0, p, 0, count, q, 0, W)
                    s1 = add_scaled(s1, p, column, count, q, step, W)
                    s2 = add_scaled(s2, p, 2 * column, count, q, 2 * step, W)
                    s3 = add_scaled(s3, p, 3 * column, count, q, 3 * step, W)
                    j += 4
                while j < n:
                    s0 = add_scaled(s0, a, j * column, count, x, j * step, W)
                    j += 1
                store(sums, 0, (s0 + s1) + (s2 + s3))
                deliver(args, sums, chunk, i, count, W, acc)

    return narrow
