"""What the solvers of formulas have in common: the lanes of a vector, the cost, the program."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from numbaprims.cpu.program import Bind, Phase, Program, array
from numbaprims.cpu.reduce.kernels import make_kernel
from numbaprims.cpu.reduce.maps import compute_of, doubles, halves
from numbaprims.cpu.reduce.prepared import joined
from numbaprims.cpu.reduce.variant import (
    ARGS,
    MOST_ARRAYS,
    NEXT_ROW,
    PAGE,
    STAGED,
    WRITTEN_TOO,
    Cut,
    Variant,
    apart,
    branches,
    folds,
    has_exponentials,
    in_lines,
    kept_of,
    leaves_rows,
    moving,
    order_of,
    plan_of,
    reads_beside,
    regions_of,
    result_bytes,
    row_steps,
    shares,
    spread,
    stored_as,
    takes_exponentials,
    unasked,
    waits_in,
)
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.solver import Config, Regions, Solver
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.graph import COSTS, Node
from numbaprims.formulas.maps import MAP
from numbaprims.formulas.reductions import graph_of
from numbaprims.ops._reduction_problem import block_rows

#: Rows that share what lies along them: the root and the quotient of a channel are taken once for so many.
SIDE_BY_SIDE = 8
#: Rows whose columns are added to sums that are read and written once for all of them.
COLUMNS_TOGETHER = 4
#: Elements of a chunk whose passes find it in a cache: 4,096 of float32 are 16 KiB.
CHUNK = 4096
#: Results leave past the caches where all operands take at least so many of the third-level one.  Of 13 MB of 32 plain
#: stores took 164 us, those past it 238; of 26 MB 550 and, from process to process, 460 or 1,290 (Zen 4).
PAST = 1.0
#: The same of rows of whole lines that are read once.  Channels last, 16 x 64 x 112 x 112: 3.3 ms by plain stores, 2.3
#: past the caches; of 38 MB of 32, two threads, 570 us by plain stores, 725 past them (Zen 4).  Where the third level
#: waits, copies past it are the faster ones even in it (36 GB/s, 28 by plain stores, Emerald Rapids).
PAST_LINES = 1.25
#: The same of elements by several threads, where half of it is results: batch norm of 36.8 MiB of 32 took 285 us past
#: the caches, 240 by plain stores, of 39.8 298 both ways, scaling of 32 220 and 198; the sum of two such arrays, of
#: which two thirds are read again, 155 and 187 (Zen 5).
PAST_HALF = 1.2
#: The second-level caches of what reads two arrays and more, where the third level waits: lines that are stored there
#: are read first, past it they are not.  A sum of 4.8 MB took 169 us, 118 so, with a product behind it 333 and 297,
#: with the sum of all 209 and 236; of 38 MB 1.35 ms and 1.02, 2.75 and 2.44, 1.83 and 1.90, two threads 0.68 and 0.53,
#: 1.34 and 1.26, 0.90 and 0.93; gradients of batch norm of 10 to 77 MB 0.8 of the time.  What reads one array is plain:
#: batch norm 0.93 ms and 0.75, twice in a row 1.95 and 2.1 (Emerald Rapids).
PAST_SEVERAL = 2.0
#: Runs are walked in the order of the source from so much of the third-level cache on: of 20 MB of 32, 160 x 1000 x 16
#: turned, they take 425 us and in the order of the result 1,237 on one thread, 206 and 179 on two; of 26 MB, 200 x 1024
#: x 16, 718 and 1,640, 391 and 764 (Zen 4).  Where a core has to be asked for what it reads, from the second-level
#: cache on: heads of 4 x 128 x 12 x 64 turned 40 us and 33, of 2 x 197 x 16 x 80 55 and 39 (Zen 5).
SCATTERED = 0.7
#: Formulas of a table, and why others do not compute them.
LOOKUP, TABLE = f"{MAP}lookup:", "a table is looked up"
#: Cycles that one operation of a formula takes, for a vector.
CYCLES = 0.5
#: Vectors of rows side by side that are walked without loops by AVX2, and operations of each, at most.  Batch norm of
#: 16 x 512 x 7 x 7 takes 0.6 to 0.7 of the time, training 0.87, of 16 x 2048 0.5 to 0.8, and 0.4 s more to compile (Zen
#: 3).
WRITTEN_OUT, FEW_OPERATIONS = 32, 24
#: What exponentials cost by registers that hold eight powers of 2, or none; AVX-512's hold sixteen.
EXPONENTIALS = {32: {"exp": 21, "exp_of_negative": 12}, 16: {"exp": 21, "exp_of_negative": 15}}
#: Pieces of lines, one below the other, that a core follows by itself once it has met so many.
FOLLOWED = 64
#: Bytes of a run from which on a core follows it by itself, in the caches and from memory.
RUN = 65536
#: Times what is asked for ahead that a row is long which does not end where the next one begins.
LONG = 8


def no_map(problem: Any) -> str | None:
    """Why a formula is not one of elements alone that is computed."""
    if problem.formula.startswith(LOOKUP):
        return TABLE
    return None if graph_of(problem.formula).is_map else "the formula has sums, or counts elements"


class Reduce(Solver):
    """What the solvers have in common: the lanes of a vector, the cost, the program."""

    lanes = "along"
    online = False
    stages = False
    of_rows: ClassVar[Reduce]
    """The solver of rows whose elements lie side by side."""

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.formula.startswith(LOOKUP):
            return TABLE
        layout, what = ("across", "rows") if self.lanes == "across" else ("rows", "elements of a row")
        if problem.layout != layout:
            return f"its vectors hold neighbouring {what}, which do not lie side by side in every array"
        if graph_of(problem.formula).columns and self.name != "rows":
            return "columns are summed up where rows are walked one after the other"
        if len(problem.arrays) > MOST_ARRAYS:
            return f"{len(problem.arrays)} arrays; it takes at most {MOST_ARRAYS}"
        return None

    # ---------------------------------------------------------------- what a kernel is made for

    def vector(self, problem: Any, target: Any) -> tuple[int, int]:
        """(lanes of a vector, vectors side by side)

        Of neighbouring rows as many lanes as up to four registers have, of which few are idle; a few rows take a part
        of one: the gradient of softmax of 3 x 50176 by 16 lanes 173 us, by 4 50 (Zen 4).
        """
        one = lanes(compute_of(problem), target.vector_bytes)
        if self.lanes != "across":
            return (4 * one, 1) if branches(problem.formula, self.online, 0) else (one, 4)
        rows = problem.kept[-1]
        if 2 * rows <= one:
            W = self.holding(problem, rows)
            return W, min(8, 4 * one // W)
        widths = (one << k for k in range((4 * self.wider(problem, target)).bit_length() - 1, -1, -1))
        taken = {W: -(-rows // W) * W for W in widths}
        W = next(W for W in taken if 10 * taken[W] <= 11 * min(taken.values()))
        return W, 1 if W > 4 * one else max(2, 4 * one // W)

    def wider(self, problem: Any, target: Any) -> int:
        """Times as many of neighbouring rows as usual."""
        return 1

    def registers(self, problem: Any, W: int) -> int:
        return 0

    def together(self, problem: Any, target: Any, registers: int) -> int:
        """Rows side by side."""
        return 1

    def chunked(self, problem: Any) -> bool:
        """Whether sums along a row are those of its chunks."""
        return False

    def folded(self, problem: Any, target: Any) -> Any:
        """The problem of a few rows side by side with as many elements of each as a vector holds, one after the other:
        as many rows, until their sums are merged.

        Softmax of 2, 3 and 8 rows of 50,000, 50,000 and 32,000 took 202, 199 and 126 us, 22, 44 and 52 so (Zen 5).
        """
        (n, *more), rows = problem.reduced, problem.kept[-1]
        most = lanes(compute_of(problem), target.vector_bytes) // max(1, rows)
        times = min(n & -n, 1 << most.bit_length() >> 1)
        arrays = zip(problem.arrays, problem.strides, strict=True)
        close = all(each.kind == "row" and (kept[-1], *step) == (1, rows) for each, (kept, step) in arrays)
        if self.lanes != "across" or more or times * rows <= rows or not close or not folds(problem.formula):
            return problem
        strides = tuple((kept, (times * rows,)) for kept, _ in problem.strides)
        kept = (*problem.kept[:-1], times * rows)
        return dataclasses.replace(problem, kept=kept, reduced=(n // times,), strides=strides)

    def variant(self, problem: Any, target: Any, config: Config, role: str, rows: int = 0) -> Variant:
        W, U = self.vector(problem, target)
        most, plain = U, self.lanes == "along" and config["stores"] == "plain"
        if plain and halves(problem, target) and not self.registers(problem, W):
            W, most = W // 2, 2 * U
        elif plain and doubles(problem, target):
            W, U, most = 2 * W, 2, 2
        if plain and self.short(problem, target):
            W = self.holding(problem, problem.reduced[-1])
        registers = self.registers(problem, W)
        online = self.online and has_exponentials(problem.formula)
        # rows that are streamed side by side begin alike
        alike = config["stores"] == "plain" or (config["stores"] == "stream" and in_lines(problem))
        together = self.together(problem, target, registers) if role == "rows" and alike else 1
        if not reads_beside(problem, target):  # where memory is waited for, sums have the bits of a row alone
            U = min(U, registers) if registers else max(1, U // together)
        together = COLUMNS_TOGETHER if graph_of(problem.formula).columns else together
        short = -(-problem.reduced[-1] // W)
        if target.vector_bytes == 32 and sum(self.operations(problem, U, target)) <= FEW_OPERATIONS:
            most = max(most, WRITTEN_OUT // together)
        run = short if plain and short <= most and not registers else 0
        return Variant(
            formula=problem.formula, online=int(online), dtypes=",".join(map(stored_as, problem.arrays)),
            compute=compute_of(problem), lanes=self.lanes, W=W, U=U, registers=registers, together=together,
            kept=len(problem.kept), reduced=len(problem.reduced), stores=str(config["stores"]),
            ahead=self.ahead(problem, target, role), role=role,
            digest=graph_of(problem.formula, online).digest, run=run, chunked=int(self.chunked(problem)),
            folded=rows if self.lanes == "across" and rows < problem.kept[-1] else 0,
        )  # fmt: skip

    def ahead(self, problem: Any, target: Any, role: str) -> int:
        """What is asked for before it is read.

        Rows that are short runs a long way apart, as the planes of a channel in all images, are no lines of addresses
        that a core follows; those of the next row lie right behind them: training 16 x 512 x 28 x 28 took 3.2 ms, 2.1
        so; from memory longer ones too, 16 x 96 x 56 x 56 1.92 and 1.55, in the caches 1.05 times as long. They are
        asked for by the last pass, while results leave: by the first training reached 83 % of a copy on two threads, 87
        so, gradients 79 and 87; one thread 63 and 67, 63 and 70 (Zen 5, means of seven shapes). Nor are rows
        side by side, pieces of lines far apart, of which the next ones lie beside these: while there is something to
        compute, the gradient of log-softmax of 21 x 262144 took 6.8 ms, 4.9 so; sums alone 1.05 times as long (Zen 4).

        A Zen 5 follows pieces of lines by itself: by asking for them the gradient of softmax of 4608 x 384 took 525 us,
        439 unasked, but of columns too short to be followed, 21 x 250000, 2.2 ms, 1.8 asked.

        Maps of one array that take more than half of the third-level cache came 1.05 to 1.15 times as fast unasked on a
        quiet Zen 5, and 0.8 to 0.95 times beside other users of its memory: they are asked for.
        """
        if problem.bytes_moved() <= target.l2 or (self.lanes == "along" and unasked(problem, target)):
            return 0
        if self.lanes == "across" and role in ("rows", "part"):
            if target.rates.follows and leaves_rows(problem):
                if role == "rows":
                    return NEXT_ROW if problem.n < FOLLOWED else 0
                if problem.bytes_moved() <= target.third / 4:
                    return 0
            if takes_exponentials(problem.formula):
                return NEXT_ROW
        inner, operands = problem.reduced[-1], zip(problem.arrays, problem.strides, strict=True)
        size = max(DTYPES[each.dtype].itemsize for each in problem.arrays)
        behind = all(kept[-1:] == (inner,) for each, (kept, _) in operands if each.kind == "row")
        rates = target.rates
        far = problem.bytes_moved() > target.third / 2 or rates.waits
        short = inner * size < (RUN if far else PAGE)
        if self.lanes == "along" and role == "rows" and len(problem.reduced) > 1 and behind and short:
            # 16 x 2048 x 7 x 7 trained in 1.1 to 1.9 ms, 0.65 to 1.3 so, its gradient in 2.5 to 2.8 and 2.1 to 2.3; of
            # half as many planes, which the third level holds, 250 us and 390 (Zen 3).  Where that waits, 16 x 992 x
            # 14 x 14 trained in 1.71 ms, 1.30 so, from memory 3.9 and 2.3, its gradient 5.4 and 3.0 (Emerald Rapids)
            written = far and leaves_rows(problem) and rates.ahead and not rates.follows
            return WRITTEN_TOO if written else NEXT_ROW
        # a second pass hides what the third-level cache takes: exponentials of 16 MB 1.05 ms asked, 0.78 not, of 8 MB
        # 0.51 and 0.41, the gradient of softmax of 12288 x 128 202 us and 176, layer norm of 8 x 128256 115 and 97,
        # batch norm of 4 x 256 x 56 x 56 345 and 308; sums, which are one pass, 39 and 43 (Zen 5)
        again = role == "rows" and leaves_rows(problem) and self._passes(problem) > 1
        again = again or takes_exponentials(problem.formula)
        if self.lanes == "along" and again and problem.bytes_moved() <= target.third:
            return 0
        ahead = rates.ahead
        # what lies behind a row of a part of an array nobody reads: sums of 3906 rows of 768 of 1536 took 730 us, 484
        # unasked, of ten times as many 13.1 ms, 8.9 and 7.8 by the next row, of 6144 of 12288 8.8, 7.9 and 7.2 (Emerald
        # Rapids)
        if self.lanes == "along" and role == "rows" and inner * size < LONG * ahead and apart(problem):
            return NEXT_ROW if problem.bytes_moved() > target.third / 2 else 0
        # further down than rows are long lies what nobody reads: the gradient of softmax of 21 x 262144 took 5.1 ms,
        # 2.9 so, sums of 10 x 50000 38 us and 25 (Zen 5)
        steps = ahead // (size * self.vector(problem, target)[0])
        return 0 if self.lanes == "across" and problem.n < 4 * steps else ahead

    @staticmethod
    def holding(problem: Any, n: int) -> int:
        """Lanes of the narrowest vector that holds n elements."""
        return max(lanes(compute_of(problem), 16), 1 << (n - 1).bit_length())

    def short(self, problem: Any, target: Any) -> bool:
        """Whether a row is a part of a vector: as many lanes are taken as it needs, by a mask and without loops.

        A copy of 50176 rows of 3 floats into rows of 6 took 73 us by loops, 140 gathered in blocks, 22 so (Zen 4).
        """
        one = lanes(compute_of(problem), target.vector_bytes)
        return self.lanes == "along" and problem.reduced[-1] < one

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        """Stores past the caches are the default for what does not fit in them."""
        results = [k for k, each in enumerate(problem.arrays[: len(problem.results)]) if each.kind == "row"]
        if self.lanes == "one" or not results:
            return ({"stores": "plain"},)
        size, graph = DTYPES[problem.arrays[results[0]].dtype].itemsize, graph_of(problem.formula)
        past = [] if self.registers(problem, self.vector(problem, target)[0]) else ["stream"]
        kept, reduced = problem.strides[results[0]]
        lines = in_lines(problem)
        once = len(graph.passes) == 1
        # runs that lie apart push x, which is read again, out of the caches; 512 bytes read once took twice as long
        most = 512 if len(reduced) > 1 else 4096 if once else 2048
        long = self.lanes == "along" and problem.reduced[-1] * size >= most and not shares(problem)
        # a buffer is for rows that do not begin with a line, one behind the other
        close = all(step == problem.n * math.prod(problem.kept[at + 1 :]) for at, step in enumerate(kept))
        staged = self.stages and close and not lines and reduced == (1,) and 256 <= problem.n * size <= STAGED
        if staged := staged and not has_exponentials(problem.formula):
            past.insert(len(past) if long else 0, "stage")
        # what waits in the row of a result was asked for while there was something to compute; where a core has no more
        # under way, softmax of 36864 x 384 took 8.0 ms so, 6.2 past the caches (Emerald Rapids)
        moved = problem.bytes_moved() * spread(problem)
        kept = self._kept_bytes(problem, target, past)
        large = moved >= kept * PAST and not problem.in_place
        near_by = target.rates.waits and 6 * problem.n * size <= target.l1d  # beside what waits and is asked for
        large = large and (near_by or not self._waits(problem))
        beyond = kept * (1.0 if target.rates.waits else PAST_LINES)
        further = len(reduced) == 1 and (moved > beyond or self.by_source(problem, target) is not problem)
        whole = lines and (not once or further)
        near = ["string", "plain"] if self._strings(problem, target) else ["plain"]
        names = [*past, *near] if large and (whole or long or staged) else [*near, *past]
        return tuple({"stores": name} for name in names)

    def _kept_bytes(self, problem: Any, target: Any, past: list[str]) -> float:
        """Bytes that the caches keep; of one thread less only where no sum is taken in another order past them."""
        elements, moved = graph_of(problem.formula).is_map, problem.bytes_moved()
        several = target.rates.waits and sum(each.kind == "row" for each in problem.arrays[len(problem.results) :]) > 1
        if not several and moved * spread(problem) < target.kept * PAST:
            return float(target.third)
        forms = [self.variant(problem, target, {"stores": name}, "rows") for name in ("plain", *past)]
        alike = elements or len({(each.W, each.U, each.registers, each.together, each.run) for each in forms}) == 1
        if several:
            return float(PAST_SEVERAL * target.l2 * (1 if target.alone and alike else target.cores_logical))
        half = elements and 0.49 * moved < result_bytes(problem) < 0.51 * moved
        if half and not target.alone and not target.rates.waits:
            return float(target.kept * PAST_HALF)
        return float(target.kept if alike else target.third)

    def _strings(self, problem: Any, target: Any) -> bool:
        """Whether it is a copy of long runs: two arrays of 12.8 MB of 32 took 358 us by vectors, 228 so (Zen 5)."""
        run = problem.reduced[-1] * DTYPES[problem.dtype].itemsize
        copy = problem.formula == f"{MAP}cast:row" and len({each.dtype for each in problem.arrays}) == 1
        far = problem.bytes_moved() > target.l1d and target.isa != "neon"
        return copy and far and self.lanes == "along" and 0 < target.rates.strings <= run

    # ---------------------------------------------------------------- what it takes

    def row_bytes(self, problem: Any) -> float:
        """Of what the passes over a row come back to."""
        each = sum(DTYPES[array.dtype].itemsize for array in problem.arrays if array.kind == "row")
        each += (len(self._kept(problem)) - self._waits(problem)) * DTYPES[problem.compute].itemsize
        return float(problem.n * each)

    def _kept(self, problem: Any) -> Mapping[Node, int]:
        graph, dtypes = graph_of(problem.formula, self.online), [array.dtype for array in problem.arrays]
        return kept_of(graph, dtypes, problem.compute if self.lanes == "along" else "")

    def _waits(self, problem: Any) -> bool:
        """Whether a kept value waits in the row of a result."""
        graph, dtypes = graph_of(problem.formula, self.online), [array.dtype for array in problem.arrays]
        return self.lanes == "along" and waits_in(graph, self._kept(problem), dtypes, problem.compute) >= 0

    def further_bytes(self, problem: Any) -> float:
        """That passes after the first read, of a row and of what is kept, whose writing hides behind arithmetic."""
        graph, kept = graph_of(problem.formula, self.online), self._kept(problem)
        size, own = DTYPES[problem.compute].itemsize, DTYPES[problem.dtype].itemsize
        total = len(kept) * size
        for p in range(1, len(graph.passes)):
            total += own * sum(node.op == "input" and not node.uniform for node in graph.reads(p, kept))
        return float(problem.n * total)

    def operations(self, problem: Any, U: int, target: Any) -> list[float]:
        """Of each pass for an element, with what passes compute again."""
        graph, kept = graph_of(problem.formula, self.online), self._kept(problem)
        costs = COSTS | EXPONENTIALS.get(target.vector_bytes, {})
        own = {"exp_sum": costs["exp_of_negative"] * (1 + 1 / U) + 3, "first": 3 if self.lanes == "along" else 5}
        return [
            sum(
                costs.get(node.op, 0) / (SIDE_BY_SIDE if node in graph.common else 1)
                for node in graph.computed(p, kept)
            )
            + sum(own.get(node.op, 1) for node in each.reductions)
            for p, each in enumerate(graph.passes)
        ]

    def seconds(self, problem: Any, target: Any) -> float:
        """What one core takes."""
        rates, moved = target.rates, problem.bytes_moved()
        row = self.row_bytes(problem) * self.rows_together(problem, target)
        memory = moving(problem, target)
        memory += problem.rows * self.further_bytes(problem) / target.bandwidth(min(row, moved))
        width = lanes(compute_of(problem), target.vector_bytes)
        _, U = self.vector(problem, target)
        vectors = problem.rows * problem.n / min(width, self.most_lanes(problem))
        passes = self.operations(problem, U, target)
        *before, last = (vectors * CYCLES * each / rates.clock for each in passes)
        if before and moved > target.third:
            memory += self._leaving(problem, target, last)
        return float(memory + sum(before) + last + self.overhead(problem, target))

    def _leaving(self, problem: Any, target: Any, last: float) -> float:
        """Seconds more, or less, of results that leave for memory behind a pass that takes `last`: by plain stores
        their lines are read first, past the caches they leave while it computes.

        Softmax of 64 x 128256 takes 2.6 ms where exponentials wait in its result, 1.7 where they are taken twice (Zen
        5); on a Zen 4 exponentials take twice as long.
        """
        left = result_bytes(problem) / target.rates.memory
        if next(iter(self.configs(problem, target)))["stores"] == "plain":
            short = self.registers(problem, self.vector(problem, target)[0])
            return 0.0 if short or problem.in_place else left
        return max(left, target.rates.vectors(last * target.rates.clock)) - left - last

    def rows_together(self, problem: Any, target: Any) -> int:
        """Rows that a pass walks before the next one begins."""
        return self.vector(problem, target)[0] if self.lanes == "across" else 1

    def most_lanes(self, problem: Any) -> int:
        """Lanes that there is work for."""
        return int(problem.kept[-1] if self.lanes == "across" else problem.reduced[-1])

    def _passes(self, problem: Any) -> int:
        return len(graph_of(problem.formula, self.online).passes)

    def overhead(self, problem: Any, target: Any) -> float:
        """Of beginning and ending each pass."""
        passes, registers = self._passes(problem), self.registers(problem, self.vector(problem, target)[0])
        cycles = 1 if self.short(problem, target) else 4 if registers else 15
        return float(self.tiles(problem, self.vector(problem, target)[0]) * cycles * passes / target.rates.clock)

    def estimate(self, problem: Any, target: Any) -> float:
        problem = self.folded(problem, target)
        seconds, tiles = self.seconds(problem, target), self.phase_tiles(problem, target)
        sums = bool(graph_of(problem.formula).reductions)
        return float(target.rates.call + seconds * target.rates.idle(seconds, tiles, sums))

    def phase_tiles(self, problem: Any, target: Any) -> int:
        return self.tiles(problem, self.vector(problem, target)[0])

    # ---------------------------------------------------------------- programs

    def whole(self, problem: Any, target: Any) -> Program | None:
        """The program of a formula in two phases."""

        def make(part: Any, last: bool) -> Program:
            solver = self.of_rows if last else self
            return solver.program(part, target, next(iter(solver.configs(part, target))))

        small = problem.layout == "across" and problem.bytes_moved() <= target.l2
        return None if self.lanes == "one" or small else joined(problem, make)

    def tiles(self, problem: Any, W: int) -> int:
        """Rows, or blocks of W of them."""
        if graph_of(problem.formula).columns:
            return -(-int(problem.rows) // block_rows(problem.rows))
        across = self.lanes == "across"
        return math.prod(problem.kept[:-1]) * -(-problem.kept[-1] // W) if across else int(problem.rows)

    def cut(self, problem: Any, target: Any) -> Cut:
        return Cut.of(problem, CHUNK)

    def by_source(self, problem: Any, target: Any) -> Any:
        """The problem with its rows in the order of what is read, where all of that lies alike.

        That is what a core asks for ahead, and lines that leave past the caches may do so in any order: heads of 4 x
        2048 x 32 x 128 turned took 16.2 ms in the order of the result and 7.0 so, a copy 6.4 (Zen 4).
        """
        read = range(len(problem.results), len(problem.arrays))
        steps = [problem.strides[k][0] for k in read if problem.arrays[k].kind == "row"]
        orders = set(map(order_of, steps))
        far = problem.bytes_moved() > (target.l2 if target.rates.ahead else target.third * SCATTERED)
        elements = self.lanes == "along" and graph_of(problem.formula).is_map
        if not far or not elements or len(orders) != 1 or not all(map(all, steps)):
            return problem
        (order,) = orders

        def turned(x: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(x[dim] for dim in order)

        if order == tuple(range(len(order))):
            return problem
        strides = tuple((turned(kept), reduced) for kept, reduced in problem.strides)
        return dataclasses.replace(problem, kept=turned(problem.kept), strides=strides)

    def columns_at_a_time(self, problem: Any, target: Any) -> Any:
        """The problem with its long rows cut, all first parts before the second ones."""
        return problem

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        if whole := self.whole(problem, target):
            return whole
        rows = problem.kept[-1]
        problem = self.columns_at_a_time(self.by_source(self.folded(problem, target), target), target)
        variant = self.variant(problem, target, config, "rows", rows)
        cut, tiles = self.cut(problem, target), self.tiles(problem, variant.W)
        return self.run(problem, target, [(variant, tiles)], cut, regions_of(variant, problem, tiles, 0))

    def run(self, problem: Any, target: Any, phases: list[tuple[Variant, int]], cut: Cut, regions: Regions) -> Program:
        """Phases of (kernel, tiles)."""
        plan = plan_of(problem, cut)
        work = self.seconds(problem, target)
        made = []
        for variant, tiles in phases:
            chunk = target.rates.grain(tiles, work)
            back = variant.role != "merge" and variant.at % 2 == 1
            made.append(Phase(make_kernel(variant), tiles, chunk, back=back))
        binds = None
        if len(problem.arrays) > 7:
            binds = {f"a{k}": array(k) for k in range(len(problem.arrays))}
            binds |= {name: Bind(ARGS.slot(name)) for name in ARGS.floats}
        return Program.of(
            ARGS, {"plan": plan.ctypes.data}, made, regions=regions, binds=binds,
            **target.rates.waking(work), keep=(plan,), rows=row_steps(problem, phases[0][0]),
        )  # fmt: skip
