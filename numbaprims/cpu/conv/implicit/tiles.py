"""Tiles of implicit_gemm: the table that describes them, and what its two drivers share."""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.arguments import ARGS as CONV
from numbaprims.cpu.conv.implicit.gather import STAGE
from numbaprims.cpu.conv.implicit.weights import WEIGHTS
from numbaprims.cpu.gemm.arguments import FINISH
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    FLOAT_SLOT,
    Arguments,
    address_of,
    call_range,
    float_bits,
    load_word,
    stack_words,
    store_word,
)

# table: address of the words of all passes.  *_size: bytes of an element; width: columns or rows of a panel of
# weights, nr: of a panel of patches; mc: rows (or columns) of weights in a tile, a multiple of width.  A worker's share
# of the workspace, behind shared_bytes: a panel (or the places of pixels), the copy, the sums, transposed sums.
# private: 1 where each tile packs the weights that it meets for itself, at packed_at of the worker's share.
# columns: address of im2col's words; x_moved, y_moved: 1 where the input or the result of the product is the column
# matrix, at byte moved_at of the workspace.  held_at: where a worker notes, in its share, of which pixels its copy is.
# parts_at: byte of the workspace with the number of workers.
IMPLICIT = Arguments(
    arrays=CONV.arrays,
    floats=CONV.floats,
    ints=(
        "table", "passes", "activation", "has_c", "has_bias", "bias_step",
        "stage", "gather", "multiply", "transpose", "finish", "pack",
        "in_size", "w_size", "out_size", "acc_size", "width", "nr", "mc", "m_blocks", "private",
        "shared_bytes", "worker_bytes", "staged_at", "sums_at", "transposed_at", "packed_at",
        "columns", "x_moved", "y_moved", "moved_at", "held_at", "parts_at",
    ),
)  # fmt: skip
BYTES = IMPLICIT.types()

# Words of a pass.  tiles, pack_tiles: how many there are; panels: where its packed weights begin, in elements, and
# group_panels how many one group takes; taps_first: whether panels hold all channels of a tap one after another;
# block_*: sizes of a tile, blocks_*: how many there are; merge: how many levels of (q, p, o) of a tile's results lie
# without gaps (3: each image's are one run, 4: the whole tile); direct: 1 where patches are read in the input itself;
# unit_*: from window to window in a copy with channels last (or in the input), run_taps: taps whose channels follow
# one another there; planes ... columns, slots_*: sizes of the copy; low_*: the input's index where it begins; pitch:
# elements from pixel to pixel of a copy with channels last; by_rows: 1 where workers
# take blocks of rows (or columns) of weights, with all pixels, rather than blocks of pixels.
WORDS = (
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
AT = {name: index for index, name in enumerate(WORDS)}
PASS_WORDS = len(WORDS)

TILES, PACK_TILES, PANELS, GROUP_PANELS, PADDED_ROWS, TAPS_FIRST = range(6)
N, GROUPS, ROWS, DEPTH, WINDOW, CHANNELS = range(6, 12)
GRID, BLOCK, BLOCKS = AT["grid_o"], AT["block_n"], AT["blocks_n"]
MERGE, SUMS_IN_OUT, SUMS_STEP = AT["merge"], AT["sums_in_out"], AT["sums_step"]
TAPS, W_TAPS, PLAIN, CHANNEL_STEP = AT["taps"], AT["w_taps"], AT["plain"], AT["channel_step"]
DIRECT, RUN_TAPS, UNIT = AT["direct"], AT["run_taps"], AT["unit_n"]
PLANES, LOW, STRIDE, STEP = AT["planes"], AT["low_d"], AT["stride_d"], AT["step_d"]
X_N, W_ROW, Y_N, C_N = AT["x_n"], AT["w_row"], AT["y_n"], AT["c_n"]
PITCH, BY_ROWS = AT["pitch"], AT["by_rows"]

STAGE_AT = STAGE.slot("channels")
WEIGHTS_AT = WEIGHTS.slot("rows")
FINISH_AT = FINISH.slot("columns")


@helper
def pack_panel(args, t, block, panels, source, rows, depth, q):  # type: ignore[no-untyped-def]
    """One panel of weights: `rows` rows and `depth` channels from element `source` on, in blocks of channels."""
    store_word(block, 0, panels)
    store_word(block, 1, address_of(args.second) + args.w_size * source)
    store_word(block, WEIGHTS_AT, rows)
    store_word(block, WEIGHTS_AT + 1, depth)
    store_word(block, WEIGHTS_AT + 2, load_word(t, CHANNELS))
    store_word(block, WEIGHTS_AT + 3, load_word(t, WINDOW))
    store_word(block, WEIGHTS_AT + 4, load_word(t, W_TAPS))
    store_word(block, WEIGHTS_AT + 5, load_word(t, PLAIN))
    store_word(block, WEIGHTS_AT + 6, load_word(t, W_ROW))
    store_word(block, WEIGHTS_AT + 7, load_word(t, W_ROW + 1))
    store_word(block, WEIGHTS_AT + 8, q)
    store_word(block, WEIGHTS_AT + 9, load_word(t, PADDED_ROWS))
    store_word(block, WEIGHTS_AT + 10, load_word(t, TAPS_FIRST))
    store_word(block, WEIGHTS_AT + 11, args.width)
    call_range(args.pack, block, 0, 0, 1)


@functools.cache
def make_pack_driver() -> RangeKernel:
    """Weights into panels: a tile is one panel of one group of one pass."""

    @range_kernel("conv_implicit_pack", BYTES, spec=())
    def implicit_pack(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        target = address_of(args.packed)
        if target == 0:
            target = address_of(args.workspace)
        block = stack_words(80)
        for number in range(lo, hi):
            t = args.table
            tile = number
            while tile >= load_word(t, PACK_TILES):
                tile -= load_word(t, PACK_TILES)
                t += 8 * PASS_WORDS
            group, q = divmod(tile, load_word(t, PADDED_ROWS) // args.width)
            at = load_word(t, PANELS) + group * load_word(t, GROUP_PANELS)
            source = load_word(t, W_ROW + 2) + group * load_word(t, W_ROW + 3)
            pack_panel(args, t, block, target + args.acc_size * at, source, load_word(t, ROWS), load_word(t, DEPTH), q)

    return implicit_pack


@helper
def panel_start(t, group, m0, c0, channels):  # type: ignore[no-untyped-def]
    """Where the panels of rows from m0 on and `channels` channels from c0 on begin, in elements of packed weights."""
    at = load_word(t, PANELS) + group * load_word(t, GROUP_PANELS)
    return at + load_word(t, WINDOW) * (c0 * load_word(t, PADDED_ROWS) + m0 * channels)


@helper
def panels_of(args, t, block, mine, group, m0, rows, c0, channels):  # type: ignore[no-untyped-def]
    """The address of the panels of some rows and channels of weights, which are packed now if that is each tile's own
    business."""
    window = load_word(t, WINDOW)
    panels = address_of(args.packed)
    if args.private:
        panels = mine + args.packed_at
        source = load_word(t, W_ROW + 2) + group * load_word(t, W_ROW + 3)
        source += m0 * load_word(t, W_ROW) + c0 * load_word(t, W_ROW + 1)
        if window > 0:
            for q in range((rows + args.width - 1) // args.width):
                pack_panel(args, t, block, panels, source, rows, channels, q)
    else:
        if panels == 0:
            panels = address_of(args.workspace)
        panels += args.acc_size * panel_start(t, group, m0, c0, channels)
    return panels


@helper
def open_pass(args, number, counts):  # type: ignore[no-untyped-def]
    """Tile of all passes -> its pass's words, and its number there; `counts`: the word that says how many one has."""
    t = args.table
    tile = number
    while tile >= load_word(t, counts):
        tile -= load_word(t, counts)
        t += 8 * PASS_WORDS
    return t, tile


@helper
def open_tile(t, number):  # type: ignore[no-untyped-def]
    """Block of pixels and group of a pass -> the group, first image, plane, row and column, and how many there are."""
    tile, group = divmod(number, load_word(t, GROUPS))
    tile, qb = divmod(tile, load_word(t, BLOCKS + 3))
    tile, pb = divmod(tile, load_word(t, BLOCKS + 2))
    nb, ob = divmod(tile, load_word(t, BLOCKS + 1))
    n0 = nb * load_word(t, BLOCK)
    o0 = ob * load_word(t, BLOCK + 1)
    p0 = pb * load_word(t, BLOCK + 2)
    q0 = qb * load_word(t, BLOCK + 3)
    images = min(load_word(t, BLOCK), load_word(t, N) - n0)
    planes = min(load_word(t, BLOCK + 1), load_word(t, GRID) - o0)
    lines = min(load_word(t, BLOCK + 2), load_word(t, GRID + 1) - p0)
    columns = min(load_word(t, BLOCK + 3), load_word(t, GRID + 2) - q0)
    return group, n0, o0, p0, q0, images, planes, lines, columns


@helper
def start_of(t, steps, n, channel, o, p, q):  # type: ignore[no-untyped-def]
    """The element of the result (or of c) at an index; behind the five steps stands where the pass begins."""
    at = load_word(t, steps + 5) + n * load_word(t, steps) + channel * load_word(t, steps + 1)
    return at + o * load_word(t, steps + 2) + p * load_word(t, steps + 3) + q * load_word(t, steps + 4)


@helper
def stage_block(args, t, block, target, images, n0, o0, p0, q0, channel, channels):  # type: ignore[no-untyped-def]
    """The padded copy of what a tile meets of some channels."""
    source = n0 * load_word(t, X_N) + channel * load_word(t, X_N + 1)
    store_word(block, 0, target)
    store_word(block, 1, address_of(args.first) + args.in_size * source)
    store_word(block, STAGE_AT, channels)
    store_word(block, STAGE_AT + 1, load_word(t, BLOCK))
    store_word(block, STAGE_AT + 2, images)
    for i in range(6):
        store_word(block, STAGE_AT + 3 + i, load_word(t, PLANES + i))
    store_word(block, STAGE_AT + 26, load_word(t, PITCH))
    store_word(block, STAGE_AT + 9, load_word(t, LOW) + o0 * load_word(t, STRIDE))
    store_word(block, STAGE_AT + 10, load_word(t, LOW + 1) + p0 * load_word(t, STRIDE + 1))
    store_word(block, STAGE_AT + 11, load_word(t, LOW + 2) + q0 * load_word(t, STRIDE + 2))
    for i in range(9):
        store_word(block, STAGE_AT + 12 + i, load_word(t, STEP + i))
    for i in range(5):
        store_word(block, STAGE_AT + 21 + i, load_word(t, X_N + i))
    call_range(args.stage, block, 0, 0, 1)


@helper
def input_start(args, t, n0, channel, o0, p0, q0):  # type: ignore[no-untyped-def]
    """The address of the first element that a tile's first window meets, in the input (or the column matrix) itself."""
    at = n0 * load_word(t, X_N) + channel * load_word(t, X_N + 1)
    at += (load_word(t, LOW) + o0 * load_word(t, STRIDE)) * load_word(t, X_N + 2)
    at += (load_word(t, LOW + 1) + p0 * load_word(t, STRIDE + 1)) * load_word(t, X_N + 3)
    at += (load_word(t, LOW + 2) + q0 * load_word(t, STRIDE + 2)) * load_word(t, X_N + 4)
    if args.x_moved:
        return address_of(args.workspace) + args.moved_at + args.in_size * at
    return address_of(args.first) + args.in_size * at


@helper
def finish_constants(args, block, bias_axis):  # type: ignore[no-untyped-def]
    """What all calls of the finish kernel share."""
    store_word(block, 3, address_of(args.bias))
    store_word(block, FLOAT_SLOT, float_bits(args.alpha))
    store_word(block, FLOAT_SLOT + 1, float_bits(args.beta))
    store_word(block, FLOAT_SLOT + 2, float_bits(args.p0))
    store_word(block, FLOAT_SLOT + 3, float_bits(args.p1))
    store_word(block, FLOAT_SLOT + 4, float_bits(args.p2))
    store_word(block, FINISH_AT + 6, args.has_c)
    store_word(block, FINISH_AT + 7, args.bias_step)
    store_word(block, FINISH_AT + 8, bias_axis)
    store_word(block, FINISH_AT + 11, args.activation)


@helper
def finish_tile(
    args, t, block, channels_are_rows, out, total, step, c, channel, channels, images, planes, lines, columns
):  # type: ignore[no-untyped-def]
    """The end of a tile's sums, in runs of pixels that lie a constant step apart.

    Rows of the sums are channels of the result and columns its pixels, or the other way round.
    """
    finish_constants(args, block, (2 if channels_are_rows else 1) if args.has_bias else 0)
    store_word(block, FINISH_AT + 1, step)
    along = load_word(t, Y_N + 4)
    c_along = load_word(t, C_N + 4)
    store_word(block, FINISH_AT + 2, load_word(t, Y_N + 1) if channels_are_rows else along)
    store_word(block, FINISH_AT + 3, along if channels_are_rows else load_word(t, Y_N + 1))
    store_word(block, FINISH_AT + 4, load_word(t, C_N + 1) if channels_are_rows else c_along)
    store_word(block, FINISH_AT + 5, c_along if channels_are_rows else load_word(t, C_N + 1))
    store_word(block, FINISH_AT + 9, channel if channels_are_rows else 0)
    store_word(block, FINISH_AT + 10, 0 if channels_are_rows else channel)
    store_word(block, FINISH_AT + 12, load_word(t, SUMS_IN_OUT))
    merge = load_word(t, MERGE)
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
        at = n * load_word(t, Y_N) + o * load_word(t, Y_N + 2) + p * load_word(t, Y_N + 3)
        c_at = n * load_word(t, C_N) + o * load_word(t, C_N + 2) + p * load_word(t, C_N + 3)
        store_word(block, 0, out + args.out_size * at)
        store_word(block, 1, total + args.acc_size * first * (1 if channels_are_rows else step))
        store_word(block, 2, c + args.out_size * c_at)
        store_word(block, FINISH_AT, run if channels_are_rows else channels)
        call_range(args.finish, block, 0, 0, channels if channels_are_rows else run)
