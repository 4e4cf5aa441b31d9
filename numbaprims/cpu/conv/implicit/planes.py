"""Convolution as a product without its column matrix, results along pixels: weights (rows of A) times patches (B).

For every tile of results: the padded copy of the input that it meets, a block of channels at a time; panels of patches
from the copy; each panel times all rows of the tile while it lies in the caches; then the end.  Bound: the operations
of the product at the peak of multiply-adds; a panel's gather costs 3 to 4 cycles for each vector of it, its product
one cycle for each two rows.  A kernel of one tap, stride 1 and no padding reads its patches where they lie.

These kernels compute addresses and call others by pointer, as gemm's drivers do.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.implicit.gather import GATHER
from numbaprims.cpu.conv.implicit.tiles import (
    BYTES,
    C_N,
    CHANNEL_STEP,
    CHANNELS,
    DEPTH,
    DIRECT,
    PLANES,
    ROWS,
    SUMS_IN_OUT,
    SUMS_STEP,
    TAPS,
    TILES,
    WINDOW,
    Y_N,
    finish_tile,
    input_start,
    open_pass,
    open_tile,
    panels_of,
    stage_block,
    start_of,
)
from numbaprims.cpu.gemm.arguments import MULTIPLY
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import address_of, call_range, load_word, stack_words, store_word

GATHER_AT = GATHER.slot("channels")
MULTIPLY_AT = MULTIPLY.slot("rows")


@functools.cache
def make_planes() -> RangeKernel:
    """Tiles (pass, block of pixels, group, block of rows) of the result."""

    @range_kernel("conv_implicit_planes", BYTES, spec=())
    def implicit_planes(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        mine = address_of(args.workspace) + args.shared_bytes + worker * args.worker_bytes
        staged = mine + args.staged_at
        stage_words = stack_words(80)
        gather_words = stack_words(80)
        multiply_words = stack_words(80)
        finish_words = stack_words(80)
        nr = args.nr
        for number in range(lo, hi):
            t, tile = open_pass(args, number, TILES)
            tile, mb = divmod(tile, args.m_blocks)
            group, n0, o0, p0, q0, images, planes, lines, columns = open_tile(t, tile)
            pixels = images * planes * lines * columns
            m0 = mb * args.mc
            rows = min(args.mc, load_word(t, ROWS) - m0)
            row0 = group * load_word(t, ROWS) + m0
            out = start_of(t, Y_N, n0, row0, o0, p0, q0)
            if args.y_moved:
                out = address_of(args.workspace) + args.moved_at + args.acc_size * out
            else:
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
            direct = load_word(t, DIRECT)
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
                a = panels_of(args, t, stage_words, mine, group, m0, rows, c0, channels)
                store_word(multiply_words, 0, a)
                store_word(multiply_words, MULTIPLY_AT + 2, k)
                store_word(multiply_words, MULTIPLY_AT + 3, 1 if c0 == 0 else 0)
                if direct != 1 and k > 0:
                    stage_block(args, t, stage_words, staged, images, n0, o0, p0, q0, group * depth + c0, channels)
                if direct:
                    b = staged
                    if direct == 1:
                        b = input_start(args, t, n0, group * depth + c0, o0, p0, q0)
                    store_word(multiply_words, 1, b)
                    store_word(multiply_words, 2, total)
                    store_word(multiply_words, MULTIPLY_AT + 1, pixels)
                    store_word(multiply_words, MULTIPLY_AT + 7, load_word(t, CHANNEL_STEP))
                    call_range(args.multiply, multiply_words, 0, 0, 1)
                    continue
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
            if args.finish and args.y_moved == 0:
                c = address_of(args.c) + args.out_size * start_of(t, C_N, n0, row0, o0, p0, q0)
                finish_tile(
                    args, t, finish_words, True, out, total, step, c, row0, rows, images, planes, lines, columns
                )  # fmt: skip

    return implicit_planes
