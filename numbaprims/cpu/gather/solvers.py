"""The ways to put elements elsewhere, and what each is estimated to take."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims.cpu.gather.fold import make_fold
from numbaprims.cpu.gather.kernels import ARGS, LOOP, make_framed, make_rows
from numbaprims.cpu.program import Bind, Part, Phase, Program, array, join
from numbaprims.cpu.reduce.posed import PosedReduction
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.solver import Config, Regions, Solver
from numbaprims.dtypes import DTYPES
from numbaprims.ops._gather_problem import NONE, PadProblem, Segment, map_of, segments
from numbaprims.ops._reduction_problem import BITS, Reduction, mapped

#: What a tile writes at least, where there are tiles for every worker.
TILE_BYTES = 32768
TILES = 128
LEAST_BYTES = 8192
WORKERS = 8
#: Results leave past the caches where both arrays take more than this part of the third-level one, and rows so many
#: bytes: of each two lines are written in parts.  Edges around 25 MB took 1.38 ms in rows of 384 bytes and 2.57 past
#: the caches, of 7,680 bytes 1.34 and 0.96 (Zen 4).
PAST, LONG = 2 / 3, 1024
#: Vectors of a row, at most, behind which the rest is stored by a mask: pads of 1024 planes of 28 x 28 took 118 us, 102
#: so; of 56 x 56, by three vectors and a mask, 0.41 ms and 0.46 to 0.66 (Zen 5).
SHORT = 1
#: Elements of a piece of a row, where there are too few rows.
PIECE = 16384
ROWS_ENOUGH = 64
#: Cycles of a row, and of each of its segments.
ROW, SEGMENT_CYCLES = 15, 12


class Rows(Solver):
    """The rows of a pad, by their segments."""

    name = "rows"
    single = False

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.kind != "pad":
            return "it is for pads"
        return None if problem.layout == "rows" else "neighbours along the innermost axis do not lie side by side"

    def seconds(self, problem: PadProblem, target: Any) -> float:
        moved = problem.bytes_moved()
        cycles = problem.rows * (ROW + SEGMENT_CYCLES * len(segments(problem.axes[-1], problem.mode)))
        cycles += 2 * problem.padded if self.single or problem.layout != "rows" else 0
        return float(1.3 * moved / target.bandwidth(moved) + target.rates.cycles(cycles))

    def estimate(self, problem: Any, target: Any) -> float:
        return float(target.rates.call + self.seconds(problem, target))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        loops, tables = loops_of(problem.axes[:-1], problem.mode)
        parts = segments(problem.axes[-1], problem.mode)
        return self.copies(problem, target, loops, problem.axes[-1], parts, problem.value, tables)

    def copies(
        self, problem: Any, target: Any, loops: list[int], inner: Any, parts: list[Segment], bits: int = 0,
        keep: Any = (), given: dict[str, Any] | None = None,
        regions: Regions | None = None,
    ) -> Program:  # fmt: skip
        """Rows of segments, in loops; `given`: what else a kernel takes."""
        size = DTYPES[problem.dtype].itemsize
        if problem.rows < ROWS_ENOUGH:
            parts = [
                (start + at, min(PIECE, count - at), source if source == NONE else source + step * at, step)
                for start, count, source, step in parts for at in range(0, count, PIECE)
            ]  # fmt: skip
        framed = [] if self.single or problem.layout != "rows" else _framed(inner, parts)
        if framed:
            parts = framed
        ends, filled = [0], 0
        for at, (_, count, _, _) in enumerate(parts):
            filled += count
            if (
                problem.rows < ROWS_ENOUGH
                and not framed
                and (filled >= PIECE or at == len(parts) - 1)
                or at == len(parts) - 1
            ):
                ends.append(at + 1)
                filled = 0
        pieces = len(ends) - 1
        row_bytes = max(1, inner.padded * inner.unit * size // pieces)
        band = min(-(-TILE_BYTES // row_bytes), max(-(-problem.rows * pieces // TILES), -(-LEAST_BYTES // row_bytes)))
        band = max(1, min(band, problem.rows))
        tiles = -(-problem.rows // band) * pieces
        words = np.array([each for segment in parts for each in segment], np.int64)
        places = np.array(loops, np.int64)
        pieces_at, value = np.array(ends, np.int64), np.array([bits], np.uint64)
        ints = {
            "loops": len(loops) // LOOP, "segments": len(parts), "pieces": pieces, "plan_loops": places.ctypes.data,
            "plan_segments": words.ctypes.data, "plan_pieces": pieces_at.ctypes.data, "rows": problem.rows,
            "band": band, "out_step": inner.padded_step, "x_step": inner.step, "value": value.ctypes.data,
        }  # fmt: skip
        work = self.seconds(problem, target)
        past = problem.bytes_moved() > target.third * PAST and inner.kept * inner.unit * size >= LONG
        whole = inner.kept * inner.unit * size // target.vector_bytes
        short = whole <= SHORT and (size >= 4 or target.vector_bytes == 64)
        kernel = (
            make_framed(size, target.vector_bytes, past, whole if short else -1)
            if framed
            else make_rows(size, target.vector_bytes, self.single)
        )
        phase = Phase(kernel, tiles, target.rates.grain(tiles, work))
        given = given or {}
        ints |= {name: each for name, each in given.items() if isinstance(each, int)}
        binds = {"out": array(0), "x": array(1)}
        binds |= {name: each for name, each in given.items() if isinstance(each, Bind)}
        return Program.of(
            ARGS, ints, [phase], binds=binds, regions=regions, **target.rates.waking(work),
            keep=(words, places, pieces_at, value, *keep),
        )  # fmt: skip


class Crop(Solver):
    """A box of x, and nothing around it: a copy by the reduce engine, of which rows need not be written one by one."""

    name = "crop"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.kind != "pad" or any(axis.before or axis.after for axis in problem.axes):
            return "it is for pads that only take elements away"
        return None

    def _posed(self, problem: PadProblem) -> PosedReduction:
        axes, unit, bits = problem.axes, problem.axes[-1].unit, BITS.get(problem.dtype, problem.dtype)
        shape = (*(axis.kept for axis in axes), unit)
        strides = ((*(axis.padded_step for axis in axes), 1), (*(axis.step for axis in axes), 1))
        return PosedReduction(mapped(Reduction, "cast", bits, (bits, bits), shape, strides))

    def estimate(self, problem: Any, target: Any) -> float:
        return self._posed(problem).estimate(target)

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        first = sum(axis.first * axis.step for axis in problem.axes) * DTYPES[problem.dtype].itemsize
        return join([Part(self._posed(problem).program(target), [array(0), array(1, first)], [])])


def _framed(inner: Any, parts: list[Segment]) -> list[Segment]:
    """The three segments of a row of x with something before and behind; none where there are more."""
    found: list[Segment] = [(0, 0, 0, 0)] * 3
    before, kept = inner.before * inner.unit, inner.kept * inner.unit
    for part in parts:
        at = 0 if part[0] < before else 1 if part[0] < before + kept else 2
        if found[at][1]:
            return []
        found[at] = part
    return found


def loops_of(outer: Any, mode: str) -> tuple[list[int], list[Any]]:
    """The words of the loops around a row of a pad, and the tables that they point to."""
    words, tables = list[int](), list[Any]()
    for axis in outer:
        if axis.plain:
            words += [axis.padded, axis.padded_step, axis.step, 0]
        else:
            at = map_of(axis, mode)
            table = np.where(at < 0, NONE, at * axis.step)
            tables.append(table)
            words += [axis.padded, axis.padded_step, axis.step, table.ctypes.data]
    return words or [1, 0, 0, 0], tables


class Fold(Solver):
    """The gradient of a pad: rows of dx, in a line of the first-level cache."""

    name = "fold"
    single = False

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.kind != "fold":
            return "it is for gradients of pads"
        if not self.single and problem.layout != "rows":
            return "neighbours along the innermost axis do not lie side by side"
        return None

    def seconds(self, problem: PadProblem, target: Any) -> float:
        moved = problem.bytes_moved()
        cycles = problem.rows * 60 + problem.padded * (6 if self.single else 0.3)
        return float(1.3 * moved / target.bandwidth(moved) + target.rates.cycles(cycles))

    def estimate(self, problem: Any, target: Any) -> float:
        return float(target.rates.call + self.seconds(problem, target))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        acc = DTYPES[problem.dtype].accumulate
        *outer, inner = problem.axes
        parts = segments(inner, problem.mode, middle=False)
        loops, tables = list[int](), list[Any]()
        for axis in outer:
            loops += [axis.size, axis.step, axis.padded_step, 0]
            if not axis.plain:
                at = map_of(axis, problem.mode)
                order = np.argsort(at, kind="stable")
                starts = np.searchsorted(at[order], np.arange(axis.size + 1))
                tables.append(np.concatenate([starts, order * axis.padded_step]).astype(np.int64))
                loops[-1] = tables[-1].ctypes.data
        # in the place of x its element behind those that are cropped
        offset = inner.first * inner.unit
        words = np.array([(a, n, of - offset, step) for a, n, of, step in parts] or [(0,) * 4], np.int64)
        places, width = np.array(loops or [1, 0, 0, 0], np.int64), inner.padded * inner.unit
        rows, line = problem.rows, max(1, width * DTYPES[acc].itemsize)  # pads may take all of the innermost axis
        band = max(1, min(rows, -(-LEAST_BYTES // line), -(-rows // WORKERS)), -(-rows // (4 * TILES)))
        tiles, work = -(-rows // band), self.seconds(problem, target)
        ints = {
            "loops": len(outer) or 1, "segments": len(parts), "plan_loops": places.ctypes.data,
            "plan_segments": words.ctypes.data, "rows": rows, "band": band, "out_step": inner.step,
            "x_step": inner.padded_step, "width": width, "before": inner.before * inner.unit,
            "first": inner.first * inner.unit, "kept": inner.kept * inner.unit, "size": inner.size * inner.unit,
        }  # fmt: skip
        W = 1 if self.single else lanes(acc, target.vector_bytes)
        phase = Phase(make_fold(problem.dtype, W), tiles, target.rates.grain(tiles, work))
        return Program.of(
            ARGS, ints, [phase], regions=Regions(own={"line": line}), **target.rates.waking(work),
            keep=(words, places, *tables),
        )  # fmt: skip
