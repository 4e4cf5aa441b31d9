"""Direct convolution of planes: MR filters x NV vectors of pixels in registers, summed over all taps (c, r, s).

A band of input rows is copied once, padded with zeros, its columns sorted by their remainder modulo the stride.  Then
the pixels of the result lie on a grid of rows of `pitch`, and tap (c, r, s) multiplies a contiguous piece of the copy
that begins at a fixed offset: no patch is gathered.  The columns of the grid behind a row of the result are dropped.
Bound: 2 K pixels C R S operations, (pitch / columns) times.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.depthwise.rows import end_plane
from numbaprims.cpu.gemm.blocked import pack
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    load_wide_scalar,
    load_word,
    pointer_from_address,
    scalar,
    splat,
    store,
    store_rows,
    store_scalar,
    stream_fence,
    zeros,
)
from numbaprims.cpu.simd.arguments import Arguments
from numbaprims.cpu.simd.tiles.taps import PLACE, grid_end, load_phases, load_phases_inside, stream_end, tile_taps

# A tile is an image, a group, a block of `block` filters, and a band of `band` rows of the result.  in_*: of what
# windows walk over; row, column: where the first window begins.  copy_c, copy_phase: elements from channel to channel
# and from remainder to remainder in the copy; copy_rows: input rows of a band.  taps: address of the offset of each in
# the copy; w_taps: of each in the weights, 0 where they are w_step apart.  depth: channels of a group's input.
# places: address of a head of PLACE words (vectors of a band, how many of them are in tiles, words to the table of the
# last band), then of each vector of its pixels: place in the grid, row, column, and lanes in that row.
# panel_bytes: weights of all filters of a group, W elements behind each panel.
ARGS = Arguments(
    arrays=("out", "first", "second", "c", "bias", "packed", "extra"),
    floats=("alpha", "beta", "p0", "p1", "p2"),
    ints=(
        "groups", "depth", "filters", "blocks", "block", "bands", "band",
        "in_h", "in_w", "out_h", "out_w", "stride_h", "stride_w", "row", "column",
        "in_n", "in_c", "in_row", "in_column", "out_n", "out_k", "out_row", "out_column",
        "c_n", "c_k", "c_row", "c_column", "w_group", "w_k", "w_step", "w_taps",
        "pitch", "copy_c", "copy_phase", "copy_rows", "taps", "places", "count",
        "has_bias", "bias_step", "activation", "pack", "panel_bytes",
    ),
    shared=("weights",),
    own=("copy", "shifts", "waiting"),
)  # fmt: skip


@functools.cache
def make_pack_filters(dtype: str, acc: str, MR: int, W: int) -> RangeKernel:
    """Kernel over (group, panel): [panel][tap][filter]."""
    types = ARGS.types(second=dtype)

    @range_kernel("conv_direct_pack", types, spec=(dtype, acc, MR, W))
    def direct_pack(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        target = address_of(args.packed)
        if target == 0:
            target = address_of(args.weights)
        panels = (args.filters + MR - 1) // MR
        for tile in range(lo, hi):
            group, panel = divmod(tile, panels)
            # a panel of its own each: packed in vectors, it is written past its end
            begin = advance(pointer_from_address(target + group * args.panel_bytes, acc), panel * (MR * args.count + W))
            first = panel * MR
            w = advance(args.second, group * args.w_group + first * args.w_k)
            if args.w_taps == 0:
                pack(
                    args.pack, address_of(begin), address_of(w), args.count, args.filters - first,
                    args.w_k, args.w_step, 0, 1,
                )  # fmt: skip
            else:
                for t in range(args.count):
                    at = load_word(args.w_taps, t)
                    for i in range(MR):
                        k = min(i, args.filters - first - 1)
                        store_scalar(begin, t * MR + i, load_wide_scalar(w, k * args.w_k + at))

    return direct_pack


@helper
def rows_of(args, band):  # type: ignore[no-untyped-def]
    """Rows of a band: the last one takes what is left."""
    if band == args.bands - 1:
        return args.out_h - band * args.band
    return args.band


@helper
def copied_rows(args, rows):  # type: ignore[no-untyped-def]
    """Input rows of `rows` rows of the result."""
    return args.copy_rows + (rows - args.band) * args.stride_h


@helper
def copy_band(args, copy, x, first, rows, W, SW, acc):  # type: ignore[no-untyped-def]
    """Input rows from `first` on for `rows` rows of the result, of all channels.

    Row i goes to c, then i % stride, column % stride, i / stride.  A row's last vector may reach into the next one,
    which is written later.  Masks where all is inside of the input cost half as much again.
    """
    columns = args.pitch
    begin = min((max(-args.column, 0) + SW * W - 1) // (SW * W) * W, columns)
    end = max((args.in_w - args.column) // (SW * W) * W, begin)
    middle = min(end, columns)
    count = copied_rows(args, rows)
    for c in range(args.depth):
        for remainder in range(args.stride_h):
            target = advance(copy, c * args.copy_c + remainder * (SW * args.copy_phase))
            for i in range(remainder, count, args.stride_h):
                h = first + i
                if h >= 0 and h < args.in_h:
                    source = advance(x, c * args.in_c + h * args.in_row + args.column)
                    for j in range(0, begin, W):
                        values = load_phases(advance(source, -args.column), j * SW + args.column, args.in_w, SW, W)
                        store_rows(advance(target, j), args.copy_phase, values)
                    for j in range(begin, middle, W):
                        store_rows(advance(target, j), args.copy_phase, load_phases_inside(source, j * SW, SW, W))
                    for j in range(end, columns, W):
                        values = load_phases(advance(source, -args.column), j * SW + args.column, args.in_w, SW, W)
                        store_rows(advance(target, j), args.copy_phase, values)
                else:
                    for j in range(0, columns, W):
                        for phase in range(SW):
                            store(target, phase * args.copy_phase + j, zeros(acc, W))
                target = advance(target, args.pitch)


@helper
def one_tile(  # type: ignore[no-untyped-def]
    args, copy, places, weights, total, k_step, step, filters, rows, alpha, shifts, c, beta, MR, NV, W, C, CROSS
):
    """MR filters x NV vectors of pixels."""
    sums = tile_taps(copy, places, args.taps, weights, args.count, args.pitch - args.out_w, MR, NV, W, CROSS)
    pitch = args.pitch
    if CROSS:
        pitch = args.out_w
    grid_end(
        total, k_step, step, filters, places, pitch, rows, args.out_w, sums, alpha, shifts,
        c, args.c_k, args.c_row, beta, C, NV,
    )  # fmt: skip


@helper
def streamed_tile(  # type: ignore[no-untyped-def]
    args, copy, places, weights, total, k_step, step, filters, alpha, shifts, MR, NV, W
):
    """The same past the caches."""
    sums = tile_taps(copy, places, args.taps, weights, args.count, 0, MR, NV, W, 0)
    stream_end(total, k_step, step, filters, places, sums, alpha, shifts, NV)


@functools.cache
def make_planes(
    dtype: str, acc: str, MR: int, NV: int, W: int, SW: int, C: int, SPLIT: int, CROSS: int, STREAM: int
) -> RangeKernel:
    """Kernel over (image, group, block of filters, band of rows).

    SW: the horizontal stride.  C: whether beta c is added.  SPLIT: sums wait in the workspace for the activation,
    because the result's type is narrower than theirs.  CROSS: whether the last vector of a tile may go on in the next
    row.  STREAM: whether a result that begins a cache line is written past the caches, but for vectors behind tiles.
    """
    types = ARGS.types(out=dtype, first=dtype, c=dtype, bias=dtype, copy=acc, shifts=acc, waiting=acc)

    @range_kernel("conv_direct_planes", types, spec=(dtype, acc, MR, NV, W, SW, C, SPLIT, CROSS, STREAM))
    def direct_planes(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        alpha = splat(scalar(args.alpha, acc), W)
        beta = splat(scalar(args.beta, acc), W)
        copy, shifts = args.copy[worker], args.shifts[worker]
        panels = address_of(args.packed)
        if panels == 0:
            panels = address_of(args.weights)
        out_w = args.out_w
        aligned = address_of(args.out) % 64 == 0
        for tile in range(lo, hi):
            if hi - lo == 1:  # a thread of several: blocks, not bands, are what it shares least
                rest, band = divmod(tile, args.bands)
                rest, block = divmod(rest, args.blocks)
            else:
                rest, block = divmod(tile, args.blocks)
                rest, band = divmod(rest, args.bands)
            n, group = divmod(rest, args.groups)
            p = band * args.band
            rows = rows_of(args, band)
            if hi - lo == 1 or tile == lo or block == 0:
                x = advance(args.first, n * args.in_n + group * args.depth * args.in_c)
                copy_band(args, copy, x, p * args.stride_h + args.row, rows, W, SW, acc)
            weights = pointer_from_address(panels + group * args.panel_bytes, acc)
            begin = block * args.block
            end = min(begin + args.block, args.filters)
            channel = group * args.filters + begin
            for i in range(0, args.block, MR):
                for j in range(MR):
                    store_scalar(shifts, i + j, scalar(0, acc))
                    if args.has_bias and begin + i + j < end:
                        at = (channel + i + j) * args.bias_step
                        store_scalar(shifts, i + j, load_wide_scalar(args.bias, at))
            out = advance(args.out, n * args.out_n + channel * args.out_k + p * args.out_row)
            c = advance(args.c, n * args.c_n + channel * args.c_k + p * args.c_row)
            if SPLIT:
                total = args.waiting[worker]
                step = out_w
                k_step = rows * out_w
            else:
                total = out
                step = args.out_row
                k_step = args.out_k
            where = args.places
            if band == args.bands - 1:
                where += 8 * load_word(where, 2)
            vectors = load_word(where, 0)
            whole = load_word(where, 1)
            where += 8 * PLACE
            for k in range(begin, end, MR):
                filters = min(MR, end - k)
                w = advance(weights, k // MR * (MR * args.count + W))
                to = advance(total, (k - begin) * k_step)
                shift = advance(shifts, k - begin)
                more = advance(c, (k - begin) * args.c_k)
                begun = 0
                if STREAM and aligned:
                    for v in range(0, whole, NV):
                        at = where + 8 * PLACE * v
                        streamed_tile(args, copy, at, w, to, k_step, step, filters, alpha, shift, MR, NV, W)
                    begun = whole
                for v in range(begun, whole, NV):
                    one_tile(
                        args, copy, where + 8 * PLACE * v, w, to, k_step, step, filters, rows, alpha, shift, more, beta,
                        MR, NV, W, C, CROSS,
                    )  # fmt: skip
                for v in range(whole, vectors):
                    one_tile(
                        args, copy, where + 8 * PLACE * v, w, to, k_step, step, filters, rows, alpha, shift, more, beta,
                        MR, 1, W, C, CROSS,
                    )  # fmt: skip
                for i in range(filters):
                    end_plane(
                        args, advance(to, i * k_step), step, advance(out, (k - begin + i) * args.out_k), args.out_row,
                        rows, out_w, SPLIT, W,
                    )  # fmt: skip

            if STREAM and aligned:
                stream_fence()

    return direct_planes
