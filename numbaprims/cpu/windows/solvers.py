"""The ways to slide windows, and what each is estimated to take."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from numbaprims.cpu.jit import RangeKernel
from numbaprims.cpu.program import Part, Program, array, join, scratch
from numbaprims.cpu.regions import Regions
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.solver import Config, Solver
from numbaprims.cpu.windows import channels, disjoint, gradients, maxima, overlaps, planes, whole
from numbaprims.cpu.windows.arguments import ARGS, computed, kind_of, spatial, tables
from numbaprims.cpu.windows.overlaps import Form
from numbaprims.cpu.windows.walk import Walk
from numbaprims.dtypes import DTYPES

# Tiles that are enough for any number of workers, where images and channels alone are fewer.
TILES = 64
# Taps along a row that are written out, and the largest stride by which a row is spread.
MOST_TAPS, MOST_STRIDE = 32, 8
# Rows of a window, or taps of a vector of channels, that are.
MOST_UNROLLED = 16

#: Rows of a band of a gradient from x, at least: the maxima of the rows that its windows share with the next are found
#: twice.
BAND = 16
#: Bytes of a row whose lines are asked for, where windows share no rows; shorter ones are read in order as it is.
ASKED = 384
#: Bytes of a row of dx that leaves past the caches where x is read beside it: 16x64x224x224 14 ms and 23,
#: 16x128x112x112 10.5 and 7.9 (Zen 4).
STREAMED = 512


def _program(
    problem: Any, target: Any, kernel: RangeKernel, tiles: int, work: float, own: Mapping[str, int] | None = None,
    **ints: int,
) -> Program:  # fmt: skip
    """One phase; `work` is the seconds that one core takes, `own` a worker's regions."""
    common, keep = tables(problem)
    chunk = target.rates.grain(tiles, work)
    long = problem.size[-1] * DTYPES[problem.dtype].itemsize >= ASKED
    apart = not problem.adaptive and spatial(problem.kernel, 1)[1] <= spatial(problem.stride, 1)[1]
    given = problem.direction == "backward" and bool(problem.indices)
    far = problem.bytes_moved() / max(1, target.third)
    # of a core that gains by it: 16 x 256 x 56 x 56 by 2 x 2, 2 took 2.0 ms, 1.55 so, and places 5.5 and 2.1 (Zen 5)
    ahead = target.rates.ahead
    asks = int(apart and far > 0.25 and (ahead if given else long or (ahead > 0 and far > 0.5)))
    return Program.of(
        ARGS, {**common, **ints, "asks": asks}, [(kernel, tiles, chunk)], keep=keep, regions=Regions(own=own or {}),
        **target.rates.waking(work),
    )  # fmt: skip


class _Windows(Solver):
    def estimate(self, problem: Any, target: Any) -> float:
        moved = problem.bytes_moved()
        return float(target.rates.call + moved / target.bandwidth(moved) + self.arithmetic(problem, target))

    def arithmetic(self, problem: Any, target: Any) -> float:
        """Seconds: two cycles a tap of a vector."""
        return float(target.rates.cycles(2 * problem.flops() / self.lanes(problem, target)))

    def lanes(self, problem: Any, target: Any) -> int:
        """Of a register, in the type that is computed in."""
        return lanes(computed(problem), target.vector_bytes)

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        p = problem
        if p.direction == "forward" or p.op != "max" or p.indices or self.finds(p, target):
            return self.single(problem, target)
        # the places are found again first
        steps = self.contiguous(p)
        out, _, x, dy, _ = p.strides
        forward = dataclasses.replace(p, direction="forward", indices="i64", strides=(None, steps, x, None, None))
        gradient = dataclasses.replace(p, indices="i64", strides=(out, steps, None, dy, None))
        parts = [
            Part(self.single(forward, target), [None, scratch(), array(2)], []),
            Part(self.single(gradient, target), [array(0), scratch(), None, array(3)], []),
        ]
        return join(parts, shared=8 * p.n * p.c * math.prod(p.out))

    def contiguous(self, problem: Any) -> tuple[int, ...]:
        """Strides over (n, c, spatial...) of places that are found again."""
        steps = [math.prod(problem.out[d + 1 :]) for d in range(len(problem.out))]
        plane = math.prod(problem.out)
        return (problem.c * plane, plane, *steps)

    def finds(self, problem: Any, target: Any) -> bool:
        """Whether the kernel of a maximum's gradient finds the places as it goes."""
        return False

    def single(self, problem: Any, target: Any) -> Program:
        """The program of one direction."""
        raise ValueError(f"{self.name} computes nothing")


def _is_whole(p: Any) -> bool:
    if any(o != 1 for o in p.out):
        return False
    return p.adaptive or (p.kernel == p.size and not any(p.before) and (p.op != "avg" or not any(p.after)))


class Whole(_Windows):
    """Global pooling: a plane of contiguous elements to one result, and an average's gradient."""

    name = "whole"

    def why_not(self, problem: Any, target: Any) -> str | None:
        p = problem
        if not _is_whole(p) or any(d > 1 for d in p.dilation):
            return "the windows are not whole planes"
        if p.indices or (p.direction == "backward" and p.op != "avg"):
            return "it computes neither places nor gradients other than an average's"
        return None if _planes(p) else "planes are not contiguous"

    def single(self, problem: Any, target: Any) -> Program:
        W = self.lanes(problem, target)
        p, out, x = problem, problem.strides[0], problem.strides[2]
        if p.direction == "forward":
            kernel = whole.make_forward(kind_of(p), p.dtype, W, min(8, W))
            even = out[:2] == (p.c, 1) and x[0] == p.c * x[1]
        else:
            size = math.prod(p.size)
            even = out[:2] == (p.c * size, size) and p.strides[3][:2] == (p.c, 1)
            kernel = whole.make_backward(p.dtype, W, size if even and size <= whole.MOST else 0)
        return _program(p, target, kernel, p.n * p.c, self.estimate(p, target), even=even)


def _planes(p: Any) -> bool:
    """Whether every array's planes are contiguous."""
    for index, steps in enumerate(p.strides):
        if steps is None:
            continue
        sizes = p.size if index == 2 or (index == 0 and p.direction == "backward") else p.out
        wanted = 1
        for size, step in zip(reversed(sizes), reversed(steps[2:]), strict=True):
            if size > 1 and step != wanted:
                return False
            wanted *= size
    return True


def _slides(p: Any) -> bool:
    """Whether the gradient of a maximum is found from x, row by row: windows move by an element."""
    if len(p.size) > 2 or p.adaptive or {*p.stride, *p.dilation} != {1} or max(p.kernel) > maxima.MOST:
        return False
    return bool(p.before[-1] < p.kernel[-1])  # else a window is wholly in the padding


def _maxima(problem: Any, target: Any, W: int, work: float, pixels: bool = False) -> Program:
    """That gradient, of planes or of pixels; `work` as in `_program`."""
    p = problem
    (high, wide), (above, ahead) = spatial(p.kernel, 1)[1:], spatial(p.before, 0)[1:]
    height = spatial(p.size, 1)[1]
    full, blocks, images, bands = True, 1, p.n * p.c, 1
    cells = pitch = -(-max(p.size[-1], p.out[-1]) // W) * W
    if pixels:
        full, blocks, images = p.c % W == 0, -(-p.c // W), p.n
        cells, pitch = W, p.out[-1] * W
        bands = max(1, min(2 * target.cores_logical // images, height // BAND))
    band = -(-height // bands)
    ring = maxima.ring_rows(high) * pitch * blocks * (8 if computed(p) == "f64" else 4)
    kernel = maxima.make_maxima(p.dtype, W, high, wide, above, ahead, pixels, full)
    own = {"keys": ring, "taps": ring, "nowhere": 8 * (cells + W)}
    bands = -(-height // band)
    return _program(p, target, kernel, images * bands, work, own, pitch=pitch, cells=cells, bands=bands, band=band)


class Planes(_Windows):
    """Contiguous planes, down the columns first."""

    name = "planes"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if not _planes(problem):
            return "planes are not contiguous"
        if math.prod(problem.size) >= 2**31:
            return "it counts the elements of a plane by 32 bits"
        if self.taps(problem) and problem.before[-1] > (problem.kernel[-1] - 1) * problem.dilation[-1]:
            return "a window is wholly in the padding"
        return None

    def arithmetic(self, problem: Any, target: Any) -> float:
        side_by_side = problem.direction == "forward" and self.disjoint(problem)
        if self.overlap(problem, target) and not side_by_side:
            return float(
                target.rates.cycles(problem.n * problem.c * self._form(problem, target).cycles(problem.out[0]))
            )
        vectors = problem.n * problem.c * math.prod(problem.out[:-1])
        vectors *= -(-problem.out[-1] // self.lanes(problem, target))
        kernel = problem.kernel
        if problem.adaptive:
            kernel = tuple(-(-size // out) for size, out in zip(problem.size, problem.out, strict=True))
        return float(target.rates.cycles((1.0 if side_by_side else 2.6) * vectors * sum(spatial(kernel, 1))))

    def taps(self, problem: Any) -> int:
        """Of a row, where they are written out."""
        p = problem
        written = not p.adaptive and p.kernel[-1] <= MOST_TAPS and p.stride[-1] <= MOST_STRIDE
        return int(p.kernel[-1]) if written else 0

    def single(self, problem: Any, target: Any) -> Program:
        p, work, register = problem, self.estimate(problem, target), self.lanes(problem, target)
        kind, back = kind_of(p), p.direction == "backward"
        size = 8 if computed(p) == "f64" else 4
        images = p.n * p.c
        if back and p.op == "max":
            if self.disjoint(p):
                W = min(register, max(4, 1 << (p.out[-1] - 1).bit_length()))
                long = bool(p.indices) or p.size[-1] * DTYPES[p.dtype].itemsize >= STREAMED
                high, streams = spatial(p.kernel, 1)[1], long and p.bytes_moved() > target.third
                kernel = disjoint.make_maxima(p.dtype, W, high, bool(p.indices), streams)
                return _program(p, target, kernel, images * spatial(p.out, 1)[0], work)
            return self.places(problem, target) if p.indices else _maxima(problem, target, self.lanes(p, target), work)
        # beyond the caches rows that overlap cannot be streamed: 16x64x224x224 took 30 ms, not 16 (Zen 4)
        if self.disjoint(p) and not (back and p.bytes_moved() > target.third):
            tiles, (high, _) = images * spatial(p.out, 1)[0], spatial(p.kernel, 1)[1:]
            short = p.out[-1] <= register // 2
            if back:
                return _program(p, target, disjoint.make_backward(p.dtype, register, short, high), tiles, work)
            return _program(p, target, disjoint.make_forward(kind, p.dtype, register, short, high), tiles, work)
        if self.overlap(p, target):
            band = -(-p.out[0] // min(p.out[0], max(1, TILES // images)))
            bands = -(-p.out[0] // band)
            kernel = overlaps.make_forward(self._form(p, target))
            return _program(p, target, kernel, images * bands, work, bands=bands, band=band)
        taps, step = self.taps(p), p.stride[-1]
        wide = max(p.size[-1], p.out[-1])
        short = taps > 0 and wide <= 2 * register
        W = register
        row = (taps, step, p.dilation[-1], p.before[-1]) if taps else (0, 1, 1, 0)
        if short:  # a row of 7 in 8 lanes
            W = max(4, 1 << (wide - 1).bit_length())
        if back:
            kernel = gradients.make_sums(kind, p.dtype, W, short, *row)
        else:
            deep, tall = spatial(p.kernel, 1)[:2]
            usual = (deep, tall) if deep * tall <= MOST_UNROLLED else (0, 0)
            values = p.strides[0] is not None
            kernel = planes.make_forward(kind, p.dtype, W, short, *usual, *row, 2 if p.indices else 0, values)
        pitch = row[3] + (row[0] + 1) * row[2] + max(p.size[-1], p.out[-1] * row[1]) + 2 * W * (row[1] + 1)
        room = 0 if short else size * (pitch + W)
        own = {"values": room, "places": room}
        rows = math.prod((p.size if back else p.out)[:-1])
        band = -(-rows // min(rows, max(1, TILES // images)))
        bands = -(-rows // band)
        return _program(p, target, kernel, images * bands, work, own, bands=bands, band=band, pitch=pitch)

    def disjoint(self, problem: Any) -> bool:
        """Whether whole windows of two columns lie side by side, in planes that lie one behind the other."""
        p, back = problem, problem.direction == "backward"
        kernel, size, out = spatial(p.kernel, 1), spatial(p.size, 1), spatial(p.out, 1)
        if p.adaptive or (back and p.op == "lp") or (p.indices and not back) or p.kernel != p.stride or any(p.before):
            return False
        if kernel[0] != 1 or kernel[1] > MOST_UNROLLED or kernel[2] != 2 or {*p.dilation} != {1}:
            return False
        left = [length - k * o for length, k, o in zip(size, kernel, out, strict=True)]
        if any(left) if back else min(left) < 0 or left[0]:
            return False
        for index, steps in enumerate(p.strides):
            plane = math.prod(size if index == 2 or (index == 0 and back) else out)
            if steps and ((p.c > 1 and steps[1] != plane) or (p.n > 1 and steps[0] != p.c * plane)):
                return False
        return True

    def overlap(self, problem: Any, target: Any) -> bool:
        """Whether maxima of windows that overlap, forward, are taken of rows that are a few vectors."""
        p = problem
        if p.op != "max" or p.direction != "forward" or p.indices or len(p.size) != 2 or p.adaptive:
            return False
        most = max(*p.kernel, *p.stride)
        if computed(p) == "i32" or {*p.dilation} != {1} or most > overlaps.MOST or p.kernel[1] == 1:
            return False
        # every window has an element: beyond the plane it is the one at the edge
        held = all(
            before < kernel and (out - 1) * stride - before < size
            for before, kernel, out, stride, size in zip(p.before, p.kernel, p.out, p.stride, p.size, strict=True)
        )
        return held and -(-p.size[1] // self.lanes(p, target)) <= overlaps.MOST

    def _form(self, problem: Any, target: Any) -> Form:
        """Of the kernel of those."""
        p, W = problem, self.lanes(problem, target)
        # planes of fewer vectors are written out, unless there are too few of them for workers
        written = p.n * p.c > TILES // 2 and p.out[0] * -(-p.out[1] // W) <= overlaps.WRITTEN
        rows = (p.size[0], p.out[0]) if written else (0, 0)
        ahead = target.rates.ahead if p.bytes_moved() > target.l2 else 0
        return Form(p.dtype, W, p.size[1], p.out[1], p.kernel, p.stride, p.before, rows, ahead)

    def finds(self, problem: Any, target: Any) -> bool:
        return self.disjoint(problem) or _slides(problem)

    def places(self, problem: Any, target: Any) -> Program:
        """The gradient of a maximum."""
        p, work, images = problem, self.estimate(problem, target), problem.n * problem.c
        size, W = 8 if computed(p) == "f64" else 4, self.lanes(problem, target)
        plane = math.prod(p.size)
        around = len(p.size) == 2 and p.out == p.size and {*p.stride, *p.dilation} == {1}
        if around and p.taps <= MOST_UNROLLED and p.kernel[1] <= min(W, p.size[1]):
            (deep, wide), line = p.kernel, p.size[1]
            front = (deep - 1) * line + wide
            pitch = -(-(front + plane + front + 2 * W) // W) * W
            if size * pitch * deep <= target.l2:
                kernel = gradients.make_around(p.dtype, W, deep, wide, *p.before)
                cells = pitch * deep
                own = {"values": size * cells}
                return _program(p, target, kernel, images, work, own, pitch=pitch, front=front, cells=cells)
        streaming = bool(p.bytes_moved() > target.third and size * plane <= target.l2)
        room = 0
        if streaming or DTYPES[p.dtype].itemsize != size:
            room = size * (plane + W)
        return _program(p, target, gradients.make_places(p.dtype, W, streaming), images, work, {"values": room})


class Channels(_Windows):
    """Channels that lie side by side: a vector is channels of one place."""

    name = "channels"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if any(steps is not None and steps[1] != 1 for steps in problem.strides) and problem.c > 1:
            return "channels do not lie side by side"
        return "it counts the elements of a plane by 32 bits" if math.prod(problem.size) >= 2**31 else None

    def vectors(self, problem: Any, target: Any) -> tuple[int, int, str]:
        """(lanes of a step, of a wide step, type of places)"""
        W = self.lanes(problem, target)
        return W, W * (4 if problem.c >= 4 * W else 2 if problem.c >= 2 * W else 1), "i32"

    def single(self, problem: Any, target: Any) -> Program:
        p, work = problem, self.estimate(problem, target)
        W, wide, place = self.vectors(p, target)
        from_x = p.direction == "backward" and p.op == "max" and not p.indices
        if from_x and _slides(p):
            return _maxima(p, target, W, work, pixels=True)
        if p.direction == "forward":
            usual = spatial(p.kernel, 1) if W > 1 and p.taps <= MOST_UNROLLED else (0, 0, 0)
            kernel = channels.make_forward(
                kind_of(p), p.dtype, W, wide, *usual, place, int(bool(p.indices)), p.strides[0] is not None
            )
        elif from_x:
            usual = spatial(p.kernel, 1)[1:] if p.taps <= MOST_UNROLLED else (0, 0)
            kernel = channels.make_maxima(p.dtype, W, wide, *usual)
        else:
            kernel = channels.make_backward(kind_of(p), p.dtype, W, wide)
        # windows that share rows add to them one after another
        rows = p.n * (1 if from_x else math.prod((p.out if p.direction == "forward" else p.size)[:-1]))
        parts = max(1, min(p.c // wide, TILES // max(rows, 1)))
        block = max(1, -(-p.c // (parts * wide)) * wide)
        blocks = -(-p.c // block)
        return _program(p, target, kernel, rows * blocks, work, blocks=blocks, block=block)

    def finds(self, problem: Any, target: Any) -> bool:
        p = problem
        return _slides(p) or (len(p.size) < 3 and p.dtype == computed(p) and max(*p.kernel, *p.size) < channels.ROW)

    def contiguous(self, problem: Any) -> tuple[int, ...]:
        steps = [problem.c * math.prod(problem.out[d + 1 :]) for d in range(len(problem.out))]
        return (problem.c * math.prod(problem.out), 1, *steps)


class Naive(Channels):
    """One element at a time, wherever it lies."""

    name = "naive"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def finds(self, problem: Any, target: Any) -> bool:
        return False

    def arithmetic(self, problem: Any, target: Any) -> float:
        return float(target.rates.cycles(15 * problem.flops() + 37 * problem.n * problem.c * math.prod(problem.out)))

    def vectors(self, problem: Any, target: Any) -> tuple[int, int, str]:
        return 1, 1, "i32" if math.prod(problem.size) < 2**31 else "i64"


SOLVERS = (Whole(), Planes(), Channels(), Walk(), Naive())
