"""The problem of resizing: which elements of the source each element of the result mixes, axis by axis."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import DTYPES

Three = tuple[int, int, int]
Five = tuple[int, int, int, int, int]
Table = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
MODES = ("nearest", "nearest_exact", "linear", "cubic")


@dataclasses.dataclass(frozen=True)
class ResizeProblem(Problem):
    """A tensor over another grid of pixels, or the gradient of the source.

    Arrays of a launch: y, x; of the gradient dx, dy.
    """

    stem: ClassVar[str] = "resize"
    direction: str
    """"forward" or "backward"."""
    dtype: str
    mode: str
    size: Five
    """Of the source, over (n, c, d, h, w)."""
    to: Three
    """Pixels of the result."""
    steps: tuple[tuple[int, int], ...]
    """Along d, h and w: pixels of the source from one pixel of the result to the next, as a fraction."""
    align_corners: bool
    antialias: bool
    cubic_coeff: float
    layout: str
    """"channels_first", "channels_last" or "strided"."""
    strides: tuple[Five, ...] = dataclasses.field(compare=False, default=())
    """Of each array of a launch, in elements."""

    @property
    def empty(self) -> bool:
        return 0 in self.size

    @property
    def planes(self) -> int:
        return self.size[0] * self.size[1]

    @property
    def elements(self) -> int:
        """What a launch writes."""
        return self.planes * math.prod(self.result)

    @property
    def result(self) -> Three:
        """Pixels of what a launch writes, and `source` of what it reads."""
        return self.to if self.direction == "forward" else self.size[2:]

    @property
    def source(self) -> Three:
        return self.size[2:] if self.direction == "forward" else self.to

    @property
    def copies(self) -> bool:
        """Whether each result is one element of the source."""
        return self.direction == "forward" and self.mode.startswith("nearest")

    def taps(self, axis: int) -> int:
        """Elements that a result mixes along d, h or w (0 to 2), at most."""
        if self.size[2 + axis] == self.to[axis] == 1 or self.mode.startswith("nearest"):
            return 1
        taps = {"linear": 2, "cubic": 4}[self.mode]
        p, q = self.steps[axis]
        return min(self.size[2 + axis], math.ceil(taps * max(1.0, p / q)) + 1) if self.antialias else taps

    def tables(self) -> list[Table]:
        """Along d, h and w: (index, weight) of what each element of the result mixes, a row of them each; index -1
        stands for none."""
        found = [
            taps(self.size[2 + axis], self.to[axis], self.steps[axis], self.mode, self.align_corners, self.antialias,
                 self.cubic_coeff)
            for axis in range(3)
        ]  # fmt: skip
        if self.direction == "backward":
            found = [transposed(*table, self.size[2 + axis]) for axis, table in enumerate(found)]
        return found

    def bench_command(self) -> str:
        n, c, d, h, w = self.size
        sizes = (n, c, d, h, w, *self.to)
        words = f"numbaprims bench resize --kind {self.mode} --shapes {'x'.join(str(size) for size in sizes)}"
        words += f" --dtype {self.dtype}" + " --layout NHWC" * (self.layout == "channels_last")
        return words + " --backward" * (self.direction == "backward")

    def flops(self) -> float:
        if self.copies:
            return 0.0
        each = 1
        for axis in range(3):
            each *= self.taps(axis)
        return float(2 * each * self.planes * math.prod(self.to))

    def bytes_moved(self) -> float:
        """The result, and what of the source is read."""
        reads = 1
        for axis in range(3):
            size, to = self.size[2 + axis], self.to[axis]
            reads *= min(size, to * self.taps(axis))
        ways = (math.prod(self.to), reads)
        if self.direction == "backward":
            ways = (math.prod(self.to), math.prod(self.size[2:]))
        return float(self.planes * sum(ways) * DTYPES[self.dtype].itemsize)

    def roundings(self) -> int:
        if self.dtype == "u8":
            return 0 if self.copies else 1
        terms = 1
        for axis in range(3):
            size, to = self.size[2 + axis], self.to[axis]
            terms *= self.taps(axis) * (max(1, -(-to // size)) + 1 if self.direction == "backward" else 1)
        return 2 * terms + 8


def cubic_weights(t: Any, a: float) -> list[Any]:
    """Keys' cubic convolution: the weights of the pixels at -1, 0, 1 and 2 for a place t behind pixel 0."""

    def near(x: Any) -> Any:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Any) -> Any:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def taps(
    n: int, m: int, step: tuple[int, int], mode: str, align_corners: bool, antialias: bool, cubic_coeff: float
) -> Table:
    """(index, weight) of the taps of each of m results over n elements; places are exact fractions."""
    p, q = step
    at = np.arange(m, dtype=np.int64)
    if mode.startswith("nearest"):
        index = at * p // q if mode == "nearest" else (2 * at + 1) * p // (2 * q)
        return np.minimum(index, n - 1)[:, None], np.ones((m, 1))
    if antialias:
        return _spread(n, m, p / q, mode, cubic_coeff)
    place, unit = (at * p, q) if align_corners else ((2 * at + 1) * p - q, 2 * q)
    if mode == "linear":
        place = np.maximum(place, 0)
    first = place // unit
    t = (place - first * unit) / unit
    weights = [1 - t, t] if mode == "linear" else cubic_weights(t, cubic_coeff)
    begin = 0 if mode == "linear" else -1
    index = np.stack([np.clip(first + k, 0, n - 1) for k in range(begin, begin + len(weights))], 1)
    if n == m == 1:
        return index[:, :1], np.ones((1, 1))
    return index, np.stack(weights, 1)


def _spread(n: int, m: int, scale: float, mode: str, a: float) -> Table:
    """The filter, as wide as a pixel of the result where that is wider, its weights divided by their sum."""
    wide = max(scale, 1.0)
    support = wide * (1 if mode == "linear" else 2)
    center = scale * (np.arange(m) + 0.5)
    low = np.maximum((center - support + 0.5).astype(np.int64), 0)
    high = np.minimum((center + support + 0.5).astype(np.int64), n)
    index = low[:, None] + np.arange(max(int((high - low).max()), 1))
    x = np.abs((index - center[:, None] + 0.5) / wide)
    if mode == "linear":
        weight = np.maximum(1 - x, 0)
    else:
        near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        weight = np.where(x < 1, near, np.where(x < 2, far, 0))
    inside = index < high[:, None]
    weight = np.where(inside, weight, 0)
    return np.where(inside, index, -1), weight / weight.sum(1, keepdims=True)


def transposed(index: np.ndarray, weight: np.ndarray, n: int) -> Table:
    """The taps of the gradient: which results read each of n elements, in their order."""
    flat, there = index.ravel(), index.ravel() >= 0
    order = np.argsort(np.where(there, flat, n), kind="stable")[: int(there.sum())]
    of = flat[order]
    counts = np.bincount(of, minlength=n)
    nth = np.arange(len(of)) - (np.cumsum(counts) - counts)[of]
    found = np.full((n, max(int(counts.max(initial=0)), 1)), -1, np.int64)
    weights = np.zeros(found.shape)
    found[of, nth] = order // index.shape[1]
    weights[of, nth] = weight.ravel()[order]
    return found, weights
