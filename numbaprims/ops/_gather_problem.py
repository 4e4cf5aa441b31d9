"""The problems of pads and of their gradients: which element of x each place of the result has."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import DTYPES

MODES = ("constant", "reflect", "edge", "wrap")
NONE = -(1 << 62)
"""In the place of an element of x: the constant."""

Array = np.ndarray[Any, Any]
#: (place in the padded axis, elements, first of them in x or NONE, step in x), in elements
Segment = tuple[int, int, int, int]


class PadAxis(NamedTuple):
    """A dimension of x: of its `size` elements the `kept` from `first` on are padded."""

    size: int
    first: int
    kept: int
    before: int
    after: int
    unit: int
    """Neighbouring elements that go together: pixels of so many channels."""
    padded_step: int
    """Elements from one index to the next in the padded array, and in x; of the whole unit 1."""
    step: int

    @property
    def padded(self) -> int:
        return self.before + self.kept + self.after

    @property
    def plain(self) -> bool:
        return self.padded == self.size == self.kept


@dataclasses.dataclass(frozen=True)
class GatherProblem(Problem):
    """What all problems of the stem are known by."""

    stem: ClassVar[str] = "gather"
    kind: str
    """"pad", "fold" (its gradient), "split", "gather", "scatter" (its gradient) or "one_hot"."""
    dtype: str
    mode: str
    """Of a pad; of indices their type."""
    sizes: tuple[tuple[int, ...], ...]
    """Of a pad of contiguous arrays each axis, the outermost first: size, first, kept, before, after, unit."""
    layout: str
    """"rows": neighbours along the innermost axis lie side by side in all arrays; "strided"."""


@dataclasses.dataclass(frozen=True)
class PadProblem(GatherProblem):
    """``y[i] = x[map(i)]`` along every axis, or ("fold") the gradient of x: sums over the i with one map(i).

    Arrays of a launch: y, x; of the gradient dx, dy.
    """

    axes: tuple[PadAxis, ...] = dataclasses.field(compare=False, default=())
    value: int = dataclasses.field(compare=False, default=0)
    """The bits of the constant."""

    @property
    def padded(self) -> int:
        """Elements of the padded array."""
        return math.prod(axis.padded * axis.unit for axis in self.axes)

    @property
    def elements(self) -> int:
        """Elements of x."""
        return math.prod(axis.size * axis.unit for axis in self.axes)

    @property
    def rows(self) -> int:
        """Of what is written."""
        return math.prod(axis.padded if self.kind == "pad" else axis.size for axis in self.axes[:-1])

    @property
    def empty(self) -> bool:
        return (self.padded if self.kind == "pad" else self.elements) == 0

    def flops(self) -> float:
        return float(self.padded) if self.kind == "fold" else 0.0

    def bytes_moved(self) -> float:
        kept = math.prod(axis.kept * axis.unit for axis in self.axes)
        moved = self.padded + (kept if self.kind == "pad" else self.elements)
        return float(moved * DTYPES[self.dtype].itemsize)

    def roundings(self) -> int:
        return math.prod(1 + -(-(a.before + a.after) // max(1, a.kept - 1)) for a in self.axes) + 2

    def bench_command(self) -> str:
        sizes = [axis.size * axis.unit for axis in self.axes]
        sizes = [1] * (4 - len(sizes)) + sizes if len(sizes) < 4 else [math.prod(sizes[:-3]), *sizes[-3:]]
        pad = max((1, *(axis.before for axis in self.axes)))  # what a case has at least
        words = f"numbaprims bench gather --kind pad-{self.mode} --shapes {'x'.join(map(str, (*sizes, pad)))}"
        return words + f" --dtype {self.dtype}" + " --backward" * (self.kind == "fold")


def places(at: Array, n: int, mode: str) -> Array:
    """Which of n elements stands at each place, those before the first being below 0; -1 for the constant.

    >>> places(np.arange(-3, 6), 3, "reflect").tolist()
    [1, 2, 1, 0, 1, 2, 1, 0, 1]
    """
    found: Array
    if mode == "constant":
        found = np.where((at >= 0) & (at < n), at, -1)
    elif mode == "edge":
        found = np.clip(at, 0, n - 1)
    elif mode == "wrap":
        found = at % n
    else:
        period = max(1, 2 * (n - 1))
        found = np.minimum(at % period, period - at % period)
    return found


def map_of(axis: PadAxis, mode: str) -> Array:
    """Of every place of the padded axis its element of x, -1 for the constant."""
    found = places(np.arange(-axis.before, axis.kept + axis.after), axis.kept, mode)
    return np.where(found < 0, -1, found + axis.first)


def segments(axis: PadAxis, mode: str, middle: bool = True) -> list[Segment]:
    """The runs of x that a padded row is put together from; `middle`: with x itself."""
    found: list[Segment] = []
    for start, count in ((0, axis.before), (axis.before, axis.kept), (axis.before + axis.kept, axis.after)):
        if start == axis.before and count == axis.kept:
            if middle and count:
                found.append((start * axis.unit, count * axis.unit, axis.first * axis.unit, 1))
            continue
        at = places(np.arange(start, start + count) - axis.before, axis.kept, mode)
        found += _runs(at, start, axis)
    return found


def _runs(at: Array, start: int, axis: PadAxis) -> list[Segment]:
    """Neighbouring places whose elements lie side by side, on or back, or are the same one."""
    found: list[Segment] = []
    steps, i, unit = np.diff(at), 0, axis.unit
    changes = np.append(np.flatnonzero(np.diff(steps)) + 1, len(steps))
    while i < len(at):
        step, end = int(steps[i]) if i < len(steps) else 1, i + 1
        if at[i] < 0:
            step, end = 0, len(at)
        elif abs(step) > 1 or (unit > 1 and step != 1):
            step = 1
        elif i < len(steps):
            end = int(changes[np.searchsorted(changes, i, "right")]) + 1
        source = NONE if at[i] < 0 else (int(at[i]) + axis.first) * unit
        found.append(((start + i) * unit, (end - i) * unit, source, step))
        i = end
    return found


def sizes_of(
    shape: Sequence[int], pads: Sequence[tuple[int, int]], mode: str, padded: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """`PadProblem.sizes`, whatever the strides."""
    steps = [[math.prod(each[axis + 1 :]) for axis in range(len(shape))] for each in (padded, shape)]
    return tuple(tuple(axis[:6]) for axis in merged(shape, pads, mode, *steps))


def merged(
    shape: Sequence[int], pads: Sequence[tuple[int, int]], mode: str, padded: Sequence[int], steps: Sequence[int]
) -> tuple[PadAxis, ...]:
    """The fewest axes of a pad, whose arrays have the strides `padded` and `steps`; pads below 0 crop."""
    found: list[PadAxis] = []
    for length, (low, high), far, step in reversed(list(zip(shape, pads, padded, steps, strict=True))):
        begin = min(length, max(0, -low))
        left = max(0, length - begin - max(0, -high))
        axis = PadAxis(length, begin, left, max(0, low), max(0, high), 1, far, step)
        if axis.size == axis.kept == axis.padded == 1:
            continue
        inner = found[-1] if found else axis
        even = bool(found) and inner.plain and inner.unit == 1
        even = even and (far, step) == (inner.size * inner.padded_step, inner.size * inner.step)
        if even and (axis.plain or mode in ("constant", "wrap")):
            n = inner.size
            size, first, kept, before, after = (n * each for each in axis[:5])
            found[-1] = PadAxis(size, first, kept, before, after, 1, inner.padded_step, inner.step)
        elif even and len(found) == 1 and inner.padded_step == inner.step == 1:
            found[-1] = axis._replace(unit=inner.size, padded_step=1, step=1)
        else:
            found.append(axis)
    return tuple(reversed(found)) or (PadAxis(1, 0, 1, 0, 0, 1, 1, 1),)
