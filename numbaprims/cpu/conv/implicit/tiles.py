"""Tiles of implicit_gemm: the table that describes them, and what its two drivers share."""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.arguments import ARGS as CONV
from numbaprims.cpu.conv.implicit.gather import STAGE
from numbaprims.cpu.conv.implicit.weights import WEIGHTS
from numbaprims.cpu.gemm.arguments import FINISH
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    Arguments,
    Record,
    address_of,
    block_of,
    call_range,
    copy_fields,
    record,
    record_at,
    stack_record,
)

# table: address of the words of all passes.  *_size: bytes of an element; width: columns or rows of a panel of
# weights, nr: of a panel of patches; mc: rows (or columns) of weights in a tile, a multiple of width.  private: 1
# where each tile packs the weights that it meets for itself.  ended: what the last product of a tile cuts its sums to,
# beside the bias that it adds: 1 nothing, 2 what is below 0, 3 what is above p0 too; 0 where it ends nothing.
# columns: address of im2col's COLUMNS; x_moved, y_moved: 1 where the input or the result of the product is the column
# matrix.
# Shared: all weights' panels, the number of workers, the column matrix.  A worker's own: a panel of patches (or the
# places of pixels), the copy and of which pixels it is, sums, transposed sums, weights, a row of im2col's gradient.
IMPLICIT = Arguments(
    arrays=CONV.arrays,
    floats=CONV.floats,
    ints=(
        "table", "passes", "activation", "has_c", "has_bias", "bias_step",
        "stage", "gather", "multiply", "transpose", "finish", "pack",
        "in_size", "w_size", "out_size", "acc_size", "width", "nr", "mc", "m_blocks", "private",
        "ended", "columns", "x_moved", "y_moved",
    ),
    shared=("weights", "workers", "matrix"),
    own=("panel", "staged", "held", "sums", "transposed", "some_weights", "row"),
)  # fmt: skip
BYTES = IMPLICIT.types(workers="i64")
# Of which pixels a worker's copy is: the pass and the number among its blocks.
HELD = Record("table", "copy")

# Words of a pass.  tiles, pack_tiles: how many there are; panels: where its packed weights begin, in elements, and
# group_panels how many one group takes; taps_first: whether panels hold all channels of a tap one after another;
# block_*: sizes of a tile, blocks_*: how many there are; merge: how many levels of (q, p, o) of a tile's results lie
# without gaps (3: each image's are one run, 4: the whole tile); direct: 1 where patches are read in the input itself;
# unit_*: from window to window in a copy with channels last (or in the input), run_taps: taps whose channels follow
# one another there; planes ... columns, slots_*: sizes of the copy; low_*: the input's index where it begins; pitch:
# elements from pixel to pixel of a copy with channels last; by_rows: 1 where workers
# take blocks of rows (or columns) of weights, with all pixels, rather than blocks of pixels.
PASS = Record(
    "tiles", "pack_tiles", "panels", "group_panels", "padded_rows", "taps_first",
    "n", "groups", "rows", "depth", "window", "channels",
    "grid_o", "grid_p", "grid_q", "block_n", "block_o", "block_p", "block_q", "blocks_n", "blocks_o", "blocks_p",
    "blocks_q", "merge", "sums_in_out", "sums_step",
    "taps", "w_taps", "plain", "channel_step", "direct", "run_taps", "unit_n", "unit_o", "unit_p", "unit_q",
    "planes", "rows_staged", "columns", "slots_z", "slots_r", "slots_s",
    "low_d", "low_h", "low_w", "stride_d", "stride_h", "stride_w", "step_d", "step_h", "step_w",
    "apart_d", "apart_h", "apart_w", "size_d", "size_h", "size_w",
    "x_n", "x_c", "x_d", "x_h", "x_w", "w_row", "w_c", "w_base", "w_group",
    "y_n", "y_k", "y_o", "y_p", "y_q", "y_base", "c_n", "c_k", "c_o", "c_p", "c_q", "c_base",
    "pitch", "by_rows",
)  # fmt: skip


@helper
def pack_panel(args, t, panels, source, rows, depth, q):  # type: ignore[no-untyped-def]
    """One panel of weights: `rows` rows and `depth` channels from element `source` on, in blocks of channels."""
    block = stack_record(WEIGHTS)
    block.panels = panels
    block.source = address_of(args.second) + args.w_size * source
    block.rows = rows
    block.depth = depth
    block.block = t.channels
    block.taps = t.w_taps
    block.row_step = t.w_row
    block.c_step = t.w_c
    block.q = q
    block.panel_step = t.padded_rows
    copy_fields(block, t, "window plain taps_first")
    block.width = args.width
    call_range(args.pack, block, 0, 0, 1)


@functools.cache
def make_pack_driver() -> RangeKernel:
    """Weights into panels: a tile is one panel of one group of one pass."""

    @range_kernel("conv_implicit_pack", BYTES, spec=())
    def implicit_pack(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        target = address_of(args.packed)
        if target == 0:
            target = address_of(args.weights)
        for number in range(lo, hi):
            t = record(PASS, args.table)
            tile = number
            while tile >= t.pack_tiles:
                tile -= t.pack_tiles
                t = record_at(PASS, block_of(t), 1)
            group, q = divmod(tile, t.padded_rows // args.width)
            at = t.panels + group * t.group_panels
            source = t.w_base + group * t.w_group
            pack_panel(args, t, target + args.acc_size * at, source, t.rows, t.depth, q)

    return implicit_pack


@helper
def panel_start(t, group, m0, c0, channels):  # type: ignore[no-untyped-def]
    """Where the panels of rows from m0 on and `channels` channels from c0 on begin, in elements of packed weights."""
    at = t.panels + group * t.group_panels
    return at + t.window * (c0 * t.padded_rows + m0 * channels)


@helper
def panels_of(args, t, worker, group, m0, rows, c0, channels):  # type: ignore[no-untyped-def]
    """The address of the panels of some rows and channels of weights, which are packed now if that is each tile's own
    business."""
    window = t.window
    panels = address_of(args.packed)
    if args.private:
        panels = address_of(args.some_weights[worker])
        source = t.w_base + group * t.w_group
        source += m0 * t.w_row + c0 * t.w_c
        if window > 0:
            for q in range((rows + args.width - 1) // args.width):
                pack_panel(args, t, panels, source, rows, channels, q)
    else:
        if panels == 0:
            panels = address_of(args.weights)
        panels += args.acc_size * panel_start(t, group, m0, c0, channels)
    return panels


@helper
def open_pass(args, number):  # type: ignore[no-untyped-def]
    """Tile of all passes -> its pass's words, and its number there."""
    t = record(PASS, args.table)
    tile = number
    while tile >= t.tiles:
        tile -= t.tiles
        t = record_at(PASS, block_of(t), 1)
    return t, tile


@helper
def open_tile(t, number):  # type: ignore[no-untyped-def]
    """Block of pixels and group of a pass -> the group, first image, plane, row and column, and how many there are."""
    tile, group = divmod(number, t.groups)
    tile, qb = divmod(tile, t.blocks_q)
    tile, pb = divmod(tile, t.blocks_p)
    nb, ob = divmod(tile, t.blocks_o)
    n0 = nb * t.block_n
    o0 = ob * t.block_o
    p0 = pb * t.block_p
    q0 = qb * t.block_q
    images = min(t.block_n, t.n - n0)
    planes = min(t.block_o, t.grid_o - o0)
    lines = min(t.block_p, t.grid_p - p0)
    columns = min(t.block_q, t.grid_q - q0)
    return group, n0, o0, p0, q0, images, planes, lines, columns


@helper
def y_start(t, n, channel, o, p, q):  # type: ignore[no-untyped-def]
    """The element of the result at an index."""
    return t.y_base + n * t.y_n + channel * t.y_k + o * t.y_o + p * t.y_p + q * t.y_q


@helper
def c_start(t, n, channel, o, p, q):  # type: ignore[no-untyped-def]
    """The same of c."""
    return t.c_base + n * t.c_n + channel * t.c_k + o * t.c_o + p * t.c_p + q * t.c_q


@helper
def stage_block(args, t, target, images, n0, o0, p0, q0, channel, channels):  # type: ignore[no-untyped-def]
    """The padded copy of what a tile meets of some channels."""
    block = stack_record(STAGE)
    source = n0 * t.x_n + channel * t.x_c
    block.staged = target
    block.source = address_of(args.first) + args.in_size * source
    block.channels = channels
    block.images = t.block_n
    block.images_there = images
    block.rows = t.rows_staged
    copy_fields(block, t, "planes columns slots_z slots_r slots_s step_d step_h step_w apart_d apart_h apart_w")
    copy_fields(block, t, "size_d size_h size_w pitch")
    block.first_d = t.low_d + o0 * t.stride_d
    block.first_h = t.low_h + p0 * t.stride_h
    block.first_w = t.low_w + q0 * t.stride_w
    block.n_step = t.x_n
    block.c_step = t.x_c
    block.d_step = t.x_d
    block.h_step = t.x_h
    block.w_step = t.x_w
    call_range(args.stage, block, 0, 0, 1)


@helper
def input_start(args, t, n0, channel, o0, p0, q0):  # type: ignore[no-untyped-def]
    """The address of the first element that a tile's first window meets, in the input (or the column matrix) itself."""
    at = n0 * t.x_n + channel * t.x_c
    at += (t.low_d + o0 * t.stride_d) * t.x_d
    at += (t.low_h + p0 * t.stride_h) * t.x_h
    at += (t.low_w + q0 * t.stride_w) * t.x_w
    if args.x_moved:
        return address_of(args.matrix) + args.in_size * at
    return address_of(args.first) + args.in_size * at


@helper
def finish_constants(args, block, bias_axis):  # type: ignore[no-untyped-def]
    """What all calls of the finish kernel share."""
    copy_fields(block, args, "bias alpha beta p0 p1 p2 has_c bias_step activation")
    block.bias_axis = bias_axis


@helper
def finish_tile(args, t, channels_are_rows, out, total, step, c, channel, channels, images, planes, lines, columns):  # type: ignore[no-untyped-def]
    """The end of a tile's sums, in runs of pixels that lie a constant step apart.

    Rows of the sums are channels of the result and columns its pixels, or the other way round.
    """
    block = stack_record(FINISH)
    finish_constants(args, block, (2 if channels_are_rows else 1) if args.has_bias else 0)
    block.total_step = step
    along = t.y_q
    c_along = t.c_q
    block.out_rs = t.y_k if channels_are_rows else along
    block.out_cs = along if channels_are_rows else t.y_k
    block.c_rs = t.c_k if channels_are_rows else c_along
    block.c_cs = c_along if channels_are_rows else t.c_k
    block.i = channel if channels_are_rows else 0
    block.j = 0 if channels_are_rows else channel
    block.in_place = t.sums_in_out
    merge = t.merge
    run = columns
    if merge >= 2:
        run *= lines
    if merge >= 3:
        run *= planes
    if merge >= 4:
        run *= images
    for first in range(0, images * planes * lines * columns, run):
        rest, p = divmod(first // columns, lines)
        n, o = divmod(rest, planes)
        at = n * t.y_n + o * t.y_o + p * t.y_p
        c_at = n * t.c_n + o * t.c_o + p * t.c_p
        block.out = out + args.out_size * at
        block.total = total + args.acc_size * first * (1 if channels_are_rows else step)
        block.c = c + args.out_size * c_at
        block.columns = run if channels_are_rows else channels
        call_range(args.finish, block, 0, 0, channels if channels_are_rows else run)
