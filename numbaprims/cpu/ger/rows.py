"""The update of contiguous rows."""

from __future__ import annotations

import functools

from numbaprims.arrays import DTYPES
from numbaprims.cpu.ger.arguments import ARGS
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    cast_pointer,
    fma,
    load_scalar,
    load_wide,
    load_wide_first,
    load_wide_scalar,
    narrow,
    scalar,
    splat,
    store_narrow,
    store_narrow_first,
    store_scalar,
    store_stream,
    stream_fence,
)


@helper
def updated(a, y, v, j, W, has_a):  # type: ignore[no-untyped-def]
    """v y + a for elements j ... j + W - 1."""
    if has_a:
        return fma(v, load_wide(y, j, W), load_wide(a, j, W))
    return v * load_wide(y, j, W)


@helper
def put(out, a, y, v, j, W, has_a, stream, dtype):  # type: ignore[no-untyped-def]
    """out[j : j + W] = v y + a."""
    if stream:
        store_stream(out, j, narrow(updated(a, y, v, j, W, has_a), dtype))
    else:
        store_narrow(out, j, updated(a, y, v, j, W, has_a))


@helper
def put_first(out, a, y, v, count, W, has_a):  # type: ignore[no-untyped-def]
    """The same for the first count < W elements."""
    value = load_wide_first(y, 0, count, W)
    if has_a:
        value = fma(v, value, load_wide_first(a, 0, count, W))
    else:
        value = v * value
    store_narrow_first(out, 0, count, value)


@functools.cache
def make_rows(dtype: str, W: int, vectors: int, has_a: bool, stream: bool) -> RangeKernel:
    """Tiles row by row, `vectors` (1 or 4) at a time; four begin where stores don't straddle cache lines.

    `stream` writes past the caches: a result that they cannot hold would only be fetched in order to be overwritten.
    """
    acc, size = DTYPES[dtype].accumulate, DTYPES[dtype].itemsize
    types = ARGS.types(out=dtype, x=dtype, y=dtype, a=dtype)

    @range_kernel("ger_rows", types, spec=(dtype, W, vectors, has_a, stream))
    def rows(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        alpha = scalar(args.alpha, acc)
        whole_y = advance(args.y, args.y_start)
        if args.y_packed:
            whole_y = cast_pointer(args.workspace, dtype)
        for tile in range(lo, hi):
            down = tile // args.across
            first = (tile - down * args.across) * args.width
            n = min(args.width, args.n - first)
            y = advance(whole_y, first)
            for i in range(down * args.height, min((down + 1) * args.height, args.m)):
                out = advance(args.out, args.out_start + i * args.out_rs + first)
                a = advance(args.a, args.a_start + i * args.a_rs + first)
                v = splat(alpha * load_wide_scalar(args.x, args.x_start + i * args.x_step), W)
                if n < W:
                    put_first(out, a, y, v, n, W, has_a)
                else:
                    # Both ends are computed before anything is written, since out may be a, and written last: whole
                    # vectors that overlap the others cost a quarter of masked ones.
                    head, tail = updated(a, y, v, 0, W, has_a), updated(a, y, v, n - W, W, has_a)
                    j = 0
                    if vectors == 4:
                        j = -(address_of(out) // size) % W
                        while j + 4 * W <= n:
                            put(out, a, y, v, j, W, has_a, stream, dtype)
                            put(out, a, y, v, j + W, W, has_a, stream, dtype)
                            put(out, a, y, v, j + 2 * W, W, has_a, stream, dtype)
                            put(out, a, y, v, j + 3 * W, W, has_a, stream, dtype)
                            j += 4 * W
                    while j + W <= n:
                        put(out, a, y, v, j, W, has_a, False, dtype)
                        j += W
                    store_narrow(out, 0, head)
                    store_narrow(out, n - W, tail)
        if stream:
            stream_fence()

    return rows


@functools.cache
def make_pack(dtype: str) -> RangeKernel:
    """Copy a y that does not lie side by side into the workspace; one tile."""

    @range_kernel("ger_pack", ARGS.types(y=dtype), spec=(dtype,))
    def pack(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        packed = cast_pointer(args.workspace, dtype)
        y = advance(args.y, args.y_start)
        for j in range(args.n):
            store_scalar(packed, j, load_scalar(y, j * args.y_step))

    return pack
