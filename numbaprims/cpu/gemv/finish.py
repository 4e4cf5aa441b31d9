"""The ends of a gemv: x packed before it, sums scaled and stored, or combined, after it."""

from __future__ import annotations

import functools

from numbaprims.cpu.gemv.arguments import ARGS, accumulate
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.parts import add_parts
from numbaprims.cpu.simd import (
    advance,
    fma,
    load,
    load_scalar,
    load_wide_first,
    load_wide_scalar,
    scalar,
    splat,
    stack_array,
    store,
    store_first,
    store_narrow_first,
    store_narrow_scalar,
    store_scalar,
)


@helper
def packed_x(args):  # type: ignore[no-untyped-def]
    """x, or its packed copy."""
    if args.packs:
        return args.packed_x
    return advance(args.x, args.x_start)


@helper
def finish(args, sums, i, count, W, acc):  # type: ignore[no-untyped-def]
    """out[i : i + count] = alpha sums + beta y, y and out side by side; whole vectors of sums are read."""
    alpha = splat(scalar(args.alpha, acc), W)
    beta = splat(scalar(args.beta, acc), W)
    for j in range(0, count, W):
        left = min(count - j, W)
        value = load(sums, j, W) * alpha
        if args.has_y:
            value = fma(load_wide_first(args.y, args.y_start + i + j, left, W), beta, value)
        store_narrow_first(args.out, args.out_start + i + j, left, value)


@helper
def deliver(args, sums, chunk, i, count, W, acc):  # type: ignore[no-untyped-def]
    """Finish a chunk's sums for out[i : i + count] where that is all, else keep them for `make_combine`."""
    if args.combine:
        partial = advance(args.sums, chunk * args.m + i)
        for j in range(0, count, W):
            left = min(count - j, W)
            store_first(partial, j, left, load(sums, j, W))
    else:
        finish(args, sums, i, count, W, acc)


@functools.cache
def make_pack(dtype: str) -> RangeKernel:
    """Copy an x that does not lie side by side into the workspace; one tile."""

    @range_kernel("gemv_pack", ARGS.types(x=dtype, packed_x=dtype), spec=(dtype,))
    def pack(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        x = advance(args.x, args.x_start)
        for j in range(args.n):
            store_scalar(args.packed_x, j, load_scalar(x, j * args.x_step))

    return pack


@functools.cache
def make_combine(dtype: str, W: int) -> RangeKernel:
    """Add the chunks' sums, scale and store, whatever the steps of y and out; tile = W outputs."""
    acc = accumulate(dtype)

    @range_kernel("gemv_combine", ARGS.types(out=dtype, y=dtype, sums=acc), spec=(dtype, W))
    def combine(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        room = stack_array(acc, W)
        alpha, beta = scalar(args.alpha, acc), scalar(args.beta, acc)
        for i in range(lo * W, min(hi * W, args.m), W):
            count = min(args.m - i, W)
            store(room, 0, add_parts(args.sums, args.m, args.chunks, i, count, W, acc))
            if args.out_step == 1 and args.y_step == 1:
                finish(args, room, i, count, W, acc)
            else:
                y, out = args.y_start + i * args.y_step, args.out_start + i * args.out_step
                for r in range(count):
                    value = load_scalar(room, r) * alpha
                    if args.has_y:
                        value += load_wide_scalar(args.y, y + r * args.y_step) * beta
                    store_narrow_scalar(args.out, out + r * args.out_step, value)

    return combine
