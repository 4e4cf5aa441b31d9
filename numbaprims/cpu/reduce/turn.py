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

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.reduce.variant import even
from numbaprims.cpu.simd import (
    Arguments,
    address_of,
    advance,
    load,
    load_rows,
    load_scalar,
    load_turned,
    load_word,
    prefetch,
    store,
    store_rows,
    store_scalar,
    store_stream,
    stream_fence,
    stream_rows,
    unweave,
    weave,
)
from numbaprims.cpu.simd.loops import unknown
from numbaprims.dtypes import DTYPES

# Words of a plan: lengths of the source's innermost loop and of the result's, the result's stride along the first and
# the source's along the second, elements of a tile of both, blocks one below the other that are walked before the next
# to the right, elements of a row that are asked for ahead, those from row to row of a copy; how many loops more there
# are, then of each its length and the strides of both.
A, B, OUT_A, IN_B, TILE_A, TILE_B, DOWN, AHEAD, ROOM_STEP, LOOPS, HEAD = range(11)
#: Bytes of a line of the cache; rows, and bytes of each, that are copied.
LINE, COPIED = 64, (64, 512)
#: Region `rows`: those that are copied to where they share no sets of a cache; `held`: two strips of the result.
TURN = Arguments(arrays=("y", "x"), ints=("plan",), own=("rows", "held"))
#: Vectors of a row of the source that a tile takes, and rows of it; of fewer rows it takes more, up to so many
#: elements: no prefetch asks for the first of a tile.
WIDE, LONG, TILE = 16, 512, 1 << 17
#: Turned copies leave past the caches where they move as much of a core's part of the third-level one:
#: 8 x 512 x 28 x 28 float32, 26 MB of 32, takes 610 us for 1,260 (Zen 4).
TURNED_PAST = 0.5
#: Bytes of a first-level cache in which a group of rows is asked for, and of the group.  4096 x 4096 takes 5.0 ms by
#: copies of pieces of rows, 3.3 so, 32 x 256 x 56 x 56 to NHWC 7.0 and 4.8, back 5.3 and 4.1, 128 x 1024 x 14 x 14 to
#: NHWC 5.7 and 4.2 (Zen 5, 48 KiB).
ROOMY, GROUP = 48 << 10, 32 << 10
#: Bytes of a group of as few rows as make a line of the result.  A core that reads rows beside each other badly takes
#: 9.9 ms so for 4112 x 4112 (128 rows at a time 17.8; a copy 8.4), 13.3 for 32 x 56 x 56 x 256 to NCHW (19.4; Zen 3).
FEW_BYTES = 4096
#: Lines of a column of the result that leave one behind the other where columns lie a power of two apart, and bytes of
#: a group of as many rows.  Such lines go to few of the memory's banks: alone they leave at 5.5 GB/s, by four at 17
#: (columns of 4160 or 16448 bytes: 19).  128 x 1024 x 14 x 14 to NHWC takes 19 ms for 33 (Zen 3).
BURST, BURST_BYTES = 4, 128 << 10
#: How a result leaves: into the caches, or past them while groups of rows are asked for: many into the second level,
#: many into the first, or few into the second.
STAYING, SECOND, FIRST, FEW = range(4)
#: Vectors of a long row of the source.
RUN = 16
#: Bytes between 16 lines that share few sets of a first-level cache, whose ways are a page each.
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
    rows, columns = problem.n, problem.kept[inner_of(problem)]
    # blocks of narrow elements are as many columns as 128 bits hold
    narrow = size < 4 and min(rows, columns) >= 16 // size
    most = vector_bytes // size if narrow else min(vector_bytes // max(size, 4), columns)
    return int(1 << (min(rows, most).bit_length() - 1))


def far(problem: Any, target: Any) -> bool:
    """Whether results leave past the caches."""
    return bool(problem.bytes_moved() >= target.third * TURNED_PAST)


def leaving(target: Any) -> int:
    """How results leave past the caches."""
    if target.l1d >= ROOMY:
        return FIRST
    return FEW if target.rates.beside else SECOND


def _group(problem: Any, W: int, past: int) -> tuple[int, int]:
    """(rows, bytes of each) that are asked for while those before them turn."""
    size = DTYPES[problem.dtype].itemsize
    if rows := bursts(problem, W, size, past):
        return rows, BURST_BYTES // rows
    if past != FIRST:
        return (W, FEW_BYTES) if past == FEW else (128, 1024)
    # two lines of each row of the result
    piece = min(problem.kept[inner_of(problem)] * size, GROUP // max(32, 2 * LINE // size))
    return even(problem.n, GROUP // piece, W), piece


def plan_of(problem: Any, W: int, past: int, ahead: int, tile: tuple[int, int] | None = None) -> tuple[np.ndarray, int]:
    """(plan, tiles); `tile`: their columns and rows, where these are another's choice."""
    at, size = inner_of(problem), DTYPES[problem.dtype].itemsize
    (out, _), (source, inner) = problem.strides
    a, b = problem.kept[at], problem.n
    tile_b = min(b, LONG)
    tile_a, down = max(WIDE * W, TILE // tile_b // W * W), 8 if size >= 4 else max(1, 128 // W)
    copied = copies(problem, W, size, past)
    if past or copied[0]:
        rows, piece = copied if copied[0] else _group(problem, W, past)
        tile_a, down = max(W, piece // size), max(1, rows // W)
    if woven(problem):
        tile_a = tile_b = LONG * WIDE
    tile_a, tile_b = tile or (min(tile_a, -(-a // W) * W), tile_b)
    words = [a, b, out[at], inner[0], tile_a, tile_b, down, ahead, tile_a + LINE // size]
    words.append(len(problem.kept) - 1)
    for d, length in enumerate(problem.kept):
        if d != at:
            words += [length, out[d], source[d]]
    others = math.prod(problem.kept) // a
    return np.array(words, np.int64), -(-a // tile_a) * -(-b // tile_b) * others


def in_groups(problem: Any, target: Any) -> bool:
    """Whether groups of rows can be asked for: where blocks leave as whole lines, or the core gains by it even so.
    32 x 14 x 14 x 512 to NCHW takes 4.8 ms for 10.3, 64 x 28 x 28 x 100 3.6 for 9.6 (Zen 3)."""
    size, step = DTYPES[problem.dtype].itemsize, problem.strides[0][0][inner_of(problem)]
    W = lanes_of(problem, LINE, size)
    return not woven(problem) and W * size == LINE and (step % W == 0 or leaving(target) == FEW)


def conflicts(problem: Any, W: int, size: int) -> tuple[bool, bool]:
    """Whether W rows of the result, and of the source, share sets of a first-level cache."""
    (out, _), (_, inner) = problem.strides
    apart = 16 * CONFLICT // max(16, W)
    return out[inner_of(problem)] * size % apart == 0, inner[0] * size % apart == 0


def bursts(problem: Any, W: int, size: int, past: int) -> int:
    """Rows of a group whose result leaves by several lines of a column, a block's elements at least; 0 if none does."""
    rows = W * max(BURST, 16 // size)
    # those of a tile, and of bytes there would be 1024
    few = past == FEW and rows <= min(problem.n, LONG)
    return rows if few and conflicts(problem, W, size)[0] else 0


def copies(problem: Any, W: int, size: int, past: int) -> tuple[int, int]:
    """(rows of the source, and bytes of each, that are copied to where they share no sets before they are turned)"""
    to, of = conflicts(problem, W, size)
    if not of or not (to or past == SECOND) or past == FIRST or woven(problem):
        return 0, 0
    rows = bursts(problem, W, size, past)
    return (rows, BURST_BYTES // rows) if rows else COPIED


def regions_of(problem: Any, W: int, past: int, width: int = 0) -> dict[str, int]:
    """Bytes of a worker's regions, where tiles have rows of so many bytes, or of `copies`."""
    size = DTYPES[problem.dtype].itemsize
    (rows, piece), held = copies(problem, W, size, past), bursts(problem, W, size, past)
    return ({"rows": rows * ((width or piece) + LINE)} if rows else {}) | ({"held": 2 * LINE * held} if held else {})


@helper
def _leave(strips, at, target, ready, line, left, down, out_a, H, K):  # type: ignore[no-untyped-def]
    """K lines of the strip that ends at `at`, of which so much is left; gives (column, its line, what is left then)."""
    for part in range(K):
        store_stream(target, ready + line + part * H, load(strips, at - left + part * H, H))
    line += H * K
    if line == down:
        return ready + out_a, 0, left - H * K
    return ready, line, left - H * K


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


@helper
def _copy_rows(room, step, source, in_b, rows, columns, W, K):  # type: ignore[no-untyped-def]
    """The first columns of some rows, one behind the other; there are K of them at least."""
    for r in range(rows):
        to, of = advance(room, r * step), advance(source, r * in_b)
        for c in range(0, columns - W + 1, W):
            store(to, c, load(of, c, W))
        for c in range(columns - columns % W, columns, K):
            store(to, min(c, columns - K), load(of, min(c, columns - K), K))


@functools.cache
def make_turn(
    size: int, W: int, past: int, H: int, K: int, WIDE: int, COPIES: bool, STAYS: bool = False, BURSTS: bool = False
) -> RangeKernel:
    """Turned copies of elements of `size` bytes, W a vector, in blocks of W rows and K columns (`kernel_of`).

    A group of rows that leaves past the caches asks for the next one's lines in the order of memory: asked for side by
    side, row by row, they come at a third of the rate.  A result that STAYS is stored in the caches all the same.
    Blocks that do not fill 128 bits turn as words of 32.
    """
    elem, STEP = f"u{8 * size}", LINE // size
    LINES, WORDS, PAST, LEVEL = max(1, H * K // STEP), size >= 4, past > STAYING, 2 + (past == FIRST)

    spec = (size, W, past, H, K, WIDE, COPIES, STAYS, BURSTS)

    @range_kernel("reduce_turn", TURN.types(y=elem, x=elem, rows=elem, held=elem), spec=spec)
    def reduce_turn(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        plan = args.plan
        a, b = load_word(plan, A), load_word(plan, B)
        out_a, in_b = load_word(plan, OUT_A), load_word(plan, IN_B)
        tile_a, tile_b = load_word(plan, TILE_A), load_word(plan, TILE_B)
        down, ahead = load_word(plan, DOWN) * W, load_word(plan, AHEAD)
        if COPIES:
            room, room_step = args.rows[worker], load_word(plan, ROOM_STEP)
        if BURSTS:
            # two strips: where the one that is turned lies; of the other that leaves the column, its line, what is left
            strips, strip = args.held[worker], WIDE * down
            half, ready, line, left = 0, 0, 0, 0
        for tile in range(lo, hi):
            begin_a, begin_b, to, of = tile_of(plan, tile)
            end_a, end_b = min(begin_a + tile_a, a), min(begin_b + tile_b, b)
            target, source = advance(args.y, to), advance(args.x, of)
            address = address_of(target)
            after_a, after_b, _, after = tile_of(plan, tile + 1)
            after = advance(args.x, after + after_a + after_b * in_b)
            # elements before the first line of the result
            head = 0
            if H == W and out_a == b and b % W == 0 and a > W and address % size == 0:
                head = (W - address // size % W) % W
            streams = PAST and not STAYS and out_a % W == 0 and (address + size * head) % (size * W) == 0
            if head and end_b == b:
                if begin_a == 0:
                    for r in range(head):
                        store_scalar(target, r, load_scalar(source, r * in_b))
                if end_a == a:
                    for r in range(b - W + head, b):
                        store_scalar(target, (a - 1) * out_a + r, load_scalar(source, r * in_b + a - 1))
            # of long rows of the source the second block of columns begins with a line, and every tile but the first;
            # what is copied begins with one
            skip = WIDE
            if not COPIES and a >= RUN * W and in_b % WIDE == 0:
                skip = WIDE - address_of(source) // size % WIDE
            if not STAYS and skip < WIDE:
                end_a = min(end_a + skip, a)
                if begin_a > 0:
                    begin_a += skip
                    skip = WIDE
            # the last block of a row takes what is left of it and the beginning of the next one
            whole = end_b - W if head and end_b == b else end_b
            for group in range(begin_b, whole, down):
                ask_row, ask_column, ask = 0, 0, after
                if group + down < whole:
                    ask = advance(source, begin_a + (group + down + head) * in_b)
                first, step = advance(source, 0), in_b
                if COPIES:
                    begin, row = min(begin_a, a - K), min(group, b - W) + head
                    step = room_step
                    rows = min(group + down, whole) + head - row
                    _copy_rows(room, step, advance(source, begin + row * in_b), in_b, rows, end_a - begin, W, K)
                    first = advance(room, -begin - row * step)
                column, wide = begin_a, skip
                while column < end_a:
                    holds = BURSTS and streams and wide == WIDE and column + WIDE <= end_a and group + down <= whole
                    for row in range(group, min(whole, group + down), H):
                        j = min(row, b - H) + head
                        # all of a line of the source while it is near
                        for part in range(1 if WIDE == K else (min(column + wide, end_a) - column + K - 1) // K):
                            at = column + part * K
                            i = min(at, a - K)
                            corner, apart = advance(first, i + j * step), unknown(step)
                            if PAST:
                                for _ in range(LINES):
                                    prefetch(ask, ask_row * in_b + ask_column, LEVEL)
                                    ask_column += STEP
                                    if ask_column >= tile_a:
                                        ask_column = 0
                                        ask_row += 1
                            elif WORDS and ahead and at + ahead < end_a and (K >= STEP or at % STEP == 0):
                                # no prefetcher follows jumps from row to row; of narrow elements asking costs more
                                for r in range(H):
                                    prefetch(corner, r * apart + ahead, 2)
                            block = load_turned(corner, apart, H, 0, H, K)
                            there = advance(target, i * out_a + j)
                            if BURSTS and left > 0:
                                ready, line, left = _leave(
                                    strips, 2 * strip - half, target, ready, line, left, down, out_a, H, K
                                )
                            if BURSTS and holds:
                                store_rows(advance(strips, half + part * K * down + row - group), unknown(down), block)
                            elif streams and row + H <= b:
                                stream_rows(there, unknown(out_a), block)
                            else:
                                store_rows(there, unknown(out_a), block)
                    if BURSTS and holds:
                        ready, left = column * out_a + group + head, strip
                        half = strip - half
                    column += wide
                    wide = WIDE
            if BURSTS:
                while left > 0:
                    ready, line, left = _leave(strips, 2 * strip - half, target, ready, line, left, down, out_a, H, K)
            if whole < end_b:
                for column in range(begin_a, end_a, K):
                    i, j = min(column, a - 1 - K), whole + head
                    block = load_turned(advance(source, i + j * in_b), in_b, b - j, 1 - b * in_b, W, K)
                    there = advance(target, i * out_a + j)
                    if streams:
                        stream_rows(there, out_a, block)
                    else:
                        store_rows(there, out_a, block)
        if PAST:
            stream_fence()

    return reduce_turn


@functools.cache
def make_weave(size: int, W: int, rows: int) -> RangeKernel:
    """`rows` rows of the source woven into one of the result or, below 0, so many columns of it taken apart."""
    elem, K, BACK = f"u{8 * size}", abs(rows), rows < 0

    @range_kernel("reduce_weave", TURN.types(y=elem, x=elem), spec=(size, W, rows))
    def reduce_weave(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        plan = args.plan
        out_a, in_b = load_word(plan, OUT_A), load_word(plan, IN_B)
        for tile in range(lo, hi):
            begin_a, begin_b, to, of = tile_of(plan, tile)
            target, source = advance(args.y, to), advance(args.x, of)
            if BACK:
                at, end, many = begin_b, min(load_word(plan, B), begin_b + load_word(plan, TILE_B)), 1
            else:
                at, end, many = begin_a, min(load_word(plan, A), begin_a + load_word(plan, TILE_A)), K
            # the second vector begins with a line, if any does
            first, step = (address_of(target) // size + at * many) % W, 1
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


def kernel_of(problem: Any, vector_bytes: int, W: int, size: int, past: int, stays: bool = False) -> RangeKernel:
    """Lines apart by a multiple of half a page lie in two sets of a first-level cache, which keep 8 each: of W columns
    written, or W rows read, none is there any more when the next block of it comes.  Blocks then have as few columns,
    or rows, as 128 bits hold: 8 x 2048 x 7 x 7 float32 to NHWC takes 101 us for 175, and back 126 for 150 (Zen 4;
    a copy 67).  Rows that share sets with each other and with the result's, or that come from memory, are copied to
    where they do not: 1024 x 1024 float32 takes 232 us for 770.
    """
    if K := woven(problem):
        return make_weave(size, W, K)
    few, (to, of), copied = 16 // size, conflicts(problem, W, size), copies(problem, W, size, past)[0] > 0
    H = K = W
    if W * size > 16:
        # bytes of a line turn within 128 bits, whatever registers there are
        if size < 4 or W * size > vector_bytes or past == FEW or (to and not past):
            K = few
        if of and not copied and not past:
            H, K = few, W
    # half a line at a time: 528 x 528 float32 64 us for 68, 512 x 512 float64 165 for 177 (Zen 3)
    wide = K if not past and (to or (vector_bytes == 32 and not of)) else max(K, LINE // size)
    return make_turn(size, W, past, H, K, wide, copied, stays, not stays and bursts(problem, W, size, past) > 0)
