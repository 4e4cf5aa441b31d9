"""Windows that are whole planes of contiguous elements."""

from __future__ import annotations

import functools

from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    load_wide_scalar,
    pointer_from_address,
    scalar,
    splat,
    store_narrow,
    store_narrow_first,
)
from numbaprims.cpu.simd.loops import keep_rolled
from numbaprims.cpu.windows.arguments import ARGS, lowest
from numbaprims.cpu.windows.combine import finish_of
from numbaprims.cpu.windows.walks import walk_planes
from numbaprims.dtypes import DTYPES


@functools.cache
def make_forward(kind: str, dtype: str, W: int, G: int) -> RangeKernel:
    """Kernel over planes, each of which is one result; G at a time where they lie evenly: sums share vectors."""
    acc = DTYPES[dtype].accumulate
    SHARE, COUNTS, LOW = "f64" if acc == "f64" else "f32", acc == "i32", lowest(kind, acc)

    @range_kernel("windows_whole", ARGS.types(out=dtype, x=dtype), spec=(kind, dtype, W, G))
    def windows_whole(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        power = pointer_from_address(args.power, "f64")[0]
        size = args.size_d * args.size_h * args.size_w
        share = scalar(size if COUNTS else 1.0 / size, SHARE)
        empty = splat(scalar(LOW, acc), W)
        plane = lo
        while args.even and plane + G <= hi:
            total = walk_planes(kind, args.x, plane * args.x_c, args.x_c, size, empty, power, G)
            store_narrow(args.out, plane, finish_of(kind, total, splat(share, G), power))
            plane += G
        while plane < hi:
            n, c = divmod(plane, args.c)
            total = walk_planes(kind, args.x, n * args.x_n + c * args.x_c, 0, size, empty, power, 1)
            store_narrow(args.out, n * args.out_n + c * args.out_c, finish_of(kind, total, splat(share, 1), power))
            plane += 1

    return windows_whole


@functools.cache
def make_backward(dtype: str, W: int) -> RangeKernel:
    """Kernel over planes of dx of an average: dy over the number of elements."""
    acc = DTYPES[dtype].accumulate

    @range_kernel("windows_whole_backward", ARGS.types(out=dtype, dy=dtype), spec=(dtype, W))
    def windows_whole_backward(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        size = args.size_d * args.size_h * args.size_w
        for plane in range(lo, hi):
            to, at = plane * size, plane
            if not args.even:
                n, c = divmod(plane, args.c)
                to, at = n * args.out_n + c * args.out_c, n * args.dy_n + c * args.dy_c
            share = splat(load_wide_scalar(args.dy, at), W) * scalar(1.0 / size, acc)
            # what is behind the end of a plane the next one replaces
            end, past = to + size, to
            if args.even:
                past = hi * size
            while to + W <= end or (to < end and to + W <= past):
                keep_rolled()
                store_narrow(args.out, to, share)
                to += W
            if to < end:
                store_narrow_first(args.out, to, end - to, share)

    return windows_whole_backward
