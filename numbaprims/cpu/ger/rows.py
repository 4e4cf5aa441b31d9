"""The update of contiguous rows."""

from __future__ import annotations

import functools

from numbaprims.cpu.ger.arguments import ARGS
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    fma,
    leave,
    load_scalar,
    load_wide,
    load_wide_first,
    load_wide_scalar,
    scalar,
    splat,
    store_narrow,
    store_narrow_first,
    store_scalar,
    stream_fence,
)
from numbaprims.dtypes import DTYPES


@helper
def updated(a, y, v, j, W, has_a):  # type: ignore[no-untyped-def]
    """v y + a[j : j + W], y a vector."""
    if has_a:
        return fma(v, y, load_wide(a, j, W))
    return v * y


@helper
def vector_at(a, y, v, j, W, has_a):  # type: ignore[no-untyped-def]
    """The same with y[j : j + W]."""
    return updated(a, load_wide(y, j, W), v, j, W, has_a)


@helper
def put_first(out, a, y, v, count, W, has_a):  # type: ignore[no-untyped-def]
    """The same for the first count < W elements."""
    value = load_wide_first(y, 0, count, W)
    if has_a:
        value = fma(v, value, load_wide_first(a, 0, count, W))
    else:
        value = v * value
    store_narrow_first(out, 0, count, value)


@helper
def put_eight(out, a, y0, y1, y2, y3, y4, y5, y6, y7, v, j, W, has_a, stream):  # type: ignore[no-untyped-def]
    """Eight vectors from j on; all are read before the first is written."""
    t0, t1 = updated(a, y0, v, j, W, has_a), updated(a, y1, v, j + W, W, has_a)
    t2, t3 = updated(a, y2, v, j + 2 * W, W, has_a), updated(a, y3, v, j + 3 * W, W, has_a)
    t4, t5 = updated(a, y4, v, j + 4 * W, W, has_a), updated(a, y5, v, j + 5 * W, W, has_a)
    t6, t7 = updated(a, y6, v, j + 6 * W, W, has_a), updated(a, y7, v, j + 7 * W, W, has_a)
    leave(out, j, t0, stream)
    leave(out, j + W, t1, stream)
    leave(out, j + 2 * W, t2, stream)
    leave(out, j + 3 * W, t3, stream)
    leave(out, j + 4 * W, t4, stream)
    leave(out, j + 5 * W, t5, stream)
    leave(out, j + 6 * W, t6, stream)
    leave(out, j + 7 * W, t7, stream)


@helper
def update_rows(out, a, y, v, out2, a2, v2, two, j, n, W, has_a, stream):  # type: ignore[no-untyped-def]
    """Elements j ... of one row of n, or of two with the same part of y, by whole vectors."""
    while j + 8 * W <= n:
        k = j + 4 * W
        y0, y1 = load_wide(y, j, W), load_wide(y, j + W, W)
        y2, y3 = load_wide(y, j + 2 * W, W), load_wide(y, j + 3 * W, W)
        y4, y5 = load_wide(y, k, W), load_wide(y, k + W, W)
        y6, y7 = load_wide(y, k + 2 * W, W), load_wide(y, k + 3 * W, W)
        put_eight(out, a, y0, y1, y2, y3, y4, y5, y6, y7, v, j, W, has_a, stream)
        if two:
            put_eight(out2, a2, y0, y1, y2, y3, y4, y5, y6, y7, v2, j, W, has_a, stream)
        j += 8 * W
    while j + W <= n:
        y0 = load_wide(y, j, W)
        store_narrow(out, j, updated(a, y0, v, j, W, has_a))
        if two:
            store_narrow(out2, j, updated(a2, y0, v2, j, W, has_a))
        j += W


@functools.cache
def make_rows(dtype: str, W: int, form: int, has_a: bool, stream: bool) -> RangeKernel:
    """Tiles row by row, a vector at a time (form 0), eight (1), or eight of two rows (2).

    The latter two begin where stores don't straddle cache lines. `stream` writes past the caches: a result that they
    cannot hold would only be fetched in order to be overwritten.
    """
    acc, size = DTYPES[dtype].accumulate, DTYPES[dtype].itemsize
    types = ARGS.types(out=dtype, x=dtype, y=dtype, a=dtype, packed_y=dtype)

    @range_kernel("ger_rows", types, spec=(dtype, W, form, has_a, stream))
    def rows(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        alpha = scalar(args.alpha, acc)
        whole_y = advance(args.y, args.y_start)
        if args.packs:
            whole_y = args.packed_y
        whole_a = args.a
        if args.in_place:
            whole_a = args.out
        for tile in range(lo, hi):
            down = tile // args.across
            first = (tile - down * args.across) * args.width
            n = min(args.width, args.n - first)
            y = advance(whole_y, first)
            i, end = down * args.height, min((down + 1) * args.height, args.m)
            while i < end:
                out = advance(args.out, args.out_start + i * args.out_rs + first)
                a = advance(whole_a, args.a_start + i * args.a_rs + first)
                v = splat(alpha * load_wide_scalar(args.x, args.x_start + i * args.x_step), W)
                if n < W:
                    put_first(out, a, y, v, n, W, has_a)
                    i += 1
                    continue
                # Both ends are computed before anything is written, since out may be a, and written last: whole vectors
                # that overlap the others cost a quarter of masked ones.
                begin = 0
                if form:
                    begin = -(address_of(out) // size) % W
                head, tail = vector_at(a, y, v, 0, W, has_a), vector_at(a, y, v, n - W, W, has_a)
                if form == 2 and i + 1 < end:
                    out2, a2 = advance(out, args.out_rs), advance(a, args.a_rs)
                    v2 = splat(alpha * load_wide_scalar(args.x, args.x_start + (i + 1) * args.x_step), W)
                    head2, tail2 = vector_at(a2, y, v2, 0, W, has_a), vector_at(a2, y, v2, n - W, W, has_a)
                    update_rows(out, a, y, v, out2, a2, v2, True, begin, n, W, has_a, stream)
                    store_narrow(out2, 0, head2)
                    store_narrow(out2, n - W, tail2)
                    i += 2
                elif form:
                    update_rows(out, a, y, v, out, a, v, False, begin, n, W, has_a, stream)
                    i += 1
                else:
                    for j in range(0, n - W + 1, W):
                        store_narrow(out, j, vector_at(a, y, v, j, W, has_a))
                    i += 1
                store_narrow(out, 0, head)
                store_narrow(out, n - W, tail)
        if stream:
            stream_fence()

    return rows


@functools.cache
def make_pack(dtype: str) -> RangeKernel:
    """Copy a y that does not lie side by side into the workspace; one tile."""

    @range_kernel("ger_pack", ARGS.types(y=dtype, packed_y=dtype), spec=(dtype,))
    def pack(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        y = advance(args.y, args.y_start)
        for j in range(args.n):
            store_scalar(args.packed_y, j, load_scalar(y, j * args.y_step))

    return pack
