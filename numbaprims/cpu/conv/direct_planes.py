"""Direct convolution of planes: MR filters x NV vectors of pixels in registers, summed over all taps (c, r, s).

A band of input rows is copied once, padded with zeros, its columns sorted by their remainder modulo the stride.  Then
the pixels of the result lie on a grid of rows of `pitch`, and tap (c, r, s) multiplies a contiguous piece of the copy
that begins at a fixed offset: no patch is gathered.  The columns of the grid behind a row of the result are dropped.
Bound: 2 K pixels C R S operations, (pitch / columns) times.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.depthwise_rows import end_plane
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
    stack_array,
    store,
    store_rows,
    store_scalar,
    zeros,
)
from numbaprims.cpu.simd.arguments import Arguments
from numbaprims.cpu.simd.taps import PLACE, grid_end, load_phases, tile_taps

# A tile is an image, a group, a block of `block` filters, and a band of `band` rows of the result.  in_*: of what
# windows walk over; row, column: where the first window begins.  copy_c, copy_phase: elements from channel to channel
# and from remainder to remainder in the copy; copy_rows: input rows of a band.  taps: address of the offset of each in
# the copy; w_taps: of each in the weights, 0 where they are w_step apart.  depth: channels of a group's input.
# places: address of the place, row and column of each vector of a band's pixels; across: vectors of a row, 0 where
# they go on from row to row.  panel_bytes: weights of all filters of a group, W elements behind each panel.
ARGS = Arguments(
    arrays=("out", "first", "second", "c", "bias", "packed", "extra", "workspace"),
    floats=("alpha", "beta", "p0", "p1", "p2"),
    ints=(
        "groups", "depth", "filters", "blocks", "block", "bands", "band",
        "in_h", "in_w", "out_h", "out_w", "stride_h", "stride_w", "row", "column",
        "in_n", "in_c", "in_row", "in_column", "out_n", "out_k", "out_row", "out_column",
        "c_n", "c_k", "c_row", "c_column", "w_group", "w_k", "w_step", "w_taps",
        "pitch", "copy_c", "copy_phase", "copy_rows", "copy_columns", "taps", "places", "across", "count",
        "has_bias", "bias_step", "activation", "pack", "panel_bytes",
        "shared_bytes", "worker_bytes", "copy_bytes",
    ),
)  # fmt: skip


@functools.cache
def make_pack_filters(dtype: str, acc: str, MR: int, W: int) -> RangeKernel:
    """Kernel over (group, panel): [panel][tap][filter]."""
    types = ARGS.types(second=dtype)

    @range_kernel("conv_direct_pack", types, spec=(dtype, acc, MR, W))
    def direct_pack(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        target = address_of(args.packed)
        if target == 0:
            target = address_of(args.workspace)
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
def copy_band(args, copy, x, first, W, SW, acc):  # type: ignore[no-untyped-def]
    """Input rows from `first` on, of all channels: row i goes to c, then i % stride, column % stride, i / stride.

    A row's last vector may reach into the next one, which is written later.
    """
    for c in range(args.depth):
        for i in range(args.copy_rows):
            h = first + i
            index, remainder = divmod(i, args.stride_h)
            target = advance(copy, c * args.copy_c + remainder * (SW * args.copy_phase) + index * args.pitch)
            if h >= 0 and h < args.in_h:
                source = advance(x, c * args.in_c + h * args.in_row)
                for j in range(0, args.copy_columns, W):
                    values = load_phases(source, j * SW + args.column, args.in_w, SW, W)
                    store_rows(advance(target, j), args.copy_phase, values)
            else:
                for j in range(0, args.copy_columns, W):
                    for phase in range(SW):
                        store(target, phase * args.copy_phase + j, zeros(acc, W))


@functools.cache
def make_planes(dtype: str, acc: str, MR: int, NV: int, W: int, SW: int, C: int, SPLIT: int) -> RangeKernel:
    """Kernel over (image, group, block of filters, band of rows).

    SW: the horizontal stride.  C: whether beta c is added.  SPLIT: sums wait in the workspace for the activation,
    because the result's type is narrower than theirs.
    """
    types = ARGS.types(out=dtype, first=dtype, c=dtype, bias=dtype)

    @range_kernel("conv_direct_planes", types, spec=(dtype, acc, MR, NV, W, SW, C, SPLIT))
    def direct_planes(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        alpha = splat(scalar(args.alpha, acc), W)
        beta = splat(scalar(args.beta, acc), W)
        shifts = stack_array(acc, MR)
        own = address_of(args.workspace) + args.shared_bytes + worker * args.worker_bytes
        copy = pointer_from_address(own, acc)
        panels = address_of(args.packed)
        if panels == 0:
            panels = address_of(args.workspace)
        out_w, count = args.out_w, args.count
        for tile in range(lo, hi):
            rest, band = divmod(tile, args.bands)
            rest, block = divmod(rest, args.blocks)
            n, group = divmod(rest, args.groups)
            p = band * args.band
            rows = min(args.band, args.out_h - p)
            x = advance(args.first, n * args.in_n + group * args.depth * args.in_c)
            copy_band(args, copy, x, p * args.stride_h + args.row, W, SW, acc)
            weights = pointer_from_address(panels + group * args.panel_bytes, acc)
            if args.across:
                vectors = rows * args.across
            else:
                vectors = ((rows - 1) * args.pitch + out_w + W - 1) // W
            for k in range(block * args.block, min((block + 1) * args.block, args.filters), MR):
                filters = min(MR, args.filters - k)
                channel = group * args.filters + k
                for i in range(MR):
                    store_scalar(shifts, i, scalar(0, acc))
                    if args.has_bias and i < filters:
                        store_scalar(shifts, i, load_wide_scalar(args.bias, (channel + i) * args.bias_step))
                out = advance(args.out, n * args.out_n + channel * args.out_k + p * args.out_row)
                c = advance(args.c, n * args.c_n + channel * args.c_k + p * args.c_row)
                if SPLIT:
                    total = pointer_from_address(own + args.copy_bytes, acc)
                    step = out_w
                    k_step = rows * out_w
                else:
                    total = out
                    step = args.out_row
                    k_step = args.out_k
                for v in range(0, vectors, NV):
                    places = args.places + 8 * PLACE * v
                    sums = tile_taps(
                        copy, places, args.taps, advance(weights, k // MR * (MR * count + W)), count, MR, NV, W
                    )
                    grid_end(
                        total, k_step, step, filters, places, args.pitch, rows, out_w, sums, alpha, shifts,
                        c, args.c_k, args.c_row, beta, C, NV,
                    )  # fmt: skip
                for i in range(filters):
                    end_plane(
                        args, advance(total, i * k_step), step, advance(out, i * args.out_k), args.out_row, rows, out_w,
                        SPLIT, W,
                    )  # fmt: skip

    return direct_planes
