"""Copies whose source is contiguous along another dimension than the result: W x W are turned in registers.

A tile is walked along the result's rows, W of them side by side, which leave by whole lines, past the caches where they
are large.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numba.core import types

from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.pointwise.form import ARGS
from numbaprims.cpu.simd import (
    advance,
    load_wide_rows,
    load_word,
    pointer_from_address,
    prefetch,
    store_narrow_rows,
    store_rows,
    stream_fence,
    stream_rows,
    transpose,
)

# Words of a plan: lengths of the source's innermost loop and of the result's, the result's stride along the first and
# the source's along the second, elements of a tile of both; how many loops more there are, then of each its length and
# the strides of both.
A, B, OUT_A, IN_B, TILE_A, TILE_B, LOOPS, HEAD = range(8)
PLAN = ARGS.slot("plan")
#: Vectors of a row of the source that a tile takes, and rows of it; of fewer rows it takes more, up to so many
#: elements: no prefetch asks for the first of a tile.
WIDE, LONG, TILE = 16, 512, 1 << 17


def inner_of(problem: Any) -> int:
    """The kept dimension along which the source is contiguous; -1 if there is none."""
    (_, out), (source, inner) = problem.strides
    if out != (1,) or inner == (1,) or len(inner) != 1:
        return -1
    return next((at for at, step in enumerate(source) if step == 1 and problem.kept[at] > 1), -1)


def plan_of(problem: Any, W: int) -> tuple[np.ndarray, int]:
    """(plan, tiles)"""
    at = inner_of(problem)
    (out, _), (source, inner) = problem.strides
    a, b = problem.kept[at], problem.n
    tile_b = min(b, LONG)
    tile_a = max(WIDE * W, TILE // tile_b // W * W)
    words = [a, b, out[at], inner[0], tile_a, tile_b, len(problem.kept) - 1]
    for d, length in enumerate(problem.kept):
        if d != at:
            words += [length, out[d], source[d]]
    others = math.prod(problem.kept) // a
    return np.array(words, np.int64), -(-a // tile_a) * -(-b // tile_b) * others


@functools.cache
def make_turn(size: int, W: int, past: bool) -> RangeKernel:
    """Turned copies of elements of `size` bytes, W a vector; those below 32 bits are words of 32 while they turn."""
    elem, AHEAD = f"u{8 * size}", 3 * W

    @range_kernel("reduce_turn", types.int64, spec=(size, W, past))
    def reduce_turn(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        plan = load_word(args, PLAN)
        a, b = load_word(plan, A), load_word(plan, B)
        out_a, in_b = load_word(plan, OUT_A), load_word(plan, IN_B)
        tile_a, tile_b = load_word(plan, TILE_A), load_word(plan, TILE_B)
        blocks_a, blocks_b = (a + tile_a - 1) // tile_a, (b + tile_b - 1) // tile_b
        for tile in range(lo, hi):
            begin_a = tile % blocks_a * tile_a
            begin_b = tile // blocks_a % blocks_b * tile_b
            index = tile // (blocks_a * blocks_b)
            to = begin_a * out_a + begin_b
            of = begin_a + begin_b * in_b
            for d in range(load_word(plan, LOOPS) - 1, -1, -1):
                loop = plan + 8 * (HEAD + 3 * d)
                digit = index % load_word(loop, 0)
                index = index // load_word(loop, 0)
                to += digit * load_word(loop, 1)
                of += digit * load_word(loop, 2)
            address = load_word(args, 0) + size * to
            target = pointer_from_address(address, elem)
            source = pointer_from_address(load_word(args, 1) + size * of, elem)
            na, nb = min(tile_a, a - begin_a), min(tile_b, b - begin_b)
            # all rows of the result lie alike in their lines: the first columns are those before a line begins
            streams = past and out_a % W == 0
            head = (W - address // size % W) % W if streams else 0
            for i in range(0, na, W):
                columns = min(W, na - i)
                rows = min(head if head else W, nb)
                j = 0
                while j < nb:
                    if past and i + AHEAD < na:
                        # the same rows' lines: no prefetcher follows jumps from row to row
                        for r in range(W):
                            prefetch(source, (j + r) * in_b + i + AHEAD, 3)
                    corner = advance(source, i + j * in_b)
                    there = advance(target, i * out_a + j)
                    if rows == W and columns == W:
                        block = transpose(load_wide_rows(corner, in_b, W, W, W))
                        if streams:
                            stream_rows(there, out_a, block)
                        else:
                            store_rows(there, out_a, block)
                    else:
                        block = transpose(load_wide_rows(corner, in_b, rows, columns, W))
                        store_narrow_rows(there, out_a, columns, rows, block)
                    j += rows
                    rows = min(W, nb - j)
        if past:
            stream_fence()

    return reduce_turn
