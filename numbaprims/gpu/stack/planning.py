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

from numbaprims.formulas.activations import ARITHMETIC
from numbaprims.stacks.operations import NUMBERS, Pointwise, Size, Step, Window, sizes_of

MOST_PASSES = 56
"""Of a sequence, a load among them: what a kernel's parameters hold."""
ITEMS = 1 << 15
"""Places of a patch, at most: the kernel divides by multiplying 32 bits."""
STRIP = 4
"""Results of a thread's turn."""
LAUNCH = 3e-6
_LEAST = 64
"""Places of a patch that is not cut further."""
_REGISTERS = 72
_BEGINS = 100.0
"""Instructions of a thread before its first turn of a pass."""
_TURN = 200.0
"""Clocks of a thread's turn where no other hides it; a barrier is a part of it."""
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


def is_unrolled(parts: Parts, alone: bool) -> bool:
    """Whether the taps of a step's windows are written out; `alone`: it reads memory, and every tap does what precedes
    the window."""
    most = 9 if parts.window.numbers or (alone and parts.before) else 25  # weights wait in registers, too
    return parts.window.kernel[0] * parts.window.kernel[1] <= most


def rows_of(window: Window, strip: int) -> list[int]:
    """The rows that the windows of a strip of results have, from the first one's on."""
    return sorted(
        {r * window.stride[0] + k * window.dilation[0] for r in range(strip) for k in range(window.kernel[0])}
    )


def strip_of(parts: Parts, alone: bool, rows: int) -> int:
    """Results of a thread's turn, one below the other: their windows share rows, and all loads are in flight.  One,
    where registers do not hold them or a patch has few rows."""
    loads = len(rows_of(parts.window, STRIP)) * parts.window.kernel[1]
    return STRIP if rows > 2 and is_unrolled(parts, alone) and loads <= (24 if alone else 40) else 1


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
        stride, padding, extent = window.stride[d], window.before[d], window.extents[d]
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
    """What sequences depend on beside the steps."""

    planes: int
    """Images times groups of channels."""
    group: int
    """Channels that a block computes side by side."""
    itemsize: int
    """Of a number that is computed in, and that lies between sequences."""
    stored: int
    """Bytes of an element of x and of the last result."""
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


def _clocks(operations: Several[Pointwise]) -> float:
    """Instructions of an element."""
    return sum(2.5 if each.kind in NUMBERS or each.kind in ARITHMETIC else 25.0 for each in operations)


@functools.cache
def _step_costs(parts: Parts, alone: bool, rows: int) -> tuple[int, float]:
    """(the strip, clocks of a multiprocessor for a result), by the instructions of compiled kernels: 37 for a maximum
    of 3 x 3, batch norm and ReLU from a buffer, twice that from memory, where every tap asks whether it is inside."""
    strip = strip_of(parts, alone, rows)
    loads = len(rows_of(parts.window, strip)) * parts.window.kernel[1] / strip
    issued = 18.0 + 3.0 * loads + (35.0 if parts.window.op == "avg" else parts.window.numbers) + _clocks(parts.after)
    if alone:
        issued += loads * (9.0 + _clocks(parts.before))
    return strip, max(issued / 128, (loads + 1) / 32)


def _seconds(blocks: int, clocks: float, turns: float, nbytes: int, moved: float, room: Room, target: Any) -> float:
    """Of a launch whose blocks take so many clocks of a multiprocessor's units, and so many turns one after another."""
    resident = max(1, target.blocks_per_multiprocessor(room.threads, _REGISTERS, nbytes))
    each = -(-blocks // target.multiprocessors)
    busy = max(each * clocks, -(-each // resident) * turns * _TURN) / target.clock
    return float(LAUNCH + max(moved / (0.8 * target.bandwidth), busy))


def _costs(parts: Several[Parts], sizes: Several[Size], end: int, room: Room, target: Any) -> Iterator[tuple[Any, ...]]:
    """(seconds, begin, patch) of the sequences that end there and have room."""
    (h, w), group = sizes[end], room.group
    begins = room.threads * _BEGINS / 128
    written = h * w * room.planes * group * (room.stored if end == len(parts) else room.itemsize)
    for patch in _patches((h, w), group):
        if patch[0] * patch[1] > ITEMS:
            continue
        blocks = room.planes * -(-h // patch[0]) * -(-w // patch[1])
        buffers, alone, clocks, turns = Buffers(), 0.0, 0.0, 0.0
        for distance, region in enumerate(walk(parts, sizes, end, patch)):
            begin, held = end - distance, places(region) * group
            if distance:
                moved = written + held * blocks * (room.itemsize if begin else room.stored)
                buffers = buffers.with_region(distance, held)
                nbytes = sum(buffers) * room.itemsize
                if distance == 1:
                    yield _seconds(blocks, alone, turns, 0, moved, room, target), begin, patch
                if nbytes > room.limit or held > ITEMS * group or distance >= MOST_PASSES:
                    break
                if distance > 1:
                    load = held * (30.0 + _clocks(parts[begin].before)) / 128, held / (STRIP * room.threads)
                    yield _seconds(blocks, clocks + load[0], turns + load[1], nbytes, moved, room, target), begin, patch
                if distance == room.most:
                    break
            if begin:
                step, rows = parts[begin - 1], min(3, region[0].held)
                strip, each = _step_costs(step, False, rows)
                alone = begins + held * _step_costs(step, True, rows)[1]
                clocks += begins + held * each
                turns += 0.3 + -(-held // (room.threads * strip))


@functools.lru_cache(maxsize=256)
def sequences(texts: tuple[str, ...], size: Size, room: Room, target: Any) -> tuple[float, tuple[Sequence, ...]]:
    """(seconds by formula, sequences) of the steps."""
    steps = [Step.parse(text) for text in texts]
    parts, sizes = [parts_of(step) for step in steps], sizes_of(steps, size)
    best: list[tuple[float, int, Size]] = [(0.0, 0, size)]
    for end in range(1, len(steps) + 1):
        every = _costs(parts, sizes, end, room, target)
        best.append(min(((best[begin][0] + more, begin, patch) for more, begin, patch in every), key=lambda x: x[0]))
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
