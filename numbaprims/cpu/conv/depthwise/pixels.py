"""Depthwise convolution of images whose channels are neighbours: RT x QT pixels x W channels in registers.

A tile of 2 x 7 pixels reads 36 vectors for 126 multiply-adds with 3x3 and stride 1; the weights lie as panels of W
channels, tap by tap.  Bound: the multiply-adds, or the bytes of x and y beyond the second-level cache.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.arguments import itemsize
from numbaprims.cpu.conv.depthwise.rows import prefetch_lines
from numbaprims.cpu.gemm.blocked import pack
from numbaprims.cpu.gemm.finish import activate_in_place, load_steps
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    load,
    load_first,
    load_wide_first,
    load_wide_scalar,
    pointer_from_address,
    scalar,
    splat,
    store,
    store_narrow_first,
    store_narrow_scalar,
    tile_load,
    tile_store,
    tile_zeros,
    zeros,
)
from numbaprims.cpu.simd.arguments import Arguments
from numbaprims.cpu.simd.tiles.pixels import pixel_end, pixel_gradient, pixel_window

# Names as in depthwise_rows.  in_column, out_column: from pixel to pixel.  panels: of W channels; blocks: of `block`
# panels.  strips: of pixels of the result in which the sums of a weight's gradient are cut, `strip` rows each.
# packed: the panels of weights of a plan; else they are packed into `weights` by the kernel at `pack`.  waiting: rows
# of sums.  Of depthwise_blocks alone: copy and turned, a block's pixels and sums; places: address of a table, where
# each pixel of a plane of x lies in `copy`, and W times a place for none; pitch: pixels of a row of the copy, in which
# zeros stand for the padding; room: of all of it.
ARGS = Arguments(
    arrays=("out", "first", "second", "c", "bias", "packed", "extra"),
    floats=("alpha", "beta", "p0", "p1", "p2"),
    ints=(
        "images", "channels", "in_h", "in_w", "out_h", "out_w", "row", "column", "first_row", "first_column",
        "in_n", "in_row", "in_column", "out_n", "out_row", "out_column", "c_n", "c_c", "c_row", "c_column",
        "w_k", "w_row", "w_column", "w_tap", "has_c", "has_bias", "bias_step", "activation", "zeros", "far",
        "panels", "blocks", "block", "strips", "strip", "down", "pack", "in_c", "out_c", "places", "pitch", "room",
    ),
    shared=("weights", "sums"),
    own=("waiting", "copy", "turned"),
)  # fmt: skip


@functools.cache
def make_pack_weights(dtype: str, acc: str, TAPS: int, W: int) -> RangeKernel:
    """Kernel over panels: [panel][tap][lane], from weights whose taps are neighbours or not."""
    types = ARGS.types(second=dtype)

    @range_kernel("conv_depthwise_pack", types, spec=(dtype, acc, TAPS, W))
    def depthwise_pack(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        target = address_of(args.packed)
        if target == 0:
            target = address_of(args.weights)
        pack(
            args.pack, target, address_of(args.second), TAPS, args.channels, args.w_k, args.w_tap, lo, hi
        )  # fmt: skip

    return depthwise_pack


@helper
def end_rows(args, total, step, out, row, rows, SPLIT, W):  # type: ignore[no-untyped-def]
    """The activation of rows of sums, and their way into the result where they waited elsewhere."""
    for p in range(max(row, 0), min(row + rows, args.out_h)):
        line = advance(total, p * step)
        columns = args.out_w
        width = args.channels
        if args.activation != 0:
            if SPLIT or args.out_column == width:
                activate_in_place(args, line, columns * width)
            else:
                for q in range(columns):
                    activate_in_place(args, advance(line, q * args.out_column), width)
        if SPLIT:
            for q in range(columns):
                for v in range(0, width, W):
                    left = min(width - v, W)
                    value = load_first(line, q * width + v, left, W)
                    store_narrow_first(out, p * args.out_row + q * args.out_column + v, left, value)


@functools.cache
def make_pixels(
    dtype: str, acc: str, RT: int, QT: int, R: int, S: int, SH: int, SW: int, W: int, C: int, SPLIT: int, SPREAD: int
) -> RangeKernel:
    """Kernel over groups of rows of the result's images; C, SPLIT and SPREAD as in depthwise_rows."""
    types = ARGS.types(out=dtype, first=dtype, c=dtype, bias=dtype, waiting=acc)
    HIGH, WIDE = (RT * SH, QT * SW) if SPREAD else (RT, QT)
    LINE = 64 // itemsize(dtype)
    # input rows and columns that a tile is first to read, and how far from its first row the next tile's are
    ROWS, ACROSS = (RT, QT) if SPREAD else (RT * SH, QT * SW)
    NEXT = RT if SPREAD else (RT - 1) * SH + R
    X_LINES, OUT_LINES = -(-ROWS * ACROSS * W // LINE), -(-HIGH * WIDE * W // LINE)

    @range_kernel("conv_depthwise_pixels", types, spec=(dtype, acc, RT, QT, R, S, SH, SW, W, C, SPLIT, SPREAD))
    def depthwise_pixels(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        none = pointer_from_address(args.zeros, dtype)
        alpha = splat(scalar(args.alpha, acc), W)
        beta = splat(scalar(args.beta, acc), W)
        panels = address_of(args.packed)
        if panels == 0:
            panels = address_of(args.weights)
        weights = pointer_from_address(panels, acc)
        for tile in range(lo, hi):
            n, at = divmod(tile, args.down)
            p = at * HIGH + args.first_row
            x = advance(args.first, n * args.in_n)
            c = advance(args.c, n * args.c_n)
            out = advance(args.out, n * args.out_n)
            if SPLIT:
                step = args.out_w * args.channels
                column_step = args.channels
                total = advance(args.waiting[worker], -p * step)
            else:
                total = out
                step = args.out_row
                column_step = args.out_column
            if SPREAD:
                row = (p + args.row) // SH
            else:
                row = p * SH + args.row
            for q in range(args.first_column, args.out_w, WIDE):
                if SPREAD:
                    column = (q + args.column) // SW
                else:
                    column = q * SW + args.column
                for panel in range(args.panels):
                    v = panel * W
                    left = args.channels - v
                    if args.far:
                        # this panel's share of the rows that come next
                        place = (q * args.panels + panel * WIDE) * W
                        prefetch_lines(
                            x, out, (max(row, 0) + NEXT) * args.in_row + place // WIDE * ACROSS * ROWS,
                            (max(p, 0) + HIGH) * args.out_row + place * HIGH, X_LINES, OUT_LINES, LINE,
                        )  # fmt: skip
                    shift = zeros(acc, W)
                    if args.has_bias:
                        if args.bias_step == 1:
                            shift = load_wide_first(args.bias, v, left, W)
                        else:
                            shift = load_steps(args.bias, v * args.bias_step, args.bias_step, min(left, W), W, acc)
                    sums = pixel_window(
                        advance(x, v), none, args.in_row, args.in_column, row, args.in_h, column, args.in_w, left,
                        advance(weights, v * (R * S)), SPREAD, RT, QT, R, S, SH, SW, W,
                    )  # fmt: skip
                    pixel_end(
                        advance(total, v), step, column_step, p, args.out_h, q, args.out_w, left, sums, alpha,
                        advance(c, v), args.c_row, args.c_column, beta, shift, C, WIDE,
                    )  # fmt: skip
            end_rows(args, total, step, out, p, HIGH, SPLIT, W)

    return depthwise_pixels


@functools.cache
def make_gradient(dtype: str, acc: str, QT: int, R: int, S: int, SH: int, SW: int, W: int) -> RangeKernel:
    """Kernel over (strip of rows, block of panels): sums of each weight's gradient over a strip, into the workspace."""
    types = ARGS.types(first=dtype, second=dtype, sums=acc)
    TAPS = R * S

    @range_kernel("conv_depthwise_pixel_gradient", types, spec=(dtype, acc, QT, R, S, SH, SW, W))
    def depthwise_gradient(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        none = pointer_from_address(args.zeros, dtype)
        whole = args.out_w - args.out_w % QT
        for tile in range(lo, hi):
            strip, block = divmod(tile, args.blocks)
            first = block * args.block
            last = min(first + args.block, args.panels)
            total = advance(args.sums, strip * args.panels * (TAPS * W))
            for panel in range(first, last):
                tile_store(advance(total, panel * (TAPS * W)), W, tile_zeros(acc, TAPS, 1, W), TAPS, 1, W)
            for line in range(strip * args.strip, min((strip + 1) * args.strip, args.images * args.out_h)):
                n, p = divmod(line, args.out_h)
                x = advance(args.second, n * args.in_n)
                y = advance(args.first, n * args.out_n + p * args.out_row)
                for q in range(0, whole, QT):
                    for panel in range(first, last):
                        v = panel * W
                        room = advance(total, v * TAPS)
                        sums = pixel_gradient(
                            tile_load(room, W, TAPS, 1, W), advance(x, v), none, args.in_row, args.in_column,
                            p * SH + args.row, args.in_h, q * SW + args.column, args.in_w,
                            advance(y, q * args.out_column + v), args.out_column, args.channels - v, QT, R, S, SW,
                        )  # fmt: skip
                        tile_store(room, W, sums, TAPS, 1, W)
                for q in range(whole, args.out_w):
                    for panel in range(first, last):
                        v = panel * W
                        room = advance(total, v * TAPS)
                        sums = pixel_gradient(
                            tile_load(room, W, TAPS, 1, W), advance(x, v), none, args.in_row, args.in_column,
                            p * SH + args.row, args.in_h, q * SW + args.column, args.in_w,
                            advance(y, q * args.out_column + v), args.out_column, args.channels - v, 1, R, S, SW,
                        )  # fmt: skip
                        tile_store(room, W, sums, TAPS, 1, W)

    return depthwise_gradient


@functools.cache
def make_sum_strips(dtype: str, acc: str, R: int, S: int, W: int) -> RangeKernel:
    """Kernel over panels: the strips' sums added in their order, alpha and beta c."""
    types = ARGS.types(out=dtype, c=dtype, sums=acc)
    TAPS = R * S

    @range_kernel("conv_depthwise_sum_strips", types, spec=(dtype, acc, R, S, W))
    def depthwise_sum_strips(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        for panel in range(lo, hi):
            total = advance(args.sums, panel * (TAPS * W))
            for r in range(R):
                for s in range(S):
                    place = (r * S + s) * W
                    value = load(total, place, W)
                    for strip in range(1, args.strips):
                        value = value + load(total, strip * args.panels * (TAPS * W) + place, W)
                    store(total, place, value)
                    for lane in range(min(W, args.channels - panel * W)):
                        k = panel * W + lane
                        x = total[place + lane] * scalar(args.alpha, acc)
                        if args.has_c:
                            at = k * args.c_n + r * args.c_row + s * args.c_column
                            x = scalar(x + load_wide_scalar(args.c, at) * scalar(args.beta, acc), acc)
                        store_narrow_scalar(args.out, k * args.w_k + r * args.w_row + s * args.w_column, x)

    return depthwise_sum_strips
