"""Convolution as a product without its column matrix, results along pixels: weights (rows of A) times patches (B).

For every tile of results: the padded copy of the input that it meets, a block of channels at a time; panels of patches
from the copy; each panel times all rows of the tile while it lies in the caches; then the end.  Bound: the operations
of the product at the peak of multiply-adds; a panel's gather costs 3 to 4 cycles for each vector of it, its product
one cycle for each two rows.

These kernels compute addresses and call others by pointer, as gemm's drivers do.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.arguments import ARGS as CONV
from numbaprims.cpu.conv.gather import GATHER, STAGE
from numbaprims.cpu.conv.implicit_weights import WEIGHTS
from numbaprims.cpu.gemm.arguments import FINISH, MULTIPLY
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

# table: address of the words of all passes.  sizes are bytes of an element; panel_at ... sums_at: where a worker's
# parts begin in its share of the workspace, which begins at shared_bytes.
IMPLICIT = Arguments(
    arrays=CONV.arrays,
    floats=CONV.floats,
    ints=(
        "table", "passes", "activation", "has_c", "has_bias", "bias_step",
        "stage", "gather", "multiply", "finish", "pack",
        "in_size", "w_size", "out_size", "acc_size", "mr", "nr", "mc", "m_blocks",
        "shared_bytes", "worker_bytes", "staged_at", "sums_at",
    ),
)  # fmt: skip
BYTES = IMPLICIT.types()

# Words of a pass.  tiles, pack_tiles: how many there are; panels: where its packed weights begin, in elements, and
# group_panels how many one group takes; block_*: sizes of a tile, blocks_*: how many there are; merge: how many
# levels of (q, p, o) of a tile's results lie without gaps (3: each image's are one run, 4: the whole tile).
WORDS = (
    "tiles", "pack_tiles", "panels", "group_panels", "padded_rows",
    "n", "groups", "rows", "depth", "window", "channels",
    "grid_o", "grid_p", "grid_q", "block_n", "block_o", "block_p", "block_q", "blocks_n", "blocks_o", "blocks_p",
    "blocks_q", "merge", "sums_in_out", "sums_step",
    "taps", "w_taps", "plain", "channel_step", "planes", "rows_staged", "columns", "slots_z", "slots_r", "slots_s",
    "low_d", "low_h", "low_w", "stride_d", "stride_h", "stride_w", "step_d", "step_h", "step_w",
    "apart_d", "apart_h", "apart_w", "size_d", "size_h", "size_w",
    "x_n", "x_c", "x_d", "x_h", "x_w", "w_row", "w_c", "w_base", "w_group",
    "y_n", "y_k", "y_o", "y_p", "y_q", "y_base", "c_n", "c_k", "c_o", "c_p", "c_q", "c_base",
)  # fmt: skip
AT = {name: index for index, name in enumerate(WORDS)}
PASS_WORDS = len(WORDS)

TILES, PACK_TILES, PANELS, GROUP_PANELS, PADDED_ROWS = (
    AT[name] for name in ("tiles", "pack_tiles", "panels", "group_panels", "padded_rows")
)
N, GROUPS, ROWS, DEPTH, WINDOW, CHANNELS = (AT[name] for name in ("n", "groups", "rows", "depth", "window", "channels"))
GRID, BLOCK_N, BLOCKS_N, MERGE = AT["grid_o"], AT["block_n"], AT["blocks_n"], AT["merge"]
SUMS_IN_OUT, SUMS_STEP = AT["sums_in_out"], AT["sums_step"]
TAPS, W_TAPS, PLAIN = AT["taps"], AT["w_taps"], AT["plain"]
CHANNEL_STEP, PLANES = AT["channel_step"], AT["planes"]
LOW, STRIDE, X_N, W_ROW = AT["low_d"], AT["stride_d"], AT["x_n"], AT["w_row"]
Y_N, Y_BASE, C_N, C_BASE = AT["y_n"], AT["y_base"], AT["c_n"], AT["c_base"]

STAGE_AT = STAGE.slot("channels")
GATHER_AT = GATHER.slot("channels")
WEIGHTS_AT = WEIGHTS.slot("rows")
MULTIPLY_AT = MULTIPLY.slot("rows")
FINISH_AT = FINISH.slot("columns")


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
            panels = load_word(t, PADDED_ROWS) // args.mr
            group, q = divmod(tile, panels)
            at = load_word(t, PANELS) + group * load_word(t, GROUP_PANELS)
            source = load_word(t, W_ROW + 2) + group * load_word(t, W_ROW + 3)
            store_word(block, 0, target + args.acc_size * at)
            store_word(block, 1, address_of(args.second) + args.w_size * source)
            store_word(block, WEIGHTS_AT, load_word(t, ROWS))
            store_word(block, WEIGHTS_AT + 1, load_word(t, DEPTH))
            store_word(block, WEIGHTS_AT + 2, load_word(t, CHANNELS))
            store_word(block, WEIGHTS_AT + 3, load_word(t, WINDOW))
            store_word(block, WEIGHTS_AT + 4, load_word(t, W_TAPS))
            store_word(block, WEIGHTS_AT + 5, load_word(t, PLAIN))
            store_word(block, WEIGHTS_AT + 6, load_word(t, W_ROW))
            store_word(block, WEIGHTS_AT + 7, load_word(t, W_ROW + 1))
            store_word(block, WEIGHTS_AT + 8, q)
            store_word(block, WEIGHTS_AT + 9, load_word(t, PADDED_ROWS))
            call_range(args.pack, block, 0, 0, 1)

    return implicit_pack


@helper
def stage_block(args, t, block, target, images, n0, o0, p0, q0, channel, channels):  # type: ignore[no-untyped-def]
    """The padded copy of what a tile meets of some channels."""
    source = n0 * load_word(t, X_N) + channel * load_word(t, X_N + 1)
    store_word(block, 0, target)
    store_word(block, 1, address_of(args.first) + args.in_size * source)
    store_word(block, STAGE_AT, channels)
    store_word(block, STAGE_AT + 1, load_word(t, BLOCK_N))
    store_word(block, STAGE_AT + 2, images)
    for i in range(6):
        store_word(block, STAGE_AT + 3 + i, load_word(t, PLANES + i))
    store_word(block, STAGE_AT + 9, load_word(t, LOW) + o0 * load_word(t, STRIDE))
    store_word(block, STAGE_AT + 10, load_word(t, LOW + 1) + p0 * load_word(t, STRIDE + 1))
    store_word(block, STAGE_AT + 11, load_word(t, LOW + 2) + q0 * load_word(t, STRIDE + 2))
    for i in range(9):
        store_word(block, STAGE_AT + 12 + i, load_word(t, STRIDE + 3 + i))
    for i in range(5):
        store_word(block, STAGE_AT + 21 + i, load_word(t, X_N + i))
    call_range(args.stage, block, 0, 0, 1)


@helper
def finish_run(args, block, out, total, step, c, row0, rows, columns, o_rs, o_cs, c_rs, c_cs):  # type: ignore[no-untyped-def]
    """The end of `columns` pixels that lie a constant step apart, for all rows of a tile."""
    store_word(block, 0, out)
    store_word(block, 1, total)
    store_word(block, 2, c)
    store_word(block, FINISH_AT, columns)
    store_word(block, FINISH_AT + 1, step)
    store_word(block, FINISH_AT + 2, o_rs)
    store_word(block, FINISH_AT + 3, o_cs)
    store_word(block, FINISH_AT + 4, c_rs)
    store_word(block, FINISH_AT + 5, c_cs)
    store_word(block, FINISH_AT + 9, row0)
    call_range(args.finish, block, 0, 0, rows)


@helper
def finish_constants(args, block, sums_in_out):  # type: ignore[no-untyped-def]
    """What all calls of the finish kernel share."""
    store_word(block, 3, address_of(args.bias))
    store_word(block, FLOAT_SLOT, float_bits(args.alpha))
    store_word(block, FLOAT_SLOT + 1, float_bits(args.beta))
    store_word(block, FLOAT_SLOT + 2, float_bits(args.p0))
    store_word(block, FLOAT_SLOT + 3, float_bits(args.p1))
    store_word(block, FLOAT_SLOT + 4, float_bits(args.p2))
    store_word(block, FINISH_AT + 6, args.has_c)
    store_word(block, FINISH_AT + 7, args.bias_step)
    store_word(block, FINISH_AT + 8, 2 if args.has_bias else 0)
    store_word(block, FINISH_AT + 10, 0)
    store_word(block, FINISH_AT + 11, args.activation)
    store_word(block, FINISH_AT + 12, sums_in_out)


@functools.cache
def make_planes() -> RangeKernel:
    """Tiles (pass, block of pixels, group, block of rows) of the result."""

    @range_kernel("conv_implicit_planes", BYTES, spec=())
    def implicit_planes(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        mine = address_of(args.workspace) + args.shared_bytes + worker * args.worker_bytes
        staged = mine + args.staged_at
        weights = address_of(args.packed)
        if weights == 0:
            weights = address_of(args.workspace)
        stage_words = stack_words(80)
        gather_words = stack_words(80)
        multiply_words = stack_words(80)
        finish_words = stack_words(80)
        nr = args.nr
        for number in range(lo, hi):
            t = args.table
            tile = number
            while tile >= load_word(t, TILES):
                tile -= load_word(t, TILES)
                t += 8 * PASS_WORDS
            tile, mb = divmod(tile, args.m_blocks)
            tile, group = divmod(tile, load_word(t, GROUPS))
            tile, qb = divmod(tile, load_word(t, BLOCKS_N + 3))
            tile, pb = divmod(tile, load_word(t, BLOCKS_N + 2))
            nb, ob = divmod(tile, load_word(t, BLOCKS_N + 1))
            n0 = nb * load_word(t, BLOCK_N)
            o0 = ob * load_word(t, BLOCK_N + 1)
            p0 = pb * load_word(t, BLOCK_N + 2)
            q0 = qb * load_word(t, BLOCK_N + 3)
            images = min(load_word(t, BLOCK_N), load_word(t, N) - n0)
            planes = min(load_word(t, BLOCK_N + 1), load_word(t, GRID) - o0)
            lines = min(load_word(t, BLOCK_N + 2), load_word(t, GRID + 1) - p0)
            columns = min(load_word(t, BLOCK_N + 3), load_word(t, GRID + 2) - q0)
            pixels = images * planes * lines * columns
            m0 = mb * args.mc
            rows = min(args.mc, load_word(t, ROWS) - m0)
            row0 = group * load_word(t, ROWS) + m0
            out = load_word(t, Y_BASE) + n0 * load_word(t, Y_N) + row0 * load_word(t, Y_N + 1)
            out += o0 * load_word(t, Y_N + 2) + p0 * load_word(t, Y_N + 3) + q0 * load_word(t, Y_N + 4)
            out = address_of(args.out) + args.out_size * out
            if load_word(t, SUMS_IN_OUT):
                total = out
                step = load_word(t, Y_N + 1)
            else:
                total = mine + args.sums_at
                step = load_word(t, SUMS_STEP)
            window = load_word(t, WINDOW)
            depth = load_word(t, DEPTH)
            block = load_word(t, CHANNELS)
            panels = weights + args.acc_size * (load_word(t, PANELS) + group * load_word(t, GROUP_PANELS))
            store_word(gather_words, 0, mine)
            store_word(gather_words, 1, staged)
            store_word(gather_words, GATHER_AT + 1, load_word(t, CHANNEL_STEP))
            store_word(gather_words, GATHER_AT + 2, load_word(t, TAPS))
            store_word(gather_words, GATHER_AT + 3, window)
            store_word(gather_words, GATHER_AT + 6, columns)
            store_word(gather_words, GATHER_AT + 7, lines)
            store_word(gather_words, GATHER_AT + 8, planes)
            store_word(gather_words, GATHER_AT + 9, load_word(t, PLANES + 2))
            store_word(gather_words, GATHER_AT + 10, load_word(t, PLANES + 1))
            store_word(gather_words, GATHER_AT + 11, load_word(t, PLANES))
            store_word(multiply_words, 1, mine)
            store_word(multiply_words, MULTIPLY_AT, rows)
            store_word(multiply_words, MULTIPLY_AT + 4, step)
            for c0 in range(0, depth, block):
                channels = min(block, depth - c0)
                k = channels * window
                if k > 0:
                    stage_block(args, t, stage_words, staged, images, n0, o0, p0, q0, group * depth + c0, channels)
                a = panels + args.acc_size * (c0 * window * load_word(t, PADDED_ROWS) + m0 * k)
                store_word(multiply_words, 0, a)
                store_word(multiply_words, MULTIPLY_AT + 2, k)
                store_word(multiply_words, MULTIPLY_AT + 3, 1 if c0 == 0 else 0)
                store_word(gather_words, GATHER_AT, channels)
                for first in range(0, pixels, nr):
                    there = min(nr, pixels - first)
                    store_word(gather_words, GATHER_AT + 4, first)
                    store_word(gather_words, GATHER_AT + 5, there)
                    if k > 0:
                        call_range(args.gather, gather_words, 0, 0, 1)
                    store_word(multiply_words, 2, total + args.acc_size * first)
                    store_word(multiply_words, MULTIPLY_AT + 1, there)
                    call_range(args.multiply, multiply_words, 0, 0, 1)
            if args.finish:
                finish_constants(args, finish_words, load_word(t, SUMS_IN_OUT))
                c = load_word(t, C_BASE) + n0 * load_word(t, C_N) + row0 * load_word(t, C_N + 1)
                c += o0 * load_word(t, C_N + 2) + p0 * load_word(t, C_N + 3) + q0 * load_word(t, C_N + 4)
                c = address_of(args.c) + args.out_size * c
                merge = load_word(t, MERGE)
                run = columns
                if merge >= 2:
                    run *= lines
                if merge >= 3:
                    run *= planes
                if merge >= 4:
                    run *= images
                for first in range(0, pixels, run):
                    # where the run's first pixel lies
                    rest, p = divmod(first // columns, lines)
                    n, o = divmod(rest, planes)
                    at = n * load_word(t, Y_N) + o * load_word(t, Y_N + 2) + p * load_word(t, Y_N + 3)
                    c_at = n * load_word(t, C_N) + o * load_word(t, C_N + 2) + p * load_word(t, C_N + 3)
                    finish_run(
                        args, finish_words, out + args.out_size * at, total + args.acc_size * first, step,
                        c + args.out_size * c_at, row0, rows, run, load_word(t, Y_N + 1), load_word(t, Y_N + 4),
                        load_word(t, C_N + 1), load_word(t, C_N + 4),
                    )  # fmt: skip

    return implicit_planes
