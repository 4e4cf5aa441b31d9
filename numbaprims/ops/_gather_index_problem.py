"""The problems of indices: rows of x by indices, the sums that are their gradient, rows that are one at an index."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import DTYPES
from numbaprims.ops._gather_problem import PadAxis, PadProblem


@dataclasses.dataclass(frozen=True)
class IndexProblem(Problem):
    """Along an axis of `size` elements, between `outer` and `inner` others: ``y[o, j, i] = x[o, indices[j], i]``.

    Arrays of a launch: "gather": y, status, x, indices; "scatter", its gradient: dx, status, dy, indices; "one_hot",
    y[o, d, i] where d is indices[o, i]: y, indices.  status is the place of the first index that is out of range, -1
    where there is none.
    """

    stem: ClassVar[str] = "gather"
    kind: str
    dtype: str
    index: str
    outer: int
    size: int
    count: int
    inner: int
    layout: str
    """"rows": neighbours of x and y behind the axis lie side by side; "strided"."""
    skip: int = dataclasses.field(compare=False, default=-1)
    """The row that gets no gradient."""
    mean: bool = dataclasses.field(compare=False, default=False)
    """Whether a row's gradient is divided by how often it was taken."""
    before: tuple[PadAxis, ...] = dataclasses.field(compare=False, default=())
    """Of "gather" the axes of x before the axis and, `behind`, after it; `steps` of y and x along it."""
    behind: tuple[PadAxis, ...] = dataclasses.field(compare=False, default=())
    steps: tuple[int, int] = dataclasses.field(compare=False, default=(1, 1))
    bits: tuple[int, int] = dataclasses.field(compare=False, default=(0, 0))
    """Of "one_hot": the bits of what is off and of what is on."""

    @property
    def rows(self) -> int:
        return self.outer * self.count * (self.inner // max(1, self.run))

    @property
    def run(self) -> int:
        """Neighbours of a row."""
        return self.behind[-1].size if self.behind else 1

    @property
    def written(self) -> int:
        """Elements of the result."""
        along = self.count if self.kind == "gather" else self.size
        return self.outer * along * self.inner

    @property
    def empty(self) -> bool:
        return self.written == 0

    def flops(self) -> float:
        return float(self.outer * self.count * self.inner) if self.kind == "scatter" else 0.0

    def bytes_moved(self) -> float:
        indices = self.count * (self.outer * self.inner if self.kind == "one_hot" else 1) * DTYPES[self.index].itemsize
        read = 0 if self.kind == "one_hot" else self.outer * self.count * self.inner
        return float((self.written + read) * DTYPES[self.dtype].itemsize + indices)

    def roundings(self) -> int:
        return self.count + 2 if self.kind == "scatter" else 1

    def bench_command(self) -> str:
        sizes = f"{self.outer}x{self.size}x{self.count}x{self.inner}"
        words = f"numbaprims bench gather --kind {'one_hot' if self.kind == 'one_hot' else 'gather'} --shapes {sizes}"
        return words + f" --dtype {self.dtype}" + " --backward" * (self.kind == "scatter")


@dataclasses.dataclass(frozen=True)
class SplitProblem(Problem):
    """Parts of x along an axis, each an array of its own.  Arrays of a launch: the parts that have elements, x."""

    stem: ClassVar[str] = "gather"
    kind: str
    dtype: str
    outer: int
    sizes: tuple[int, ...]
    inner: int
    layout: str
    parts: tuple[PadProblem, ...] = dataclasses.field(compare=False, default=())
    """What each is: x without what lies before and after it."""
    places: tuple[int, ...] = dataclasses.field(compare=False, default=())
    """Which of the results they are."""

    @property
    def empty(self) -> bool:
        return self.outer * sum(self.sizes) * self.inner == 0

    def flops(self) -> float:
        return 0.0

    def bytes_moved(self) -> float:
        return float(2 * self.outer * sum(self.sizes) * self.inner * DTYPES[self.dtype].itemsize)

    def roundings(self) -> int:
        return 1

    def bench_command(self) -> str:
        sizes = f"{self.outer}x{sum(self.sizes)}x{len(self.sizes)}x{self.inner}"
        return f"numbaprims bench gather --kind split --shapes {sizes} --dtype {self.dtype}"


