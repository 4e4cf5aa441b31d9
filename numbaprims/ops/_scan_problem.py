"""The problem of cumulative sums: rows, each element of which becomes the sum of what comes before it."""

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
class ScanProblem(Problem):
    """``y_i = sum of x_j`` for j up to i, or below it; from the end where `reverse`.  Arrays of a launch: y, x."""

    stem: ClassVar[str] = "scan"
    dtype: str
    kept: tuple[int, ...]
    """Sizes of the other dimensions, the outermost in x's memory first; neighbours that merge are one, and there is
    one at least."""
    n: int
    """Elements of a row."""
    exclusive: bool
    reverse: bool
    product: bool
    """Whether elements are multiplied."""
    layout: str
    """"rows": the elements of a row lie side by side; "across": rows do; "strided"."""
    lies: tuple[Lies, ...] = dataclasses.field(compare=False, default=())

    @property
    def rows(self) -> int:
        return math.prod(self.kept)

    @property
    def empty(self) -> bool:
        return self.rows * self.n == 0

    @property
    def compute(self) -> str:
        """What sums are kept in: integers wrap."""
        return DTYPES[self.dtype].accumulate

    def flops(self) -> float:
        return float(self.rows * self.n)

    def bytes_moved(self) -> float:
        return float(2 * self.rows * self.n * DTYPES[self.dtype].itemsize)

    def roundings(self) -> int:
        return self.n + 2

    def bench_command(self) -> str:
        words = f"numbaprims bench scan --shapes {self.rows}x{self.n} --dtype {self.dtype}"
        kind = "product" if self.product else "exclusive" if self.exclusive else "inclusive"
        return f"{words} --kind {kind}" + " --across" * (self.layout == "across")


def dims_of(problem: ScanProblem, most: int) -> list[tuple[int, ...]] | None:
    """[sizes, strides of each array] of the kept dimensions, with ones in front; None where there are more."""
    lead = most - len(problem.kept)
    if lead < 0:
        return None
    return [(*(1,) * lead, *problem.kept), *((*(0,) * lead, *kept) for kept, _ in problem.lies)]


def starts_of(problem: ScanProblem, dims: int) -> np.ndarray:
    """int64 (blocks, arrays): where each index of the first dimensions begins in each array; `dims` are left out."""
    outer = problem.kept[: len(problem.kept) - dims]
    starts = np.zeros((math.prod(outer), len(problem.lies)), np.int64)
    index = np.indices(outer, np.int64).reshape(len(outer), len(starts))
    for at, (kept, _) in enumerate(problem.lies):
        starts[:, at] = np.asarray(kept[: len(outer)], np.int64) @ index
    return starts
