"""The kernels of local response normalisation.

A line is up to BLOCK neighbouring elements of one row; the rows of a window are added to a line in the first-level
cache, squared where they are x, and a window along the row is a sum of shifted reads of that line.  The bound: y is
written and x read once from memory (a window's other rows come from the caches), and a vector takes two operations a
tap, a logarithm and an exponential, about 50 cycles of one core at 16 lanes: what x in the caches is bound by.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    Arguments,
    advance,
    exp,
    fma,
    load,
    load_wide,
    load_wide_first,
    log,
    prefetch,
    prefetch_write,
    scalar,
    splat,
    store,
    store_narrow,
    store_narrow_first,
    zeros,
)
from numbaprims.dtypes import DTYPES

BLOCK = 1024
"""Elements of a line: five rows of float32, the line and its powers take 28 KiB."""
AXES = 4
"""Axes of a row's place, beside the one along it."""

# Sizes of the axes and how far windows reach along each, to smaller and larger indices; `b` is the axis along a row, of
# which a line takes `BLOCK`.  `_0` ... `_3` and `_b`: elements of each array from one index to the next.  band: rows of
# a tile, of `rows` in all.  A worker has a line and its powers.  Forward: out of x; terms: p = s**-beta and t = dy x p
# / s of dy and x; gradient: out of dy, x, p and t.
ARRAYS = ("out", "dy", "x", "p", "t")
ARGS = Arguments(
    arrays=ARRAYS,
    floats=("alpha", "beta", "k"),
    ints=(
        *(f"size_{d}" for d in "0123b"), *(f"before_{d}" for d in "0123b"), *(f"after_{d}" for d in "0123b"),
        *(f"{name}_{d}" for name in ARRAYS for d in "0123b"), "rows", "band", "blocks", "window",
    ),
    own=("line", "powers"),
)  # fmt: skip


@helper
def add_row(line, row, step, count, squares, W, acc):  # type: ignore[no-untyped-def]
    """line += row, or its squares."""
    for v in range(0, count - W + 1, W):
        x = load_wide(row, v * step, W)
        store(line, v, fma(x, x, load(line, v, W)) if squares else x + load(line, v, W))
    v = count // W * W
    if v < count:
        x = load_wide_first(row, v * step, count - v, W)
        store(line, v, fma(x, x, load(line, v, W)) if squares else x + load(line, v, W))


@helper
def scales(line, powers, along, reach, count, a, beta, k, W):  # type: ignore[no-untyped-def]
    """In the place of the sums s = k + a times the sum of each window, and s**beta in `powers`.

    Four vectors at a time: the chain of a logarithm and an exponential is five times as long as what it issues.
    """
    for v in range(0, count, W):
        total = load(line, v, W)
        if along:
            for j in range(1, reach):
                total = total + load(line, v + j, W)
        store(line, v, fma(a, total, k))
    for v in range(0, count, 4 * W):
        s0, s1 = log(load(line, v, W)), log(load(line, v + W, W))
        s2, s3 = log(load(line, v + 2 * W, W)), log(load(line, v + 3 * W, W))
        s0, s1, s2, s3 = exp(beta * s0), exp(beta * s1), exp(beta * s2), exp(beta * s3)
        store(powers, v, s0)
        store(powers, v + W, s1)
        store(powers, v + 2 * W, s2)
        store(powers, v + 3 * W, s3)


@helper
def window_sum(line, v, along, reach, W):  # type: ignore[no-untyped-def]
    """The sums of the windows along a row, whose first elements lie at the line's v."""
    total = load(line, v, W)
    if along:
        for j in range(1, reach):
            total = total + load(line, v + j, W)
    return total


@functools.cache
def make_kernel(way: str, dtype: str, along: bool, W: int) -> RangeKernel:
    """Tiles of rows and blocks: "forward", "terms" or "gradient"; `along`: windows go along rows too.

    With W = 1 the elements of a row may lie any step apart.
    """
    acc = DTYPES[dtype].accumulate
    AHEAD = 64 // DTYPES[dtype].itemsize
    GRADIENT, TERMS = way == "gradient", way == "terms"
    types = ARGS.types(out=dtype, dy=dtype, x=dtype, p=acc, t=acc, line=acc, powers=acc)

    @range_kernel("lrn_" + way, types, spec=(way, dtype, along, W))
    def lrn(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        line, powers = args.line[worker], args.powers[worker]
        a, beta, k = (
            splat(scalar(args.alpha / args.window, acc), W),
            splat(scalar(-args.beta, acc), W),
            splat(scalar(args.k, acc), W),
        )
        twice = splat(scalar(-2.0 * args.alpha / args.window * args.beta, acc), W)
        for tile in range(lo, hi):
            band = tile // args.blocks
            start = (tile - band * args.blocks) * BLOCK
            count = min(BLOCK, args.size_b - start)
            # what the line begins with, and what of it is inside the row
            front = args.before_b if along else 0
            first, end = start, start + count
            if along:
                first, end = max(0, start - front), min(args.size_b, end + args.after_b)
            shift = first - (start - front)
            whole = count + front + (args.after_b if along else 0)
            row = band * args.band
            i3 = row % args.size_3
            i2 = row // args.size_3 % args.size_2
            i1 = row // args.size_3 // args.size_2 % args.size_1
            i0 = row // args.size_3 // args.size_2 // args.size_1
            for _ in range(row, min(row + args.band, args.rows)):
                for v in range(0, whole, W):
                    store(line, v, zeros(acc, W))
                # the row that enters the next window lies pages away, where no prefetcher looks
                if i3 + args.after_3 + 1 < args.size_3 and not GRADIENT:
                    at = i0 * args.x_0 + i1 * args.x_1 + i2 * args.x_2 + (i3 + args.after_3 + 1) * args.x_3
                    for v in range(0, count, AHEAD):
                        prefetch(args.x, at + (start + v) * args.x_b, 3)
                if not TERMS:
                    at = i0 * args.out_0 + i1 * args.out_1 + i2 * args.out_2 + i3 * args.out_3
                    for v in range(0, count, AHEAD):
                        prefetch_write(args.out, at + (start + v) * args.out_b, 3)
                for j0 in range(max(0, i0 - args.before_0), min(args.size_0, i0 + args.after_0 + 1)):
                    for j1 in range(max(0, i1 - args.before_1), min(args.size_1, i1 + args.after_1 + 1)):
                        for j2 in range(max(0, i2 - args.before_2), min(args.size_2, i2 + args.after_2 + 1)):
                            for j3 in range(max(0, i3 - args.before_3), min(args.size_3, i3 + args.after_3 + 1)):
                                to = advance(line, shift)
                                if GRADIENT:
                                    at = j0 * args.t_0 + j1 * args.t_1 + j2 * args.t_2 + j3 * args.t_3
                                    source = advance(args.t, at + first * args.t_b)
                                    add_row(to, source, args.t_b, end - first, False, W, acc)
                                else:
                                    at = j0 * args.x_0 + j1 * args.x_1 + j2 * args.x_2 + j3 * args.x_3
                                    source = advance(args.x, at + first * args.x_b)
                                    add_row(to, source, args.x_b, end - first, True, W, acc)
                at = i0 * args.x_0 + i1 * args.x_1 + i2 * args.x_2 + i3 * args.x_3
                x_row = advance(args.x, at + start * args.x_b)
                at = i0 * args.dy_0 + i1 * args.dy_1 + i2 * args.dy_2 + i3 * args.dy_3
                dy_row = advance(args.dy, at + start * args.dy_b)
                at = i0 * args.out_0 + i1 * args.out_1 + i2 * args.out_2 + i3 * args.out_3
                out_row = advance(args.out, at + start * args.out_b)
                at = i0 * args.p_0 + i1 * args.p_1 + i2 * args.p_2 + i3 * args.p_3
                p_row, t_row = advance(args.p, at + start * args.p_b), advance(args.t, at + start * args.t_b)
                reach = front + args.after_b + 1
                if not GRADIENT:
                    scales(line, powers, along, reach, count, a, beta, k, W)
                for v in range(0, count - W + 1, W):
                    x = load_wide(x_row, v * args.x_b, W)
                    if GRADIENT:
                        dy, p = load_wide(dy_row, v * args.dy_b, W), load_wide(p_row, v * args.p_b, W)
                        total = window_sum(line, v, along, reach, W)
                        store_narrow(out_row, v * args.out_b, fma(twice * x, total, dy * p))
                    elif TERMS:
                        p = load(powers, v, W)
                        store_narrow(p_row, v * args.p_b, p)
                        dy = load_wide(dy_row, v * args.dy_b, W)
                        store_narrow(t_row, v * args.t_b, dy * x * p / load(line, v, W))
                    else:
                        store_narrow(out_row, v * args.out_b, x * load(powers, v, W))
                v = count // W * W
                if v < count:
                    left = count - v
                    x = load_wide_first(x_row, v, left, W)
                    if GRADIENT:
                        dy, p = load_wide_first(dy_row, v, left, W), load_wide_first(p_row, v, left, W)
                        total = window_sum(line, v, along, reach, W)
                        store_narrow_first(out_row, v, left, fma(twice * x, total, dy * p))
                    elif TERMS:
                        p = load(powers, v, W)
                        store_narrow_first(p_row, v, left, p)
                        dy = load_wide_first(dy_row, v, left, W)
                        store_narrow_first(t_row, v, left, dy * x * p / load(line, v, W))
                    else:
                        store_narrow_first(out_row, v, left, x * load(powers, v, W))
                i3 += 1
                if i3 == args.size_3:
                    i3 = 0
                    i2 += 1
                    if i2 == args.size_2:
                        i2 = 0
                        i1 += 1
                        if i1 == args.size_1:
                            i1 = 0
                            i0 += 1

    return lrn
