"""The loops of the weight gradient: which pixels, filters and channels meet, and where their copies lie.

These kernels compute addresses and call others by pointer; they are compiled once for all types.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.arguments import GEOMETRY
from numbaprims.cpu.conv.weight_gradient.arguments import DRIVE, END, ENDS, MULTIPLY, PATCHES, TURN
from numbaprims.cpu.gemm.blocked import pack
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    block_of,
    call_range,
    pointer_from_address,
    record,
    stack_record,
    store,
    store_word,
    zeros,
)


@helper
def fill_zeros(address, count):  # type: ignore[no-untyped-def]
    """Zero `count` bytes, a multiple of 32."""
    target = pointer_from_address(address, "u8")
    for i in range(0, count, 32):
        store(target, i, zeros("u8", 32))


@helper
def fill_table(args, table, nn, on, pn):  # type: ignore[no-untyped-def]
    """Where each pixel of a box lies in the packed x, in elements."""
    columns = record(GEOMETRY, args.geometry).y_w
    at = 0
    for n in range(nn):
        for o in range(on):
            for p in range(pn):
                if args.patches:
                    for q in range(columns):
                        store_word(table, at + q, (at + q) * args.width)
                else:
                    row = (n * args.box_d + o * args.step_d) * args.box_h + p * args.step_h
                    for q in range(columns):
                        store_word(table, at + q, (row * args.box_w + q * args.step_w) * args.nr)
                at += columns


@helper
def pack_y(args, panels, first_k, rows, n0, o0, p0, nn, on, pn):  # type: ignore[no-untyped-def]
    """dy of a box: for each MR filters, their values pixel by pixel."""
    g = record(GEOMETRY, args.geometry)
    k_step = g.ys_k
    columns = g.y_w
    pixels = nn * on * pn * columns
    span = columns
    if args.merge_y >= 1:
        span = pn * columns
    if args.merge_y == 2:
        span = on * pn * columns
    lines = span // columns
    count = (rows + args.mr - 1) // args.mr
    start = first_k * k_step + n0 * g.ys_n + o0 * g.ys_d + p0 * g.ys_h
    source = address_of(args.first) + args.in_size * start
    if span == pixels:
        pack(args.pack_y, panels, source, pixels, rows, k_step, g.ys_w, 0, count)
    else:
        for q in range(count):
            for at in range(0, pixels, span):
                rest, p = divmod(at // span * lines, pn)
                n, o = divmod(rest, on)
                offset = n * g.ys_n + o * g.ys_d + p * g.ys_h
                pack(
                    args.pack_y,
                    panels + args.sum_size * args.mr * (q * pixels + at),
                    source + args.in_size * (offset + q * args.mr * k_step),
                    span,
                    min(args.mr, rows - q * args.mr),
                    k_step,
                    g.ys_w,
                    0,
                    1,
                )


@helper
def pack_x(args, panel, first_c, channels, n0, o0, p0, nn, on, pn):  # type: ignore[no-untyped-def]
    """x under the windows of a box: for each place of the padded input, NR channels side by side."""
    g = record(GEOMETRY, args.geometry)
    place = args.nr * args.sum_size  # bytes
    x_h, x_w = g.x_h, g.x_w
    step_h, step_w = g.xs_h, g.xs_w * args.src_w
    c_step = g.xs_c
    d0 = o0 * g.stride_d - g.pad_d
    h0 = p0 * g.stride_h - g.pad_h
    pad = g.pad_w
    begin = min((pad + args.src_w - 1) // args.src_w, args.box_w)
    end = max(min((x_w - 1 + pad) // args.src_w + 1, args.box_w), begin)
    depth = (on - 1) * args.step_d + args.box_d - (args.box_o - 1) * args.step_d
    height = (pn - 1) * args.step_h + args.box_h - (args.box_p - 1) * args.step_h
    # the rows that are there
    top = min((max(-h0, 0) + args.src_h - 1) // args.src_h, height)
    bottom = max(min((x_h - 1 - h0 + args.src_h) // args.src_h, height), top)
    for n in range(nn):
        for d in range(depth):
            at = panel + place * args.box_w * args.box_h * (n * args.box_d + d)
            from_d = d0 + d * args.src_d
            if from_d < 0 or from_d >= g.x_d or bottom == top or end == begin:
                fill_zeros(at, place * args.box_w * height)
            else:
                start = (n0 + n) * g.xs_n + first_c * c_step + from_d * g.xs_d
                start += (h0 + top * args.src_h) * step_h + begin * step_w - pad * g.xs_w
                source = address_of(args.second) + args.in_size * start
                fill_zeros(at, place * args.box_w * top)
                fill_zeros(at + place * args.box_w * bottom, place * args.box_w * (height - bottom))
                at += place * args.box_w * top
                if args.merge_x:
                    pack(args.pack_x, at, source, (bottom - top) * args.box_w, channels, c_step, step_w, 0, 1)
                else:
                    for h in range(bottom - top):
                        fill_zeros(at, place * begin)
                        pack(
                            args.pack_x,
                            at + place * begin,
                            source + args.in_size * h * args.src_h * step_h,
                            end - begin,
                            channels,
                            c_step,
                            step_w,
                            0,
                            1,
                        )
                        fill_zeros(at + place * end, place * (args.box_w - end))
                        at += place * args.box_w


@helper
def gather_patches(args, target, first_c, channels, n0, o0, p0, nn, on, pn):  # type: ignore[no-untyped-def]
    """The patches of a box, `width` elements a pixel."""
    g = record(GEOMETRY, args.geometry)
    columns = g.y_w
    block = stack_record(PATCHES)
    block.geometry = block_of(g)
    block.channels = channels if args.unit == 1 else 1
    block.run = args.run
    block.unit = args.unit
    block.width = args.width
    block.p0 = p0
    block.columns = columns
    for n in range(nn):
        for o in range(on):
            start = (n0 + n) * g.xs_n + first_c * g.xs_c
            block.out = target + args.sum_size * args.width * (n * on + o) * pn * columns
            block.source = address_of(args.second) + args.in_size * start
            block.d0 = (o0 + o) * g.stride_d - g.pad_d
            call_range(args.patches, block, 0, 0, pn)


@helper
def end_block(args, sums, k0, c0, channels, lo, hi):  # type: ignore[no-untyped-def]
    """Run the end kernel on filters k0 + lo ... and channels c0 ... of the result."""
    e = record(ENDS, args.end)
    block = stack_record(END)
    size = e.out_size
    block.out = address_of(args.out) + size * (k0 * e.out_k + c0 * e.out_c)
    block.sums = sums
    block.c = address_of(args.c) + size * (k0 * e.c_k + c0 * e.c_c)
    block.alpha = args.alpha
    block.beta = args.beta
    block.words = block_of(e)
    block.channels = channels
    call_range(e.kernel, block, 0, lo, hi)


@functools.cache
def make_end_drive() -> RangeKernel:
    """Filters lo ... hi - 1, once all slices are complete."""

    @range_kernel("conv_weight_end_drive", DRIVE.types(), spec=())
    def conv_weight_end_drive(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        channels = record(GEOMETRY, args.geometry).group_c
        if record(ENDS, args.end).joined:
            channels = args.columns
        end_block(args, address_of(args.sums), 0, 0, channels, lo, hi)

    return conv_weight_end_drive


@functools.cache
def make_drive() -> RangeKernel:
    """Tiles (slice, group, block of filters, block of channels): each packs its operands, a box at a time."""

    @range_kernel("conv_weight_drive", DRIVE.types(), spec=())
    def conv_weight_drive(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        g = record(GEOMETRY, args.geometry)
        packed_x, panels_y = address_of(args.packed_x[worker]), address_of(args.packed_y[worker])
        table, tiles = address_of(args.places[worker]), address_of(args.tiles[worker])
        group_c, group_k = g.group_c, g.group_k
        block = stack_record(MULTIPLY)
        block.a = tiles if args.turn else panels_y
        block.table = table
        block.shifts = args.shifts
        block.taps = args.taps
        block.k_step = args.k_step
        block.tap_step = args.tap_step
        block.room = address_of(args.tile_room[worker])
        turned = stack_record(TURN)
        turned.tiles = tiles
        turned.source = panels_y
        for tile in range(lo, hi):
            rest, cb = divmod(tile, args.c_blocks)
            rest, kb = divmod(rest, args.k_blocks)
            part, group = divmod(rest, g.groups)
            c0 = cb * args.c_block
            channels = min(args.c_block, group_c - c0)
            k0 = kb * args.k_block
            filters = min(args.k_block, group_k - k0)
            columns = args.columns if args.patches else channels
            first_k = group * group_k + k0
            if args.fused:
                sums = address_of(args.own_sums[worker])
            else:
                sums = address_of(args.out) if args.sums_in_out else address_of(args.sums)
                sums += args.sum_size * (part * args.slice_step + first_k * args.k_step + c0)
            block.rows = filters
            for chunk in range(part * args.slice_chunks, min((part + 1) * args.slice_chunks, args.chunks)):
                rest, p0 = divmod(chunk, args.chunks_p)
                n0, o0 = divmod(rest, args.chunks_o)
                n0, o0, p0 = n0 * args.box_n, o0 * args.box_o, p0 * args.box_p
                nn = min(args.box_n, g.n - n0)
                on = min(args.box_o, g.y_d - o0)
                pn = min(args.box_p, g.y_h - p0)
                fill_table(args, table, nn, on, pn)
                pack_y(args, panels_y, first_k, filters, n0, o0, p0, nn, on, pn)
                if args.turn:
                    turned.pixels = nn * on * pn * g.y_w
                    call_range(args.turn, turned, 0, 0, (filters + args.mr - 1) // args.mr)
                first_c = group * group_c + c0
                if args.patches:
                    gather_patches(args, packed_x, first_c, channels, n0, o0, p0, nn, on, pn)
                block.pixels = nn * on * pn * g.y_w
                block.first = 1 if chunk == part * args.slice_chunks else 0
                for c in range(0, columns, args.nr):
                    panel = packed_x
                    if args.patches:
                        panel += args.sum_size * c
                    width = min(args.nr, columns - c)
                    if not args.patches:
                        pack_x(args, panel, first_c + c, width, n0, o0, p0, nn, on, pn)
                    block.b = panel
                    block.total = sums if args.fused else sums + args.sum_size * c
                    block.columns = width
                    call_range(args.multiply, block, 0, 0, (filters + args.mr - 1) // args.mr)
                    if args.fused:
                        end_block(args, sums, first_k, c0 + c, width, 0, filters)

    return conv_weight_drive
