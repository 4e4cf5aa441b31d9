"""What the weight gradient computes with: the register tile over pixels, the gather of patches, the end of the sums.

The tile multiplies MR filters of dy, packed pixel by pixel, with NR channels of x, which lie side by side for each
pixel of a padded copy.  A tap only moves the place from which x is read, so one copy serves all of them.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.arguments import GEOMETRY
from numbaprims.cpu.conv.weight_gradient.arguments import END, ENDS, MULTIPLY, PATCHES
from numbaprims.cpu.gemm.multiply import keep_part
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    advance,
    load,
    load_first,
    load_rows,
    load_scalar,
    load_wide_first,
    load_wide_scalar,
    load_word,
    multiply_add,
    record,
    scalar,
    splat,
    stack_tile,
    store,
    store_first,
    store_narrow,
    store_narrow_first,
    store_narrow_scalar,
    store_rows,
    store_scalar,
    tile_add,
    tile_load,
    tile_prefetch,
    tile_store,
    transpose,
    zeros,
)
from numbaprims.cpu.simd.tiles.product_table import tile_multiply_table

NEAR = 16


@helper
def multiply_taps(args, q, room, MR, NV, NR, W):  # type: ignore[no-untyped-def]
    """All taps of one panel of dy with the first NV vectors of the panel of x."""
    rows = min(MR, args.rows - q * MR)
    a = advance(args.a, q * MR * args.pixels)
    step = args.k_step
    first = args.first
    for tap in range(args.taps):
        total = advance(args.total, q * MR * step + tap * args.tap_step)
        if rows == MR:
            tile_prefetch(total, step, MR, NV, W)
        b = advance(args.b, load_scalar(args.shifts, tap))
        tile = tile_multiply_table(a, b, args.table, args.pixels, MR, NV, W)
        if rows == MR and args.columns >= NV * W:
            if not first:
                tile = tile_add(tile_load(total, step, MR, NV, W), tile)
            tile_store(total, step, tile, MR, NV, W)
        else:
            tile_store(room, NV * W, tile, MR, NV, W)
            keep_part(room, total, step, rows, min(args.columns, NV * W), first, NV * W, W)


@functools.cache
def make_multiply(acc: str, MR: int, NV: int, W: int) -> RangeKernel:
    """Multiply panels of dy with a panel of x; of one with no more channels than a vector only that is multiplied."""
    types = MULTIPLY.types(a=acc, b=acc, total=acc, table="i64", shifts="i64")
    NR = NV * W

    @range_kernel("conv_weight_multiply", types, spec=(acc, MR, NV, W))
    def conv_weight_multiply(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        room = stack_tile(acc, MR, NV, W)
        for q in range(lo, hi):
            if args.columns > W:
                multiply_taps(args, q, room, MR, NV, NR, W)
            else:
                multiply_taps(args, q, room, MR, 1, NR, W)

    return conv_weight_multiply


@functools.cache
def make_patches(dtype: str, acc: str, W: int) -> RangeKernel:
    """The patches under a line's windows, in the order of the weight (or with the channels last).

    Rows of a window are copied by whole vectors, each over the end of the one before, for NEAR pixels at a time: their
    patches stay in the first-level cache while all rows come by.
    """
    types = PATCHES.types(out=acc, source=dtype)

    @range_kernel("conv_weight_patches", types, spec=(dtype, acc, W))
    def conv_weight_patches(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        g = record(GEOMETRY, args.geometry)
        taps_d, taps_h, taps_w = g.k_d, g.k_h, g.k_w
        gap_d, gap_h, gap_w = g.dilation_d, g.dilation_h, g.dilation_w
        x_d, x_h, x_w = g.x_d, g.x_h, g.x_w
        step_c, step_d, step_h, step_w = (
            g.xs_c, g.xs_d, g.xs_h, g.xs_w
        )  # fmt: skip
        stride_w, pad_w = g.stride_w, g.pad_w
        unit, run, width, columns = args.unit, args.run, args.width, args.columns
        channels, d0 = args.channels, args.d0
        straight = unit > 1 or (step_w == 1 and gap_w == 1)
        # the pixels whose windows lie inside of a row of x
        begin = min((pad_w + stride_w - 1) // stride_w, columns)
        end = max(min((x_w - 1 - (taps_w - 1) * gap_w + pad_w + stride_w) // stride_w, columns), begin)
        if not straight:
            begin = end
        q_step = stride_w * step_w
        for line in range(lo, hi):
            h0 = (args.p0 + line) * g.stride_h - g.pad_h
            for q0 in range(0, columns, NEAR):
                q1 = min(q0 + NEAR, columns)
                inner0 = min(max(q0, begin), q1)
                inner1 = max(min(q1, end), inner0)
                first = (line * columns + q0) * width
                at = 0
                for c in range(channels):
                    for z in range(taps_d):
                        d = d0 + z * gap_d
                        for r in range(taps_h):
                            h = h0 + r * gap_h
                            out = advance(args.out, first + at)
                            # whole vectors must not reach into the next pixel, whose first rows are there already
                            last = at + (run + W - 1) // W * W > width
                            at += run
                            if d < 0 or d >= x_d or h < 0 or h >= x_h:
                                for q in range(q1 - q0):
                                    for v in range(0, run, W):
                                        store_first(out, q * width + v, min(W, run - v), zeros(acc, W))
                                continue
                            row = advance(args.source, c * step_c + d * step_d + h * step_h)
                            for v in range(0, run, W):
                                left = min(W, run - v)
                                for q in range(inner0, inner1):
                                    x = load_wide_first(row, q * q_step - pad_w * step_w + v, left, W)
                                    if last:
                                        store_first(out, (q - q0) * width + v, left, x)
                                    else:
                                        store(out, (q - q0) * width + v, x)
                            for q in range(q0, q1):
                                if q < inner0 or q >= inner1:
                                    for s in range(taps_w):
                                        w = q * stride_w - pad_w + s * gap_w
                                        for u in range(unit):
                                            value = scalar(0, acc)
                                            if w >= 0 and w < x_w:
                                                value = load_wide_scalar(row, w * step_w + u)
                                            store_scalar(out, (q - q0) * width + s * unit + u, value)

    return conv_weight_patches


@helper
def sum_slices(sums, at, slices, slice_step, left, W):  # type: ignore[no-untyped-def]
    """The sum of all slices, from the first to the last."""
    total = load_first(sums, at, left, W)
    for part in range(1, slices):
        total = total + load_first(sums, part * slice_step + at, left, W)
    return total


@functools.cache
def make_end(acc: str, out: str, W: int) -> RangeKernel:
    """Rows (filters) lo ... hi - 1 of the result.

    Way 0: vectors along what is contiguous in sums and out, `taps` rows of `channels`.  Way 1: taps are contiguous in
    out and channels in the sums, which go through a transpose.  Way 2: one by one.
    """
    types = END.types(out=out, sums=acc, c=out)

    @range_kernel("conv_weight_end", types, spec=(acc, out, W))
    def conv_weight_end(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        e = record(ENDS, args.words)
        channels = args.channels
        room = stack_tile(acc, W, 1, W)
        alpha = splat(scalar(args.alpha, acc), W)
        beta = splat(scalar(args.beta, acc), W)
        slices, slice_step, tap_step = e.slices, e.slice_step, e.tap_step
        taps, places = e.taps, e.places
        out_c, c_c, has_c = e.out_c, e.c_c, e.has_c
        # rows of taps are written as whole vectors where the rows that follow then write over the end; c may be out
        joins = taps <= W and out_c == taps and not has_c
        for k in range(lo, hi):
            sums = advance(args.sums, k * e.k_step)
            out = advance(args.out, k * e.out_k)
            c = advance(args.c, k * e.c_k)
            if e.way == 0:
                for tap in range(taps):
                    place = load_word(places, tap)
                    c_place = load_word(places, taps + tap)
                    for v in range(0, channels, W):
                        left = min(channels - v, W)
                        x = sum_slices(sums, tap * tap_step + v, slices, slice_step, left, W) * alpha
                        if has_c:
                            x = multiply_add(load_wide_first(c, c_place + v, left, W), beta, x)
                        store_narrow_first(out, place + v, left, x)
            elif e.way == 1:
                for v in range(0, channels, W):
                    left = min(channels - v, W)
                    for t in range(0, taps, W):
                        count = min(taps - t, W)
                        for tap in range(count):
                            at = (t + tap) * tap_step + v
                            store(room, tap * W, sum_slices(sums, at, slices, slice_step, left, W) * alpha)
                        store_rows(room, W, transpose(load_rows(room, W, W, W)))
                        for channel in range(left):
                            x = load(room, channel * W, W)
                            if has_c:
                                at = (v + channel) * c_c + t
                                x = multiply_add(load_wide_first(c, at, count, W), beta, x)
                            if joins and (v + channel) * taps + W <= channels * taps:
                                store_narrow(out, (v + channel) * out_c, x)
                            else:
                                store_narrow_first(out, (v + channel) * out_c + t, count, x)
            else:
                for channel in range(channels):
                    for tap in range(taps):
                        at = channel * e.c_step + tap * tap_step
                        total = load_scalar(sums, at)
                        for part in range(1, slices):
                            total = scalar(total + load_scalar(sums, part * slice_step + at), acc)
                        total = scalar(total * scalar(args.alpha, acc), acc)
                        if has_c:
                            at = channel * c_c + load_word(places, taps + tap)
                            total = scalar(total + load_wide_scalar(c, at) * scalar(args.beta, acc), acc)
                        store_narrow_scalar(out, channel * out_c + load_word(places, tap), total)

    return conv_weight_end
