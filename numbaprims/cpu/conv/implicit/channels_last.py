"""Convolution as a product without its column matrix, results along channels: patches (rows of A) times weights (B).

Where channels come last, a row of a window is one run of neighbours: tiles of the product read it where it lies, in
the input itself if no window meets padding, else in a zero-padded copy of what a tile meets.  No patch is ever moved,
so that few channels of the result cost no more than many.  Bound: the operations of the product; a tile of 6 x 4
vectors loads 10 values for 24 multiply-adds.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.implicit.tiles import (
    BY_ROWS,
    BYTES,
    C_N,
    CHANNELS,
    DEPTH,
    DIRECT,
    GROUPS,
    MERGE,
    PITCH,
    ROWS,
    RUN_TAPS,
    SUMS_IN_OUT,
    SUMS_STEP,
    TAPS,
    TILES,
    UNIT,
    WINDOW,
    Y_N,
    finish_tile,
    input_start,
    open_pass,
    open_tile,
    panel_start,
    panels_of,
    stage_block,
    start_of,
)
from numbaprims.cpu.conv.implicit.transpose import TRANSPOSE_AT
from numbaprims.cpu.gemm.multiply import keep_part
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    Arguments,
    address_of,
    advance,
    call_range,
    load_word,
    stack_tile,
    stack_words,
    store_word,
    tile_add,
    tile_load,
    tile_multiply_rows,
    tile_prefetch,
    tile_store,
    tile_zeros,
)
from numbaprims.dtypes import DTYPES

# total[pixel, column] = or += the sum over runs of a[unit * (places[pixel] + taps[t]) + p] times panels of b; t steps
# by run_taps through window, each run is `run` long.  next: elements from a panel of b to the one that is read after
# it, 0 where there is none, or none yet.
MULTIPLY_ROWS = Arguments(
    arrays=("a", "b", "total"),
    ints=(
        "pixels", "columns", "k", "first", "total_step", "places", "unit", "taps", "window", "run_taps", "run",
        "next",
    ),
)  # fmt: skip
ROWS_AT = MULTIPLY_ROWS.slot("pixels")


@functools.cache
def make_multiply_rows(acc: str, MR: int, NV: int, W: int) -> RangeKernel:
    """Panels lo ... hi - 1 of B, each with all pixels: the panel stays in the caches while windows stream past it.

    The first 4 tiles of a panel prefetch a quarter of the next each: from the third cache or memory 49 pixels ran at
    210 GFLOP/s without it, at 245 with it.
    """
    types = MULTIPLY_ROWS.types(a=acc, b=acc, total=acc)
    NR = NV * W
    LINE = 64 // DTYPES[acc].itemsize
    # lines in 4 rows of a panel, for each of the 4 tiles
    LINES = max(1, NR // LINE)

    @range_kernel("conv_multiply_rows", types, spec=(acc, MR, NV, W))
    def conv_multiply_rows(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        step = args.total_step
        first = args.first
        room = stack_tile(acc, MR, NV, W)
        for q in range(lo, hi):
            b = advance(args.b, q * NR * args.k)
            columns = min(NR, args.columns - q * NR)
            for i in range(0, args.pixels, MR):
                rows = min(MR, args.pixels - i)
                total = advance(args.total, i * step + q * NR)
                if rows == MR:
                    tile_prefetch(total, step, MR, NV, W)
                tile = tile_zeros(acc, MR, NV, W)
                at = b
                ahead = b
                far = 0
                if args.next != 0 and i < 4 * MR:
                    far = args.run // 4 * LINES * LINE
                    ahead = advance(b, args.next + i // MR * (args.k // 4) * LINES * LINE)
                for t in range(0, args.window, args.run_taps):
                    a = advance(args.a, load_word(args.taps, t) * args.unit)
                    tile = tile_multiply_rows(
                        tile, a, args.places, i, rows, args.unit, at, args.run, ahead, LINES, MR, NV, W
                    )  # fmt: skip
                    at = advance(at, args.run * NR)
                    ahead = advance(ahead, far)
                if rows == MR and columns == NR:
                    if not first:
                        tile = tile_add(tile_load(total, step, MR, NV, W), tile)
                    tile_store(total, step, tile, MR, NV, W)
                else:
                    tile_store(room, NR, tile, MR, NV, W)
                    keep_part(room, total, step, rows, columns, first, NR, W)

    return conv_multiply_rows


@functools.cache
def make_open() -> RangeKernel:
    """Before a call: how many workers there are; none of them holds a copy."""

    @range_kernel("conv_implicit_open", BYTES, spec=())
    def implicit_open(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        held = address_of(args.workspace) + args.shared_bytes + args.held_at
        store_word(address_of(args.workspace) + args.parts_at, 0, hi)
        for each in range(lo, hi):
            store_word(held + each * args.worker_bytes, 0, -1)

    return implicit_open


@helper
def block_of(args, t, tile, parts):  # type: ignore[no-untyped-def]
    """Tile of a pass -> its block of pixels and group, and its block of rows; `parts` of these go one after another."""
    together = args.m_blocks // parts
    part, copy = divmod(tile, load_word(t, TILES) // parts)
    copy, mb = divmod(copy, together)
    if parts == 1 and copy // load_word(t, GROUPS) % 2:
        # neighbours end lines of the result that they share at different times
        mb = together - 1 - mb
    return copy, part * together + mb


@helper
def panels_behind(args, t, tile, parts, group, m0, c0, channels):  # type: ignore[no-untyped-def]
    """Elements from the last panel of a tile (or of its channels) to the one that comes after it, 0 where none does.

    What lies behind in memory may be another worker's copy, whose lines it would have to fetch back.
    """
    depth = load_word(t, DEPTH)
    here = panel_start(t, group, m0, c0, channels)
    after = c0 + channels
    if after < depth:
        first = m0 // args.mc * args.mc
        return panel_start(t, group, first, after, min(load_word(t, CHANNELS), depth - after)) - here
    if tile + 1 == load_word(t, TILES):
        return 0
    copy, mb = block_of(args, t, tile + 1, parts)
    group = copy % load_word(t, GROUPS)
    return panel_start(t, group, mb * args.mc, 0, min(load_word(t, CHANNELS), depth)) - here


@helper
def transpose_runs(args, t, block, sums, step, channels, out, transposed_step, images, planes, lines, columns):  # type: ignore[no-untyped-def]
    """A tile's sums, transposed: into `out`, rows transposed_step apart, or (0) run by run into the result."""
    pixels = images * planes * lines * columns
    run = pixels
    y_step = transposed_step
    if transposed_step == 0:
        y_step = load_word(t, Y_N + 1)
        merge = load_word(t, MERGE)
        run = columns
        if merge >= 2:
            run *= lines
        if merge >= 3:
            run *= planes
        if merge >= 4:
            run *= images
    store_word(block, TRANSPOSE_AT, run)
    store_word(block, TRANSPOSE_AT + 1, channels)
    store_word(block, TRANSPOSE_AT + 2, y_step)
    store_word(block, TRANSPOSE_AT + 3, step)
    for first in range(0, pixels, run):
        rest, p = divmod(first // columns, lines)
        n, o = divmod(rest, planes)
        at = n * load_word(t, Y_N) + o * load_word(t, Y_N + 2) + p * load_word(t, Y_N + 3)
        store_word(block, 0, out + args.acc_size * at)
        store_word(block, 1, sums + args.acc_size * first * step)
        call_range(args.transpose, block, 0, 0, 1)


@functools.cache
def make_channels_last() -> RangeKernel:
    """Tiles (pass, block of pixels, group, block of columns) of the result.

    Each panel of weights is packed, where that is each tile's own business, multiplied, transposed and ended while it
    lies in the caches.  A worker copies what a block of pixels meets once for all its blocks of columns, for itself:
    copies that workers share went from core to core.
    """

    @range_kernel("conv_implicit_channels_last", BYTES, spec=())
    def implicit_channels_last(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        mine = address_of(args.workspace) + args.shared_bytes + worker * args.worker_bytes
        stage_words = stack_words(80)
        multiply_words = stack_words(80)
        finish_words = stack_words(80)
        for number in range(lo, hi):
            t, copy = open_pass(args, number, TILES)
            parts = 1
            if load_word(t, BY_ROWS):
                parts = load_word(address_of(args.workspace) + args.parts_at, 0)
                while args.m_blocks % parts:
                    parts -= 1
            tile = copy
            copy, mb = block_of(args, t, tile, parts)
            group, n0, o0, p0, q0, images, planes, lines, columns = open_tile(t, copy)
            pixels = images * planes * lines * columns
            m0 = mb * args.mc
            rows = min(args.mc, load_word(t, ROWS) - m0)
            row0 = group * load_word(t, ROWS) + m0
            out = address_of(args.out) + args.out_size * start_of(t, Y_N, n0, row0, o0, p0, q0)
            c = address_of(args.c) + args.out_size * start_of(t, C_N, n0, row0, o0, p0, q0)
            in_out = load_word(t, SUMS_IN_OUT)
            total = mine + args.sums_at
            step = load_word(t, SUMS_STEP)
            if in_out and args.transpose == 0:
                total = out
                step = load_word(t, Y_N + 4)
            # where each pixel's window begins
            at = 0
            for n in range(images):
                for o in range(planes):
                    for p in range(lines):
                        place = n * load_word(t, UNIT) + o * load_word(t, UNIT + 1) + p * load_word(t, UNIT + 2)
                        for q in range(columns):
                            store_word(mine, at, place + q * load_word(t, UNIT + 3))
                            at += 1
            window = load_word(t, WINDOW)
            depth = load_word(t, DEPTH)
            block = load_word(t, CHANNELS)
            run_taps = load_word(t, RUN_TAPS)
            unit = load_word(t, PITCH)
            a = mine + args.staged_at
            if load_word(t, DIRECT):
                unit = 1
            elif window > 0 and (
                load_word(mine + args.held_at, 0) != t or load_word(mine + args.held_at, 1) != copy
            ):  # fmt: skip
                # blocks of rows of the same pixels follow one another
                store_word(mine + args.held_at, 0, t)
                store_word(mine + args.held_at, 1, copy)
                stage_block(args, t, stage_words, a, images, n0, o0, p0, q0, group * depth, depth)
            store_word(multiply_words, ROWS_AT, pixels)
            store_word(multiply_words, ROWS_AT + 4, step)
            store_word(multiply_words, ROWS_AT + 5, mine)
            store_word(multiply_words, ROWS_AT + 6, unit)
            store_word(multiply_words, ROWS_AT + 7, load_word(t, TAPS))
            store_word(multiply_words, ROWS_AT + 8, window)
            store_word(multiply_words, ROWS_AT + 9, max(run_taps, 1))
            once = args.transpose and block == depth
            transposed_step = 0
            if args.transpose and in_out == 0:
                transposed_step = (pixels + 15) // 16 * 16
            for c0 in range(0, depth, block):
                channels = min(block, depth - c0)
                k = channels * window
                if load_word(t, DIRECT):
                    a = input_start(args, t, n0, group * depth + c0, o0, p0, q0)
                store_word(multiply_words, 0, a)
                store_word(multiply_words, ROWS_AT + 2, k)
                store_word(multiply_words, ROWS_AT + 3, 1 if c0 == 0 else 0)
                store_word(multiply_words, ROWS_AT + 10, channels * run_taps)
                a += args.acc_size * channels
                for first in range(0, rows, args.width):
                    there = min(args.width, rows - first)
                    sums = total if once else total + args.acc_size * first
                    b = panels_of(args, t, stage_words, mine, group, m0 + first, there, c0, channels)
                    soon = 0
                    if args.private == 0:
                        soon = args.width * k
                        if first + args.width >= rows:
                            soon = panels_behind(args, t, tile, parts, group, m0 + first, c0, channels)
                    store_word(multiply_words, ROWS_AT + 11, soon)
                    store_word(multiply_words, 1, b)
                    store_word(multiply_words, 2, sums)
                    store_word(multiply_words, ROWS_AT + 1, there)
                    call_range(args.multiply, multiply_words, 0, 0, 1)
                    if c0 + channels < depth:
                        continue
                    out_here = out + args.out_size * first * load_word(t, Y_N + 1)
                    ends_step = step
                    if args.transpose:
                        ends = out_here
                        ends_step = load_word(t, Y_N + 1)
                        if transposed_step > 0:
                            ends = mine + args.transposed_at
                            ends_step = transposed_step
                        transpose_runs(
                            args, t, stage_words, sums, step, there, ends, transposed_step,
                            images, planes, lines, columns,
                        )  # fmt: skip
                        sums = ends
                    if args.finish and (in_out == 0 or load_word(t, MERGE) == 4):
                        finish_tile(
                            args, t, finish_words, args.transpose != 0, out_here, sums, ends_step,
                            c + args.out_size * first * load_word(t, C_N + 1), row0 + first, there,
                            images, planes, lines, columns,
                        )  # fmt: skip

    return implicit_channels_last
