"""The problem of the k first elements of rows by size."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np

from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import DTYPES

#: Of an array in elements: along the kept dimensions, along the row.
Lies = tuple[tuple[int, ...], int]


@dataclasses.dataclass(frozen=True)
class TopkProblem(Problem):
    """The k largest or smallest elements of each row, in order, and their places.

    Arrays of a launch: values, indices, x.
    """

    stem: ClassVar[str] = "topk"
    dtype: str
    kept: tuple[int, ...]
    """Sizes of the other dimensions, the outermost in x's memory first; neighbours that merge are one."""
    n: int
    k: int
    largest: bool
    layout: str
    """"rows": the elements of a row of x lie side by side; "strided"."""
    lies: tuple[Lies, ...] = dataclasses.field(compare=False, default=())

    @property
    def rows(self) -> int:
        return math.prod(self.kept)

    @property
    def empty(self) -> bool:
        return self.rows * self.k == 0

    @property
    def word(self) -> str:
        """The type of the integers that stand for elements."""
        return "i64" if DTYPES[DTYPES[self.dtype].accumulate].itemsize == 8 else "i32"

    def flops(self) -> float:
        return float(self.rows * self.n)

    def bytes_moved(self) -> float:
        item = DTYPES[self.dtype].itemsize
        return float(self.rows * (self.n * item + self.k * (item + 8)))

    def roundings(self) -> int:
        return 0

    def bench_command(self) -> str:
        kind = "largest" if self.largest else "smallest"
        return f"numbaprims bench topk --shapes {self.rows}x{self.n}x{self.k} --kind {kind} --dtype {self.dtype}"


def dims_of(problem: TopkProblem, most: int) -> list[tuple[int, ...]] | None:
    """[sizes, strides of each array] of the kept dimensions, with ones in front; None where there are more."""
    lead = most - len(problem.kept)
    if lead < 0:
        return None
    return [(*(1,) * lead, *problem.kept), *((*(0,) * lead, *kept) for kept, _ in problem.lies)]


def starts_of(problem: TopkProblem) -> np.ndarray:
    """int64 (rows of rows, arrays): where each index of all kept dimensions but the last begins in each array."""
    outer = problem.kept[:-1]
    starts = np.zeros((math.prod(outer), len(problem.lies)), np.int64)
    index = np.indices(outer, np.int64).reshape(len(outer), len(starts))
    for at, (kept, _) in enumerate(problem.lies):
        starts[:, at] = np.asarray(kept[:-1], np.int64) @ index
    return starts
