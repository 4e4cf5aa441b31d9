"""The solvers of dropout and random numbers on a GPU, bound by the bytes that they move (see `kernels`)."""

from __future__ import annotations

import struct
from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.random import threshold
from numbaprims.gpu.pointwise.walk import LAUNCH, Array, seconds, walker, width
from numbaprims.gpu.random.kernels import lanes, make_kernel
from numbaprims.gpu.solver import Solver


def _arrays(problem: Any) -> list[Array]:
    """The result, and x of a dropout."""
    return [Array(k, problem.dtype, strides) for k, strides in enumerate(problem.strides)]


def _width(problem: Any) -> int:
    """Elements of a pack, which are of one block: it begins at a multiple of them among all elements."""
    arrays, inner = _arrays(problem), problem.loops[-1]
    V = width(inner, arrays[:1], arrays[1:], lanes(problem.dtype))
    return 1 if len(problem.loops) > 1 and inner % V else V


def _words(stream: tuple[float, ...]) -> tuple[int, ...]:
    """Of seed and offset, whose bits two floats hold."""
    return struct.unpack("<4I", struct.pack("<2d", *stream[:2]))


def _walk(problem: Any, target: Any, V: int) -> Launcher:
    kind, scale = problem.kind, problem.scale

    def scalars(floats: tuple[float, ...]) -> tuple[Any, ...]:
        if kind != "dropout":
            return (*scale, *_words(floats), 0)
        least, factor = threshold(floats[0])
        return (factor, 0.0, *_words(floats[1:]), least)

    arrays = _arrays(problem)
    name, compute = f"{kind}:{problem.dtype}", DTYPES[problem.dtype].accumulate
    return walker(make_kernel, name, compute, problem.loops, arrays[:1], arrays[1:], target, scalars, V)


class Vector(Solver):
    """Runs in C order: the elements of a block a thread, at once where they begin at a multiple of their bytes."""

    name = "vector"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.layout == "contiguous" or _width(problem) > 1:
            return None
        return "the arrays have no aligned runs of a block's elements"

    def estimate(self, problem: Any, target: Any) -> float:
        return seconds(problem.bytes_moved(), target, 0.9 if problem.layout == "contiguous" else 0.8)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        return _walk(problem, target, _width(problem))


class Naive(Solver):
    """One element a thread, wherever it lies; refuses nothing."""

    name = "naive"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        # a sector of 32 bytes for each element of each operand
        moved = 32.0 * problem.n * len(problem.strides)
        return LAUNCH + seconds(max(moved, problem.bytes_moved()), target, 0.8)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        return _walk(problem, target, 1)


SOLVERS = (Vector(), Naive())
