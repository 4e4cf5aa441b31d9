"""The solvers of gemv on a GPU; `kernels` has the bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu import parts
from numbaprims.gpu.device.packs import lanes
from numbaprims.gpu.gemv.arguments import THREADS, Cut, cut, walk
from numbaprims.gpu.gemv.kernels import make_columns, make_combine, make_naive, make_row_block, make_rows
from numbaprims.gpu.launch import Addresses, by_alignment, make_launcher, step
from numbaprims.gpu.solver import Solver

LAUNCH = 3e-6
SECOND_LAUNCH = 1.5e-6
"""Of a kernel whose launch overlaps with the one before it."""
LATENCY = 0.6e-6
"""Of a load from memory."""
SECTOR = 32
"""Bytes that memory gives for one element, where those next to it are not wanted."""


def _values(problem: Any, how: Cut) -> Callable[..., tuple[Any, ...]]:
    """The parameters of every kernel of gemv."""
    ints = walk(problem)
    size = DTYPES[problem.dtype].itemsize
    out_start, a_start, x_start, y_start = (size * ints[f"{name}_start"] for name in ("out", "a", "x", "y"))
    has_y = problem.has_y
    fixed: tuple[int, ...] = (problem.m, problem.n, how.across, how.length, how.chunks, int(has_y))
    fixed += tuple(ints[name] for name in ("a_rs", "a_cs", "x_step", "y_step", "out_step"))

    def values(arrays: Any, floats: Any, at: Addresses) -> tuple[Any, ...]:
        out, a, x, y = arrays[:4]
        added = y.pointer + y_start if has_y else 0
        pointers = (out.pointer + out_start, a.pointer + a_start, x.pointer + x_start, added, at.get("sums", 0))
        return (*pointers, floats[0], floats[1], *fixed)

    return values


class RegisterBlock(Solver):
    """16 bytes of A a load, against x from the cache (rows) or into sums in registers (columns); nothing strided."""

    name = "register_block"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.order == "strided":
            return "neither the rows nor the columns of op(a) are contiguous"
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        how = cut(problem)
        size = DTYPES[problem.dtype].itemsize
        efficiency = 0.9 if _wide(problem) else 0.6 if size > 2 else 0.4
        V, groups = lanes(problem.dtype), THREADS // how.lanes
        # lanes that have work: short rows, or few columns, fill only a part
        width = how.lanes * how.warps * V
        length = problem.m if how.rows == 0 else problem.n
        efficiency *= max(0.3, length / (-(-length // width) * width)) if length else 1.0
        turns = -(-how.length // (4 * groups)) if how.rows == 0 else -(-how.length // width)
        waiting = LATENCY * turns * -(-how.blocks // (4 * target.multiprocessors))
        moved = problem.bytes_moved() / (efficiency * target.bandwidth)
        return float(LAUNCH + max(moved, waiting) + (SECOND_LAUNCH if how.chunks > 1 else 0.0))

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        how = cut(problem)
        values = _values(problem, how)

        def launcher(whole: bool) -> Launcher:
            if how.rows == 0:
                kernel = make_columns(problem.dtype, how.lanes, whole)
            else:
                kernel = make_rows(problem.dtype, how.rows, how.lanes, how.warps, whole)
            first = step(kernel, how.blocks, values)
            if how.chunks == 1:
                return make_launcher([first])
            last = step(make_combine(problem.dtype), -(-problem.m // 32), values)
            accumulate = DTYPES[DTYPES[problem.dtype].accumulate].itemsize
            return make_launcher([first, last], {"sums": how.chunks * problem.m * accumulate})

        if not _wide(problem):
            return launcher(False)
        return by_alignment(launcher, dict.fromkeys((1, 2) if how.rows > 0 else (1,), 16))


def _wide(problem: Any) -> bool:
    """Whether strides and starts allow accesses of 16 bytes."""
    ints, V = walk(problem), lanes(problem.dtype)
    if problem.order == "row":
        rows = ints["a_rs"] % V == 0 or problem.m == 1
        return rows and ints["a_start"] % V == 0 and ints["x_step"] == 1 and problem.n >= V
    columns = ints["a_cs"] % V == 0 or problem.n <= 1
    return columns and ints["a_start"] % V == 0 and problem.m >= V


def _one_block_each(length: int) -> Cut:
    return Cut(1, 32, THREADS // 32, 1, length, 1)


class RowBlock(Solver):
    """The kernel of Zhang and Zhang (2013, algorithm 1): a block for each output."""

    name = "row_block"

    def estimate(self, problem: Any, target: Any) -> float:
        size = DTYPES[problem.dtype].itemsize
        # the threads that have an element, every time round
        busy = problem.n / max(1, -(-problem.n // THREADS) * THREADS)
        moved = problem.bytes_moved() / ((0.7 if size > 2 else 0.45) * max(0.05, busy))
        if problem.order != "row":
            # neighbours of an element wait in the second-level cache for the blocks next to this one, in part
            moved = problem.m * problem.n * (size + SECTOR) / 2 / 0.6
        # a load a turn is waited for, then the tree at the end
        waves = -(-problem.m // (6 * target.multiprocessors))
        waiting = waves * (LATENCY * -(-problem.n // THREADS) + 1e-6)
        return float(LAUNCH + max(moved / target.bandwidth, waiting))

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        values = _values(problem, _one_block_each(THREADS * parts.TERMS))
        return make_launcher([step(make_row_block(problem.dtype), problem.m, values)])


class Naive(Solver):
    """The definition; refuses nothing."""

    name = "naive"

    def estimate(self, problem: Any, target: Any) -> float:
        # a term after the other, each a load that is waited for, and a sector of memory
        chain = problem.n * 0.6e-6
        return float(2 * LAUNCH + chain + SECTOR * problem.m * problem.n / (0.8 * target.bandwidth))

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        values = _values(problem, _one_block_each(parts.TERMS))
        return make_launcher([step(make_naive(problem.dtype), -(-problem.m // THREADS), values)])


SOLVERS = (RegisterBlock(), RowBlock(), Naive())
