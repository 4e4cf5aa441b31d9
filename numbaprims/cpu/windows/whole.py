"""Windows that are whole planes of contiguous elements."""

from __future__ import annotations

import functools

from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    load_wide,
    load_wide_scalar,
    pointer_from_address,
    scalar,
    splat,
    store_narrow,
    store_narrow_first,
)
from numbaprims.cpu.simd.convert import store_narrow_value
from numbaprims.cpu.simd.emit import number
from numbaprims.cpu.simd.lanes import shuffle_value
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


@intrinsic(prefer_literal=True)
def _store_each(typingctx, p, i, v, size):  # type: ignore[no-untyped-def]
    """Write each lane `size` times, from element i on: whole vectors, which begin where lines do if the first does."""
    times = size.literal_value

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        for first in range(0, times * v.n, v.n):
            each = shuffle_value(builder, args[2], args[2], [lane // times for lane in range(first, first + v.n)])
            store_narrow_value(builder, args[0], builder.add(args[1], number(first)), each, p.elem)
        return context.get_dummy_value()

    return types.void(p, types.int64, v, size), codegen


#: Elements of a plane whose vectors are written out.
MOST = 64


@functools.cache
def make_backward(dtype: str, W: int, SIZE: int) -> RangeKernel:
    """Kernel over planes of dx of an average: dy over the number of elements; W planes of SIZE elements at a time."""
    acc = DTYPES[dtype].accumulate

    @range_kernel("windows_whole_backward", ARGS.types(out=dtype, dy=dtype), spec=(dtype, W, SIZE))
    def windows_whole_backward(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        size = args.size_d * args.size_h * args.size_w
        done = lo
        while SIZE and done + W <= hi:
            keep_rolled()
            _store_each(args.out, done * size, load_wide(args.dy, done, W) * splat(scalar(1.0 / size, acc), W), SIZE)
            done += W
        for plane in range(done, hi):
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
