"""The depth-first walk: tiles of a plane's rows go through all stages of a sequence, band by band.

One kernel walks every sequence: it calls the stages' kernels by address, so a stack of any depth costs the compilation
of the stages that differ.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    block_of,
    call_range,
    load,
    load_word,
    pointer_from_address,
    store,
    store_word,
)
from numbaprims.cpu.stack.arguments import BLOCK_WORDS, MOST_ADDED, STAGE, WALK

(
    OUT, X, PAST, PARAMETERS, ADDED, ADDED_NEXT, FRESH, OLDEST, HEIGHT, PITCH, OUT_PITCH, KERNEL, EXTENT, STRIDE,
    BEFORE, MOST, KEPT, PARAMETER, ADDS, BEGIN, DONE, ENDS, UNORDERED, LEFT,
) = (
    STAGE.slot(name)
    for name in (
        "out", "x", "past", "parameters", "added", "added_next", "fresh", "oldest", "height", "pitch", "out_pitch",
        "kernel", "extent", "stride", "before", "most", "kept", "parameter", "adds", "begin", "done", "ends",
        "unordered", "left",
    )
)  # fmt: skip
OUT_HEIGHT = STAGE.slot("out_height")
BLOCK = 8 * BLOCK_WORDS
ADDED_0, ADDED_N = WALK.slot("added_0"), WALK.slot("added_0_n")
LINE_WORDS = 8


@helper
def copy_lines(to, source, size):  # type: ignore[no-untyped-def]
    """So many bytes, whole lines, from the first on."""
    a, b = pointer_from_address(to, "i64"), pointer_from_address(source, "i64")
    for i in range(0, size // 8, LINE_WORDS):
        store(a, i, load(b, i, LINE_WORDS))


@helper
def keep_rows(block, to, have):  # type: ignore[no-untyped-def]
    """Keep what windows from row `to` of the result on read of the input's rows, which are there up to `have`."""
    first = max(to * load_word(block, STRIDE) - load_word(block, BEFORE), 0)
    kept, pitch = load_word(block, PAST), load_word(block, PITCH)
    fresh, oldest = load_word(block, FRESH), load_word(block, OLDEST)
    if oldest < first < fresh:
        copy_lines(kept, kept + (first - oldest) * pitch, (fresh - first) * pitch)
    new = max(first, fresh)
    if have > new:
        copy_lines(kept + (new - first) * pitch, load_word(block, X) + (new - fresh) * pitch, (have - new) * pitch)
    store_word(block, OLDEST, first)


@helper
def rows_of(block, have, last_of_input):  # type: ignore[no-untyped-def]
    """Up to which row of the result a stage computes from rows of the input up to `have`."""
    done, ends = load_word(block, DONE), load_word(block, ENDS)
    to = ends
    if have < last_of_input:
        room = have + load_word(block, BEFORE) - load_word(block, EXTENT)
        to = done
        if room >= 0:
            to = max(done, min(ends, room // load_word(block, STRIDE) + 1))
    return min(to, done + load_word(block, MOST))


@helper
def begin_tile(blocks, depth, first, last):  # type: ignore[no-untyped-def]
    """Rows of each stage's result that the rows [first, last) of the last one's are made of."""
    lo, hi = first, last
    for k in range(depth):
        block = blocks + BLOCK * (depth - 1 - k)
        store_word(block, DONE, lo)
        store_word(block, ENDS, hi)
        stride, before = load_word(block, STRIDE), load_word(block, BEFORE)
        hi = min(load_word(block, HEIGHT), (hi - 1) * stride - before + load_word(block, EXTENT))
        lo = max(0, lo * stride - before)
        store_word(block, BEGIN, lo)
        store_word(block, FRESH, lo)
        store_word(block, OLDEST, lo)
        store_word(block, UNORDERED, k + 1 == depth)  # the first stage's input is not known


@functools.cache
def make_walk() -> RangeKernel:
    """The range kernel over tiles."""
    most_added = MOST_ADDED

    @range_kernel("depth_first", WALK.types(), spec=(BLOCK_WORDS, most_added))
    def depth_first(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        depth, words = args.depth, block_of(args)
        blocks, past = address_of(args.own_stages[worker]), address_of(args.past[worker])
        copy_lines(blocks, args.stages, depth * BLOCK)
        buffer, swapped = address_of(args.buffer_0[worker]), address_of(args.buffer_1[worker])
        for k in range(depth):
            block = blocks + BLOCK * k
            store_word(block, PAST, past + load_word(block, KEPT))
            store_word(block, X, swapped if k % 2 == 0 else buffer)
            store_word(block, OUT, buffer if k % 2 == 0 else swapped)
        end = blocks + BLOCK * (depth - 1)
        for tile in range(lo, hi):
            patch, plane = divmod(tile, args.planes)
            n, c = divmod(plane, args.blocks)
            first = patch * args.rows
            begin_tile(blocks, depth, first, min(first + args.rows, load_word(end, OUT_HEIGHT)))
            own = address_of(args.parameters) + c * args.parameters_c
            for k in range(depth):
                block = blocks + BLOCK * k
                store_word(block, PARAMETERS, own + load_word(block, PARAMETER))
                store_word(block, LEFT, args.c - c * args.block)
                adds = load_word(block, ADDS)
                if adds >= 0:
                    for j in range(min(2, most_added - adds)):
                        at = adds + j
                        place = n * load_word(words, ADDED_N + 2 * at) + c * load_word(words, ADDED_N + 2 * at + 1)
                        store_word(block, ADDED + j, load_word(words, ADDED_0 + at) + place)
            image = address_of(args.x) + n * args.x_n + c * args.x_c
            store_word(blocks, X, image + load_word(blocks, BEGIN) * load_word(blocks, PITCH))
            result = address_of(args.out) + n * args.out_n + c * args.out_c
            while load_word(end, DONE) < load_word(end, ENDS):
                have, last_of_input = load_word(blocks, HEIGHT), 0
                for k in range(depth):
                    block = blocks + BLOCK * k
                    done, ends = load_word(block, DONE), load_word(block, ENDS)
                    to = rows_of(block, have, last_of_input)
                    if to > done:
                        if k == depth - 1:
                            store_word(block, OUT, result + done * load_word(block, OUT_PITCH))
                        call_range(load_word(block, KERNEL), block, worker, done, to)
                        store_word(block, DONE, to)
                    if k > 0:
                        if to < ends:
                            keep_rows(block, to, have)
                        store_word(block, FRESH, have)
                    have, last_of_input = to, ends

    return depth_first
