"""Kernels of a wavefront: layers, or the directions of one, that overlap.

A tile is some steps of one layer, begun as soon as these steps of the layer before have ended; the phase behind each
step is gone.  Workers take tiles from one queue in the order of diagonals, in which a tile waits only for earlier ones:
whoever runs alone finds all of them ended.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.program import Block
from numbaprims.cpu.rnn.arguments import STEP, WAVE
from numbaprims.cpu.simd import (
    address_of,
    advance,
    block_of,
    call_range,
    load_word,
    record,
    tile_multiply,
    tile_store,
)
from numbaprims.cpu.simd.atomics import load_acquire, relax, store_release, yield_cpu
from numbaprims.dtypes import DTYPES

#: Bytes from one lane's count to the next: two lines, which are fetched together.
APART = 128
#: Looks at another lane's count before the CPU is given to another thread.
PATIENCE = 1000


@helper
def wait_until(place, count):  # type: ignore[no-untyped-def]
    """Until so many tiles of a lane have ended."""
    looks = 0
    while load_acquire(place) < count:
        looks += 1
        relax()
        if looks % PATIENCE == 0:
            yield_cpu()


@functools.cache
def make_product(compute: str, MR: int, NV: int, W: int) -> RangeKernel:
    """Rows lo ... hi - 1 of the input product, and up to MR - 1 more that are not looked at."""
    WIDTH = NV * W
    types = STEP.types(a=compute, r=compute, g=compute, x=compute, w=compute)

    @range_kernel("rnn_product", types, spec=(compute, MR, NV, W))
    def rnn_product(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        k, x_row, g_row = args.inputs, args.x_row, args.g_row
        for u in range(g_row // WIDTH):
            panel = advance(args.w, u * k * WIDTH)
            for i in range(lo, hi, MR):
                tile = tile_multiply(
                    advance(args.x, i * x_row), x_row, 1, min(MR, hi - i), panel, WIDTH, WIDTH, k, MR, NV, W
                )  # fmt: skip
                tile_store(advance(args.g, i * g_row + u * WIDTH), g_row, tile, MR, NV, W)

    return rnn_product


@functools.cache
def make_wave(compute: str) -> RangeKernel:
    """Tiles lo ... hi - 1."""
    SIZE = DTYPES[compute].itemsize
    NEXT, LINE = 8 * Block(STEP, {}, {}).words, APART

    @range_kernel("rnn_wave", WAVE.types(), spec=(compute, STEP.words))
    def rnn_wave(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        lanes, steps, many = args.lanes, args.steps, args.many
        parts = (steps + many - 1) // many
        for q in range(lo, hi):
            diagonal, place, top, count = 0, q, 0, 1
            while place >= count:
                place -= count
                diagonal += 1
                top = max(0, diagonal - parts + 1)
                count = min(diagonal, lanes - 1) - top + 1
            lane = top + place
            part = diagonal - lane
            first = part * many
            behind = min(steps, first + many)
            block = record(STEP, block_of(args) + args.blocks + lane * args.size)
            then = record(STEP, block_of(block) + NEXT)
            ended = address_of(args.ended) + lane * LINE
            start = 0
            if args.layers == 0:
                start = lane * block.groups
            else:
                wait_until(ended, part)
                if lane > 0:
                    wait_until(ended - LINE, part + 1)
                    early, late = first, behind
                    if block.reverse != 0:
                        early, late = steps - behind, steps - first
                    offsets = block.offsets
                    if offsets != 0:
                        early, late = load_word(offsets, early), load_word(offsets, late)
                    else:
                        n = block.n
                        early, late = early * n, late * n
                    g = block.tile - early * block.g_row * SIZE
                    block.g = g
                    if args.second != 0:
                        then.g = g
                    call_range(args.product, block, worker, early, late)
            for step in range(first, behind):
                block.step = step
                call_range(args.first, block, worker, start, start + block.groups)
                if args.second != 0:
                    then.step = step
                    begin = start // max(1, block.groups) * then.groups
                    call_range(args.second, then, worker, begin, begin + then.groups)
            if args.layers != 0:
                store_release(ended, part + 1)

    return rnn_wave
