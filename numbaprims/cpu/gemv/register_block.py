"""gemv with blocks of sums in registers: several rows or columns at a time, whichever way the matrix lies."""

from __future__ import annotations

from typing import Any

from numbaprims.arrays import DTYPES
from numbaprims.cpu.gemv.arguments import accumulate
from numbaprims.cpu.gemv.blocks import (
    TILE_BYTES,
    X_BYTES,
    Blocked,
    Cut,
    beyond_caches,
    bytes_a_second,
    pieces,
)
from numbaprims.cpu.gemv.columns import (
    NARROW_VECTORS,
    PANEL_BYTES,
    WALK_VECTORS,
    make_narrow,
    make_panel,
    make_walk,
)
from numbaprims.cpu.gemv.rows import MOST_ROWS, make_rows
from numbaprims.cpu.gemv.strided import STRIDED_ROWS, make_strided

ONE_ROW = (6144, 16384)
"""Bytes of a row between which one row at a time reads the third-level cache faster than four: 256 x 4096 takes 49 us
against 55, 1024 x 1024 53 against 50. Four long streams are prefetched worse; a longer x leaves the first-level cache.
"""
PANEL_LENGTH = 256
"""Columns of a panel's chunk: its sums, combined in the end, are then 1/256 of what is read."""
WALK_BYTES = 8 << 20
"""Beyond, a walk's lines lie so far apart that they share cache sets: 256 x 16384 takes 408 us, by panels 292."""


class RegisterBlock(Blocked):
    """Four rows share each vector of x, or four columns each vector of sums; eight beyond the caches."""

    name = "register_block"

    def estimate(self, problem: Any, target: Any) -> float:
        if problem.order == "strided":
            return 0.5e-6 + problem.m * problem.n * 0.45e-9
        return 0.5e-6 + problem.bytes_moved() / bytes_a_second(problem, target)

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
        length, chunks = pieces(problem.n, X_BYTES // size, 2 * W)
        tile, blocks = pieces(problem.m, min(MOST_ROWS, max(8, TILE_BYTES // (length * size))), 8)
        kernel = make_rows(problem.dtype, W, self._rows_at_once(problem, target))
        return Cut(kernel, tile, blocks, length, chunks)

    def _rows_at_once(self, problem: Any, target: Any) -> int:
        if beyond_caches(problem, target):
            return 8
        row = problem.n * DTYPES[problem.dtype].itemsize
        streams = problem.bytes_moved() > target.l2 and ONE_ROW[0] <= row <= ONE_ROW[1]
        return 1 if streams and problem.dtype in ("f64", "f32") else 4

    def _columns(self, problem: Any, target: Any, W: int) -> Cut:
        m, n, size = problem.m, problem.n, DTYPES[problem.dtype].itemsize
        if m <= NARROW_VECTORS * W:
            length, chunks = pieces(n, max(PANEL_LENGTH, TILE_BYTES // (m * size)), 4)
            return Cut(make_narrow(problem.dtype, W), m, 1, length, chunks)
        width = WALK_VECTORS * W
        if n <= 256 and m >= 8 * width and m * n * size <= WALK_BYTES:
            blocks = -(-(m + W - 1) // width)  # one more where vectors are aligned in the middle of a block
            return Cut(make_walk(problem.dtype, W), width, blocks, n, 1, max(1, min(8, blocks // 4)))
        most = PANEL_BYTES // DTYPES[accumulate(problem.dtype)].itemsize
        tile, blocks = pieces(m + W - 1, most, 2 * W)
        length, chunks = pieces(n, max(PANEL_LENGTH, TILE_BYTES // (tile * size)), 8)
        kernel = make_panel(problem.dtype, W, 8 if beyond_caches(problem, target) else 4)
        return Cut(kernel, tile, blocks, length, chunks)
