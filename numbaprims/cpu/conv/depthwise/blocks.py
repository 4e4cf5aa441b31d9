"""Depthwise convolution of small planes: blocks of W channels are turned to channels last, convolved and turned back.

Rows of 7 or 14 columns leave most lanes of a vector of columns empty, and each vector of them crosses a line of the
cache; a vector of W channels is full.  A block of W planes of 7 x 7 with 5 x 5 costs 1015 multiply-adds of vectors
and 8 times W x W elements turned in registers; by rows it costs 175 a plane.  Bound: the multiply-adds of the rows of
the window that lie in the image.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.arguments import itemsize
from numbaprims.cpu.conv.depthwise.pixels import ARGS
from numbaprims.cpu.conv.depthwise.rows import prefetch_lines
from numbaprims.cpu.gemm.finish import activate_in_place, load_steps
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    load_rows,
    load_turned,
    load_wide_rows,
    pointer_from_address,
    stack_tile,
    store,
    store_narrow_rows,
    store_rows,
    transpose,
    zeros,
)
from numbaprims.cpu.simd.tiles.pixels import pixel_row, store_pixels


@functools.cache
def make_blocks(dtype: str, acc: str, Q: int, R: int, S: int, SH: int, SW: int, W: int) -> RangeKernel:
    """Kernel over blocks of W planes of the result's images: a row of Q sums in registers."""
    types = ARGS.types(out=dtype, first=dtype, bias=dtype, copy=acc, turned=acc)
    # eight elements of 16 bits are turned as they are stored, not in the type of the sums
    TURNS = int(dtype == acc or W != 8)
    LINE = 64 // itemsize(dtype)

    @range_kernel("conv_depthwise_blocks", types, spec=(dtype, acc, Q, R, S, SH, SW, W))
    def depthwise_blocks(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        panels = address_of(args.packed)
        if panels == 0:
            panels = address_of(args.weights)
        weights = pointer_from_address(panels, acc)
        places = pointer_from_address(args.places, "i64")
        start = stack_tile(acc, 1, 1, W)
        store(start, 0, zeros(acc, W))
        copy, turned = args.copy[worker], args.turned[worker]
        in_c, out_c, in_h = args.in_c, args.out_c, args.in_h
        before, after = in_h * args.in_w, args.out_h * Q
        for i in range(args.room):
            store(copy, i * W, zeros(acc, W))
        for tile in range(lo, hi):
            n, panel = divmod(tile, args.panels)
            v = panel * W
            count = min(args.channels - v, W)
            x = advance(args.first, n * args.in_n + v * in_c)
            out = advance(args.out, n * args.out_n + v * out_c)
            for j in range(0, before, W):
                if args.far:
                    prefetch_lines(x, out, W * in_c + j * W, 0, W * W // LINE, 0, LINE)
                if TURNS and count == W and before >= W:
                    # a last block repeats pixels of the one before, so that it is whole
                    i = min(j, before - W)
                    store_pixels(copy, advance(places, i), load_turned(advance(x, i), in_c, W, 0, W, W))
                else:
                    block = load_wide_rows(advance(x, j), in_c, count, min(before - j, W), W)
                    store_pixels(copy, advance(places, j), transpose(block))
            if args.has_bias:
                store(start, 0, load_steps(args.bias, v * args.bias_step, args.bias_step, count, W, acc))
            for p in range(args.out_h):
                row = p * SH + args.row
                total = load_rows(start, 0, Q, W)
                for r in range(max(-row, 0), min(R, in_h - row)):
                    total = pixel_row(
                        total, advance(copy, (row + r) * args.pitch * W), advance(weights, (v * R + r * W) * S), S, SW
                    )  # fmt: skip
                store_rows(advance(turned, p * Q * W), W, total)
            if args.activation != 0:
                activate_in_place(args, turned, after * W)
            for j in range(0, after, W):
                if args.far:
                    prefetch_lines(x, out, 0, W * out_c + j * W, 0, W * W // LINE, LINE)
                if count == W and after >= W:
                    i = min(j, after - W)
                    store_rows(advance(out, i), out_c, load_turned(advance(turned, i * W), W, W, 0, W, W))
                else:
                    block = load_turned(advance(turned, j * W), W, W, 0, W, W)
                    store_narrow_rows(advance(out, j), out_c, count, min(after - j, W), block)

    return depthwise_blocks
