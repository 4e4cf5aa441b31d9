"""Direct weight gradients of few channels: filters x taps in registers, lanes run along the pixels.

dw[k, c, r, s] = sum over pixels of dy[k, pixel] x[c, pixel moved by (r, s)].  A band of input rows is copied as for
direct convolutions of planes, so that tap t reads a contiguous piece of the copy at a fixed offset.  A panel of MR
filters of dy stays in the first-level cache while all taps come by, read where it is if rows are whole vectors, else
from a copy.  No patch is gathered, nothing is transposed; lanes are added up once for each tile of a band.
Bound: 2 K pixels C R S operations.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.direct.planes import copy_band, rows_of
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    advance,
    load,
    load_scalar,
    load_wide,
    load_wide_first,
    load_wide_scalar,
    load_word,
    multiply_add,
    scalar,
    splat,
    store,
    store_narrow_first,
    store_narrow_scalar,
    zeros,
)
from numbaprims.cpu.simd.arguments import Arguments
from numbaprims.cpu.simd.tiles.taps_gradient import PIXELS, load_wide_bits, tile_inner_taps, tile_sums

# A tile is a group and a slice: `slice_bands` bands of rows of images, n by n; it has sums of its own.  first is dy,
# second x.  pixels: address of a head of PIXELS words (vectors of a band, how many of them lie in one row, words to the
# table of the last band), then of each vector the words of `tile_inner_taps`.  taps: address of the offset of each tap
# in the copy, whole tiles of them; tap_tiles: how many.  sums_step: elements of the sums of a group: [panel][tile of
# taps][filter][tap], the last two in whole vectors.  dense: whether panels of dy are read where they are.
# places: address of int64 [2][count], where a tap lies in out and in c; side_by_side: whether they are neighbours.
ARGS = Arguments(
    arrays=("out", "first", "second", "c", "bias", "packed", "extra"),
    floats=("alpha", "beta", "p0", "p1", "p2"),
    ints=(
        "groups", "depth", "filters", "slices", "slice_bands", "all_bands", "bands", "band",
        "in_h", "in_w", "out_h", "out_w", "stride_h", "row", "column",
        "in_n", "in_c", "in_row", "out_n", "out_k", "out_row",
        "pitch", "copy_c", "copy_phase", "copy_rows", "taps", "tap_tiles", "count", "pixels", "sums_step",
        "dense", "w_k", "c_k", "has_c", "places", "side_by_side",
    ),
    shared=("sums",),
    own=("copy", "panel"),
)  # fmt: skip


@helper
def copy_filters(args, panel, y, filters, where, whole, vectors, MR, W, acc):  # type: ignore[no-untyped-def]
    """Vector v of filter i of dy goes to (v * MR + i) * W; what is not there is 0."""
    for i in range(MR):
        if i < filters:
            source = advance(y, i * args.out_k)
            for v in range(vectors):
                at = where + 8 * PIXELS * v
                row = advance(source, load_word(at, 1) * args.out_row)
                column = load_word(at, 2)
                if v < whole:
                    store(panel, (v * MR + i) * W, load_wide(row, column, W))
                else:
                    here = load_wide_bits(row, column, load_word(at, 3), W)
                    behind = load_wide_bits(advance(row, args.out_row), column - args.out_w, load_word(at, 4), W)
                    store(panel, (v * MR + i) * W, here + behind)
        else:
            for v in range(vectors):
                store(panel, (v * MR + i) * W, zeros(acc, W))


@functools.cache
def make_gradient(dtype: str, acc: str, MR: int, NT: int, W: int, SW: int) -> RangeKernel:
    """Kernel over (slice, group): MR filters by NT taps in registers.  SW: the horizontal stride."""
    types = ARGS.types(first=dtype, second=dtype, sums=acc, copy=acc, panel=acc)
    ROOM = -(-MR * NT // W) * W
    SAME = int(dtype == acc)

    @range_kernel("conv_direct_gradient", types, spec=(dtype, acc, MR, NT, W, SW))
    def direct_gradient(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        copy, panel = args.copy[worker], args.panel[worker]
        gap = args.pitch - args.out_w
        for tile in range(lo, hi):
            part, group = divmod(tile, args.groups)
            sums = advance(args.sums, tile * args.sums_step)
            for i in range(0, args.sums_step, W):
                store(sums, i, zeros(acc, W))
            for unit in range(part * args.slice_bands, min((part + 1) * args.slice_bands, args.all_bands)):
                n, band = divmod(unit, args.bands)
                p = band * args.band
                x = advance(args.second, n * args.in_n + group * args.depth * args.in_c)
                copy_band(args, copy, x, p * args.stride_h + args.row, rows_of(args, band), W, SW, acc)
                y = advance(args.first, n * args.out_n + group * args.filters * args.out_k + p * args.out_row)
                where = args.pixels
                if band == args.bands - 1:
                    where += 8 * load_word(where, 2)
                vectors, whole = load_word(where, 0), load_word(where, 1)
                where += 8 * PIXELS
                to = sums
                for k in range(0, args.filters, MR):
                    dy, y_step, v_step = panel, W, MR * W
                    if SAME and args.dense and args.filters - k >= MR:
                        dy, y_step, v_step = advance(y, k * args.out_k), args.out_k, W
                    else:
                        copy_filters(
                            args, panel, advance(y, k * args.out_k), args.filters - k, where, whole, vectors, MR, W, acc
                        )
                    for t in range(args.tap_tiles):
                        products = tile_inner_taps(
                            dy, y_step, v_step, copy, where, whole, vectors, args.taps + 8 * NT * t, gap, MR, NT, W
                        )
                        added = tile_sums(products)
                        for i in range(len(added)):
                            store(to, i * W, load(to, i * W, W) + added[i])
                        to = advance(to, ROOM)

    return direct_gradient


@functools.cache
def make_gradient_end(acc: str, out: str, MR: int, NT: int, W: int) -> RangeKernel:
    """Kernel over (group, filter): out = alpha * sum of the slices, in order, + beta * c."""
    types = ARGS.types(out=out, c=out, sums=acc)
    ROOM = -(-MR * NT // W) * W

    @range_kernel("conv_direct_gradient_end", types, spec=(acc, out, MR, NT, W))
    def direct_gradient_end(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        alpha = splat(scalar(args.alpha, acc), W)
        beta = splat(scalar(args.beta, acc), W)
        for k in range(lo, hi):
            group, filter = divmod(k, args.filters)
            panel, i = divmod(filter, MR)
            out = advance(args.out, k * args.w_k)
            c = advance(args.c, k * args.c_k)
            step = args.groups * args.sums_step
            for t in range(args.tap_tiles):
                at = group * args.sums_step + (panel * args.tap_tiles + t) * ROOM + i * NT
                left = min(NT, args.count - t * NT)
                if args.side_by_side:
                    for j in range(0, left, W):
                        total = load(args.sums, at + j, W)
                        for part in range(1, args.slices):
                            total = total + load(args.sums, part * step + at + j, W)
                        total = total * alpha
                        if args.has_c:
                            more = load_wide_first(c, t * NT + j, left - j, W)
                            total = multiply_add(more, beta, total)
                        store_narrow_first(out, t * NT + j, left - j, total)
                else:
                    for j in range(left):
                        total = load_scalar(args.sums, at + j)
                        for part in range(1, args.slices):
                            total = scalar(total + load_scalar(args.sums, part * step + at + j), acc)
                        total = scalar(total * scalar(args.alpha, acc), acc)
                        if args.has_c:
                            more = load_wide_scalar(c, load_word(args.places, args.count + t * NT + j))
                            total = scalar(total + more * scalar(args.beta, acc), acc)
                        store_narrow_scalar(out, load_word(args.places, t * NT + j), total)

    return direct_gradient_end
