"""op(A) with neither rows nor columns contiguous: single elements, eight rows at a time."""

from __future__ import annotations

import functools

from numbaprims.cpu.gemv.arguments import ARGS, accumulate
from numbaprims.cpu.gemv.finish import deliver
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import advance, load_wide_scalar, scalar, stack_array, store_scalar

STRIDED_ROWS = 256
"""Outputs of one tile at most."""


@functools.cache
def make_strided(dtype: str, W: int) -> RangeKernel:
    """Eight sums hide the latency of an addition; where rows lie close, their elements share cache lines."""
    acc = accumulate(dtype)
    types = ARGS.types(out=dtype, a=dtype, x=dtype, y=dtype, sums=acc)

    @range_kernel("gemv_strided", types, spec=(dtype, W))
    def strided(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        room = stack_array(acc, STRIDED_ROWS)
        row, column = args.a_rs, args.a_cs
        for tile in range(lo, hi):
            chunk = tile // args.blocks
            i = (tile - chunk * args.blocks) * args.tile
            count = min(args.tile, args.m - i)
            first = chunk * args.length
            n = min(args.length, args.n - first)
            a = advance(args.a, i * row + first * column)
            x = advance(args.x, first * args.x_step)
            r = 0
            while r + 8 <= count:
                b = advance(a, r * row)
                s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = scalar(0.0, acc)
                for j in range(n):
                    v = load_wide_scalar(x, j * args.x_step)
                    p = advance(b, j * column)
                    s0 += load_wide_scalar(p, 0) * v
                    s1 += load_wide_scalar(p, row) * v
                    s2 += load_wide_scalar(p, 2 * row) * v
                    s3 += load_wide_scalar(p, 3 * row) * v
                    s4 += load_wide_scalar(p, 4 * row) * v
                    s5 += load_wide_scalar(p, 5 * row) * v
                    s6 += load_wide_scalar(p, 6 * row) * v
                    s7 += load_wide_scalar(p, 7 * row) * v
                for k, s in enumerate((s0, s1, s2, s3, s4, s5, s6, s7)):
                    store_scalar(room, r + k, s)
                r += 8
            while r < count:
                total = scalar(0.0, acc)
                for j in range(n):
                    total += load_wide_scalar(a, r * row + j * column) * load_wide_scalar(x, j * args.x_step)
                store_scalar(room, r, total)
                r += 1
            deliver(args, room, chunk, i, count, W, acc)

    return strided
