"""The ways to resize, and what each is estimated to take."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from numbaprims.cpu.program import Phase, Program, array
from numbaprims.cpu.resize.copies import make_copied_lines, make_whole_lines
from numbaprims.cpu.resize.kernels import ARGS, make_lines, make_stairs, make_sums
from numbaprims.cpu.resize.pixels import make_copied_pixels, make_pixels, make_walk
from numbaprims.cpu.simd import can_permute, lanes
from numbaprims.cpu.solver import Regions, Solver
from numbaprims.dtypes import DTYPES

LINE = 64
TILE_BYTES = 65536
"""What a tile writes at least, where there are more tiles than any machine has workers."""
TILES = 64
GATHER = 1.5
"""Cycles for each lane of a gather."""
PERMUTE = 2.0
"""Cycles of a permute and of what stands around it."""
COPY = 5.0
"""Cycles of a vector that is taken and written, of which most lie in two lines."""
TWICE = 2.5
"""Those of one that holds elements twice, without a table."""
ROW = 40.0
"""Cycles around a row that others are mixed for; around one of sums half of it, of copies an eighth."""
TABLE = 4096
"""Results of rows that are taken as one, at most."""
PAST = 2 / 3
"""Results leave past the caches where both arrays take more than this part of the third-level one."""
LONG = 16
"""Taps of rows, at most, for which a ring of them is kept."""


def computed(dtype: str) -> str:
    """The type that values are mixed in."""
    return "f64" if dtype == "f64" else "f32"


class Along(NamedTuple):
    """The table along a row as a kernel reads it."""

    places: np.ndarray[Any, Any]
    """[vector, tap, lane], from the vector's `base` on."""
    weight: np.ndarray[Any, Any]
    base: np.ndarray[Any, Any]
    how: str
    padded: bool


def _aligned(values: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """A copy at a line of the cache: vectors of the tables lie in one line each."""
    item = np.dtype(dtype).itemsize
    room = np.empty(values.size * item + LINE, np.uint8)
    start = -int(room.ctypes.data) % LINE
    found = room[start : start + values.size * item].view(dtype).reshape(values.shape)
    found[...] = values
    return found


def along(index: Any, weight: Any, n: int, elem: str, W: int, exact: bool, whole: bool) -> Along:
    """Of a table, for rows of n elements; `exact`: memory behind them is not to be touched; `whole`: the last vector
    begins where it ends with the row, as a part of a vector takes longer to be written."""
    m, taps = index.shape
    if whole and m > W and m % W:
        rows = np.r_[: m // W * W, m - W : m]
        index, weight, m = index[rows], weight[rows], len(rows)
    blocks = -(-m // W)
    there = index >= 0
    full = np.full((blocks * W, taps), -1, np.int64)
    full[:m] = index
    weights = np.zeros(full.shape)
    weights[:m] = np.where(there, weight, 0)
    lanes_of = full.reshape(blocks, W * taps)
    low = np.where(lanes_of < 0, n, lanes_of).min(1)
    low = np.where(low == n, 0, low)
    span = int((lanes_of.max(1) - low).max(initial=0)) + 1
    how = "gather"
    if can_permute(elem, W) and span <= 2 * W:
        reach = W if span <= W else 2 * W
        how = "one" if span <= W else "two"
        if exact:
            low = np.minimum(low, max(n - reach, 0))
            how += " short" * (n < reach)
    else:
        low = np.zeros_like(low)
    starts = np.repeat(low, W)[:, None]
    if how == "gather" and can_permute(elem, W):
        # the elements of one tap may be nearer to one another than those of all
        taken = full.reshape(blocks, W, taps)
        own = np.where(taken < 0, n, taken).min(1)
        own = np.where(own == n, 0, own)
        span = int((taken.max(1) - own).max(initial=0)) + 1
        if span <= 2 * W and (not exact or n >= 2 * W):
            how, low = "two each", np.minimum(own, n - 2 * W) if exact else own
            starts = np.repeat(low, W, 0)
    relative = np.where(full < 0, -1, full - starts)
    relative[m:] = 0
    order = (blocks, W, taps)
    integers = np.int64 if elem in ("f64", "u64") else np.int32
    return Along(
        _aligned(relative.reshape(order).swapaxes(1, 2), integers),
        _aligned(weights.reshape(order).swapaxes(1, 2), np.float64 if elem == "f64" else np.float32),
        low.astype(np.int64).ravel(), how, not bool(there.all()),
    )  # fmt: skip


def _steps(problem: Any) -> dict[str, int]:
    return {
        f"{name}_{d}": steps[at]
        for name, steps in zip(("out", "x"), problem.strides, strict=True)
        for at, d in enumerate("ncdhw")
    }


def _rows(tables: Any, acc: str) -> tuple[dict[str, int], list[Any]]:
    """(integers, arrays) of the tables along d and h."""
    (deep, deep_weights), (high, high_weights) = tables[:2]
    index = np.concatenate([deep.ravel(), high.ravel()])
    weights = np.concatenate([deep_weights.ravel(), high_weights.ravel()]).astype(DTYPES[acc].storage)
    # a row of the source lies in the ring where no other does that is wanted with it
    slots = np.concatenate([(deep % deep.shape[1] * high.shape[1]).ravel(), (high % high.shape[1]).ravel()])
    ints = {"deep": deep.shape[1], "high": high.shape[1], "heights": deep.size}
    arrays = {"rows": index, "row_weights": weights, "slots": slots}
    return ints | {name: int(each.ctypes.data) for name, each in arrays.items()}, list(arrays.values())


class Lines(Solver):
    """Rows of elements that lie side by side: a permute each tap of a vector, and sums of rows."""

    name = "lines"

    def why_not(self, problem: Any, target: Any) -> str | None:
        c = self.channels(problem)
        if c > 1 and c >= self.lanes(problem, target):
            return "the channels of a pixel fill vectors"
        return None if c else "the elements of rows do not lie side by side in every array"

    def channels(self, p: Any) -> int:
        """Elements of a pixel in a row: 1 with planes, all channels with pixels, 0 where rows are no runs."""
        (_, c, *_), sizes = p.size, (p.result, p.source)
        if all(size[2] == 1 or steps[4] == 1 for size, steps in zip(sizes, p.strides, strict=True)):
            return 1
        if all(
            (c == 1 or steps[1] == 1) and (size[2] == 1 or steps[4] == c)
            for size, steps in zip(sizes, p.strides, strict=True)
        ):
            return int(c)
        return 0

    def lanes(self, p: Any, target: Any) -> int:
        return lanes(self.element(p), target.vector_bytes)

    def element(self, p: Any) -> str:
        if p.copies:
            return "u64" if DTYPES[p.dtype].itemsize == 8 else "u32"
        return computed(p.dtype)

    def order(self, p: Any, target: Any) -> tuple[str, float]:
        """(how rows are mixed, cycles)."""
        c, W = self.channels(p), self.lanes(p, target)
        planes, (d, h, w), (_, high, wide) = p.planes // c, p.result, p.source
        taps = self.counts(p)
        far = w < wide and wide > 2 * w or not can_permute(self.element(p), W)
        each = GATHER * W if far else PERMUTE
        rows, into, of = taps[0] * taps[1], -(-w * c // W), -(-wide * c // W)
        mixed = into * taps[2] * each
        if p.copies:
            twice, (many, _) = self.twice(p, target), self.rows_as_one(p, target, w * c, wide * c)
            W, each, many = (twice, TWICE, 1) if twice else (W, max(each, COPY), many)
            return "row", planes * d * h / many * (-(-w * c * many // W) * each + ROW / 8)
        if rows == 1:
            return "row", planes * d * h * (mixed + ROW)
        if not far and self.sums(p, p.tables()):
            return "line", planes * h * (into * rows * taps[2] * PERMUTE + ROW / 2)
        # rows of the source that are mixed along, for each one of the result
        again = taps[0] * min(taps[1], high / h)
        ring = planes * d * h * (again * mixed + into * rows + ROW)
        line = planes * d * h * (mixed + of * rows + ROW)
        kept = rows * w * c * DTYPES[self.element(p)].itemsize if not p.copies else 0
        ringed = ring <= line and rows <= LONG and 2 * kept <= target.l2
        return ("ring", ring) if ringed else ("line", line)

    def twice(self, p: Any, target: Any) -> int:
        """Lanes of a vector, no longer than a row, where each element is copied twice, and rows once or twice; or 0."""
        w, rows = p.result[2], p.result[1] // p.source[1]
        if not p.copies or self.channels(p) != 1 or w < 4 or rows not in (1, 2):
            return 0
        for (index, _), size, times in zip(p.tables()[1:], p.source[1:], (rows, 2), strict=True):
            if not np.array_equal(index[:, 0], np.arange(times * size) // times):
                return 0
        if self.rows_as_one(p, target, w, p.source[2])[0] > 1 and not self.one_plane(p):
            return 0
        return min(max(4, int(target.vector_bytes) // DTYPES[p.dtype].itemsize), 1 << (w.bit_length() - 1))

    def one_plane(self, p: Any) -> bool:
        """Whether the rows of all planes, of images, lie one behind the other."""
        (n, c), sizes = p.size[:2], (p.result, p.source)
        return p.result[0] == p.source[0] == 1 and all(
            (c == 1 or steps[1] == steps[3] * h) and (n == 1 or steps[0] == steps[3] * h * c)
            for (_, h, _), steps in zip(sizes, p.strides, strict=True)
        )

    def waited(self, p: Any, target: Any) -> bool:
        """Whether the result's lines come from where a core waits as for memory."""
        return bool(target.rates.waits and p.bytes_moved() > 0.75 * target.l2)

    def lined(self, p: Any, target: Any) -> bool:
        """Whether copies are put together to whole lines of the result, wherever it begins.

        Where the third level waits, lines that are written at once are not read before: 512 planes of 28 x 28 float32
        to 56 x 56 took 404 us by rows of three and a half, 307 so, two threads 207 and 157, 128 of them 79 and 59, 40
        and 32; of 64, which half of the second level holds, 31 and 28, 18 and 24 (Emerald Rapids).
        """
        return bool(p.copies and self.waited(p, target))

    def rows_as_one(self, p: Any, target: Any, width: int, source: int) -> tuple[int, int]:
        """Rows of the result, and those of the source that they copy, that one table takes as one row; (1, 1) if none.

        Rows that are no vectors begin and end within lines: 64 x 14 x 14 float32 to 28 x 28 took 9.1 us (Zen 4).
        """
        lies, reach = [steps[3] for steps in p.strides], lanes(self.element(p), LINE) * (1 + self.lined(p, target))
        if not p.copies or lies != [width, source] or source > reach:
            return 1, 1
        index, (h, high) = p.tables()[1][0][:, 0], (p.result[1], p.source[1])
        most = [n for n in range(2, h + 1) if h % n == 0 and n * width <= TABLE and high * n % h == 0]
        most = [n for n in most if (index[n:] == index[:-n] + high * n // h).all()]
        into = max(most, key=lambda n: (n * width % lanes(self.element(p), LINE) == 0, n), default=1)
        return into, high * into // h

    def sums(self, p: Any, tables: Any) -> bool:
        """Whether results are sums of as many neighbours each, some of both rows and elements of one."""
        each = tables[1][0].shape[1], tables[2][0].shape[1]
        alike = p.direction == "backward" and p.mode.startswith("nearest") and p.result[0] == p.source[0] == 1
        return alike and 1 < max(each) and each[0] * each[1] <= LONG and all((t[0] >= 0).all() for t in tables)

    def counts(self, p: Any) -> list[int]:
        """Taps along d, h and w, about."""
        if p.direction == "forward":
            return [p.taps(axis) for axis in range(3)]
        return [max(1, -(-p.taps(a) * p.to[a] // p.size[2 + a])) if p.to[a] > 1 or p.size[2 + a] > 1 else 1
                for a in range(3)]  # fmt: skip

    def estimate(self, problem: Any, target: Any) -> float:
        moved = problem.bytes_moved()
        cycles = target.rates.cycles(self.order(problem, target)[1])
        return float(target.rates.call + max(cycles, moved / target.bandwidth(moved)) + 0.2 * cycles)

    def program(self, problem: Any, target: Any, config: Any) -> Program:
        p, W, c = problem, self.lanes(problem, target), self.channels(problem)
        elem, item = self.element(p), DTYPES[p.dtype].itemsize
        acc = computed(p.dtype)
        tables = p.tables()
        index, weight = tables[2]
        width, source = p.result[2] * c, p.source[2] * c
        if c > 1:  # of pixels one element after the other
            index = np.where(index[:, None] < 0, -1, index[:, None] * c + np.arange(c)[:, None]).reshape(width, -1)
            weight = np.repeat(weight, c, 0)
        height, high = p.result[1], p.source[1]
        ints = _steps(p)
        into, of = self.rows_as_one(p, target, width, source)
        past = p.bytes_moved() > target.third * PAST
        # lines of the result, as its rows lie one behind the other
        whole = item * W == LINE and width * into % W == 0 and p.result[0] == 1
        whole = whole and ints["out_w"] == 1 and ints["out_h"] == width and (past or self.lined(p, target))
        twice = 0 if whole else self.twice(p, target)
        if into > 1 and not twice:
            index = (tables[1][0][:into, :, None] * source + index[:, 0]).reshape(-1, 1)
            weight, height, high = np.ones(index.shape), height // into, high // of
            width, source = width * into, source * of
            tables = [tables[0], (np.arange(height)[:, None], np.ones((height, 1))), (index, weight)]
            ints |= {"out_h": width, "x_h": source}
        counted = tables[0][0].shape[1] * tables[1][0].shape[1]
        # each row is one of the source as it is
        plain = counted == 1 and all((each[0] >= 0).all() and (each[1] == 1).all() for each in tables[:2])
        order = "row" if plain else "line"
        # columns of a result that no cache holds are written at the speed of its latency: 8 x 64 x 112 x 112 float32
        # took 2.9 ms, row by row 1.7; of 4 x 128 x 56 x 56 it was 0.23 and 0.32 (Zen 4, 32 MiB)
        stairs = p.direction == "forward" and p.result[0] == 1 and [t[0].shape[1] for t in tables] == [1, 2, 2]
        stairs = (
            stairs
            and not any((t[0] < 0).any() for t in tables)
            and p.result[1] >= p.source[1]
            and p.result[2] >= p.source[2]
            and 2 * p.bytes_moved() <= target.third
        )
        if order == "line" and counted <= LONG and (stairs or self.order(p, target)[0] == "ring"):
            order = "ring"
        table = along(index, weight, source, elem, W, order != "line", stairs or p.copies)
        sums = self.sums(p, tables)
        if sums:
            ended = along(index, weight, source, elem, W, True, True)
            sums = ended.how != "gather" and "each" not in ended.how
            table = ended if sums else table
        numbers, keep = _rows(tables, acc)
        ring = counted if order == "ring" else 1
        line = -(-(width if order == "ring" else source + 2 * W) // 16) * 16
        size = DTYPES[acc].itemsize
        own = {"lines": ring * line * size, "factors": counted * size, "places": 8 * counted, "tags": 8 * ring}
        planes, rows, channels = p.planes // c, p.result[0] * height, p.size[1] // c
        if twice and self.one_plane(p):
            height, rows, planes, channels = height * planes, rows * planes, 1, 1
        first = tables[1][0][:, 0]
        alike = p.result[1] // p.source[1] if twice else 1
        band = max(1, min(rows, alike * -(-TILE_BYTES // (alike * width * item))))
        bands = -(-rows // band)
        tiles = planes * bands
        ints |= numbers
        ints |= {
            "channels": channels, "depth": p.result[0], "height": height, "x_height": high,
            "width": width, "source": source, "along": index.shape[1], "bands": bands, "band": band,
            "blocks": table.places.shape[0], "line": line, "ring": tables[1][0].shape[1],
            "rings": tables[0][0].shape[1], "index": int(table.places.ctypes.data),
            "weight": int(table.weight.ctypes.data),
            "base": int(table.base.ctypes.data),
        }  # fmt: skip
        # for each row of the result how many, itself among them, lie between the same rows of the source
        ends = np.append(np.flatnonzero(np.diff(first)), len(first) - 1)
        runs = (ends[np.searchsorted(ends, np.arange(len(first)))] - np.arange(len(first)) + 1).astype(np.int64)
        if sums:
            kernel = make_sums(p.dtype, counted, index.shape[1], table.how, W)
        elif p.copies:
            ints["slots"] = int(runs.ctypes.data)
            if whole and table.how != "gather":
                kernel = make_whole_lines(8 * item, table.how, W, past)
            elif twice:
                kernel = make_copied_lines(8 * item, "twice", alike, twice)
            else:
                kernel = make_copied_lines(8 * item, table.how, 0, W)
        else:
            taps = index.shape[1] if index.shape[1] in (2, 4) else 0
            whole = order != "row" and not any((each[0] < 0).any() for each in tables[:2])
            full = counted if whole and counted in (2, 4) else 0
            if stairs:
                ints["slots"] = int(runs.ctypes.data)
                if self.waited(p, target):  # the lines of the next plane, or of the next tile of it
                    ints["ahead"] = band * ints["out_h"]
                kernel = make_stairs(p.dtype, table.how, W)
            else:
                past = past and whole and order == "ring" and full == 2 and p.dtype == acc and can_permute(elem, W)
                kernel = make_lines(order, p.dtype, full, taps, table.how, table.padded, W, past)
        return self.made(p, target, Phase(kernel, tiles, max(1, tiles // TILES)), ints, own, (*keep, table, runs))

    def made(self, p: Any, target: Any, phase: Phase, ints: dict[str, int], own: dict[str, int], keep: Any) -> Program:
        return Program.of(
            ARGS, ints, [phase], binds={"out": array(0), "x": array(1)}, regions=Regions(own=own), keep=keep,
            **target.rates.waking(self.estimate(p, target)),
        )  # fmt: skip


class Pixels(Lines):
    """Pixels whose channels lie side by side: sums of such runs."""

    name = "pixels"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if any(problem.size[1] > 1 and steps[1] != 1 for steps in problem.strides):
            return "channels do not lie side by side in every array"
        return None

    def cycles(self, p: Any, W: int) -> float:
        c, taps = p.size[1], math.prod(self.counts(p))
        each = -(-c // W) * (taps + 1) + (10 if p.copies else 6 * taps + 20)
        return float(p.size[0] * math.prod(p.result) * each)

    def estimate(self, problem: Any, target: Any) -> float:
        moved = problem.bytes_moved()
        cycles = target.rates.cycles(self.cycles(problem, self.lanes(problem, target)))
        return float(target.rates.call + max(cycles, moved / target.bandwidth(moved)) + 0.2 * cycles)

    def program(self, problem: Any, target: Any, config: Any) -> Program:
        p, W = problem, self.lanes(problem, target)
        item, acc = DTYPES[p.dtype].itemsize, computed(p.dtype)
        if p.copies:
            W = W if W == 1 else target.vector_bytes // item
        tables = p.tables()
        ints, keep = _rows(tables, acc)
        index, weight = tables[2][0], tables[2][1].astype(DTYPES[acc].storage)
        counted, taps = ints["deep"] * ints["high"], ints["deep"] * ints["high"] * index.shape[1]
        size = DTYPES[acc].itemsize
        own = {"factors": size * counted, "places": 8 * counted, "pixel_factors": size * taps, "pixels": 8 * taps}
        rows = p.size[0] * p.result[0] * p.result[1]
        band = max(1, min(rows, -(-TILE_BYTES // (p.result[2] * p.size[1] * item))))
        tiles = -(-rows // band)
        ints |= _steps(p)
        ints |= {
            "channels": p.size[1], "depth": p.result[0], "height": p.result[1], "width": p.result[2],
            "along": index.shape[1], "band": band, "items": p.size[0],
            "index": int(index.ctypes.data), "weight": int(weight.ctypes.data),
        }  # fmt: skip
        linear = index.shape[1] == 2 and not any((each[0] < 0).any() for each in tables)
        if p.copies:
            kernel = make_copied_pixels(8 * item, W)
        elif linear and W > 1 and counted in (1, 2, 4) and p.direction == "forward":
            kernel = make_walk(p.dtype, counted, W)
        else:
            kernel = make_pixels(p.dtype, W)
        return self.made(p, target, Phase(kernel, tiles, max(1, tiles // TILES)), ints, own, (*keep, index, weight))


class Naive(Pixels):
    """An element after the other, however they lie."""

    name = "naive"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def lanes(self, p: Any, target: Any) -> int:
        return 1

    def cycles(self, p: Any, W: int) -> float:
        return 2 * super().cycles(p, 1)


SOLVERS = (Lines(), Pixels(), Naive())
