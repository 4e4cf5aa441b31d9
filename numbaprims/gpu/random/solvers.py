"""The solvers of dropout and random numbers on a GPU, bound by the bytes that they move (see `kernels`)."""

from __future__ import annotations

import functools
import itertools
import math
import struct
from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.random import threshold
from numbaprims.gpu.launch import Step, aligned, make_launcher, step
from numbaprims.gpu.random.kernels import LOOPS, THREADS, lanes, make_contiguous, make_loops
from numbaprims.gpu.solver import Solver

#: Elements of one launch, whole blocks: indices are 32 bits, and a thread's last step must not wrap around.
MOST = 1 << 30
LAUNCH = 3e-6
BLOCKS = 8
"""Blocks a multiprocessor: its 2048 threads."""


def _step(problem: Any, target: Any, made: Any, threads: int, first: int, offsets: tuple[int, ...], fixed: Any) -> Step:
    """A launch from the place `first` on, for arrays so many bytes further than they begin."""
    kind, scale = problem.kind, problem.scale
    out_at, x_at = offsets[0], offsets[-1]

    def values(arrays: Any, floats: Any, _: Any) -> tuple[Any, ...]:
        out = arrays[0].pointer + out_at
        if kind == "dropout":
            p, *stream = floats[:3]
            least, factor = threshold(p)
            x, numbers = arrays[1].pointer + x_at, (factor, 0.0)
        else:
            stream, least, x, numbers = floats[:2], 0, out, scale
        words = struct.unpack("<4I", struct.pack("<2d", *stream))
        return (out, x, first, *words, least, *numbers, *fixed)

    grid = max(1, min(-(-threads // THREADS), BLOCKS * target.multiprocessors))
    return step(made, grid, values)


class Vector(Solver):
    """Contiguous arrays in C order: the elements of a block a thread, at once where they begin at 16 bytes."""

    name = "vector"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None if problem.layout == "contiguous" else "the arrays are not contiguous in C order"

    def estimate(self, problem: Any, target: Any) -> float:
        return float(LAUNCH + problem.bytes_moved() / (0.9 * target.bandwidth))

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        size = DTYPES[problem.dtype].itemsize
        make = functools.cache(lambda V: self._launcher(problem, target, size, V))
        make(lanes(problem.dtype))

        def launch(a0, a1=None, *more, **floats):  # type: ignore[no-untyped-def]
            make(lanes(problem.dtype) if aligned(16, a0, a1) else 1)(a0, a1, *more, **floats)

        launch.program = make(lanes(problem.dtype)).program  # type: ignore[attr-defined]
        return launch

    def _launcher(self, problem: Any, target: Any, size: int, V: int) -> Any:
        kernel = make_contiguous(problem.kind, problem.dtype, V)
        return make_launcher([
            _step(problem, target, kernel, -(-n // V), start, (size * start,), (n,))
            for start in range(0, problem.n, MOST) for n in [min(MOST, problem.n - start)]
        ])  # fmt: skip


class Naive(Solver):
    """One element a thread, wherever it lies; refuses nothing."""

    name = "naive"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        # a sector of 32 bytes for each element of each operand
        moved = 32.0 * problem.n * len(problem.strides)
        return float(2 * LAUNCH + max(moved, problem.bytes_moved()) / (0.8 * target.bandwidth))

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        kernel, size = make_loops(problem.kind, problem.dtype), DTYPES[problem.dtype].itemsize
        shape = problem.loops
        outside = max(0, len(shape) - LOOPS)
        # the loop in which a launch begins: cut where there are more elements than one takes
        rest = math.prod(shape[outside + 1 :])
        piece = min(shape[outside], max(1, MOST // rest))
        steps = []
        for index in itertools.product(*map(range, shape[:outside]), range(0, shape[outside], piece)):
            inside = (min(piece, shape[outside] - index[-1]), *shape[outside + 1 :])
            ones = (1,) * (LOOPS - len(inside))
            along = [((0,) * LOOPS + each[outside:])[-LOOPS:] for each in problem.strides]
            offsets = tuple(size * sum(i * s for i, s in zip(index, each, strict=False)) for each in problem.strides)
            first = 0
            for i, length in zip(index, shape, strict=False):
                first = first * length + i
            n = math.prod(inside)
            fixed = (n, *(*ones, *inside)[1:], *along[0], *along[-1])
            steps.append(_step(problem, target, kernel, n, first * rest, offsets, fixed))
        return make_launcher(steps)


SOLVERS = (Vector(), Naive())
