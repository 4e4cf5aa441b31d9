"""Windows of two columns that lie side by side over planes that lie one behind the other: no row is cut from the next.

Vectors are read and written where a row begins, whole: what they hold behind its end is garbage that the next row's
vectors replace, and only the last rows of a worker are masked.  Two short rows share a vector of results.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    concat,
    interleave_high,
    interleave_low,
    load_first,
    load_wide,
    load_wide_first,
    narrow,
    pointer_from_address,
    scalar,
    select,
    splat,
    split_high,
    split_low,
    store_narrow,
    store_narrow_first,
    store_stream,
    stream_fence,
    unweave,
    weave,
    zeros,
)
from numbaprims.cpu.simd.loops import keep_rolled
from numbaprims.cpu.windows.arguments import ARGS, line_of, lowest
from numbaprims.cpu.windows.combine import finish_of, first_of, fold_tiles, places_from
from numbaprims.cpu.windows.planes import ask, down
from numbaprims.dtypes import DTYPES


@helper
def _twice(v):  # type: ignore[no-untyped-def]
    """Each lane, and once more."""
    return concat(interleave_low(v, v), interleave_high(v, v))


@functools.cache
def make_forward(kind: str, dtype: str, W: int, SHORT: bool, KH: int) -> RangeKernel:
    """Kernel over planes, by windows of KH x 2; SHORT: half a vector holds the results of a row."""
    acc = DTYPES[dtype].accumulate
    SHARE, LOW = "f64" if acc == "f64" else "f32", lowest(kind, acc)
    HALF, WIDE, LINE = W // 2, 2 * W, line_of(dtype)
    spec = (kind, dtype, W, SHORT, KH)

    @range_kernel("windows_disjoint", ARGS.types(out=dtype, x=dtype), spec=spec)
    def windows_disjoint(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        power = pointer_from_address(args.power, "f64")[0]
        shares = pointer_from_address(args.shares, SHARE)
        one = shares[args.outs_d + args.outs_h] * (shares[0] * shares[args.outs_d])
        share = splat(one, W)
        x, out, width, outs = args.x, args.out, args.size_w, args.outs_w
        area, results = args.size_h * width, args.outs_h * outs
        x_end, out_end = hi * area, hi * results
        planes, rows = hi - lo, args.outs_h
        if args.size_h == KH * rows:
            planes, rows = 1, planes * rows
        line, last = KH * width, (KH - 1) * width
        for plane in range(planes):
            at, to = (lo + plane) * area, (lo + plane) * results
            r = 0
            while r < rows:
                keep_rolled()
                if SHORT:
                    if r + 1 < rows and at + line + last + W <= x_end and to + outs + HALF <= out_end:
                        a, _ = down(x, at, 1, KH, 0, width, W, kind, acc, LOW, 0, power, W, True)
                        b, _ = down(x, at + line, 1, KH, 0, width, W, kind, acc, LOW, 0, power, W, True)
                        both = finish_of(kind, fold_tiles(kind, concat(a, b), 2), share, power)
                        store_narrow(out, to, split_low(both))
                        store_narrow(out, to + outs, split_high(both))
                        at, to, r = at + line, to + outs, r + 1
                    else:
                        a, _ = down(x, at, 1, KH, 0, width, width, kind, acc, LOW, 0, power, W, False)
                        y = finish_of(kind, fold_tiles(kind, a, 2), split_low(share), power)
                        store_narrow_first(out, to, outs, y)
                else:
                    if args.asks:
                        ask(x, at, 1, 0, line, LINE)
                    for j in range(0, outs, W):
                        keep_rolled()
                        i = at + 2 * j
                        if i + last + WIDE <= x_end and to + j + W <= out_end:
                            a, _ = down(x, i, 1, KH, 0, width, WIDE, kind, acc, LOW, 0, power, WIDE, True)
                            store_narrow(out, to + j, finish_of(kind, fold_tiles(kind, a, 2), share, power))
                        else:
                            few = width - 2 * j
                            a, _ = down(x, i, 1, KH, 0, width, few, kind, acc, LOW, 0, power, WIDE, False)
                            y = finish_of(kind, fold_tiles(kind, a, 2), share, power)
                            store_narrow_first(out, to + j, outs - j, y)
                at, to, r = at + line, to + outs, r + 1

    return windows_disjoint


@functools.cache
def make_backward(dtype: str, W: int, SHORT: bool, KH: int) -> RangeKernel:
    """Kernel over planes of an average's gradient: a share of dy in each element of its window of KH x 2."""
    acc, HALF = DTYPES[dtype].accumulate, W // 2

    @range_kernel("windows_disjoint_backward", ARGS.types(out=dtype, dy=dtype), spec=(dtype, W, SHORT, KH))
    def windows_disjoint_backward(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        shares = pointer_from_address(args.shares, acc)
        share = splat(shares[args.outs_d + args.outs_h] * (shares[0] * shares[args.outs_d]), W)
        dy, out, width, outs = args.dy, args.out, args.size_w, args.outs_w
        rows = args.outs_h
        dy_end, out_end = hi * rows * outs, hi * rows * KH * width
        for r in range(lo * rows, hi * rows):
            at, to = r * outs, r * KH * width
            if SHORT:
                some = split_low(share)
                if at + HALF <= dy_end and to + (KH - 1) * width + W <= out_end:
                    both = _twice(load_wide(dy, at, HALF) * some)
                    for h in range(KH):
                        store_narrow(out, to + h * width, both)
                else:
                    both = _twice(load_wide_first(dy, at, outs, HALF) * some)
                    for h in range(KH):
                        store_narrow_first(out, to + h * width, width, both)
            else:
                for h in range(KH):
                    keep_rolled()
                    row = to + h * width
                    for j in range(0, outs, W):
                        keep_rolled()
                        if at + j + W <= dy_end and row + 2 * (j + W) <= out_end:
                            store_narrow(out, row + 2 * j, _twice(load_wide(dy, at + j, W) * share))
                        else:
                            both = _twice(load_wide_first(dy, at + j, outs - j, W) * share)
                            store_narrow_first(out, row + 2 * j, width - 2 * j, both)

    return windows_disjoint_backward


@helper
def _pair(x, i, few, W):  # type: ignore[no-untyped-def]
    """Of `few` elements from i on, or 2 W, the even and the odd ones."""
    if few >= 2 * W:
        return unweave((load_wide(x, i, W), load_wide(x, i + W, W)))
    return unweave((load_wide_first(x, i, min(few, W), W), load_wide_first(x, i + W, max(few - W, 0), W)))


@helper
def _put(out, i, few, v, streams, dtype, W):  # type: ignore[no-untyped-def]
    """Write the first `few` lanes, or all."""
    if few >= W:
        if streams:
            store_stream(out, i, narrow(v, dtype))
        else:
            store_narrow(out, i, v)
    elif few > 0:
        # of no lanes it would still close the line that is being put together: 36 ms instead of 8 (16x128x112x112)
        store_narrow_first(out, i, few, v)


@functools.cache
def make_maxima(dtype: str, W: int, KH: int, INDEXED: bool, STREAMS: bool) -> RangeKernel:
    """Kernel over planes of a maximum's gradient: dy where the largest of its window of KH x 2 is, else zero.

    INDEXED: by its place; one outside of its window is left out.
    """
    acc, LINE, SIZE = DTYPES[dtype].accumulate, line_of(dtype), DTYPES[dtype].itemsize
    types = ARGS.types(out=dtype, x=dtype, dy=dtype, indices="i64")

    @range_kernel("windows_disjoint_maxima", types, spec=(dtype, W, KH, INDEXED, STREAMS))
    def windows_disjoint_maxima(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        nothing = zeros(acc, W)
        width, outs, rows = args.size_w, args.outs_w, args.outs_h
        line, size = KH * width, KH * width * rows
        # lines of the caches that are written whole
        streams = STREAMS and width % LINE == 0 and address_of(args.out) % 64 == 0
        for plane in range(lo, hi):
            for r in range(rows):
                at, to = (plane * rows + r) * outs, plane * size + r * line
                if args.asks and INDEXED:
                    # 16 x 256 x 56 x 56 by 2 x 2 came at 16 GB/s, so at 43 (Zen 5)
                    ask(args.indices, at + args.asks // 8, 1, 0, outs, 8)
                    ask(args.dy, at + args.asks // SIZE, 1, 0, outs, LINE)
                elif args.asks:
                    ask(args.x, to, 1, 0, line, LINE)
                for j in range(0, outs, W):
                    keep_rolled()
                    left, k, few = min(outs - j, W), to + 2 * j, width - 2 * j
                    given = load_wide_first(args.dy, at + j, left, W)
                    if INDEXED:
                        place = places_from(load_first(args.indices, at + j, left, W), r * line + 2 * j)
                    else:
                        best, second = _pair(args.x, k, few, W)
                        place = splat(scalar(0, "i32"), W)
                        best, place = first_of(best, place, second, splat(scalar(1, "i32"), W), True)
                        for h in range(1, KH):
                            one, second = _pair(args.x, k + h * width, few, W)
                            best, place = first_of(best, place, one, splat(scalar(2 * h, "i32"), W), True)
                            best, place = first_of(best, place, second, splat(scalar(2 * h + 1, "i32"), W), True)
                    for h in range(KH):
                        step = h * width if INDEXED else 2 * h
                        here = place == splat(scalar(step, "i32"), W)
                        beside = place == splat(scalar(step + 1, "i32"), W)
                        low, high = weave((select(here, given, nothing), select(beside, given, nothing)))
                        i = k + h * width
                        _put(args.out, i, few, low, streams, dtype, W)
                        _put(args.out, i + W, few - W, high, streams, dtype, W)
        if STREAMS:
            stream_fence()

    return windows_disjoint_maxima
