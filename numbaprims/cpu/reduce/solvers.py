"""The ways to compute a formula with reductions, and what each is estimated to take."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from numbaprims.cpu.jit import RangeKernel
from numbaprims.cpu.pointwise.blocks import BLOCK, RUN, SHORTEST_RUN, any_strides, make_blocks, sizes_of
from numbaprims.cpu.pointwise.form import ARGS as POINTWISE, Form
from numbaprims.cpu.program import Block, Phase, Program, Run
from numbaprims.cpu.rates import WORKERS
from numbaprims.cpu.reduce.bands import Bands, apart_of, turned_along
from numbaprims.cpu.reduce.kernels import phase_variants
from numbaprims.cpu.reduce.lookup import make_lookup
from numbaprims.cpu.reduce.maps import compute_of, form_of, make_map
from numbaprims.cpu.reduce.solver import CHUNK, CYCLES, LOOKUP, SIDE_BY_SIDE, TABLE, Reduce, no_map
from numbaprims.cpu.reduce.turn import (
    LINE,
    STAYING,
    TURN,
    far,
    in_groups,
    inner_of,
    kernel_of,
    lanes_of,
    leaving,
    plan_of as turn_plan,
    regions_of as turn_regions,
)
from numbaprims.cpu.reduce.variant import (
    BEHIND,
    CHEAP,
    DEAR,
    NEXT_ROWS,
    PAGE,
    Cut,
    has_exponentials,
    leaves_rows,
    moving,
    parts_of,
    reads_beside,
    regions_of,
    shares,
    takes_exponentials,
    wide_sums,
)
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.solver import Config, Regions
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.graph import COSTS, Node
from numbaprims.formulas.maps import MAP
from numbaprims.formulas.reductions import FINISHED, graph_of
from numbaprims.formulas.stacks import ENDING

#: Vectors of a row that may stay in registers from pass to pass.
MOST_REGISTERS = 8
#: Rows that are walked side by side where their runs have at most so many bytes.
ROWS_TOGETHER, RUN_TOGETHER = 4, 1024
#: Elements of a chunk of a row that several workers share, and of a long row whose sums are those of chunks.
SPLIT = 16384
#: Reductions that round.
SUMS = ("sum", "product", "exp_sum")
#: Rows of a chunk whose lines are walked side by side, as many streams as the core asks for by itself; twice as many
#: where there is more to merge. Maxima of 8,192 columns of 4,096 floats: 6.3 ms with 8, 7.8 with 16, 13 with 1 (Zen 4).
STREAMS = 8
#: Elements of a chunk of all rows side by side, at most, and chunks there are at least if rows are long enough: sums of
#: a chunk are begun and ended once.
SWEEP, PARTS_LEAST = 256, 16
#: What lies in a page each costs so much of its bytes once more, where a block of columns is walked down, where it
#: could be swept, and where four times as many columns come at once.
APART, ASIDE, WIDE = 0.8, 1.5, 0.3
#: Pieces of lines about a page apart, each in a page of its own, from which on a core that follows them no longer finds
#: these pages again: gradients of softmax of 4096 x 1000 took 2.0 ms so, 1.5 swept, of 1536 x 3136 1.36, 1.96 (Zen 5).
PAGES = 6000
#: The same where the third level waits: log-softmax of 21 x 262144 took 3.6 ms so, 11.3 swept, of 300 x 3000 0.63 and
#: 0.85, its gradient 1.2 and 0.66 (Emerald Rapids).
PAGES_WAITING = 700
#: Second-level caches it takes there: gradients of softmax of 3136 x 64, 2.4 MB, took 30 us so, 36 swept (two threads).
NEAR = 1.5
#: Cycles that the exponentials of a row's lanes take to become one sum: cross entropy of 256 x 10 9.1 us without, 10.7
#: so (Granite Rapids).
MERGED = 30
#: Rows that give every worker its part.
ROWS_ENOUGH = 64


def sweeps(problem: Any, target: Any, W: int) -> int:
    """Elements at a time by which the sums of all rows side by side are taken at once: rows stay in no cache.

    One, from memory, where sums and a row of elements stay in a core's first cache, else as many as it follows: of rows
    of 8 KB the largest of each take 4.6 ms by one and 5.2 by eight, of 16 KB 7.7 and 5.2 (Zen 4).  From the last cache
    sums of 4096 x 1000 took 217 us by one and 187 by eight, variances 293 and 229, of 6000 x 1000 452 and 615 (Zen 5).
    Elements a page apart where that waits: sums of 2048 x 768 263 and 223, maxima 286 and 242 (Emerald Rapids).
    """
    side, runs = problem.kept[-1], len(problem.reduced)
    # exponentials of one element at a time would be two
    if side <= W or problem.n < ROWS_ENOUGH or runs > 1 or has_exponentials(problem.formula):
        return 0
    elements = side * DTYPES[problem.dtype].itemsize
    sums = side * sum(parts_of(problem)) * DTYPES[problem.compute].itemsize
    last = max(target.l2, target.third)
    moved = problem.bytes_moved()
    near = NEAR * target.l2 if target.rates.waits and elements >= PAGE else last / 4
    if moved <= near or sums > last / 2:
        return 0
    return 1 if sums + elements <= 0.75 * target.l1d and moved > last / 2 else STREAMS


class Rows(Reduce):
    """A row after the other, vectors along it; short rows stay in registers between the passes."""

    name = "rows"
    stages = True

    def why_not(self, problem: Any, target: Any) -> str | None:
        if graph_of(problem.formula).kept(DEAR) and problem.n > 1 << 24:
            return "what it keeps of a row between the passes takes more than 64 MB"
        return super().why_not(problem, target)

    def registers(self, problem: Any, W: int) -> int:
        needed, once = -(-problem.n // W), len(graph_of(problem.formula).passes) == 1
        few = len(problem.reduced) == 1 and needed <= MOST_REGISTERS and not self.online
        return needed if few and not once else 0  # of one pass nothing is read twice

    def together(self, problem: Any, target: Any, registers: int) -> int:
        # what all have in common is computed once; of short ones what one waits for hides behind the others
        if shares(problem):
            return int(min(problem.rows, SIDE_BY_SIDE))
        if registers:
            return int(min(problem.rows, max(2, 8 // registers)))
        # short runs one by one are mostly their beginnings and ends: training 16 x 2048 x 7 x 7 took 466 us, 238 so, 16
        # x 512 x 14 x 14 213 and 188; runs of 20 x 20 and 28 x 28 gained nothing (Zen 5)
        run = problem.reduced[-1] * DTYPES[problem.dtype].itemsize
        dear = any(COSTS.get(node.op, 0) >= COSTS["log"] for node in graph_of(problem.formula).nodes if node.uniform)
        several = len(problem.reduced) > 1 or dear
        if several and run <= RUN_TOGETHER and len(self._kept(problem)) <= self._waits(problem):
            return int(min(problem.rows, ROWS_TOGETHER))
        if not graph_of(problem.formula).is_map:
            return int(min(problem.rows, ROWS_TOGETHER)) if reads_beside(problem, target) else 1
        # rows that all share, which the first-level cache does not hold beside the others, are read once for four:
        # batch norm of 1600 x 2048 took 950 us, 700 so, of 192 x 2048 65 and 45, of 16384 x 2048 9.1 ms and 8.2; of
        # 3200 x 1024 470 us, 650 so (Zen 4)
        shared = [problem.n * DTYPES[array.dtype].itemsize for array in problem.arrays if array.kind == "along"]
        if len(shared) > 1 and sum(shared) >= 3 * target.l1d / 4:
            return int(min(problem.rows, ROWS_TOGETHER))
        # one, once for two: of 64 MB the sum with a row of 32 to 512 KB took 4.1 to 4.5 ms, 3.3 to 3.8 so; by four 3.1
        # to 5.0 (Zen 4)
        far = problem.bytes_moved() > target.third / 2
        return int(min(problem.rows, 2)) if far and sum(shared) >= target.l1d else 1

    def chunked(self, problem: Any) -> bool:
        # 300,000 exponentials in the 16 sums of four vectors of 16 bytes were wrong by 1.4e-5 of their sum
        return problem.n > SPLIT and any(node.op in SUMS for node in graph_of(problem.formula, self.online).reductions)

    def cut(self, problem: Any, target: Any) -> Cut:
        return Cut.of(problem, SPLIT if self.chunked(problem) else CHUNK)

    def columns_at_a_time(self, problem: Any, target: Any) -> Any:
        """What all rows share stays in the first-level cache beside a row.

        A sum of 64 x 8192 and a row took 62 us, 50 so, of 48 x 16384 93 and 76; what takes more than half of the last
        cache loses, batch norm of 1600 x 2048 0.95 and 1.25 ms (Zen 4).
        """
        arrays = list(zip(problem.arrays, problem.strides, strict=True))
        each = sum(DTYPES[array.dtype].itemsize for array, _ in arrays if array.kind in ("row", "along"))
        alike = all(reduced == (1,) for array, (_, reduced) in arrays if array.kind in ("row", "along"))
        shared = any(array.kind == "along" for array, _ in arrays)
        near = shared and alike and problem.bytes_moved() <= target.third / 2 and graph_of(problem.formula).is_map
        near = near and self.together(problem, target, 0) == 1
        blocks = 2 ** math.ceil(math.log2(max(1.0, 2 * problem.n * each / target.l1d)))
        if not near or blocks < 4 or problem.n % (64 * blocks):
            return problem
        n = problem.n // blocks
        strides = tuple(((n * reduced[-1], *kept), reduced) for _, (kept, reduced) in arrays)
        return dataclasses.replace(problem, kept=(blocks, *problem.kept), reduced=(n,), strides=strides)


Reduce.of_rows = Rows()


class Online(Rows):
    """The largest element and the sum of exponentials in one pass: for rows beyond the second-level cache."""

    name = "online"
    online = True

    def why_not(self, problem: Any, target: Any) -> str | None:
        if not has_exponentials(problem.formula):
            return "the formula has no sum of exponentials"
        return super().why_not(problem, target)

    def overhead(self, problem: Any, target: Any) -> float:
        return float(super().overhead(problem, target) + target.rates.cycles(MERGED * problem.rows))


class Across(Reduce):
    """Neighbouring rows side by side in a vector: for rows whose elements lie apart."""

    name = "across"
    lanes = "across"

    def seconds(self, problem: Any, target: Any) -> float:
        moved, size = problem.bytes_moved(), DTYPES[problem.dtype].itemsize
        steps = [abs(reduced[-1]) * size for _, reduced in problem.strides if reduced]
        swept, wider = bool(sweeps(problem, target, self.vector(problem, target)[0])), self.wider(problem, target)
        waits, pages = target.rates.waits, problem.n * sum(each.kind == "row" for each in problem.arrays)
        finished = problem.formula.partition(ENDING)[0] in FINISHED and moved > target.l2
        far = moved > target.l2 and pages > PAGES_WAITING if waits else moved > target.third / 4
        # behind blocks of columns the second phase finds nothing in the caches, behind chunks the last ones
        near = not waits or not finished or moved <= NEAR * target.l2
        apart = APART if not near or (far and max(steps) >= PAGE) else 0.0
        if swept:
            apart = ASIDE
        if target.rates.follows and leaves_rows(problem):
            apart = APART if max(steps) > 0.9 * PAGE and problem.n * len(steps) > PAGES else 0.0
        sums = not leaves_rows(problem) or (finished and moved <= target.third)
        if apart and not waits and wider > 1 and (sums or wider == CHEAP):
            apart = 0.0 if sums and not (swept and moved > target.third) else WIDE
        apart *= moved / target.bandwidth(moved)
        return super().seconds(problem, target) + apart

    def wider(self, problem: Any, target: Any) -> int:
        """Elements that lie pages apart share the sets of the caches, and more of each line of them come at once: twice
        as many took 0.5 to 0.8 of the time, the gradient of softmax of 2048 x 256 0.26 ms and 0.14; where registers
        are left, four times as many, 0.11; by AVX2 0.58, 0.30 and 0.14 (Zen 5).  Elements that do not 1.0 to 1.5, but
        where only sums leave, or where half of the second-level cache holds them: the gradient of 128 x 1536 40 us and
        31, of 300 x 3000 162 and by twice as many 154.
        """
        steps = [
            steps[-1] * DTYPES[each.dtype].itemsize
            for each, (_, steps) in zip(problem.arrays, problem.strides, strict=True)
            if each.kind == "row"
        ]
        if not steps or any(step == 0 or step % PAGE for step in steps):
            wide, usual = wide_sums(problem), 4 * lanes(compute_of(problem), target.vector_bytes)
            if not leaves_rows(problem):
                return wide
            most = min(target.l2 / 2 / max(1.0, self.row_bytes(problem)), problem.rows / WORKERS) / usual
            return min(CHEAP, 1 << int(max(1.0, most)).bit_length() - 1) if wide == CHEAP else 1
        return CHEAP if not takes_exponentials(problem.formula) and sum(parts_of(problem)) <= 1 else 2

    def cut(self, problem: Any, target: Any) -> Cut:
        return Cut.of(problem, 4 * CHUNK // self.vector(problem, target)[0])


class _Split(Reduce):
    """Chunks of rows by all workers, pass by pass; the chunks of a row are merged in their order."""

    online = True

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.rows >= ROWS_ENOUGH and not graph_of(problem.formula, True).reductions:
            return "the formula has no sums to merge, and there are rows enough to share out"
        return super().why_not(problem, target)

    def _kept(self, problem: Any) -> Mapping[Node, int]:
        return {}

    def rows_together(self, problem: Any, target: Any) -> int:
        return int(problem.rows)

    def overhead(self, problem: Any, target: Any) -> float:
        graph = graph_of(problem.formula, True)
        chunks = self.cut(problem, target).chunks(problem) * self.tiles(problem, self.vector(problem, target)[0])
        return float(
            target.rates.cycles(40 * chunks * len(graph.reductions)) + 2 * target.rates.phase * len(graph.passes)
        )

    def phase_tiles(self, problem: Any, target: Any) -> int:
        return super().phase_tiles(problem, target) * self.cut(problem, target).chunks(problem)

    def sweeps(self, problem: Any, target: Any) -> int:
        """Elements at a time where a chunk's sums are those of all rows side by side, and not of a block of them."""
        return 0

    def spreads(self, problem: Any, target: Any) -> bool:
        """Whether results leave in the order of memory, an element of all rows side by side before the next."""
        return False

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        if whole := self.whole(problem, target):
            return whole
        side = problem.kept[-1]
        problem = self.folded(problem, target)
        variant = self.variant(problem, target, config, "part", side)
        cut, rows = self.cut(problem, target), self.tiles(problem, variant.W)
        chunks = cut.chunks(problem)
        tiles = {"part": rows * chunks, "sweep": math.prod(problem.kept[:-1]) * chunks, "merge": rows}
        kernels = phase_variants(variant, self.sweeps(problem, target), self.spreads(problem, target))
        phases = [(each, tiles[each.role]) for each in kernels]
        return self.run(problem, target, phases, cut, regions_of(variant, problem, rows, chunks))


class Split(_Split):
    """Long rows in chunks, vectors along them."""

    name = "split"

    def cut(self, problem: Any, target: Any) -> Cut:
        # what has nothing to merge loses nothing by small chunks, but for strings: of 64 KB they are 2 to 6 % faster
        # than of 16 (Zen 5)
        small = problem.formula.startswith(MAP) and not self._strings(problem, target)
        return Cut.of(problem, CHUNK if small else SPLIT)


class SplitAcross(_Split):
    """Long rows in chunks, neighbouring rows side by side."""

    name = "split_across"
    version = 3  # other chunks
    lanes = "across"

    def sweeps(self, problem: Any, target: Any) -> int:
        return sweeps(problem, target, self.vector(problem, target)[0])

    def wider(self, problem: Any, target: Any) -> int:
        usual = 4 * lanes(compute_of(problem), target.vector_bytes)
        return 1 if leaves_rows(problem) or sweeps(problem, target, usual) else wide_sums(problem)

    def seconds(self, problem: Any, target: Any) -> float:
        moved, apart = problem.bytes_moved(), 0.0
        if moved > target.third and has_exponentials(problem.formula):  # the first pass reads block by block
            apart = APART / 2 * moved / target.bandwidth(moved)
        return super().seconds(problem, target) + apart

    def spreads(self, problem: Any, target: Any) -> bool:
        # a block of rows at a time, 256 bytes of each line of elements, the gradient of softmax of 12288 x 128 took
        # 0.70 ms, 0.42 so, of 36864 x 384 11.4 and 7.6, by plain stores too (Zen 5)
        *outer, side = problem.kept
        if side <= self.vector(problem, target)[0] or len(problem.reduced) > 1:
            return False
        tiles = math.prod(outer) * self.cut(problem, target).chunks(problem)
        return bool(problem.bytes_moved() > max(target.l2, target.third) / 4 and tiles >= target.cores_logical)

    def ahead(self, problem: Any, target: Any, role: str) -> int:
        if (count := self.sweeps(problem, target)) <= 1:
            return super().ahead(problem, target, role)
        # 8,192 variances of 16,384 bytes each came in 6.3 ms, 5.6 so; what the cache does not hold 5 % later (Zen 4)
        line = problem.kept[-1] * DTYPES[problem.dtype].itemsize
        # 8,192 sums of 16,384 bytes each take 3.4 ms unasked and 4.1 asked, variances 4.5 and 5.0; half as many of
        # twice as much 4.7 and 4.0 (Zen 5)
        if target.rates.ahead and self._places(problem):
            return BEHIND
        alone = target.rates.ahead and line >= target.l1d / 2
        return NEXT_ROWS if 2 * count * line <= target.l2 and not alone else 0

    @staticmethod
    def _places(problem: Any) -> bool:
        """Whether a place of each row is asked for."""
        return any(node.op == "first" for node in graph_of(problem.formula, True).reductions)

    def vector(self, problem: Any, target: Any) -> tuple[int, int]:
        # places of the largest of 4096 x 8192 took 6.0 ms, 4.9 by half as many lanes and 4.2 asking for what lies
        # behind them too; of sums and variances it is all the same (Zen 5)
        W, U = super().vector(problem, target)
        halved = target.rates.ahead and self._places(problem) and sweeps(problem, target, W) > 1
        return (W // 2, U) if halved else (W, U)

    def cut(self, problem: Any, target: Any) -> Cut:
        if self.sweeps(problem, target):
            return Cut.of(problem, max(16, min(SWEEP, problem.n // PARTS_LEAST)), STREAMS)
        parts = max(parts_of(problem), default=1)
        at_once = max(self.vector(problem, target)[0], problem.kept[-1])
        return Cut.of(problem, max(min(parts, 2) * STREAMS, SPLIT // at_once), STREAMS)


class Blocks(Reduce):
    """Formulas without reductions: blocks of elements, gathered where they lie apart, by the pointwise engine."""

    name = "blocks"

    def why_not(self, problem: Any, target: Any) -> str | None:
        refusal = no_map(problem)
        if refusal:
            return refusal
        if len(problem.arrays) > 7 or not problem.inputs:
            return f"{len(problem.arrays)} arrays; it takes 2 to 7"
        if len({DTYPES[each.dtype].itemsize for each in problem.arrays}) > 2:
            return "elements of more than two sizes"
        return None

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        return ({"stores": "plain"},)

    def seconds(self, problem: Any, target: Any) -> float:
        n = problem.rows * problem.n
        runs = problem.layout == "rows" and problem.n >= SHORTEST_RUN
        operations = graph_of(problem.formula).operations
        vectors = n / lanes(compute_of(problem), target.vector_bytes)
        work = vectors * CYCLES * operations / target.rates.clock + 1.2 * moving(problem, target)
        # gathered one by one, or turned in registers: 64 x 64 and 512 x 512 took 1.3 and 1.6 cycles an element in all
        apart = len(apart_of(problem)) if turned_along(problem) >= 0 else 1.5 * len(problem.arrays)
        copied = 0 if runs else apart * n
        return float(work + target.rates.cycles(copied + 80 * n / (min(problem.n, RUN) if runs else BLOCK)))

    def phase_tiles(self, problem: Any, target: Any) -> int:
        return int(-(-problem.rows * problem.n // BLOCK))

    def kernel(self, form: Form, target: Any) -> RangeKernel:
        """Of contiguous elements."""
        return make_map(form)

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        form = form_of(problem, 2 * lanes(compute_of(problem), target.vector_bytes))
        strides = [(*kept, *reduced) for kept, reduced in problem.strides]
        form, plan, tiles = any_strides(form, (*problem.kept, *problem.reduced), strides)
        kernel, compute = make_blocks(*sizes_of(form), target.vector_bytes), self.kernel(form, target)
        work = self.seconds(problem, target)
        chunk = target.rates.grain(tiles, work)
        block = Block(POINTWISE, {"plan": plan.ctypes.data, "compute": compute.address}, None)
        return Program(
            (Run((Phase(kernel, tiles, chunk),), (block,)),), **target.rates.waking(work),
            keep=(plan, compute),
        )  # fmt: skip


class Lookup(Blocks):
    """Bytes through a table of 256."""

    name = "lookup"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None if problem.formula.startswith(LOOKUP) else "it is no table"

    def kernel(self, form: Form, target: Any) -> RangeKernel:
        return make_lookup("avx512vbmi" in target.features and target.vector_bytes == 64)


class Turn(Reduce):
    """Copies of an array that is contiguous along another dimension, turned in registers."""

    name = "turn"
    version = 2  # other blocks

    def why_not(self, problem: Any, target: Any) -> str | None:
        if not problem.formula.startswith(f"{MAP}cast:"):
            return "it is no copy"
        sizes = {each.dtype for each in problem.arrays}
        if len(sizes) > 1:
            return "the types differ"
        if inner_of(problem) < 0:
            return "the result or the array is contiguous along no dimension, or both along the same one"
        return None

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        past = far(problem, target)
        names = (("stream", "plain") if past else ("plain", "stream")) if in_groups(problem, target) else ("plain",)
        return tuple({"stores": name} for name in names)

    def seconds(self, problem: Any, target: Any) -> float:
        return float(1.2 * moving(problem, target) + target.rates.cycles(problem.rows * problem.n / 4))

    @staticmethod
    def _form(problem: Any, target: Any, config: Config) -> tuple[int, int, int]:
        """(bytes of an element, how results leave, lanes of a vector)"""
        size, past = DTYPES[problem.dtype].itemsize, leaving(target) if config["stores"] == "stream" else STAYING
        return size, past, lanes_of(problem, LINE if past else target.vector_bytes, size)

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        _, past, W = self._form(problem, target, config)
        return Regions(own=turn_regions(problem, W, past))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        size, past, W = self._form(problem, target, config)
        ahead = 4 * W if size >= 4 and problem.bytes_moved() > target.l2 else 0
        (plan, tiles), work = turn_plan(problem, W, past, ahead), self.seconds(problem, target)
        chunk = target.rates.grain(tiles, work)
        phase = Phase(kernel_of(problem, target.vector_bytes, W, size, past), tiles, chunk)
        return Program.of(
            TURN, {"plan": plan.ctypes.data}, [phase], regions=self.regions(problem, target, config),
            **target.rates.waking(work), keep=(plan,),
        )  # fmt: skip


class Naive(Reduce):
    """One element at a time, wherever it lies."""

    name = "naive"
    lanes = "one"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.formula.startswith(LOOKUP):
            return TABLE
        return super().why_not(problem, target) if graph_of(problem.formula).columns else None

    def vector(self, problem: Any, target: Any) -> tuple[int, int]:
        return 16 // DTYPES[compute_of(problem)].itemsize, 1

    def cut(self, problem: Any, target: Any) -> Cut:
        return Cut.of(problem, 64)

    def seconds(self, problem: Any, target: Any) -> float:
        steps = problem.rows * problem.n
        return float(target.rates.cycles(4 + steps * (5 + 2 * graph_of(problem.formula).operations)))


SOLVERS = (Rows(), Across(), Online(), Split(), SplitAcross(), Blocks(), Lookup(), Turn(), Bands(), Naive())
