"""Which stages form a sequence, and how a sequence is cut into bands and tiles; what that takes, counted."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence as Many
from typing import Any, NamedTuple

from numbaprims.cpu.activation.kernels import OPERATIONS
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.simd.math.lookup import SIZE as TABLE
from numbaprims.cpu.stack.stages import LINE, Layout, Stage, lay_out, run_bands, stages_of
from numbaprims.dtypes import DTYPES
from numbaprims.stacks.operations import Size, Step

# Cycles to call a stage's kernel for a band, those of a row beside its vectors, of planes and of pixels, and those to
# keep a line of a row.  Fitted, with those of `cycles_of`, to maxima and averages of 2 to 5 rows over 7 to 56 columns
# on a Zen 5, and a third more, since a Zen 4 takes more (figure 10 of BrainSlug).
CALL, ROW, PIXELS, KEEP = 50.0, 10.0, 60.0, 3.0
#: Those of a line of the image, which comes from a second-level cache.
LOAD = 4.5
# Those of a row of a depthwise window, and for each column of it but one, whose pixels may lie outside of the image
# (Zen 4).
DEPTHWISE, EDGE = 14.0, 20.0
#: Rows of a band that are tried.
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


class Sequence(NamedTuple):
    """Stages that run depth first."""

    stages: tuple[Stage, ...]
    sizes: tuple[Size, ...]
    """Height and width before the first stage, and behind each."""
    W: int
    """Lanes of a vector."""
    itemsize: int
    """Bytes of an element that is computed in."""
    rows: int
    """Rows of a band in the first stage."""
    tile: int
    """Rows of the result that a tile gives."""
    pixels: bool = False
    """Whether a vector is channels of one place."""

    @property
    def elements(self) -> int:
        """Of each place of a row."""
        return self.W if self.pixels else 1

    def vectors(self, width: int) -> int:
        """Of a row."""
        return width if self.pixels else -(-width // self.W)

    @property
    def tiles(self) -> int:
        """Of a plane."""
        return -(-self.sizes[-1][0] // self.tile)

    @property
    def heights(self) -> tuple[int, ...]:
        return tuple(h for h, _ in self.sizes)

    def bands(self) -> tuple[Any, ...]:
        """What each tile of a plane needs."""
        height, tile = self.sizes[-1][0], self.tile
        # the tiles within are alike but for where the image ends
        return tuple(
            run_bands(self.stages, self.heights, lo, min(lo + tile, height), self.rows) for lo in range(0, height, tile)
        )

    def layout(self) -> Layout:
        """A worker's buffers: room for every tile."""
        bands = self.bands()
        most = bands[0]._replace(
            past=tuple(map(max, zip(*(each.past for each in bands), strict=True))),
            buffered=tuple(map(max, zip(*(each.buffered for each in bands), strict=True))),
        )
        return lay_out(self.stages, [w * self.elements for _, w in self.sizes], most, self.itemsize)

    def bytes(self) -> int:
        """Of a worker's scratch memory; a stage alone takes none."""
        return 0 if len(self.stages) == 1 else sum(self.layout().own.values())

    def cycles(self) -> float:
        """Of a plane, without what moves between the caches."""
        total = 0.0
        for band in self.bands():
            total += CALL * band.number * len(self.stages)
            for d, (stage, rows, past) in enumerate(zip(self.stages, band.computed, band.past, strict=True)):
                each, window, row = cycles_of(stage, self.pixels), stage.window, PIXELS if self.pixels else ROW
                if window is not None and window.op == "depthwise":
                    row = DEPTHWISE + EDGE * (window.kernel[1] - 1) * self.pixels
                elif window is not None and d == 0:
                    each += LOAD * math.prod(window.stride)
                total += rows * (row + self.vectors(self.sizes[d + 1][1]) * each)
                total += KEEP * band.number * past * -(-self.sizes[d][1] * self.elements * self.itemsize // LINE)
        return total

    def moved(self) -> float:
        """Bytes between stages of a plane: written, and read again."""
        total = 0.0
        for band in self.bands():
            for rows, (_, width) in zip(band.computed[:-1], self.sizes[1:-1], strict=True):
                total += 2.0 * rows * width * self.elements * self.itemsize
        return total


@functools.lru_cache(maxsize=512)
def cycles_of(stage: Stage, pixels: bool) -> float:
    """Of a vector of a stage's results, channels of one place or a part of a row, where loads come from the first-level
    cache."""
    window, total = stage.window, 2.0
    if window is not None and window.op == "depthwise":
        (high, wide), (down, across) = window.kernel, window.stride
        if pixels:  # multiply-adds, and lines of the input that a result is the first to read
            total = window.numbers + 2.5 * down * across
        else:
            # multiply-adds, and shuffles of each row, which four windows share; registers do not hold more than 3 x 3
            shuffles = (wide - (across == 1)) * (3 * down + high) / 4 * min(2, across)
            total = window.numbers + shuffles * (0.75 if window.numbers <= 9 else 1.2 * across)
    elif window is not None:
        total = 0.5 * ((1 if pixels else window.stride[1]) * window.kernel[0] + window.kernel[1])
    for operation in stage.after:
        if window is not None and window.op == "depthwise":
            # the pipes wait for multiply-adds, and registers are taken (GELU: 12 cycles alone, 24 behind 7 x 7)
            total += OPERATIONS.get(operation.kind, 1.0)
        else:
            total += OPERATIONS.get(operation.kind, 1.2) / 2
    return total


def seconds(sequence: Sequence, planes: int, target: Any) -> float:
    """What one core takes for so many planes."""
    work = target.rates.cycles(sequence.cycles() * planes)
    held = sequence.bytes()
    if held > target.l1d:  # about half of what moves waits for it
        work += 0.5 * sequence.moved() * planes / target.bandwidth(held)
    return float(work)


def width_of(sizes: Many[Size], stages: Many[Stage], register: int) -> int:
    """Lanes: of a register, or half of one where that leaves fewer of them idle; as many at least as a stride.

    Exponentials and logarithms look 16 numbers up in a whole register (`simd.math.lookup`): by halves they would have
    other bits than layers one by one.
    """
    strides = [stage.window.stride[1] for stage in stages if stage.window is not None]
    widths = [w for _, w in sizes[1:]]
    tables = register >= TABLE and any(each.kind in OPERATIONS for stage in stages for each in stage.after)
    W, least = register, TABLE if tables else 4
    while W > least and sum(-(-w // (W // 2)) for w in widths) == sum(-(-w // W) for w in widths):
        W //= 2
    while strides and W < max(strides):
        W *= 2
    return W


def sequences(problem: Any, target: Any, channels: int = 0) -> Iterator[Sequence]:
    """The sequences of a stack over planes, or over pixels of so many channels.

    `problem.most` steps at most, and `problem.limit` bytes of a worker's scratch memory: -1 for any number, 0 for what
    is fastest by the estimate, where a sequence is cut if its narrowest bands do not fit into the second-level cache.
    """
    texts = problem.steps
    staged = [(k, stage) for k, text in enumerate(texts) for stage in stages_of([Step.parse(text)])]
    sizes = [problem.size]
    for _, stage in staged:
        sizes.append(stage.out_size(sizes[-1]))
    at = 0
    while at < len(staged):
        end = at + 1
        while end < len(staged):
            if problem.most and staged[end][0] - staged[at][0] >= problem.most:
                break
            longer = tuple(stage for _, stage in staged[at : end + 1])
            longer = tuple(stage for _, stage in staged[at : end + 1])
            made = _maker(longer, tuple(sizes[at : end + 2]), problem, target, channels)
            if made(1, sizes[end + 1][0]).bytes() > _limit(problem, target):
                break
            end += 1
        made = _maker(
            tuple(stage for _, stage in staged[at:end]), tuple(sizes[at : end + 1]), problem, target, channels
        )
        yield _best(made, problem, target)
        at = end


def _limit(problem: Any, target: Any) -> int:
    if problem.limit < 0:
        return 1 << 62
    return int(problem.limit or target.l2 // 2)


def _maker(
    stages: tuple[Stage, ...], sizes: tuple[Size, ...], problem: Any, target: Any, channels: int
) -> Callable[[int, int], Sequence]:
    """A function of the rows of a band and of a tile."""
    compute = DTYPES[problem.dtype].accumulate
    W = channels or width_of(sizes, stages, lanes(compute, target.vector_bytes))
    return lambda rows, tile: Sequence(stages, sizes, W, DTYPES[compute].itemsize, rows, tile, channels > 0)


def _best(made: Callable[[int, int], Sequence], problem: Any, target: Any) -> Sequence:
    """The bands and tiles that are estimated to be fastest."""
    whole = made(1, 1)
    height, first = whole.sizes[-1][0], whole.sizes[1][0]
    planes = problem.n * -(-problem.c // whole.elements)
    if len(whole.stages) == 1:
        # rows of a plane are independent of each other: as many tiles as keep all workers busy
        tiles = 1 if problem.limit < 0 else max(1, min(height, -(-4 * target.cores_logical // planes)))
        return made(height, -(-height // tiles))
    limit = _limit(problem, target)
    candidates = [made(rows, height) for rows in sorted({min(rows, first) for rows in (*ROWS, first)})]
    fitting = [each for each in candidates if each.bytes() <= limit] or candidates[:1]
    best = min(fitting, key=lambda each: seconds(each, planes, target))
    workers = max(1, target.cores_logical)
    # blocks of channels are neighbours in memory: workers that have one each would write the same lines
    near = whole.pixels and 1 < planes <= 4 * workers
    if (planes >= workers and not near) or problem.limit < 0:
        return best
    # too few planes for all workers: rows of a plane are cut, at the cost of computing what windows share twice
    cut = [made(min(best.rows, -(-first // k)), -(-height // k)) for k in range(1, 4 * workers + 1) if k <= height]
    if near:
        cut = [each for each in cut if each.tiles % workers == 0] or cut
    fitting = [each for each in cut if each.bytes() <= limit] or [best]
    return min(fitting, key=lambda each: seconds(each, planes, target) / min(workers, planes * each.tiles))
