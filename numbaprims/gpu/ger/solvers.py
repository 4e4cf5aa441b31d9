"""The solvers of ger on a GPU; `kernels` has the bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.packs import lanes
from numbaprims.gpu.ger.arguments import walk
from numbaprims.gpu.ger.kernels import ROWS, THREADS, make_naive, make_row_block, make_tile
from numbaprims.gpu.jit import GpuKernel
from numbaprims.gpu.launch import by_alignment, make_launcher, step
from numbaprims.gpu.solver import Solver

LAUNCH = 3e-6


def _seconds(problem: Any, target: Any, efficiency: float) -> float:
    return float(LAUNCH + problem.bytes_moved() / (efficiency * target.bandwidth))


def _launcher(
    problem: Any, kernel: GpuKernel, blocks: int, across: int, ints: dict[str, int], swapped: bool
) -> Launcher:
    """One launch of a kernel, which takes the vectors in the order of the transposed problem."""
    size = DTYPES[problem.dtype].itemsize
    names = ("m", "n", "across", "out_rs", "out_cs", "a_rs", "a_cs", "x_step", "y_step")
    fixed = tuple((ints | {"across": across})[name] for name in names)
    starts = [size * ints[name] for name in ("out_start", "y_start", "a_start")]
    return make_launcher([step(kernel, blocks, _values(starts, fixed, swapped, problem.has_a))])


def _values(starts: list[int], fixed: tuple[int, ...], swapped: bool, has_a: bool) -> Callable[..., tuple[Any, ...]]:
    out_start, y_start, a_start = starts
    column, row = (2, 1) if swapped else (1, 2)

    def values(arrays: Any, floats: Any, _: Any) -> tuple[Any, ...]:
        a = arrays[3].pointer + a_start if has_a else 0
        out, x, y = arrays[0].pointer + out_start, arrays[column].pointer, arrays[row].pointer + y_start
        return (out, x, y, a, floats[0], *fixed)

    return values


class RegisterBlock(Solver):
    """Tiles: 16 bytes of y in registers against four rows, 16 bytes of A and of out an access."""

    name = "register_block"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.order == "strided":
            return "neither the rows nor the columns of out are contiguous"
        if not problem.a_along:
            return "a and out are not contiguous along the same dimension, in the same direction"
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        narrow = 0.6 if DTYPES[problem.dtype].itemsize > 2 else 0.4
        return _seconds(problem, target, 0.9 if _width(problem) > 1 else narrow)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        ints, swapped = walk(problem)
        width = _width(problem)

        def launcher(V: int) -> Launcher:
            across_lanes = next(count for count in (4, 8, 16, 32) if count * V >= ints["n"] or count == 32)
            across = -(-ints["n"] // (across_lanes * V))
            down = -(-ints["m"] // (ROWS * THREADS // across_lanes))
            kernel = make_tile(problem.dtype, across_lanes, V, problem.has_a)
            return _launcher(problem, kernel, down * across, across, ints, swapped)

        if width == 1:
            return launcher(1)
        row = 1 if swapped else 2
        return by_alignment(lambda whole: launcher(width if whole else 1), dict.fromkeys((0, row, 3), 16))


def _width(problem: Any) -> int:
    """Elements of an access that strides and starts allow."""
    ints, _ = walk(problem)
    V = lanes(problem.dtype)
    strides = [ints["out_rs"], ints["out_start"]]
    if problem.has_a:
        strides += [ints["a_rs"], ints["a_start"]]
    unit = ints["y_step"] == 1 and ints["out_cs"] == 1
    return V if unit and ints["n"] >= V and all(stride % V == 0 for stride in strides) else 1


class RowBlock(Solver):
    """The kernel of Zhang and Zhang (2013, algorithm 2): a block for each row."""

    name = "row_block"

    def estimate(self, problem: Any, target: Any) -> float:
        if problem.order == "strided" or not problem.a_along:
            # a sector of 32 bytes an element
            moved = 32.0 * problem.m * problem.n * (2 if problem.has_a else 1)
            return float(LAUNCH + moved / (0.8 * target.bandwidth))
        ints, _ = walk(problem)
        # the threads of a block that a row has work for; a block begins every 2 ns at best
        busy = ints["n"] / (-(-ints["n"] // THREADS) * THREADS)
        size = DTYPES[problem.dtype].itemsize
        return max(_seconds(problem, target, (0.75 if size > 2 else 0.5) * max(busy, 0.05)), 2e-9 * ints["m"])

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        ints, swapped = walk(problem)
        kernel = make_row_block(problem.dtype, problem.has_a)
        return _launcher(problem, kernel, ints["m"], 1, ints, swapped)


class Naive(Solver):
    """The definition; refuses nothing."""

    name = "naive"

    def estimate(self, problem: Any, target: Any) -> float:
        return float(2 * LAUNCH + 32.0 * problem.m * problem.n * 2 / (0.8 * target.bandwidth))

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        ints, swapped = walk(problem)
        across = -(-ints["n"] // THREADS)
        kernel = make_naive(problem.dtype, problem.has_a)
        return _launcher(problem, kernel, ints["m"] * across, across, ints, swapped)


SOLVERS = (RegisterBlock(), RowBlock(), Naive())
