"""The loops of the weight gradient: which pixels, filters and channels meet, and where their copies lie.

These kernels compute addresses and call others by pointer; they are compiled once for all types.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.arguments import WORD
from numbaprims.cpu.conv.weight_gradient.arguments import DRIVE, END, END_WORDS, MULTIPLY, PATCHES, TURN
from numbaprims.cpu.gemm.blocked import pack
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    call_range,
    float_bits,
    load_word,
    pointer_from_address,
    stack_words,
    store,
    store_word,
    zeros,
)

N, GROUPS, GROUP_C, GROUP_K = (WORD[name] for name in ("n", "groups", "group_c", "group_k"))
X_SIZE, Y_SIZE, STRIDE, PAD = WORD["x_d"], WORD["y_d"], WORD["stride_d"], WORD["pad_d"]
XS, YS = WORD["xs_n"], WORD["ys_n"]
M_INTS, TURN_INTS = MULTIPLY.slot("rows"), TURN.slot("pixels")
P_INTS = PATCHES.slot("geometry")
E_FLOATS, E_INTS = END.slot("alpha"), END.slot("words")
WORD_OF = {name: index for index, name in enumerate(END_WORDS)}
E_KERNEL, E_OUT_K, E_OUT_C, E_C_K, E_C_C, E_SIZE, E_JOINED = (
    WORD_OF[name] for name in ("kernel", "out_k", "out_c", "c_k", "c_c", "out_size", "joined")
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
    columns = load_word(args.geometry, Y_SIZE + 2)
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
    g = args.geometry
    k_step = load_word(g, YS + 1)
    columns = load_word(g, Y_SIZE + 2)
    pixels = nn * on * pn * columns
    span = columns
    if args.merge_y >= 1:
        span = pn * columns
    if args.merge_y == 2:
        span = on * pn * columns
    lines = span // columns
    count = (rows + args.mr - 1) // args.mr
    start = first_k * k_step + n0 * load_word(g, YS) + o0 * load_word(g, YS + 2) + p0 * load_word(g, YS + 3)
    source = address_of(args.first) + args.in_size * start
    if span == pixels:
        pack(args.pack_y, panels, source, pixels, rows, k_step, load_word(g, YS + 4), 0, count)
    else:
        for q in range(count):
            for at in range(0, pixels, span):
                rest, p = divmod(at // span * lines, pn)
                n, o = divmod(rest, on)
                offset = n * load_word(g, YS) + o * load_word(g, YS + 2) + p * load_word(g, YS + 3)
                pack(
                    args.pack_y,
                    panels + args.sum_size * args.mr * (q * pixels + at),
                    source + args.in_size * (offset + q * args.mr * k_step),
                    span,
                    min(args.mr, rows - q * args.mr),
                    k_step,
                    load_word(g, YS + 4),
                    0,
                    1,
                )


@helper
def pack_x(args, panel, first_c, channels, n0, o0, p0, nn, on, pn):  # type: ignore[no-untyped-def]
    """x under the windows of a box: for each place of the padded input, NR channels side by side."""
    g = args.geometry
    place = args.nr * args.sum_size  # bytes
    x_h, x_w = load_word(g, X_SIZE + 1), load_word(g, X_SIZE + 2)
    step_h, step_w = load_word(g, XS + 3), load_word(g, XS + 4) * args.src_w
    c_step = load_word(g, XS + 1)
    d0 = o0 * load_word(g, STRIDE) - load_word(g, PAD)
    h0 = p0 * load_word(g, STRIDE + 1) - load_word(g, PAD + 1)
    pad = load_word(g, PAD + 2)
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
            if from_d < 0 or from_d >= load_word(g, X_SIZE) or bottom == top or end == begin:
                fill_zeros(at, place * args.box_w * height)
            else:
                start = (n0 + n) * load_word(g, XS) + first_c * c_step + from_d * load_word(g, XS + 2)
                start += (h0 + top * args.src_h) * step_h + begin * step_w - pad * load_word(g, XS + 4)
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
    g = args.geometry
    columns = load_word(g, Y_SIZE + 2)
    block = stack_words(80)
    store_word(block, P_INTS, g)
    store_word(block, P_INTS + 1, channels if args.unit == 1 else 1)
    store_word(block, P_INTS + 2, args.run)
    store_word(block, P_INTS + 3, args.unit)
    store_word(block, P_INTS + 4, args.width)
    store_word(block, P_INTS + 6, p0)
    store_word(block, P_INTS + 7, columns)
    for n in range(nn):
        for o in range(on):
            start = (n0 + n) * load_word(g, XS) + first_c * load_word(g, XS + 1)
            store_word(block, 0, target + args.sum_size * args.width * (n * on + o) * pn * columns)
            store_word(block, 1, address_of(args.second) + args.in_size * start)
            store_word(block, P_INTS + 5, (o0 + o) * load_word(g, STRIDE) - load_word(g, PAD))
            call_range(args.patches, block, 0, 0, pn)


@helper
def end_block(args, sums, k0, c0, channels, lo, hi):  # type: ignore[no-untyped-def]
    """Run the end kernel on filters k0 + lo ... and channels c0 ... of the result."""
    e = args.end
    block = stack_words(80)
    size = load_word(e, E_SIZE)
    store_word(block, 0, address_of(args.out) + size * (k0 * load_word(e, E_OUT_K) + c0 * load_word(e, E_OUT_C)))
    store_word(block, 1, sums)
    store_word(block, 2, address_of(args.c) + size * (k0 * load_word(e, E_C_K) + c0 * load_word(e, E_C_C)))
    store_word(block, E_FLOATS, float_bits(args.alpha))
    store_word(block, E_FLOATS + 1, float_bits(args.beta))
    store_word(block, E_INTS, e)
    store_word(block, E_INTS + 1, channels)
    call_range(load_word(e, E_KERNEL), block, 0, lo, hi)


@functools.cache
def make_end_drive() -> RangeKernel:
    """Filters lo ... hi - 1, once all slices are complete."""

    @range_kernel("conv_weight_end_drive", DRIVE.types(), spec=())
    def conv_weight_end_drive(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        channels = load_word(args.geometry, GROUP_C)
        if load_word(args.end, E_JOINED):
            channels = args.columns
        end_block(args, address_of(args.workspace), 0, 0, channels, lo, hi)

    return conv_weight_end_drive


@functools.cache
def make_drive() -> RangeKernel:
    """Tiles (slice, group, block of filters, block of channels): each packs its operands, a box at a time."""

    @range_kernel("conv_weight_drive", DRIVE.types(), spec=())
    def conv_weight_drive(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        g = args.geometry
        scratch = address_of(args.workspace) + args.shared_bytes + worker * args.worker_bytes
        panels_y = scratch + args.y_at
        table = scratch + args.table_at
        group_c, group_k = load_word(g, GROUP_C), load_word(g, GROUP_K)
        block = stack_words(80)
        store_word(block, 0, scratch + args.tiles_at if args.turn else panels_y)
        store_word(block, 3, table)
        store_word(block, 4, args.shifts)
        store_word(block, M_INTS + 3, args.taps)
        store_word(block, M_INTS + 5, args.k_step)
        store_word(block, M_INTS + 6, args.tap_step)
        store_word(block, M_INTS + 7, scratch + args.room_at)
        turned = stack_words(80)
        store_word(turned, 0, scratch + args.tiles_at)
        store_word(turned, 1, panels_y)
        for tile in range(lo, hi):
            rest, cb = divmod(tile, args.c_blocks)
            rest, kb = divmod(rest, args.k_blocks)
            part, group = divmod(rest, load_word(g, GROUPS))
            c0 = cb * args.c_block
            channels = min(args.c_block, group_c - c0)
            k0 = kb * args.k_block
            filters = min(args.k_block, group_k - k0)
            columns = args.columns if args.patches else channels
            first_k = group * group_k + k0
            if args.fused:
                sums = scratch + args.sums_at
            else:
                sums = address_of(args.out) if args.sums_in_out else address_of(args.workspace)
                sums += args.sum_size * (part * args.slice_step + first_k * args.k_step + c0)
            store_word(block, M_INTS, filters)
            for chunk in range(part * args.slice_chunks, min((part + 1) * args.slice_chunks, args.chunks)):
                rest, p0 = divmod(chunk, args.chunks_p)
                n0, o0 = divmod(rest, args.chunks_o)
                n0, o0, p0 = n0 * args.box_n, o0 * args.box_o, p0 * args.box_p
                nn = min(args.box_n, load_word(g, N) - n0)
                on = min(args.box_o, load_word(g, Y_SIZE) - o0)
                pn = min(args.box_p, load_word(g, Y_SIZE + 1) - p0)
                fill_table(args, table, nn, on, pn)
                pack_y(args, panels_y, first_k, filters, n0, o0, p0, nn, on, pn)
                if args.turn:
                    store_word(turned, TURN_INTS, nn * on * pn * load_word(g, Y_SIZE + 2))
                    call_range(args.turn, turned, 0, 0, (filters + args.mr - 1) // args.mr)
                first_c = group * group_c + c0
                if args.patches:
                    gather_patches(args, scratch, first_c, channels, n0, o0, p0, nn, on, pn)
                store_word(block, M_INTS + 2, nn * on * pn * load_word(g, Y_SIZE + 2))
                store_word(block, M_INTS + 4, 1 if chunk == part * args.slice_chunks else 0)
                for c in range(0, columns, args.nr):
                    panel = scratch
                    if args.patches:
                        panel += args.sum_size * c
                    width = min(args.nr, columns - c)
                    if not args.patches:
                        pack_x(args, panel, first_c + c, width, n0, o0, p0, nn, on, pn)
                    store_word(block, 1, panel)
                    store_word(block, 2, sums if args.fused else sums + args.sum_size * c)
                    store_word(block, M_INTS + 1, width)
                    call_range(args.multiply, block, 0, 0, (filters + args.mr - 1) // args.mr)
                    if args.fused:
                        end_block(args, sums, first_k, c0 + c, width, 0, filters)

    return conv_weight_drive
