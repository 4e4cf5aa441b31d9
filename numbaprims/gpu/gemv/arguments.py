"""How a gemv problem is turned into the numbers that its kernels take, and how it is cut."""

from __future__ import annotations

from typing import Any, NamedTuple

from numbaprims.gpu import parts
from numbaprims.gpu.device.packs import lanes

THREADS = 256
WARPS = THREADS // 32
BLOCKS = 1024
"""Blocks that a problem is cut into where it is large enough: an H200 holds as many at a time, of 256 threads each.  It
is no fact of the target, because the cut is the order of the sums."""
MOST_CHUNKS = 512


def walk(problem: Any) -> dict[str, int]:
    """Give the integers of a problem, its steps of -1 turned around.

    Starts, steps and strides count elements.  Contiguous rows or columns are walked forwards, and what goes with them
    (x, or y and out) backwards.
    """
    s = problem.strides
    ints = {
        "m": problem.m, "n": problem.n, "a_start": 0, "a_rs": s.a[0], "a_cs": s.a[1], "x_start": 0, "x_step": s.x,
        "y_start": 0, "y_step": s.y if problem.has_y else 0, "out_start": 0, "out_step": s.out,
    }  # fmt: skip
    if problem.order == "row" and s.a[1] == -1:
        last = problem.n - 1
        ints |= {"a_start": -last, "a_cs": 1, "x_start": last * s.x, "x_step": -s.x}
    elif problem.order == "column" and s.a[0] == -1:
        last = problem.m - 1
        ints |= {"a_start": -last, "a_rs": 1, "y_start": last * ints["y_step"], "y_step": -ints["y_step"]}
        ints |= {"out_start": last * s.out, "out_step": -s.out}
    return ints


class Cut(NamedTuple):
    """Which kernel of `rows` or `columns`, and its blocks."""

    rows: int
    """Outputs of one group of threads; 0 stands for a kernel over columns."""
    lanes: int
    """Lanes of a group side by side."""
    warps: int
    """Warps of a group."""
    across: int
    """Blocks for all outputs."""
    length: int
    """Terms of a chunk."""
    chunks: int

    @property
    def blocks(self) -> int:
        """Of the grid."""
        return self.across * self.chunks


def _chunks(n: int, wanted: int, least: int, multiple: int, adders: int) -> tuple[int, int]:
    """(length, how many) of chunks of n terms, each a multiple of `multiple`, of `least` or more, and of no more than
    so many accumulators add."""
    count = max(1, min(wanted, n // least, MOST_CHUNKS), -(-n // (adders * parts.TERMS)))
    length = max(multiple, -(-n // (count * multiple)) * multiple)
    return length, max(1, -(-n // length))


def cut(problem: Any) -> Cut:
    """How `register_block` cuts a problem; a function of the problem alone."""
    m, n, P = problem.m, problem.n, lanes(problem.dtype)
    if problem.order == "column":
        side = next(count for count in (4, 8, 16, 32) if count * P >= m or count == 32)
        groups = THREADS // side
        across = -(-m // (side * P))
        # 16 terms for each group of lanes at least: its sums are then a small part of what it reads
        length, chunks = _chunks(n, -(-BLOCKS // across), 16 * groups, 4 * groups, groups)
        return Cut(0, side, 1, across, length, chunks)
    many = m >= 16 * BLOCKS  # half of the blocks already where a warp takes four rows
    if n <= 16 * P:
        rows, side, warps = 4 if m >= 128 * BLOCKS else 1, 8, 1
    elif n < 128 * P or many:
        rows, side, warps = 4 if many else 1, 32, 1
    else:
        rows, side, warps = 4 if m >= 2 * BLOCKS else 1, 32, WARPS
    across = -(-m // (rows * THREADS // (side * warps)))
    width = side * warps
    wanted = -(-BLOCKS // across) if warps > 1 else 1
    length, chunks = _chunks(n, wanted, 4 * width * P, width * P, width)
    return Cut(rows, side, warps, across, length, chunks)
