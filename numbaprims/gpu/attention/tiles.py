"""Tiles of attention's operands in shared memory, and their products on tensor cores.

A tile is rows (of q, k, v or dout) of 64, 128, ... elements of 16 bits, in boxes of 64 columns: rows of 128 bytes,
whose eight pieces of 16 bytes are swizzled by the row, so that ldmatrix and the copies meet all banks.  A row's further
boxes lie behind the first.  wgmma reads the same boxes.

One tile serves three products, since ldmatrix turns what it reads: as the left operand, as the right one summed over
its columns (q k^T), and as the right one summed over its rows (p v).  The sums of a product of scores lie in a warp's
registers as a left operand's fragments do, so that probabilities never leave them.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.gpu.device.memory import pack_halves
from numbaprims.gpu.device.mma import ldmatrix, mma
from numbaprims.gpu.device.warp import lane_index
from numbaprims.gpu.gemm.tiles import PIECE, make_put, make_put_whole
from numbaprims.gpu.jit import cuda, device_function, types

I32, I64, U32 = types.int32, types.int64, types.uint32
ROW = 128
"""Bytes of a row of a box: 64 elements."""
PIECES = ROW // PIECE
ELEMENTS = 8
"""Of a piece."""


def columns_of(width: int) -> int:
    """Columns of a tile that holds rows of `width` elements."""
    return -(-width // 64) * 64


@device_function
def piece_of(thread):  # type: ignore[no-untyped-def]
    """(row, first column, place in the tile) of the piece that a thread copies first."""
    row, piece = U32(thread >> U32(3)), U32(thread & U32(7))
    return I32(row), I32(piece * U32(ELEMENTS)), U32(row * U32(ROW) + ((piece ^ (row & U32(7))) << U32(4)))


@functools.cache
def make_copy(dtype: str, rows: int, columns: int, threads: int, width: int) -> Any:
    """copy(target, source, offset, row_step, row, column, rows_left, columns_there): start to copy this thread's pieces
    of a tile, the first from source[offset] to address `target`; zeros where no row or column is."""
    round_rows, box = threads // PIECES, rows * ROW
    rounds, boxes = rows // round_rows, columns // 64
    assert rows % round_rows == 0 and round_rows % 8 == 0, (rows, threads)  # the swizzle repeats after 8 rows
    put, put_whole = make_put(dtype, width), make_put_whole(dtype, width)

    @device_function
    def copy(target, source, offset, row_step, row, column, rows_left, there):  # type: ignore[no-untyped-def]
        if rows_left >= I32(rows) and there >= I32(columns):
            for h in range(rounds):
                at = offset + I64(h * round_rows) * row_step
                for b in range(boxes):
                    put_whole(U32(target + U32(h * round_rows * ROW + b * box)), source, at + I64(64 * b))
        else:
            for h in range(rounds):
                exists = I32(row + I32(h * round_rows)) < rows_left
                at = offset + I64(h * round_rows) * row_step
                for b in range(boxes):
                    valid = I32(min(max(I32(there - column - I32(64 * b)), I32(0)), I32(ELEMENTS)) * I32(2))
                    target_b = U32(target + U32(h * round_rows * ROW + b * box))
                    put(target_b, source, at + I64(64 * b), valid if exists else I32(0))

    return copy


@device_function
def place_by_rows():  # type: ignore[no-untyped-def]
    """Where a lane reads a left operand, and a right one that is summed over its rows: within 16 x 16 elements."""
    lane = lane_index()
    return U32((lane & U32(15)) * U32(ROW) + (((lane >> U32(4)) ^ (lane & U32(7))) << U32(4)))


@device_function
def place_by_columns():  # type: ignore[no-untyped-def]
    """The same for a right operand that is summed over its columns."""
    lane = lane_index()
    row = U32((lane & U32(7)) + ((lane >> U32(1)) & U32(8)))
    return U32(row * U32(ROW) + ((((lane >> U32(3)) & U32(1)) ^ (lane & U32(7))) << U32(4)))


@device_function
def at_column(place, step, box):  # type: ignore[no-untyped-def]
    """The address 16 `step` columns further: four to a box."""
    return U32(U32(place ^ U32(U32(step & 3) << U32(5))) + U32(U32(step >> 2) * U32(box)))


@device_function
def add_product(total, e, left, w0, w1, dtype):  # type: ignore[no-untyped-def]
    """Sums e ... e + 3 of a warp, one 16 x 8 tile."""
    before = (total[e], total[e + 1], total[e + 2], total[e + 3])
    after = mma(left, (w0, w1), before, dtype, dtype)
    total[e], total[e + 1], total[e + 2], total[e + 3] = after[0], after[1], after[2], after[3]


@functools.cache
def make_hold(fragments: int, steps: int, rows: int) -> Any:
    """hold(words, place): a left operand of `fragments` times 16 rows into registers."""
    box = rows * ROW

    @device_function
    def hold(words, place):  # type: ignore[no-untyped-def]
        for step in range(steps):
            for i in range(fragments):
                found = ldmatrix(U32(at_column(place, step, box) + U32(i * 16 * ROW)), 0)
                for w in range(4):
                    words[4 * (step * fragments + i) + w] = found[w]

    return hold


@functools.cache
def make_scores(
    dtype: str, fragments: int, tiles: int, steps: int, held: bool, left_rows: int, right_rows: int
) -> Any:  # fmt: skip
    """scores(total, words, left, right): total += left right^T, over 16 `steps` columns of both.

    `tiles` times 8 rows of the right tile; the left operand is `words`, or with `held` False read at `left`.
    """
    left_box, right_box, LEFTS = left_rows * ROW, right_rows * ROW, 4 * fragments

    @device_function
    def scores(total, words, left, right):  # type: ignore[no-untyped-def]
        lefts = cuda.local.array(LEFTS, U32)
        for step in range(steps):
            for i in range(fragments):
                if held:
                    for w in range(4):
                        lefts[4 * i + w] = words[4 * (step * fragments + i) + w]
                else:
                    found = ldmatrix(U32(at_column(left, step, left_box) + U32(i * 16 * ROW)), 0)
                    lefts[4 * i], lefts[4 * i + 1], lefts[4 * i + 2], lefts[4 * i + 3] = found
            for j in range(tiles // 2):
                w0, w1, w2, w3 = ldmatrix(U32(at_column(right, step, right_box) + U32(j * 16 * ROW)), 0)
                for i in range(fragments):
                    one = (lefts[4 * i], lefts[4 * i + 1], lefts[4 * i + 2], lefts[4 * i + 3])
                    e = 4 * (i * tiles + 2 * j)
                    add_product(total, e, one, w0, w1, dtype)
                    add_product(total, e + 4, one, w2, w3, dtype)

    return scores


@functools.cache
def make_gather(dtype: str, fragments: int, tiles: int, steps: int, rows: int) -> Any:
    """gather(total, weights, right): total += weights right, over 16 `steps` rows of the right tile, `tiles` times 8 of
    its columns; `weights` are sums of `make_scores`, rounded as they are used."""
    box, wide, LEFTS = rows * ROW, 2 * steps, 4 * fragments

    @device_function
    def gather(total, weights, right):  # type: ignore[no-untyped-def]
        lefts = cuda.local.array(LEFTS, U32)
        for step in range(steps):
            for i in range(fragments):
                for w in range(4):
                    e = 4 * (i * wide + 2 * step) + 2 * w
                    lefts[4 * i + w] = pack_halves(weights[e], weights[e + 1], dtype)
            for j in range(tiles // 2):
                w0, w1, w2, w3 = ldmatrix(U32(at_column(right, j, box) + U32(step * 16 * ROW)), 1)
                for i in range(fragments):
                    one = (lefts[4 * i], lefts[4 * i + 1], lefts[4 * i + 2], lefts[4 * i + 3])
                    e = 4 * (i * tiles + 2 * j)
                    add_product(total, e, one, w0, w1, dtype)
                    add_product(total, e + 4, one, w2, w3, dtype)

    return gather
