"""gemv with blocks of sums in registers: several rows or columns at a time, whichever way the matrix lies."""

from __future__ import annotations

from typing import Any

from numbaprims.cpu.gemv.arguments import accumulate
from numbaprims.cpu.gemv.blocks import (
    PARALLEL_BYTES,
    START,
    TILE_BYTES,
    Blocked,
    Cut,
    bytes_a_second,
    pieces,
)
from numbaprims.cpu.gemv.columns import (
    LONG_PANEL_BYTES,
    NARROW_VECTORS,
    PANEL_BYTES,
    UNROLL,
    make_narrow,
    make_panel,
)
from numbaprims.cpu.gemv.rows import MOST_ROWS, PIECE_BYTES, make_rows
from numbaprims.cpu.gemv.strided import STRIDED_ROWS, make_strided
from numbaprims.dtypes import DTYPES

MOST_TILE_BYTES = 1 << 20
"""Where A gives eight tiles or more of this size; against 256 KiB it saves 5 % from the third-level cache on."""
PANEL_LENGTH = 256
"""Columns of a panel's chunk: its sums, combined in the end, are then 1/256 of what is read."""

BESIDE = 2048
"""Bytes of a row from which on a core that reads rows `beside` one another does so: 2048 x 2048 takes 1.0 ms one by one
and 0.52 by four, 16384 x 256 1.1 and 1.8 (Zen 3)."""


def _alone(problem: Any, size: int, target: Any) -> bool:
    """Whether pieces of `size` bytes come one by one, rather than side by side."""
    moved = problem.bytes_moved()
    if target.rates.beside and size >= BESIDE:
        return False
    return bool(moved > target.l3 or (moved > target.l2 and size >= target.l1d // 8))


class RegisterBlock(Blocked):
    """Four rows share each vector of x, or four columns each vector of sums; short ones come one by one.

    What the core asks for by itself follows one line of addresses: from memory 16384 x 1024 takes 1.6 ms row by row and
    2.4 by four, columns 1.7 and 2.7; from the third-level cache 1024 x 2048 90 and 111 us, 103 and 118 (Zen 4).  Longer
    rows from memory come in pieces of half the first-level cache: 8192 x 8192 10.2 ms, and 12.1 by 8 KiB.
    """

    name = "register_block"

    def estimate(self, problem: Any, target: Any) -> float:
        if problem.order == "strided":
            return float(START * target.rates.call + target.rates.cycles(1.845 * problem.m * problem.n))
        return float(START * target.rates.call + problem.bytes_moved() / bytes_a_second(problem, target))

    def cut(self, problem: Any, target: Any, W: int) -> Cut:
        if problem.order == "row":
            return self._rows(problem, target, W)
        if problem.order == "column":
            return self._columns(problem, target, W)
        length, chunks = pieces(problem.n, 4096)
        tile, blocks = pieces(problem.m, min(STRIDED_ROWS, max(8, 16384 // length)), 8)
        return Cut(make_strided(problem.dtype, W), tile, blocks, length, chunks)

    def _rows(self, problem: Any, target: Any, W: int) -> Cut:
        size = DTYPES[problem.dtype].itemsize
        each = min(max(problem.m * problem.n * size // 8, TILE_BYTES), MOST_TILE_BYTES)
        tile, blocks = pieces(problem.m, min(MOST_ROWS, max(8, each // (max(1, problem.n) * size))), 8)
        length, chunks = pieces(problem.n, 2 * each // (min(tile, problem.m) * size), 2 * W)
        row, piece = problem.n * size, target.l1d // 2 if problem.bytes_moved() > target.l3 else PIECE_BYTES
        if chunks == 1 and _alone(problem, row, target) and row <= max(piece, target.l1d // 4):
            return Cut(make_rows(problem.dtype, W, 1, target.l1d // 2), tile, blocks, length, chunks)
        return Cut(make_rows(problem.dtype, W, 4, piece), tile, blocks, length, chunks)

    def _columns(self, problem: Any, target: Any, W: int) -> Cut:
        m, n, size = problem.m, problem.n, DTYPES[problem.dtype].itemsize
        if m <= NARROW_VECTORS * W:
            length, chunks = pieces(n, max(PANEL_LENGTH, TILE_BYTES // (m * size)), 4)
            return Cut(make_narrow(problem.dtype, W), m, 1, length, chunks)
        size_of_sum = DTYPES[accumulate(problem.dtype)].itemsize
        long = m * size_of_sum > LONG_PANEL_BYTES
        most = (LONG_PANEL_BYTES if long else PANEL_BYTES) // size_of_sum
        if n <= 2 * PANEL_LENGTH and problem.bytes_moved() >= PARALLEL_BYTES:
            most = max(most // 2, min(most, -(-m // 4)))  # one chunk or two: several threads need several blocks
        tile, blocks = pieces(m, most, 2 * W)
        tile += W  # the first block begins up to W - 1 elements before out
        each = TILE_BYTES if problem.bytes_moved() >= PARALLEL_BYTES else PARALLEL_BYTES
        length, chunks = pieces(n, max(PANEL_LENGTH, each // (tile * size)), 8)
        column = m * size_of_sum
        whole = blocks == 1 and m >= 2 * UNROLL * W and column <= target.l1d // 4 and _alone(problem, column, target)
        group = 1 if whole else 8 if long else 4
        return Cut(make_panel(problem.dtype, W, group), tile, blocks, length, chunks)
