"""The ways to sum up, and what each is estimated to take."""

from __future__ import annotations

import math
from typing import Any

from numbaprims.cpu.jit import RangeKernel
from numbaprims.cpu.program import Phase, Program
from numbaprims.cpu.scan.kernels import ACROSS, ROWS, make_across, make_rows
from numbaprims.cpu.simd import Arguments, lanes
from numbaprims.cpu.solver import Config, Regions, Solver
from numbaprims.dtypes import DTYPES
from numbaprims.ops._scan_problem import starts_of

CHUNK_BYTES = 16384
"""Of the sums of a part of a long row: what is read a second time comes from the first-level cache.  4 Mi int64 take
2.2, 2.7 and 2.9 ms by parts of 16, 32 and 128 KiB (Zen 4)."""
FEW = 16
"""Rows of which each worker has none to spare: long ones are cut."""
BLOCK, STEP = 1024, 64
"""Rows side by side of a tile at most, whose sums take 4 to 8 KiB, and what a tile has a multiple of."""
CHUNKS = 64
"""Parts of the work, where there are rows enough."""
TILE_BYTES = 8192
"""Of x in a tile at least."""


class _Scan(Solver):
    layout = "rows"
    regroups = True

    def why_not(self, problem: Any, target: Any) -> str | None:
        if self.regroups and problem.product and problem.dtype[0] != "i":
            return "a product of some elements may be infinite where that of all before them is not"
        if problem.layout != self.layout:
            words = "elements of a row" if self.layout == "rows" else "rows"
            return f"{words} do not lie side by side in both arrays"
        return None

    def lanes(self, problem: Any, target: Any) -> int:
        return lanes(problem.compute, target.vector_bytes)

    def cycles(self, problem: Any, W: int) -> float:
        """Of one core, from the first-level cache."""
        vectors = problem.rows * (2 + -(-problem.n // W))
        return float(vectors * (2 + 2 * math.log2(2 * W)))

    def estimate(self, problem: Any, target: Any) -> float:
        moved = problem.bytes_moved()
        cycles = self.cycles(problem, self.lanes(problem, target))
        return float(target.rates.call + target.rates.cycles(cycles) + moved / target.bandwidth(moved))

    def made(
        self, problem: Any, target: Any, args: Arguments, ints: dict[str, int], phases: list[Phase], starts: Any,
        regions: Regions | None = None,
    ) -> Program:  # fmt: skip
        waking = target.rates.waking(self.estimate(problem, target))
        return Program.of(args, ints, phases, regions=regions, keep=(starts,), **waking)

    def ints(self, p: Any, starts: Any) -> dict[str, int]:
        (out_kept, out_step), (x_kept, x_step) = p.lies
        ints = {"n": p.n, "rows": p.kept[-1], "starts": starts.ctypes.data, "out_row": out_kept[-1]}
        return ints | {"x_row": x_kept[-1], "out_col": out_step, "x_col": x_step, "chunks": 1, "chunk": p.n}


def cut(kernel: RangeKernel, tiles: int) -> Phase:
    """A phase of `CHUNKS` parts."""
    return Phase(kernel, tiles, max(1, tiles // CHUNKS))


def chunk_of(problem: Any) -> int:
    """Elements of a part."""
    return CHUNK_BYTES // DTYPES[problem.compute].itemsize


class Rows(_Scan):
    """A row after the other, prefix sums in registers."""

    name = "rows"

    def estimate(self, problem: Any, target: Any) -> float:
        seconds = super().estimate(problem, target)
        return seconds * float(target.rates.idle(seconds, problem.rows, True))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        p, starts = problem, starts_of(problem, 1)
        row = p.n * DTYPES[p.dtype].itemsize
        block = max(1, min(p.kept[-1], max(TILE_BYTES, p.rows * row // CHUNKS) // row))
        blocks = -(-p.kept[-1] // block)
        ints = self.ints(p, starts) | {"block": block, "blocks": blocks}
        kernel = make_rows("rows", p.dtype, p.compute, p.exclusive, p.reverse, p.product, self.lanes(p, target))
        return self.made(p, target, ROWS, ints, [cut(kernel, len(starts) * blocks)], starts)


class Chunks(_Scan):
    """Long rows in parts, begun in their order: the total of each, then sums on top of what comes before it."""

    name = "chunks"

    def why_not(self, problem: Any, target: Any) -> str | None:
        chunk = chunk_of(problem)
        if problem.n < 2 * chunk or problem.rows > FEW:
            return f"rows are many, or shorter than two parts of {chunk} elements"
        return super().why_not(problem, target)

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        p, starts, W = problem, starts_of(problem, 1), self.lanes(problem, target)
        chunk = chunk_of(p)
        chunks = -(-p.n // chunk)
        ints = self.ints(p, starts) | {"block": 1, "blocks": p.kept[-1], "chunks": chunks, "chunk": chunk}
        way, tiles = (p.dtype, p.compute, p.exclusive, p.reverse, p.product, W), p.rows * chunks
        regions = Regions({"totals": tiles * DTYPES[p.compute].itemsize, "flags": 8 * tiles})
        phases = [
            Phase(make_rows("clear", *way), p.rows, 1),
            Phase(make_rows("chunks", *way), tiles, 1, one_queue=True),
        ]
        return self.made(p, target, ROWS, ints, phases, starts, regions)


class Across(_Scan):
    """A line of sums, to which one row after the other is added."""

    name = "across"
    layout = "across"
    regroups = False

    def cycles(self, problem: Any, W: int) -> float:
        return float(problem.rows / problem.kept[-1] * problem.n * (4 + 2 * -(-problem.kept[-1] // W)))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        p, starts, W = problem, starts_of(problem, 1), self.lanes(problem, target)
        inner = p.kept[-1]
        # blocks enough for every worker
        least = -(-p.rows // (CHUNKS * STEP)) * STEP
        block = min(BLOCK, max(256, least), -(-inner // W) * W)
        blocks = -(-inner // block)
        (_, out_step), (_, x_step) = p.lies
        ints = {"n": p.n, "inner": inner, "block": block, "blocks": blocks, "starts": starts.ctypes.data}
        ints |= {"out_step": out_step, "x_step": x_step}
        kernel = make_across(p.dtype, p.compute, p.exclusive, p.reverse, p.product, W)
        regions = Regions(own={"line": block * DTYPES[p.compute].itemsize})
        return self.made(p, target, ACROSS, ints, [cut(kernel, len(starts) * blocks)], starts, regions)


class Naive(Rows):
    """An element after the other, wherever they lie."""

    name = "naive"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def lanes(self, problem: Any, target: Any) -> int:
        return 1

    def cycles(self, problem: Any, W: int) -> float:
        return float(problem.rows * (20 + 6 * problem.n))


class InOrder(Naive):
    """Products of floats along contiguous rows, four loads ahead of the product that all wait for."""

    name = "in_order"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if not problem.product or problem.layout != "rows":
            return "it is for products along rows"
        return None

    def cycles(self, problem: Any, W: int) -> float:
        return float(problem.rows * (20 + 4 * problem.n))


SOLVERS = (Rows(), Chunks(), Across(), InOrder(), Naive())
