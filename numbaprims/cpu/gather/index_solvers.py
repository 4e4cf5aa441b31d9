"""The ways to take elements by indices, to sum up their gradients, and to split an array."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from numbaprims.cpu.gather.indices import (
    ARGS,
    make_count,
    make_offsets,
    make_one_hot,
    make_order,
    make_sums,
    make_table,
    make_take,
)
from numbaprims.cpu.gather.kernels import GIVEN
from numbaprims.cpu.gather.solvers import LEAST_BYTES, TILE_BYTES, TILES, Crop, Fold, Rows, loops_of
from numbaprims.cpu.program import Block, Part, Phase, Program, Run, array, join
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.solver import Config, Regions, Solver
from numbaprims.dtypes import DTYPES
from numbaprims.ops._gather_index_problem import STATUS, IndexProblem
from numbaprims.ops._gather_problem import PadAxis

#: Indices of a tile at least, and such tiles at most: every tile behind them looks at all of their flags.
INDICES, MOST = 4096, STATUS - 1
#: Of the sums of a band of rows, and how many bands of all tiles are counted where there are fewer indices.
BAND_BYTES, MOST_COUNTS = 1 << 15, 1 << 16
#: Indices that go into a row: from so many on those of a row are put together.
MANY = 8


def _tables(problem: IndexProblem, step: int, regions: Regions) -> tuple[Run, dict[str, Any]]:
    """(the phase that looks at the indices, what later ones take of it); it keeps a table if that has a region."""
    tile = max(INDICES, -(-problem.count // MOST))
    tiles = max(1, -(-problem.count // tile))
    given: dict[str, Any] = {"flags": array(1, 8), "status": array(1), "tiles": tiles}
    ints = {"count": problem.count, "size": problem.size, "along": step, "tile": tile}
    block = Block.of(ARGS, ints, {"indices": array(3), "flags": given["flags"]}, regions)
    return Run((Phase(make_table(problem.index, "table" in regions.shared), tiles, 1),), (block,)), given


class Gather(Rows):
    """Rows of x by a table of their places; of single elements one by one."""

    name = "gather"
    kind = "gather"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.kind != "gather":
            return "it is for elements by indices"
        return None if self.single or problem.layout == "rows" else "neighbours behind the axis do not lie side by side"

    def seconds(self, problem: Any, target: Any) -> float:
        moved = problem.bytes_moved()
        cycles = 2 * problem.count + (problem.rows * 20 if problem.run > 1 else problem.written * 2)
        cycles += 4 * problem.written if self.single else 0
        return float(1.3 * moved / target.bandwidth(moved) + target.rates.cycles(cycles))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        p: IndexProblem = problem
        to, of = p.steps
        if p.layout == "rows" and len(p.behind) < 2 and len(p.before) < 2 and not self.single:
            run, given = _tables(p, of, Regions())
            outer = p.before[0] if p.before else PadAxis(1, 0, 1, 0, 0, 1, 0, 0)
            # as many tiles as workers can share
            each = p.inner * DTYPES[p.dtype].itemsize
            band = min(-(-TILE_BYTES // each), max(-(-p.outer * p.count // TILES), -(-LEAST_BYTES // each)))
            band = max(1, min(band, p.count))
            bands, x_bytes = -(-p.count // band), p.outer * p.size * each
            ints = {
                "count": p.count, "band": band, "bands": bands, "tiles": given["tiles"], "x_outer": outer.step,
                "out_outer": outer.padded_step, "out_step": to, "inner": p.inner, "far": int(x_bytes > target.l2 // 2),
                "size": p.size, "along": of,
            }  # fmt: skip
            binds = {"out": array(0), "x": array(2), "indices": array(3), "flags": given["flags"]}
            binds["status"] = given["status"]
            tiles, work = outer.size * bands, self.seconds(p, target)
            kernel = make_take(DTYPES[p.dtype].itemsize, p.index, target.vector_bytes)
            phase = Phase(kernel, tiles, target.rates.grain(tiles, work, 16))
            return Program((run, Run((phase,), (Block(ARGS, ints, binds),))), **target.rates.waking(work))
        regions = Regions({"table": 8 * p.count})
        run, given = _tables(p, of, regions)
        before, _ = loops_of(p.before, "constant")
        inner = p.behind[-1] if p.behind else PadAxis(1, 0, 1, 0, 0, 1, 1, 1)
        behind, _ = loops_of(p.behind[:-1], "constant")
        loops = [*(before if p.before else []), p.count, to, 0, GIVEN, *(behind if p.behind[:-1] else [])]
        given["x"] = array(2)
        copies = self.copies(p, target, loops, inner, [(0, inner.size, 0, 1)], given=given, regions=regions)
        return Program((run, *copies.runs), shared=copies.shared, parallel=copies.parallel, keep=(copies,))


class Scatter(Rows):
    """The gradient of a gather: indices by bands of rows, then the sums of each band's in their order."""

    name = "scatter"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None if problem.kind == "scatter" else "it is for gradients of elements by indices"

    def seconds(self, problem: Any, target: Any) -> float:
        moved = problem.bytes_moved()
        cycles = 12 * problem.count + problem.outer * problem.count * problem.inner * (6 if self.single else 0.2)
        return float(1.3 * moved / target.bandwidth(moved) + target.rates.cycles(cycles))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        p: IndexProblem = problem
        tile = max(INDICES, -(-p.count // MOST))
        tiles = max(1, -(-p.count // tile))
        acc = DTYPES[p.dtype].accumulate
        W = 1 if self.single else lanes(acc, target.vector_bytes)
        direct, pitch = acc == p.dtype and p.inner % W == 0, -(-p.inner // W) * W
        size = DTYPES[acc].itemsize
        # bands that the first-level cache holds, some for every worker, of a row where many indices go into each; and
        # not too many to count
        shift = min(BAND_BYTES // (pitch * size) or 1, p.size // TILES or 1).bit_length() - 1
        shift = 0 if p.count >= MANY * p.size else shift
        while -(-p.size >> shift) * tiles > max(MOST_COUNTS, p.count):
            shift += 1
        bands = -(-p.size >> shift)
        regions = Regions(
            {"starts": 8 * bands * tiles, "order": 8 * p.count},
            {"sums": 0 if direct else pitch * size << shift, "terms": (8 << shift) * p.mean},
        )  # fmt: skip
        ints = {
            "count": p.count, "size": p.size, "tile": tile, "tiles": tiles, "skip": p.skip, "mean": int(p.mean),
            "inner": p.inner, "bands": bands, "shift": shift,
            "far": int(p.count * p.inner * DTYPES[p.dtype].itemsize > target.l2 // 2),
        }  # fmt: skip
        binds = {"out": array(0), "x": array(2), "indices": array(3), "flags": array(1, 8), "status": array(1)}
        work, summed = self.seconds(p, target), p.outer * bands
        grain = target.rates.grain(summed, work, 16)
        phases = (
            Phase(make_count(p.index), tiles, 1), Phase(make_offsets(), 1, 1), Phase(make_order(p.index), tiles, 1),
            Phase(make_sums(p.dtype, W, direct), summed, grain),
        )  # fmt: skip
        return Program.of(
            ARGS, ints, phases, binds=binds, regions=regions, **target.rates.waking(work)
        )  # fmt: skip


class OneHot(Rows):
    """Rows that are off, and then on at one place."""

    name = "one_hot"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None if problem.kind == "one_hot" else "it is for rows that are on at one place"

    def seconds(self, problem: Any, target: Any) -> float:
        moved = problem.bytes_moved()
        cycles = 8 * problem.outer * problem.inner + (8 * problem.written if self.single else 0)
        return float(moved / target.bandwidth(moved) + target.rates.cycles(cycles))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        p: IndexProblem = problem
        size, values = DTYPES[p.dtype].itemsize, np.array(p.bits, np.uint64)
        each = max(1, p.size * p.inner * size)
        band = max(1, min(-(-TILE_BYTES // each), max(-(-p.outer // TILES), -(-LEAST_BYTES // each)), p.outer))
        tiles = -(-p.outer // band)
        ints = {
            "outer": p.outer, "size": p.size, "inner": p.inner, "band": band, "off": values.ctypes.data,
            "on": values.ctypes.data + 8,
        }  # fmt: skip
        binds = {"out": array(0), "indices": array(1)}
        kernel = make_one_hot(size, p.index, size if self.single else target.vector_bytes)
        work = self.seconds(p, target)
        phase = Phase(kernel, tiles, target.rates.grain(tiles, work))
        run = Run((phase,), (Block(ARGS, ints, binds),))
        return Program((run,), **target.rates.waking(work), keep=(values,))


class Split(Rows):
    """Every part a copy of its box of x."""

    name = "split"
    ways: tuple[Rows | Crop, ...] = (Crop(), Rows())

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.kind != "split":
            return "it is for parts of an array"
        return None if self.single or problem.layout == "rows" else "neighbours do not lie side by side"

    def seconds(self, problem: Any, target: Any) -> float:
        return sum(self._way(part, target).estimate(part, target) - target.rates.call for part in problem.parts)

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        x = array(len(problem.sizes[1]))
        parts = [
            Part(self._way(part, target).program(part, target, config), [array(at), x], [])
            for at, part in zip(problem.places, problem.parts, strict=True)
        ]  # fmt: skip
        return join(parts)

    def _way(self, part: Any, target: Any) -> Rows | Crop:
        return min(self.ways, key=lambda one: one.estimate(part, target))


class _SlowRows(Rows):
    single = True


class _SlowFold(Fold):
    single = True


class _SlowGather(Gather):
    single = True


class _SlowScatter(Scatter):
    single = True


class _SlowOneHot(OneHot):
    single = True


class _SlowSplit(Split):
    single = True
    ways = (_SlowRows(),)


class Naive(Solver):
    """An element at a time, wherever they lie."""

    name = "naive"
    _ways: ClassVar[dict[str, Solver]] = {
        "pad": _SlowRows(), "fold": _SlowFold(), "gather": _SlowGather(), "scatter": _SlowScatter(),
        "one_hot": _SlowOneHot(), "split": _SlowSplit(),
    }  # fmt: skip

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        elements = float(problem.bytes_moved()) / DTYPES[problem.dtype].itemsize
        return float(self._ways[problem.kind].estimate(problem, target) + target.rates.cycles(8 * elements))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        return self._ways[problem.kind].program(problem, target, config)


SOLVERS = (Crop(), Rows(), Fold(), Gather(), Scatter(), OneHot(), Split(), Naive())
