"""Copies whose source is contiguous along another dimension than the result: W x W elements are turned in registers.

What decides is that a block's W columns leave by a store of a whole line each.  Where rows of the result lie one behind
the other, blocks begin with a line of it, wherever the array begins: the last block of a row takes what is left of it
and the beginning of the next row.  NCHW to NHWC, 64 x 112 x 112 float32 at 16 bytes from a line: 89 instead of 142 us
(Zen 4; copying takes 70).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numba.core import types

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.pointwise.form import ARGS
from numbaprims.cpu.simd import (
    advance,
    load_rows,
    load_scalar,
    load_turned,
    load_turned_strip,
    load_word,
    pointer_from_address,
    prefetch,
    store_rows,
    store_scalar,
    stream_fence,
    stream_rows,
    unweave,
    weave,
)
from numbaprims.cpu.simd.loops import unknown

# Words of a plan: lengths of the source's innermost loop and of the result's, the result's stride along the first and
# the source's along the second, elements of a tile of both, blocks one below the other that are walked before the next
# to the right, elements of a row that are asked for ahead; how many loops more there are, then of each its length and
# the strides of both.
A, B, OUT_A, IN_B, TILE_A, TILE_B, DOWN, AHEAD, LOOPS, HEAD = range(10)
PLAN = ARGS.slot("plan")
#: Vectors of a row of the source that a tile takes, and rows of it; of fewer rows it takes more, up to so many
#: elements: no prefetch asks for the first of a tile.
WIDE, LONG, TILE = 16, 512, 1 << 17
#: Vectors of a long row of the source.
RUN = 16
#: Bytes between lines that share few sets of a first-level cache, whose ways are a page each.
CONFLICT = 2048
#: Rows or columns that are woven into one, as the channels of an image.
WOVEN = (2, 3)


def inner_of(problem: Any) -> int:
    """The kept dimension along which the source is contiguous; -1 if there is none."""
    (_, out), (source, inner) = problem.strides
    if out != (1,) or inner == (1,) or len(inner) != 1:
        return -1
    return next((at for at, step in enumerate(source) if step == 1 and problem.kept[at] > 1), -1)


def woven(problem: Any) -> int:
    """Rows that are woven into one, or, below 0, columns that are taken apart; else 0."""
    at = inner_of(problem)
    (out, _), (_, inner) = problem.strides
    if problem.n in WOVEN and out[at] == problem.n:
        return int(problem.n)
    return -int(problem.kept[at]) if problem.kept[at] in WOVEN and inner[0] == problem.kept[at] else 0


def lanes_of(problem: Any, vector_bytes: int, size: int) -> int:
    """Lanes of a vector: no more than there are rows and columns."""
    if woven(problem):
        # few CPUs shuffle bytes across 128 bits
        return (16 if size < 4 else vector_bytes) // size
    least = min(problem.n, problem.kept[inner_of(problem)])
    return int(min(vector_bytes // max(size, 4), 1 << (least.bit_length() - 1)))


def plan_of(problem: Any, W: int, past: bool, ahead: int) -> tuple[np.ndarray, int]:
    """(plan, tiles)"""
    at = inner_of(problem)
    (out, _), (source, inner) = problem.strides
    a, b = problem.kept[at], problem.n
    tile_b = min(b, LONG)
    tile_a = max(WIDE * W, TILE // tile_b // W * W)
    if woven(problem):
        tile_a = tile_b = LONG * WIDE
    # 8 x 64 x 56 x 56 float32 to NHWC took 632 us with 2, 316 with 8; back 448 with 4, 254 with 8 (Zen 4)
    down = 4 if past else 8
    words = [a, b, out[at], inner[0], tile_a, tile_b, down, ahead, len(problem.kept) - 1]
    for d, length in enumerate(problem.kept):
        if d != at:
            words += [length, out[d], source[d]]
    others = math.prod(problem.kept) // a
    return np.array(words, np.int64), -(-a // tile_a) * -(-b // tile_b) * others


@helper
def tile_of(plan, tile):  # type: ignore[no-untyped-def]
    """(the first column and row of a tile, the places of its plane in the result and in the source)"""
    tile_a, tile_b = load_word(plan, TILE_A), load_word(plan, TILE_B)
    blocks_a = (load_word(plan, A) + tile_a - 1) // tile_a
    blocks_b = (load_word(plan, B) + tile_b - 1) // tile_b
    index, to, of = tile // (blocks_a * blocks_b), 0, 0
    for d in range(load_word(plan, LOOPS) - 1, -1, -1):
        loop = plan + 8 * (HEAD + 3 * d)
        digit = index % load_word(loop, 0)
        index = index // load_word(loop, 0)
        to += digit * load_word(loop, 1)
        of += digit * load_word(loop, 2)
    return tile % blocks_a * tile_a, tile // blocks_a % blocks_b * tile_b, to, of


@functools.cache
def make_turn(size: int, W: int, past: bool, H: int, K: int) -> RangeKernel:
    """Turned copies of elements of `size` bytes, W a vector, in blocks of H rows and K columns (`kernel_of`).

    Elements below 32 bits are words of 32 while they turn."""
    elem, WHOLE = f"u{8 * size}", H == K == W

    @range_kernel("reduce_turn", types.int64, spec=(size, W, past, H, K))
    def reduce_turn(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        plan = load_word(args, PLAN)
        a, b = load_word(plan, A), load_word(plan, B)
        out_a, in_b = load_word(plan, OUT_A), load_word(plan, IN_B)
        tile_a, tile_b = load_word(plan, TILE_A), load_word(plan, TILE_B)
        down, ahead = load_word(plan, DOWN), load_word(plan, AHEAD)
        for tile in range(lo, hi):
            begin_a, begin_b, to, of = tile_of(plan, tile)
            end_a, end_b = min(begin_a + tile_a, a), min(begin_b + tile_b, b)
            address = load_word(args, 0) + size * to
            target = pointer_from_address(address, elem)
            source = pointer_from_address(load_word(args, 1) + size * of, elem)
            # elements before the first line of the result
            head = 0
            if H == W and out_a == b and b % W == 0 and a > W and address % size == 0:
                head = (W - address // size % W) % W
            streams = past and out_a % W == 0 and (address + size * head) % (size * W) == 0
            if head and end_b == b:
                if begin_a == 0:
                    for r in range(head):
                        store_scalar(target, r, load_scalar(source, r * in_b))
                if end_a == a:
                    for r in range(b - W + head, b):
                        store_scalar(target, (a - 1) * out_a + r, load_scalar(source, r * in_b + a - 1))
            # of long rows of the source the second block of columns begins with a line
            skip = W - (load_word(args, 1) // size + of) % W if K == W and a >= RUN * W and in_b % W == 0 else K
            # the last block of a row takes what is left of it and the beginning of the next one
            whole = end_b - W if head and end_b == b else end_b
            for group in range(begin_b, whole, down * W):
                column, wide = begin_a, skip
                while column < end_a:
                    i = min(column, a - K)
                    asks = ahead and i + ahead < end_a and (K == W or column % W == 0)
                    column += wide
                    wide = K
                    for row in range(group, min(whole, group + down * W), H):
                        j = min(row, b - H) + head
                        step, corner = unknown(in_b), advance(source, i + j * in_b)
                        if asks:
                            # no prefetcher follows jumps from row to row
                            for r in range(H):
                                prefetch(corner, r * step + ahead, 2)
                        if WHOLE:
                            block = load_turned(corner, step, W, 0, W)
                        else:
                            block = load_turned_strip(corner, step, H, K)
                        there, step = advance(target, i * out_a + j), unknown(out_a)
                        if streams and row + H <= b:
                            stream_rows(there, step, block)
                        else:
                            store_rows(there, step, block)
            if whole < end_b:
                for column in range(begin_a, end_a, W):
                    i, j = min(column, a - 1 - W), whole + head
                    block = load_turned(advance(source, i + j * in_b), in_b, b - j, 1 - b * in_b, W)
                    there = advance(target, i * out_a + j)
                    if streams:
                        stream_rows(there, out_a, block)
                    else:
                        store_rows(there, out_a, block)
        if past:
            stream_fence()

    return reduce_turn


@functools.cache
def make_weave(size: int, W: int, rows: int) -> RangeKernel:
    """`rows` rows of the source woven into one of the result or, below 0, so many columns of it taken apart."""
    elem, K, BACK = f"u{8 * size}", abs(rows), rows < 0

    @range_kernel("reduce_weave", types.int64, spec=(size, W, rows))
    def reduce_weave(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        plan = load_word(args, PLAN)
        out_a, in_b = load_word(plan, OUT_A), load_word(plan, IN_B)
        for tile in range(lo, hi):
            begin_a, begin_b, to, of = tile_of(plan, tile)
            target = pointer_from_address(load_word(args, 0) + size * to, elem)
            source = pointer_from_address(load_word(args, 1) + size * of, elem)
            if BACK:
                at, end, many = begin_b, min(load_word(plan, B), begin_b + load_word(plan, TILE_B)), 1
            else:
                at, end, many = begin_a, min(load_word(plan, A), begin_a + load_word(plan, TILE_A)), K
            # the second vector begins with a line, if any does
            first, step = (load_word(args, 0) // size + to + at * many) % W, 1
            while step < W and (first + step * many) % W:
                step += 1
            while at + W <= end:
                if BACK:
                    store_rows(advance(target, at), out_a, unweave(load_rows(advance(source, at * K), W, K, W)))
                else:
                    store_rows(advance(target, at * K), W, weave(load_rows(advance(source, at), in_b, K, W)))
                at += step
                step = W
            while at < end:
                for r in range(K):
                    if BACK:
                        store_scalar(target, at + r * out_a, load_scalar(source, at * K + r))
                    else:
                        store_scalar(target, at * K + r, load_scalar(source, at + r * in_b))
                at += 1

    return reduce_weave


def kernel_of(problem: Any, W: int, size: int, past: bool) -> RangeKernel:
    """Lines apart by a multiple of half a page lie in two sets of a first-level cache, which keep 8 each: of W columns
    written, or W rows read, none is there any more when the next block of it comes.  Blocks then have as few columns,
    or rows, as 128 bits hold: 8 x 2048 x 7 x 7 float32 to NHWC takes 101 us for 175, and back 126 for 150 (Zen 4;
    a copy 67).
    """
    if K := woven(problem):
        return make_weave(size, W, K)
    at, few = inner_of(problem), 16 // max(size, 4)
    (out, _), (_, inner) = problem.strides
    if out[at] * size % CONFLICT == 0:
        return make_turn(size, W, past, W, min(W, few))
    # stores past the caches are whole lines
    rows = few if inner[0] * size % CONFLICT == 0 and not past else W
    return make_turn(size, W, past, min(W, rows), W)
