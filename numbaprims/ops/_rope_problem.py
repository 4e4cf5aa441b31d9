"""The problem of rotary position embedding: rows whose pairs of elements are turned by angles of their positions."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, NamedTuple

import numpy as np

from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import DTYPES
from numbaprims.ops._reduction_problem import collapse

#: Arrays of a launch.
OUT, X, COS, SIN, POSITIONS = range(5)


@dataclasses.dataclass(frozen=True)
class RopeProblem(Problem):
    """``y1 = x1 cos - x2 sin, y2 = x1 sin + x2 cos`` of each row of x (batch, heads, length, width), or the way back.

    Arrays of a launch: out, x, cos, sin, and positions where rows say which row of cos and sin is theirs.
    """

    stem: ClassVar[str] = "rope"
    dtype: str
    cache: str
    """The type of cos and sin."""
    batch: int
    heads: int
    length: int
    width: int
    half: int
    """Pairs of a row; what of a row is behind them stays."""
    places: str
    """The type of positions; "" for row i of cos and sin being that of row i."""
    limit: int
    """Rows of cos and sin."""
    shared: bool
    """Whether all of a batch have the same angles."""
    interleaved: bool
    inverse: bool
    layout: str
    """"rows": the elements of a row lie side by side in every array; "strided"."""
    batch_shape: tuple[int, ...] = dataclasses.field(compare=False, default=())
    strides: tuple[tuple[int, ...], ...] = dataclasses.field(compare=False, default=())
    """Of each array in elements over (*batch_shape, heads, length, columns)."""

    @property
    def empty(self) -> bool:
        return self.rows * self.width == 0

    @property
    def rows(self) -> int:
        return self.batch * self.heads * self.length

    def flops(self) -> float:
        return float(6 * self.rows * self.half)

    def bytes_moved(self) -> float:
        tables = 2 * (1 if self.shared else self.batch) * self.length * self.half * DTYPES[self.cache].itemsize
        return float(2 * self.rows * self.width * DTYPES[self.dtype].itemsize + tables)

    def roundings(self) -> int:
        return 4

    def bench_command(self) -> str:
        kind = "interleaved" if self.interleaved else "halves"
        sizes = (self.batch, self.heads, self.length, self.width)
        words = f"numbaprims bench rope --kind {kind} --shapes {'x'.join(map(str, sizes))} --dtype {self.dtype}"
        return words + " --backward" * self.inverse


class Walk(NamedTuple):
    """Where rows lie: those of the innermost dimension are evenly apart, the others begin where a table says."""

    rows: int
    steps: tuple[int, ...]
    """From row to row, in each array."""
    starts: np.ndarray
    """int64 (outer, arrays)"""


def dims_of(problem: RopeProblem) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """(sizes, strides of each array) of the rows, in the order of x's memory, the innermost dimension last."""
    shape = (*problem.batch_shape, problem.heads, problem.length)
    sizes, _, lies = collapse(shape, (), [each[:-1] for each in problem.strides], X)
    return sizes, [kept for kept, _ in lies]


def walk_of(problem: RopeProblem) -> Walk:
    """The rows in the order of x's memory."""
    sizes, steps = dims_of(problem)
    starts = np.zeros((math.prod(sizes[:-1]), len(steps)), np.int64)
    index = np.indices(sizes[:-1], np.int64).reshape(len(sizes) - 1, len(starts))
    for at, step in enumerate(steps):
        starts[:, at] = np.asarray(step[:-1], np.int64) @ index
    return Walk(sizes[-1], tuple(step[-1] for step in steps), starts)
