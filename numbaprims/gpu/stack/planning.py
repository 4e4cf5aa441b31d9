"""Which steps of a stack run as one sequence, and what patch of the result a block computes through all of them.

Sequences are chosen by a cost model over all places to cut: what a halo computes again is weighed against what a cut
writes and reads.  Geometry is exact: `walk` counts the places of every result between, for this module and for the
table that the kernel reads.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence as Several
from typing import Any, NamedTuple

from numbaprims.stacks.operations import Pointwise, Size, Step, Window, sizes_of

MOST_PASSES = 56
"""Of a sequence: what a kernel's parameters hold."""
ITEMS = 1 << 15
"""Places of a patch, at most: the kernel divides by multiplying 32 bits."""
UNROLLED = 25
"""Taps of a window that is written out."""
STRIP = 4
"""Results, one below the other, that a thread computes from the rows that their windows share."""
LAUNCH = 3e-6
_LEAST = 64
"""Places of a patch that is not cut further."""
_REGISTERS = 72
_LATENCY = 120.0
"""Clocks of a thread's turn, and of a barrier."""
_IDENTITY = Window("max", (1, 1), (1, 1))


class Parts(NamedTuple):
    """A step as the kernel sees it: what goes before the window, the window, what follows."""

    before: tuple[Pointwise, ...]
    window: Window
    after: tuple[Pointwise, ...]


def parts_of(step: Step) -> Parts:
    """Of a step; without a window all of it follows one of a single element."""
    at = next((k for k, each in enumerate(step.operations) if isinstance(each, Window)), None)
    operations: Any = step.operations
    if at is None:
        return Parts((), _IDENTITY, operations)
    return Parts(operations[:at], operations[at], operations[at + 1 :])


def strip_of(window: Window) -> int:
    """Results of a thread's turn."""
    shared = window.kernel[0] > window.stride[0] and window.dilation[0] == 1
    return STRIP if shared and window.kernel[0] * window.kernel[1] <= UNROLLED else 1


class Span(NamedTuple):
    """What patches hold of a plane along one dimension: patch p the `length` places from `p * step - before` on, as far
    as they lie in [lowest, top).  Places outside of [0, size) are padding."""

    step: int
    before: int
    length: int
    lowest: int
    top: int
    size: int

    @property
    def held(self) -> int:
        """Places that a patch has at most."""
        return max(1, min(self.length, self.top - self.lowest))

    def behind(self, window: Window, d: int, size: int) -> Span:
        """What a window's results are made of; the padding that windows reach into is held too."""
        stride, padding = window.stride[d], window.before[d]
        extent = (window.kernel[d] - 1) * window.dilation[d] + 1
        return Span(
            self.step * stride, self.before * stride + padding, (self.length - 1) * stride + extent,
            -padding, (self.size - 1) * stride - padding + extent, size,
        )  # fmt: skip


Region = tuple[Span, Span]
"""What a patch holds of a plane, over height and width."""


def places(region: Region) -> int:
    """How many."""
    return region[0].held * region[1].held


def walk(parts: Several[Parts], sizes: Several[Size], end: int, patch: Size) -> Iterator[Region]:
    """What a patch of the result of step `end` - 1 holds of it, of the results of the steps before, one after another
    back, and last of x."""
    h, w = (Span(p, 0, p, 0, size, size) for p, size in zip(patch, sizes[end], strict=True))
    yield h, w
    for at in range(end - 1, -1, -1):
        window = parts[at].window
        h, w = h.behind(window, 0, sizes[at][0]), w.behind(window, 1, sizes[at][1])
        yield h, w


class Buffers(NamedTuple):
    """The two that the results between alternate in, in elements: the last lies in `near`."""

    near: int = 0
    far: int = 0

    def with_region(self, distance: int, elements: int) -> Buffers:
        """So large that a result `distance` steps before the last has room."""
        if distance % 2:
            return self._replace(near=max(self.near, elements))
        return self._replace(far=max(self.far, elements))


class Sequence(NamedTuple):
    """Steps [begin, end) that every patch runs through before the next; one alone uses no buffer."""

    begin: int
    end: int
    patch: Size
    regions: tuple[Region, ...]
    """Of x, where there is a buffer, and of the results of all steps."""
    buffers: Buffers
    nbytes: int
    """Of shared memory."""

    @property
    def patches(self) -> Size:
        """How many there are over height and width."""
        down, across = (-(-span.size // p) for span, p in zip(self.regions[-1], self.patch, strict=True))
        return down, across


class Room(NamedTuple):
    """What a plan depends on beside the steps."""

    planes: int
    """Images times groups of channels."""
    group: int
    """Channels that a block computes side by side."""
    itemsize: int
    """Of an element that is computed in."""
    traffic: int
    """Bytes of an element in memory."""
    limit: int
    """Bytes of shared memory."""
    most: int
    """Steps of a sequence; 0: any."""
    threads: int


def _patches(size: Size, group: int) -> Iterator[Size]:
    """From the whole plane on, the longer side halved, rows no shorter than a warp."""
    h, w = size
    while True:
        yield h, w
        if h * w * group <= _LEAST or h * w == 1:
            return
        if h > 1 and (h >= w or w * group <= 32):
            h = -(-h // 2)
        else:
            w = -(-w // 2)


def _turn(parts: Parts) -> tuple[float, float]:
    """(loads, other instructions) of a result."""
    window, strip = parts.window, strip_of(parts.window)
    rows = ((strip - 1) * window.stride[0] + window.kernel[0]) / strip
    taps = window.kernel[0] * window.kernel[1]
    average = 20.0 if window.op == "avg" else 0.0
    return rows * window.kernel[1] + 1, 20.0 + taps + average + 6.0 * len(parts.after) + 6.0 * taps * len(parts.before)


def _seconds(blocks: int, clocks: float, turns: float, nbytes: int, moved: float, room: Room, target: Any) -> float:
    """Of a launch whose blocks take so many clocks of a multiprocessor's units, and so many turns one after another."""
    resident = max(1, target.blocks_per_multiprocessor(room.threads, _REGISTERS, nbytes))
    each = -(-blocks // target.multiprocessors)
    waves = -(-each // resident)
    busy = max(each * clocks, waves * turns * _LATENCY) / target.clock
    return float(LAUNCH + max(moved / (0.8 * target.bandwidth), busy))


def _costs(parts: Several[Parts], sizes: Several[Size], end: int, room: Room, target: Any) -> Iterator[tuple[Any, ...]]:
    """(begin, patch, seconds) of the sequences that end there and have room."""
    h, w = sizes[end]
    written = h * w * room.planes * room.group * room.traffic
    for patch in _patches((h, w), room.group):
        blocks = room.planes * -(-h // patch[0]) * -(-w // patch[1])
        if patch[0] * patch[1] > ITEMS:
            continue
        buffers, clocks, turns, last = Buffers(), 0.0, 0.0, None
        for distance, region in enumerate(walk(parts, sizes, end, patch)):
            begin, held = end - distance, places(region)
            if distance:
                buffers = buffers.with_region(distance, held * room.group)
                nbytes = sum(buffers) * room.itemsize
                read = float(held * blocks * room.group * room.traffic)
                load = held * room.group / room.threads
                if distance == 1:
                    yield begin, patch, _seconds(blocks, clocks, turns, 0, written + read, room, target)
                elif nbytes <= room.limit and held <= ITEMS and distance < MOST_PASSES:
                    clocks_ = clocks + held * room.group * (2 / 32 + 20 / 128)
                    yield begin, patch, _seconds(blocks, clocks_, turns + load, nbytes, written + read, room, target)
                if nbytes > room.limit or held > ITEMS or distance in (room.most, MOST_PASSES - 1):
                    break
            if begin:
                last = parts[begin - 1]
                loads, other = _turn(last)
                clocks += held * room.group * (loads / 32 + other / 128)
                turns += 1 + held * room.group / room.threads


@functools.lru_cache(maxsize=256)
def plan(texts: tuple[str, ...], size: Size, room: Room, target: Any) -> tuple[float, tuple[Sequence, ...]]:
    """(seconds by formula, sequences) of the steps."""
    steps = [Step.parse(text) for text in texts]
    parts, sizes = [parts_of(step) for step in steps], sizes_of(steps, size)
    best: list[tuple[float, int, Size]] = [(0.0, 0, size)]
    for end in range(1, len(steps) + 1):
        every = _costs(parts, sizes, end, room, target)
        best.append(min(((best[begin][0] + more, begin, patch) for begin, patch, more in every), key=lambda x: x[0]))
    found: list[Sequence] = []
    end = len(steps)
    while end:
        _, begin, patch = best[end]
        found.append(lay_out(parts, sizes, begin, end, patch, room))
        end = begin
    return best[-1][0], tuple(reversed(found))


def lay_out(parts: Several[Parts], sizes: Several[Size], begin: int, end: int, patch: Size, room: Room) -> Sequence:
    """A sequence with its buffers."""
    regions = [*itertools.islice(walk(parts, sizes, end, patch), end - begin + 1)]
    if end - begin == 1:
        return Sequence(begin, end, patch, (regions[0],), Buffers(), 0)
    buffers = Buffers()
    for distance, region in enumerate(regions):
        if distance:
            buffers = buffers.with_region(distance, places(region) * room.group)
    return Sequence(begin, end, patch, (*reversed(regions),), buffers, sum(buffers) * room.itemsize)
