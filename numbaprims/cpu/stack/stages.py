"""A sequence as the CPU runs it: its stages, what a worker's buffers hold, and how bands of rows go through them.

A *stage* is a window and the element-wise operations behind it; operations in front of a step's window are a stage of
their own, since a window reads an element several times.  A *band* is the rows that a stage computes before the next
one runs.  Between two stages lie the rows of the running band, in one of two buffers that are swapped, and those of
earlier bands that windows still reach, in the later stage's own: so no row is computed twice.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from numbaprims.stacks.operations import Operation, Pointwise, Size, Step, Window, parse, relu_behind_maxima

LINE = 64


class Stage(NamedTuple):
    """A window, if any, and what is done to its results."""

    window: Window | None
    after: tuple[Pointwise, ...]

    @property
    def text(self) -> str:
        window = [] if self.window is None else [self.window.text]
        return " ".join([*window, *(each.text for each in self.after)])

    @classmethod
    def parse(cls, text: str) -> Stage:
        """The stage of a text."""
        operations: list[Operation] = [parse(word) for word in text.split()]
        first = operations[0]
        window = first if isinstance(first, Window) else None
        after = tuple(each for each in operations[window is not None :] if isinstance(each, Pointwise))
        return cls(window, after)

    @property
    def numbers(self) -> int:
        """Parameters of a channel."""
        return sum(each.numbers for each in self.after) + (self.window.numbers if self.window else 0)

    @property
    def added(self) -> int:
        """Arrays that are added."""
        return sum(each.kind == "add" for each in self.after)

    @property
    def empty(self) -> float:
        """What stands for elements outside of the image."""
        return float("-inf") if self.window is not None and self.window.op == "max" else 0.0

    @property
    def extent(self) -> int:
        """Rows from the first to the last of a window."""
        return 1 if self.window is None else self.window.extents[0]

    @property
    def stride(self) -> int:
        return 1 if self.window is None else self.window.stride[0]

    @property
    def before(self) -> int:
        return 0 if self.window is None else self.window.before[0]

    def out_size(self, size: Size) -> Size:
        """Height and width of the result."""
        return size if self.window is None else self.window.out_size(size)

    def rows_read(self, lo: int, hi: int, height: int) -> Size:
        """Rows of the input that rows [lo, hi) are made of."""
        return (lo, hi) if self.window is None else self.window.rows_read(lo, hi, height)


#: Arrays that a stage adds.
MOST_ADDED = 2


def stages_of(steps: Iterable[Step]) -> tuple[Stage, ...]:
    """The stages of steps."""
    stages: list[Stage] = []
    for step in steps:
        window, after = None, list[Pointwise]()
        for each in relu_behind_maxima(step.operations):
            if isinstance(each, Window):
                if after or window is not None:
                    stages.append(Stage(window, tuple(after)))
                window, after = each, []
            else:
                if each.kind == "add" and sum(one.kind == "add" for one in after) == MOST_ADDED:
                    stages.append(Stage(window, tuple(after)))
                    window, after = None, []
                after.append(each)
        stages.append(Stage(window, tuple(after)))
    return tuple(stages)


class Bands(NamedTuple):
    """What a run of bands over rows of the last stage's result needs."""

    number: int
    computed: tuple[int, ...]
    """Rows that each stage computes."""
    past: tuple[int, ...]
    """Rows of its input that each stage keeps from band to band, at most; the first stage reads the image itself."""
    buffered: tuple[int, ...]
    """Rows that each stage hands on in a band, at most."""


def most_rows(stages: Sequence[Stage], rows: int) -> tuple[int, ...]:
    """Rows of a band that each stage computes at most, `rows` in the first: as many as it gets, and one."""
    found = [rows]
    for stage in stages[1:]:
        found.append(-(-found[-1] // stage.stride) + 1)
    return tuple(found)


@functools.lru_cache(maxsize=256)
def run_bands(stages: tuple[Stage, ...], heights: tuple[int, ...], lo: int, hi: int, rows: int) -> Bands:
    """Walk the bands that give rows [lo, hi) of the result, as the kernel does; `heights` has one of each stage's input
    and that of the result."""
    most = most_rows(stages, rows)
    ends = [(lo, hi)]
    for stage, height in zip(reversed(stages), reversed(heights[:-1]), strict=True):
        ends.append(stage.rows_read(*ends[-1], height))
    ends.reverse()  # of the input of each stage, then of the result
    done = [first for first, _ in ends[1:]]
    past, buffered, computed = [0] * len(stages), [0] * len(stages), [0] * len(stages)
    number = 0
    while done[-1] < hi:
        number += 1
        for d, stage in enumerate(stages):
            have = heights[0] if d == 0 else done[d - 1]
            last = ends[d + 1][1]
            if d == 0 or have >= ends[d][1]:
                to = last
            else:
                to = min(last, max(done[d], (have + stage.before - stage.extent) // stage.stride + 1))
            to = min(to, done[d] + most[d])
            buffered[d] = max(buffered[d], to - done[d])
            computed[d] += to - done[d]
            done[d] = to
            if d > 0 and to < last:
                past[d] = max(past[d], have - max(0, to * stage.stride - stage.before))
    return Bands(number, tuple(computed), tuple(past), tuple(buffered))


def pitch_of(width: int, itemsize: int) -> int:
    """Bytes from row to row of a buffer: whole lines."""
    return -(-width * itemsize // LINE) * LINE


class Layout(NamedTuple):
    """A worker's buffers, in bytes."""

    past: tuple[int, ...]
    """Where among those of all each stage keeps rows of its input."""
    pitches: tuple[int, ...]
    """Of each stage's input and of the result, of those that are buffered."""
    own: dict[str, int]
    """Of its regions."""


def lay_out(stages: Sequence[Stage], widths: Sequence[int], bands: Bands, itemsize: int) -> Layout:
    """The buffers of a sequence; `widths` in elements, of a row of each stage's input and of the result."""
    pitches = tuple(pitch_of(width, itemsize) for width in widths)
    at, past = 0, []
    for d in range(len(stages)):
        past.append(at)
        at += bands.past[d] * pitches[d]
    sizes = [0, 0]
    for d in range(len(stages) - 1):
        sizes[d % 2] = max(sizes[d % 2], bands.buffered[d] * pitches[d + 1])
    return Layout(tuple(past), pitches, {"past": at, "buffer_0": sizes[0], "buffer_1": sizes[1]})
