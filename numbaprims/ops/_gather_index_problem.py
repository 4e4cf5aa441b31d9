"""The problems of indices: rows of x by indices, the sums that are their gradient, rows that are one at an index."""

from __future__ import annotations

import dataclasses
import math

from numbaprims.dtypes import DTYPES
from numbaprims.ops._gather_problem import GatherProblem, PadAxis, PadProblem

STATUS = 65
"""Words of a status, the first of which is told; the others are the kernels' own."""


@dataclasses.dataclass(frozen=True)
class IndexProblem(GatherProblem):
    """Along an axis of `size` elements, between `outer` and `inner` others: ``y[o, j, i] = x[o, indices[j], i]``.

    `sizes` are ((outer, size, count, inner),).  Arrays of a launch: "gather": y, status, x, indices; "scatter", its
    gradient: dx, status, dy, indices; "one_hot", y[o, d, i] where d is indices[o, i]: y, indices.  status is the place
    of the first index that is out of range, -1 where there is none.
    """

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
    def index(self) -> str:
        """The type of the indices."""
        return self.mode

    @property
    def outer(self) -> int:
        return self.sizes[0][0]

    @property
    def size(self) -> int:
        return self.sizes[0][1]

    @property
    def count(self) -> int:
        return self.sizes[0][2]

    @property
    def inner(self) -> int:
        return self.sizes[0][3]

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
class SplitProblem(GatherProblem):
    """Parts of x along an axis, each an array of its own.  Arrays of a launch: the parts, x.

    `sizes` are ((elements before, behind), those of each part along the axis).
    """

    parts: tuple[PadProblem, ...] = dataclasses.field(compare=False, default=())
    """What each is: x without what lies before and after it."""
    places: tuple[int, ...] = dataclasses.field(compare=False, default=())
    """Which of the results they are."""

    @property
    def empty(self) -> bool:
        return math.prod(self.sizes[0]) * sum(self.sizes[1]) == 0

    def flops(self) -> float:
        return 0.0

    def bytes_moved(self) -> float:
        return float(2 * math.prod(self.sizes[0]) * sum(self.sizes[1]) * DTYPES[self.dtype].itemsize)

    def roundings(self) -> int:
        return 1

    def bench_command(self) -> str:
        outer, inner = self.sizes[0]
        sizes = f"{outer}x{sum(self.sizes[1])}x{len(self.sizes[1])}x{inner}"
        return f"numbaprims bench gather --kind split --shapes {sizes} --dtype {self.dtype}"
