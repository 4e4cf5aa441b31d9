"""The problem of local response normalisation: windows over channels, or over the pixels of a channel."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, NamedTuple

from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import DTYPES

Five = tuple[int, int, int, int, int]


@dataclasses.dataclass(frozen=True)
class LrnProblem(Problem):
    """``y = x s**-beta`` with ``s = k + alpha / window sum x**2`` over what lies around each element, or x's gradient.

    Arrays of a launch: y, x; of the gradient dx, dy, x.  Floats: alpha, beta, k.
    """

    stem: ClassVar[str] = "lrn"
    direction: str
    """"forward" or "backward"."""
    dtype: str
    size: Five
    """Over (n, c, d, h, w)."""
    before: Five
    """How far windows reach to smaller indices, and `after` to larger ones."""
    after: Five
    layout: str
    """"channels_first", "channels_last" or "strided"."""
    strides: tuple[Five, ...] = dataclasses.field(compare=False, default=())
    """Of each array of a launch, in elements."""

    @property
    def empty(self) -> bool:
        return 0 in self.size

    @property
    def elements(self) -> int:
        return math.prod(self.size)

    @property
    def taps(self) -> int:
        """Elements of the largest window."""
        reach = zip(self.size, self.before, self.after, strict=True)
        return math.prod(min(size, 1 + before + after) for size, before, after in reach)

    @property
    def window(self) -> int:
        """Elements of a window, inside or not."""
        return math.prod(1 + before + after for before, after in zip(self.before, self.after, strict=True))

    @property
    def across(self) -> bool:
        """Whether windows go over channels."""
        return not any((*self.before[2:], *self.after[2:]))

    def bench_command(self) -> str:
        kind = "across_channels" if self.across else "within_channel"
        window = max(1 + before + after for before, after in zip(self.before, self.after, strict=True))
        n, c, *pixels = self.size
        words = f"numbaprims bench lrn --kind {kind} --shapes {n}x{c}x{pixels[0] * pixels[1]}x{pixels[2]}x{window}"
        words += f" --dtype {self.dtype}" + " --layout NHWC" * (self.layout == "channels_last")
        return words + " --backward" * (self.direction == "backward")

    def flops(self) -> float:
        return float(self.elements * (2 * self.taps + 4) * (2 if self.direction == "backward" else 1))

    def bytes_moved(self) -> float:
        return float(self.elements * DTYPES[self.dtype].itemsize * (3 if self.direction == "backward" else 2))

    def roundings(self) -> int:
        # exp(-beta log s) has the error of beta log s, which is below 90 for float32
        return 2 * self.taps + 100


class Axis(NamedTuple):
    """Dimensions that every array walks evenly."""

    size: int
    before: int
    after: int
    steps: tuple[int, ...]
    """Of each array of the launch."""


def axes_of(problem: LrnProblem) -> list[Axis]:
    """The axes, outermost first in x's memory; neighbours without windows are one, those of one element none."""
    found = [
        Axis(size, before, after, steps)
        for size, before, after, steps in zip(
            problem.size, problem.before, problem.after, zip(*problem.strides, strict=True), strict=True
        )
        if size > 1
    ]  # fmt: skip
    found.sort(key=lambda axis: -abs(axis.steps[-1]))
    merged: list[Axis] = []
    for axis in found:
        last = merged[-1] if merged else axis
        even = all(a == b * axis.size for a, b in zip(last.steps, axis.steps, strict=True))
        if merged and even and not any((last.before, last.after, axis.before, axis.after)):
            merged[-1] = axis._replace(size=last.size * axis.size)
        else:
            merged.append(axis)
    return merged or [Axis(1, 0, 0, (1,) * len(problem.strides))]
