"""Windows of two columns that lie side by side over planes that lie one behind the other: no row is cut from the next.

Vectors are read and written where a row begins, whole: what they hold behind its end is garbage that the next row's
vectors replace, and only the last rows of a worker are masked.  Two short rows share a vector of results.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    concat,
    interleave_high,
    interleave_low,
    load_wide,
    load_wide_first,
    pointer_from_address,
    splat,
    split_high,
    split_low,
    store_narrow,
    store_narrow_first,
)
from numbaprims.cpu.simd.loops import keep_rolled
from numbaprims.cpu.windows.arguments import ARGS, lowest
from numbaprims.cpu.windows.combine import finish_of, fold_tiles
from numbaprims.cpu.windows.planes import down
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
    HALF, WIDE = W // 2, 2 * W
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
