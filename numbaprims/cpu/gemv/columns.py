"""op(A) with contiguous columns, as the transpose of a C-ordered matrix has: nothing is read with a stride.

out is a sum of columns, each times an element of x. Three ways to keep the sums at hand: `panel` keeps a
block of out in the first-level cache and adds several columns at a time, which reads long pieces; `walk`
keeps 8 vectors of out in registers and walks along all columns, best where they are few and long;
`narrow` keeps an out of at most 4 vectors in registers, each in four sums. In the first two every element
of out is added up in the order of the columns, so that its bits don't depend on where blocks begin; these
begin where vectors don't straddle cache lines.
"""

from __future__ import annotations

import functools

from numbaprims.arrays import DTYPES
from numbaprims.cpu.gemv.arguments import ARGS, accumulate
from numbaprims.cpu.gemv.finish import deliver
from numbaprims.cpu.gemv.rows import PREFETCH_BYTES
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
    prefetch,
    splat,
    stack_array,
    store,
    store_first,
    zeros,
)

WALK_VECTORS = 8
"""Vectors of out that `walk` keeps: enough to hide the latency of fma, few enough for 16 registers."""
NARROW_VECTORS = 4
PANEL_BYTES = 16384
"""Sums of a panel at most: half of a first-level cache of 32 KiB."""


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
def add_four_edge(sums, a, b, c, d, x0, x1, x2, x3, i, left, W):  # type: ignore[no-untyped-def]
    s = load_first(sums, i, left, W)
    s = fma(load_wide_first(a, i, left, W), x0, s)
    s = fma(load_wide_first(b, i, left, W), x1, s)
    s = fma(load_wide_first(c, i, left, W), x2, s)
    s = fma(load_wide_first(d, i, left, W), x3, s)
    store_first(sums, i, left, s)


@helper
def add_four(sums, a, column, x, step, count, first, W):  # type: ignore[no-untyped-def]
    """sums[0 : count] += four columns times four elements of x; vectors are aligned from `first` on."""
    b, c, d = advance(a, column), advance(a, 2 * column), advance(a, 3 * column)
    x0, x1 = splat(load_wide_scalar(x, 0), W), splat(load_wide_scalar(x, step), W)
    x2, x3 = splat(load_wide_scalar(x, 2 * step), W), splat(load_wide_scalar(x, 3 * step), W)
    if first:
        add_four_edge(sums, a, b, c, d, x0, x1, x2, x3, 0, first, W)
    i = first
    while i + 2 * W <= count:
        s, t = load(sums, i, W), load(sums, i + W, W)
        s, t = fma(load_wide(a, i, W), x0, s), fma(load_wide(a, i + W, W), x0, t)
        s, t = fma(load_wide(b, i, W), x1, s), fma(load_wide(b, i + W, W), x1, t)
        s, t = fma(load_wide(c, i, W), x2, s), fma(load_wide(c, i + W, W), x2, t)
        s, t = fma(load_wide(d, i, W), x3, s), fma(load_wide(d, i + W, W), x3, t)
        store(sums, i, s)
        store(sums, i + W, t)
        i += 2 * W
    while i < count:
        add_four_edge(sums, a, b, c, d, x0, x1, x2, x3, i, min(count - i, W), W)
        i += W


@helper
def add_eight_edge(sums, a, column, x, step, i, left, W):  # type: ignore[no-untyped-def]
    s = load_first(sums, i, left, W)
    for j in range(8):
        s = add_scaled(s, a, j * column + i, left, x, j * step, W)
    store_first(sums, i, left, s)


@helper
def add_eight(sums, a, column, x, step, count, first, size, W):  # type: ignore[no-untyped-def]
    """The same for eight columns, prefetched into the second-level cache: for matrices beyond the caches."""
    ahead = PREFETCH_BYTES // size
    b, c, d = advance(a, column), advance(a, 2 * column), advance(a, 3 * column)
    e, f, g = advance(a, 4 * column), advance(a, 5 * column), advance(a, 6 * column)
    h = advance(a, 7 * column)
    x0, x1 = splat(load_wide_scalar(x, 0), W), splat(load_wide_scalar(x, step), W)
    x2, x3 = splat(load_wide_scalar(x, 2 * step), W), splat(load_wide_scalar(x, 3 * step), W)
    x4, x5 = splat(load_wide_scalar(x, 4 * step), W), splat(load_wide_scalar(x, 5 * step), W)
    x6, x7 = splat(load_wide_scalar(x, 6 * step), W), splat(load_wide_scalar(x, 7 * step), W)
    if first:
        add_eight_edge(sums, a, column, x, step, 0, first, W)
    i = first
    while i + W <= count:
        s = load(sums, i, W)
        prefetch(a, i + ahead, 2)
        s = fma(load_wide(a, i, W), x0, s)
        prefetch(b, i + ahead, 2)
        s = fma(load_wide(b, i, W), x1, s)
        prefetch(c, i + ahead, 2)
        s = fma(load_wide(c, i, W), x2, s)
        prefetch(d, i + ahead, 2)
        s = fma(load_wide(d, i, W), x3, s)
        prefetch(e, i + ahead, 2)
        s = fma(load_wide(e, i, W), x4, s)
        prefetch(f, i + ahead, 2)
        s = fma(load_wide(f, i, W), x5, s)
        prefetch(g, i + ahead, 2)
        s = fma(load_wide(g, i, W), x6, s)
        prefetch(h, i + ahead, 2)
        s = fma(load_wide(h, i, W), x7, s)
        store(sums, i, s)
        i += W
    if i < count:
        add_eight_edge(sums, a, column, x, step, i, count - i, W)


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
def add_by_four(sums, a, column, x, step, j, n, count, first, W):  # type: ignore[no-untyped-def]
    """The same, four at a time."""
    while j + 4 <= n:
        add_four(sums, advance(a, j * column), column, advance(x, j * step), step, count, first, W)
        j += 4
    add_by_one(sums, a, column, x, step, j, n, count, W)


@functools.cache
def make_panel(dtype: str, W: int, group: int) -> RangeKernel:
    """A block of out in the first-level cache, `group` columns at a time: 1, 4, or 8 with prefetches."""
    acc, size = accumulate(dtype), DTYPES[dtype].itemsize
    room_for = PANEL_BYTES // DTYPES[acc].itemsize + W
    types = ARGS.types(out=dtype, a=dtype, x=dtype, y=dtype, workspace=acc)

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
                j = 0
                if group == 8:
                    while j + 8 <= n:
                        p, q = advance(a, j * args.a_cs), advance(x, j * args.x_step)
                        add_eight(sums, p, args.a_cs, q, args.x_step, count, first, size, W)
                        j += 8
                if group == 1:
                    add_by_one(sums, a, args.a_cs, x, args.x_step, j, n, count, W)
                else:
                    add_by_four(sums, a, args.a_cs, x, args.x_step, j, n, count, first, W)
                deliver(args, sums, chunk, i, count, W, acc)

    return panel


@helper
def walk_eight(sums, a, column, x, step, n, W, acc):  # type: ignore[no-untyped-def]
    """sums[0 : 8 W] = n columns, `column` elements apart, times n elements of x, `step` apart."""
    s0, s1, s2, s3 = zeros(acc, W), zeros(acc, W), zeros(acc, W), zeros(acc, W)
    s4, s5, s6, s7 = zeros(acc, W), zeros(acc, W), zeros(acc, W), zeros(acc, W)
    for j in range(n):
        v = splat(load_wide_scalar(x, j * step), W)
        p = advance(a, j * column)
        s0 = fma(load_wide(p, 0, W), v, s0)
        s1 = fma(load_wide(p, W, W), v, s1)
        s2 = fma(load_wide(p, 2 * W, W), v, s2)
        s3 = fma(load_wide(p, 3 * W, W), v, s3)
        s4 = fma(load_wide(p, 4 * W, W), v, s4)
        s5 = fma(load_wide(p, 5 * W, W), v, s5)
        s6 = fma(load_wide(p, 6 * W, W), v, s6)
        s7 = fma(load_wide(p, 7 * W, W), v, s7)
    store(sums, 0, s0)
    store(sums, W, s1)
    store(sums, 2 * W, s2)
    store(sums, 3 * W, s3)
    store(sums, 4 * W, s4)
    store(sums, 5 * W, s5)
    store(sums, 6 * W, s6)
    store(sums, 7 * W, s7)


@functools.cache
def make_walk(dtype: str, W: int) -> RangeKernel:
    """A block of out in registers, along all columns of a chunk; the blocks at the ends are panels."""
    acc, size = accumulate(dtype), DTYPES[dtype].itemsize
    width = WALK_VECTORS * W
    room_for = width + W
    types = ARGS.types(out=dtype, a=dtype, x=dtype, y=dtype, workspace=acc)

    @range_kernel("gemv_walk", types, spec=(dtype, W))
    def walk(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        room = stack_array(acc, room_for)
        for tile in range(lo, hi):
            chunk = tile // args.blocks
            j = chunk * args.length
            n = min(args.length, args.n - j)
            a = advance(args.a, args.a_start + j * args.a_cs)
            x = advance(args.x, args.x_start + j * args.x_step)
            begin = (tile - chunk * args.blocks) * width - skew(a, size, W)
            i = max(begin, 0)
            count = min(begin + width, args.m) - i
            a = advance(a, i)
            sums = room
            if count == width:
                walk_eight(sums, a, args.a_cs, x, args.x_step, n, W, acc)
            elif count > 0:
                past = skew(a, size, W)
                sums = advance(room, past)
                clear(sums, count, W, acc)
                add_by_four(sums, a, args.a_cs, x, args.x_step, 0, n, count, min(-past % W, count), W)
            deliver(args, sums, chunk, i, count, W, acc)

    return walk


@functools.cache
def make_narrow(dtype: str, W: int) -> RangeKernel:
    """A whole out of few elements, a vector at a time; four columns in four sums hide the latency of fma."""
    acc = accumulate(dtype)
    types = ARGS.types(out=dtype, a=dtype, x=dtype, y=dtype, workspace=acc)

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
