"""Direct convolution of images whose channels are neighbours: MP pixels x NV vectors of filters in registers.

A band of input rows is copied once, padded with zeros.  Tap (c, r, s) multiplies a vector of weights by one element of
each pixel, which lie a stride apart in the copy.  Bound: 2 K pixels C R S operations.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.direct.planes import ARGS, copied_rows, rows_of
from numbaprims.cpu.gemm.finish import activate_in_place
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    load_first,
    load_wide_first,
    load_wide_scalar,
    pointer_from_address,
    scalar,
    splat,
    stack_array,
    store_first,
    store_narrow_first,
    store_scalar,
    zeros,
)
from numbaprims.cpu.simd.tiles.taps import pixels_end, tile_taps_pixels


@helper
def copy_run(target, source, count, W):  # type: ignore[no-untyped-def]
    """`count` neighbouring elements, computed."""
    for v in range(0, count, W):
        left = min(count - v, W)
        store_first(target, v, left, load_wide_first(source, v, left, W))


@helper
def copy_band(args, copy, x, first, rows, W, acc):  # type: ignore[no-untyped-def]
    """Input rows from `first` on for `rows` rows of the result, `pitch` pixels each, `depth` channels of each pixel."""
    depth = args.depth
    before = min(max(-args.column, 0), args.pitch)
    begin = max(args.column, 0)
    inside = max(min(args.in_w - begin, args.pitch - before), 0)
    for i in range(copied_rows(args, rows)):
        h = first + i
        target = advance(copy, i * args.pitch * depth)
        if h >= 0 and h < args.in_h:
            behind = args.pitch - before - inside
            source = advance(x, h * args.in_row + begin * args.in_column)
            for v in range(0, before * depth, W):
                store_first(target, v, before * depth - v, zeros(acc, W))
            middle = advance(target, before * depth)
            if args.in_column == depth or inside == 1:
                copy_run(middle, source, inside * depth, W)
            else:
                for j in range(inside):
                    copy_run(advance(middle, j * depth), advance(source, j * args.in_column), depth, W)
            last = advance(middle, inside * depth)
            for v in range(0, behind * depth, W):
                store_first(last, v, behind * depth - v, zeros(acc, W))
        else:
            for v in range(0, args.pitch * depth, W):
                store_first(target, v, args.pitch * depth - v, zeros(acc, W))


@helper
def end_pixels(args, total, step, column_step, out, rows, width, SPLIT, W):  # type: ignore[no-untyped-def]
    """The activation of a band's sums, `width` filters a pixel, and their way into the result from elsewhere."""
    out_w = args.out_w
    for p in range(rows):
        line = advance(total, p * step)
        if args.activation != 0:
            if column_step == width:
                activate_in_place(args, line, out_w * width)
            else:
                for q in range(out_w):
                    activate_in_place(args, advance(line, q * column_step), width)
        if SPLIT:
            for q in range(out_w):
                for v in range(0, width, W):
                    left = min(width - v, W)
                    value = load_first(line, q * column_step + v, left, W)
                    store_narrow_first(out, p * args.out_row + q * args.out_column + v, left, value)


@functools.cache
def make_pixels(dtype: str, acc: str, MP: int, NV: int, W: int, C: int, SPLIT: int) -> RangeKernel:
    """Kernel over (image, group, block of filters, band of rows); C and SPLIT as in direct_planes."""
    types = ARGS.types(out=dtype, first=dtype, c=dtype, bias=dtype, copy=acc, waiting=acc)
    NR = NV * W

    @range_kernel("conv_direct_pixels", types, spec=(dtype, acc, MP, NV, W, C, SPLIT))
    def direct_pixels(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        alpha = splat(scalar(args.alpha, acc), W)
        beta = splat(scalar(args.beta, acc), W)
        shifts = stack_array(acc, NR)
        copy = args.copy[worker]
        panels = address_of(args.packed)
        if panels == 0:
            panels = address_of(args.weights)
        out_w, count = args.out_w, args.count
        pixel = args.stride_w * args.depth
        line = args.stride_h * args.pitch * args.depth
        for tile in range(lo, hi):
            rest, band = divmod(tile, args.bands)
            rest, block = divmod(rest, args.blocks)
            n, group = divmod(rest, args.groups)
            first_p = band * args.band
            rows = rows_of(args, band)
            x = advance(args.first, n * args.in_n + group * args.depth)
            copy_band(args, copy, x, first_p * args.stride_h + args.row, rows, W, acc)
            weights = pointer_from_address(panels + group * args.panel_bytes, acc)
            begin = block * args.block
            end = min(begin + args.block, args.filters)
            channel = group * args.filters + begin
            out = advance(args.out, n * args.out_n + channel + first_p * args.out_row)
            c = advance(args.c, n * args.c_n + channel + first_p * args.c_row)
            if SPLIT:
                total = args.waiting[worker]
                column_step = end - begin
                step = out_w * column_step
            else:
                total = out
                column_step = args.out_column
                step = args.out_row
            for k in range(begin, end, NR):
                for i in range(NR):
                    store_scalar(shifts, i, scalar(0, acc))
                    if args.has_bias and k + i < end:
                        at = group * args.filters + k + i
                        store_scalar(shifts, i, load_wide_scalar(args.bias, at * args.bias_step))
                for p in range(rows):
                    for q in range(0, out_w, MP):
                        sums = tile_taps_pixels(
                            advance(copy, p * line + q * pixel), pixel, args.taps,
                            advance(weights, k // NR * (NR * count + W)), count, MP, NV, W,
                        )  # fmt: skip
                        pixels_end(
                            advance(total, p * step + q * column_step + k - begin), column_step, out_w - q, end - k,
                            sums, alpha, shifts,
                            advance(c, p * args.c_row + q * args.c_column + k - begin), args.c_column, beta, C, NV,
                        )  # fmt: skip
            end_pixels(args, total, step, column_step, out, rows, end - begin, SPLIT, W)

    return direct_pixels
