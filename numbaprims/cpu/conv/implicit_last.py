"""Convolution as a product without its column matrix, results along channels: patches (rows of A) times weights (B).

Where channels come last, a row of a window is one run of neighbours: tiles of the product read it where it lies, in
the input itself if no window meets padding, else in a zero-padded copy of what a tile meets.  No patch is ever moved,
so that few channels of the result cost no more than many.  Bound: the operations of the product; a tile of 6 x 4
vectors loads 10 values for 24 multiply-adds.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.gather import STAGE, stage_row
from numbaprims.cpu.conv.implicit_tiles import (
    BYTES,
    C_N,
    CHANNELS,
    DEPTH,
    DIRECT,
    ROWS,
    RUN_TAPS,
    SUMS_IN_OUT,
    SUMS_STEP,
    TAPS,
    UNIT,
    WINDOW,
    Y_N,
    finish_tile,
    input_start,
    open_tile,
    panels_of,
    stage_block,
    start_of,
)
from numbaprims.cpu.gemm.multiply import keep_part
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    Arguments,
    address_of,
    advance,
    call_range,
    load,
    load_wide,
    load_wide_first,
    load_wide_rows,
    load_wide_scalar,
    load_word,
    stack_tile,
    stack_words,
    store,
    store_first,
    store_rows,
    store_scalar,
    store_word,
    tile_add,
    tile_load,
    tile_multiply_rows,
    tile_prefetch,
    tile_store,
    tile_zeros,
    transpose,
    zeros,
)

# total[pixel, column] = or += the sum over runs of a[unit * (places[pixel] + taps[t]) + p] times panels of b; t steps
# by run_taps through window, each run is `run` long.
MULTIPLY_ROWS = Arguments(
    arrays=("a", "b", "total"),
    ints=(
        "pixels", "columns", "k", "first", "total_step", "places", "unit", "taps", "window", "run_taps", "run",
    ),
)  # fmt: skip
ROWS_AT = MULTIPLY_ROWS.slot("pixels")


@functools.cache
def make_stage_last(dtype: str, acc: str, W: int) -> RangeKernel:
    """The copy with channels last: staged[image][plane][row][column][channel]; up to W - 1 elements past its end."""
    types = STAGE.types(staged=acc, source=dtype)

    @range_kernel("conv_stage_last", types, spec=(dtype, acc, W))
    def conv_stage_last(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        columns = args.columns
        channels = args.channels
        room = stack_tile(acc, W, 1, W)
        low = max(0, -args.first_w)
        high = min(columns, args.size_w - args.first_w)
        at = 0
        for n in range(args.images_there):
            for plane in range(args.planes):
                d = args.first_d + plane
                for row in range(args.rows):
                    h = args.first_h + row
                    start = n * args.n_step + d * args.d_step + h * args.h_step + args.first_w * args.w_step
                    end = high
                    if d < 0 or d >= args.size_d or h < 0 or h >= args.size_h or high <= low:
                        end = low
                    if end == low or (args.c_step == 1 and args.w_step == channels):
                        stage_row(
                            args.staged, at, args.source, start, 1, low * channels, end * channels, columns * channels,
                            W, "", acc,
                        )  # fmt: skip
                    elif args.w_step == 1 and args.c_step != 1:
                        # planes: blocks of W channels times W columns are turned in registers
                        for i in range(0, low * channels, W):
                            store(args.staged, at + i, zeros(acc, W))
                        for i in range(low, end, W):
                            valid = min(end - i, W)
                            # from the last channels to the first, whose vectors may reach into the next column's
                            for c in range((channels - 1) // W * W, -1, -W):
                                count = min(channels - c, W)
                                corner = advance(args.source, start + i + c * args.c_step)
                                target = advance(args.staged, at + i * channels + c)
                                if valid == W:
                                    store_rows(
                                        target, channels, transpose(load_wide_rows(corner, args.c_step, count, W, W))
                                    )
                                else:
                                    block = transpose(load_wide_rows(corner, args.c_step, count, valid, W))
                                    store_rows(room, W, block)
                                    for j in range(valid):
                                        store(target, j * channels, load(room, j * W, W))
                        for i in range(end * channels, columns * channels, W):
                            store(args.staged, at + i, zeros(acc, W))
                    else:
                        for i in range(0, columns):
                            target = at + i * channels
                            source = start + i * args.w_step
                            if i < low or i >= end:
                                for c in range(0, channels, W):
                                    store(args.staged, target + c, zeros(acc, W))
                            elif args.c_step == 1:
                                whole = channels - channels % W
                                for c in range(0, whole, W):
                                    store(args.staged, target + c, load_wide(args.source, source + c, W))
                                if whole < channels:
                                    rest = load_wide_first(args.source, source + whole, channels - whole, W)
                                    store(args.staged, target + whole, rest)
                            else:
                                for c in range(channels):
                                    value = load_wide_scalar(args.source, source + c * args.c_step)
                                    store_scalar(args.staged, target + c, value)
                    at += columns * channels

    return conv_stage_last


@functools.cache
def make_multiply_rows(acc: str, MR: int, NV: int, W: int) -> RangeKernel:
    """Panels lo ... hi - 1 of B, each with all pixels: the panel stays in the caches while windows stream past it."""
    types = MULTIPLY_ROWS.types(a=acc, b=acc, total=acc)
    NR = NV * W

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
                for t in range(0, args.window, args.run_taps):
                    a = advance(args.a, load_word(args.taps, t) * args.unit)
                    tile = tile_multiply_rows(tile, a, args.places, i, rows, args.unit, at, args.run, MR, NV, W)
                    at = advance(at, args.run * NR)
                if rows == MR and columns == NR:
                    if not first:
                        tile = tile_add(tile_load(total, step, MR, NV, W), tile)
                    tile_store(total, step, tile, MR, NV, W)
                else:
                    tile_store(room, NR, tile, MR, NV, W)
                    keep_part(room, total, step, rows, columns, first, NR, W)

    return conv_multiply_rows


# turned[column][row] = sums[row][column].
TURN = Arguments(arrays=("turned", "sums"), ints=("rows", "columns", "turned_step", "sums_step"))
TURN_AT = TURN.slot("rows")


@functools.cache
def make_turn(acc: str, W: int) -> RangeKernel:
    """Transpose a tile's sums, W x W at a time in registers."""

    @range_kernel("conv_turn", TURN.types(turned=acc, sums=acc), spec=(acc, W))
    def conv_turn(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        room = stack_tile(acc, W, 1, W)
        step = args.turned_step
        for j in range(0, args.columns, W):
            valid = min(args.columns - j, W)
            for i in range(0, args.rows, W):
                count = min(args.rows - i, W)
                source = advance(args.sums, i * args.sums_step + j)
                target = advance(args.turned, j * step + i)
                if count == W and valid == W:
                    store_rows(target, step, transpose(load_wide_rows(source, args.sums_step, W, W, W)))
                else:
                    store_rows(room, W, transpose(load_wide_rows(source, args.sums_step, count, valid, W)))
                    for c in range(valid):
                        store_first(target, c * step, count, load(room, c * W, W))

    return conv_turn


@functools.cache
def make_last() -> RangeKernel:
    """Tiles (pass, block of pixels, group, block of columns) of the result."""

    @range_kernel("conv_implicit_last", BYTES, spec=())
    def implicit_last(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        mine = address_of(args.workspace) + args.shared_bytes + worker * args.worker_bytes
        staged = mine + args.staged_at
        stage_words = stack_words(80)
        multiply_words = stack_words(80)
        finish_words = stack_words(80)
        for number in range(lo, hi):
            t, mb, group, n0, o0, p0, q0, images, planes, lines, columns = open_tile(args, number)
            pixels = images * planes * lines * columns
            m0 = mb * args.mc
            rows = min(args.mc, load_word(t, ROWS) - m0)
            row0 = group * load_word(t, ROWS) + m0
            out = address_of(args.out) + args.out_size * start_of(t, Y_N, n0, row0, o0, p0, q0)
            total = mine + args.sums_at
            step = load_word(t, SUMS_STEP)
            if load_word(t, SUMS_IN_OUT) and args.turn == 0:
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
            store_word(multiply_words, 2, total)
            store_word(multiply_words, ROWS_AT, pixels)
            store_word(multiply_words, ROWS_AT + 1, rows)
            store_word(multiply_words, ROWS_AT + 4, step)
            store_word(multiply_words, ROWS_AT + 5, mine)
            store_word(multiply_words, ROWS_AT + 7, load_word(t, TAPS))
            store_word(multiply_words, ROWS_AT + 8, window)
            store_word(multiply_words, ROWS_AT + 9, max(run_taps, 1))
            for c0 in range(0, depth, block):
                channels = min(block, depth - c0)
                k = channels * window
                a = staged
                unit = channels
                if load_word(t, DIRECT):
                    unit = 1
                    a = input_start(args, t, n0, group * depth + c0, o0, p0, q0)
                elif k > 0:
                    stage_block(args, t, stage_words, staged, images, n0, o0, p0, q0, group * depth + c0, channels)
                store_word(multiply_words, 0, a)
                b = panels_of(args, t, stage_words, mine, group, m0, rows, c0, channels)
                store_word(multiply_words, 1, b)
                store_word(multiply_words, ROWS_AT + 2, k)
                store_word(multiply_words, ROWS_AT + 3, 1 if c0 == 0 else 0)
                store_word(multiply_words, ROWS_AT + 6, unit)
                store_word(multiply_words, ROWS_AT + 10, channels * run_taps)
                call_range(args.multiply, multiply_words, 0, 0, (rows + args.width - 1) // args.width)
            if args.turn:
                turned = out
                turned_step = load_word(t, Y_N + 1)
                if load_word(t, SUMS_IN_OUT) == 0:
                    turned = mine + args.turned_at
                    turned_step = (pixels + 15) // 16 * 16
                store_word(stage_words, 0, turned)
                store_word(stage_words, 1, total)
                store_word(stage_words, TURN_AT, pixels)
                store_word(stage_words, TURN_AT + 1, rows)
                store_word(stage_words, TURN_AT + 2, turned_step)
                store_word(stage_words, TURN_AT + 3, step)
                call_range(args.turn, stage_words, 0, 0, 1)
                total = turned
                step = turned_step
            if args.finish:
                c = address_of(args.c) + args.out_size * start_of(t, C_N, n0, row0, o0, p0, q0)
                finish_tile(
                    args, t, finish_words, args.turn != 0, out, total, step, c, row0, rows,
                    images, planes, lines, columns,
                )  # fmt: skip

    return implicit_last
