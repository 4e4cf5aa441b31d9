"""The CPU counterpart of the kernels of Zhang and Zhang (2013, section IV, algorithm 1 and its transpose).

Their kernel gives each row of A to a block of N x M threads, loads x and the row once, keeps the threads'
sums in the block's fast memory and adds these up in a tree. Here

- the block of row j is the loop over row j; the threads are the lanes of four vector registers,
- `buff` (lines 1 to 10) is these registers: element i goes to lane i mod 4 W,
- step 3, the halving tree over `buff`, adds register to register, then the upper half of the lanes to the
  lower,
- "load only once" holds for A; x, loaded once into the block's memory there, stays in the first-level
  cache here,
- the transposed kernel goes row by row of the stored matrix too, with the vector of sums in the
  first-level cache.

What it costs: a load of x for every load of A (or a load and a store of sums), where `register_block`
shares them among four rows.
"""

from __future__ import annotations

from typing import Any

from numbaprims.cpu.gemv.arguments import accumulate
from numbaprims.cpu.gemv.blocks import START, TILE_BYTES, Blocked, Cut, bytes_a_second, pieces
from numbaprims.cpu.gemv.columns import PANEL_BYTES, make_panel
from numbaprims.cpu.gemv.rows import MOST_ROWS, make_rows
from numbaprims.dtypes import DTYPES


class RowBlock(Blocked):
    """One row of the stored matrix at a time."""

    name = "row_block"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.order == "strided":
            return "neither the rows nor the columns of op(a) are contiguous"
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        # twice (rows) or three times (columns) the accesses of register_block to the first-level cache
        most = (0.175 if problem.order == "row" else 0.1125) * target.rates.l1
        rate = min(most, 0.95 * bytes_a_second(problem, target))
        return float(START * target.rates.call + problem.bytes_moved() / rate)

    def cut(self, problem: Any, target: Any, W: int) -> Cut:
        size = DTYPES[problem.dtype].itemsize
        if problem.order == "row":
            tile, blocks = pieces(problem.m, min(MOST_ROWS, max(1, TILE_BYTES // (max(1, problem.n) * size))))
            length, chunks = pieces(problem.n, 2 * TILE_BYTES // (tile * size), 4 * W)
            return Cut(make_rows(problem.dtype, W, 1), tile, blocks, length, chunks)
        tile, blocks = pieces(problem.m, PANEL_BYTES // DTYPES[accumulate(problem.dtype)].itemsize, 2 * W)
        tile += W  # the first block begins up to W - 1 elements before out
        length, chunks = pieces(problem.n, max(256, TILE_BYTES // (tile * size)))
        return Cut(make_panel(problem.dtype, W, 1), tile, blocks, length, chunks)
