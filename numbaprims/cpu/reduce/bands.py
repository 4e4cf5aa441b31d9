"""Formulas without reductions of operands that are contiguous along another dimension than the result.

A tile of such an operand is turned into a region of the worker's by the kernel of turned copies (turn.py), which asks
for the next tile's lines meanwhile; the kernel of rows then takes it from there, beside the others' rows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.program import Phase, Program
from numbaprims.cpu.reduce.kernels import make_kernel
from numbaprims.cpu.reduce.maps import compute_of
from numbaprims.cpu.reduce.solver import CHUNK, CYCLES, PAST, Reduce, no_map
from numbaprims.cpu.reduce.turn import (
    FIRST,
    HEAD,
    LINE,
    STAYING,
    TILE_A,
    TURN,
    A,
    far,
    in_groups,
    inner_of,
    kernel_of,
    lanes_of,
    leaving,
    plan_of as turn_plan,
    regions_of as turn_regions,
    tile_of,
)
from numbaprims.cpu.reduce.variant import ARGS as ROWS, Cut, in_lines, moving, plan_of
from numbaprims.cpu.simd import (
    Arguments,
    address_of,
    block_of,
    call_range,
    copy_fields,
    lanes,
    load_word,
    record,
    record_at,
    stack_record,
    store_word,
)
from numbaprims.cpu.simd.records import Record
from numbaprims.cpu.solver import Config, Regions
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.reductions import graph_of
from numbaprims.ops._reduction_problem import Operand, flattened

#: `operands`: OPERAND of each array; `whole` and `last`: the plans of the rows of a tile, and of the last tiles, from
#: column `rest` on; `compute`: their kernel.
BANDS = Arguments(
    arrays=ROWS.arrays[:7], floats=ROWS.floats, ints=("operands", "count", "whole", "last", "rest", "compute"),
    own=("rows", "bands"),
)  # fmt: skip
#: Of an array: bytes of an element, its plan of tiles, its strides down and along one; the kernel that turns it, or
#: 0; where its tile is then, and elements from row to row.
OPERAND = Record("size", "plan", "down", "along", "turn", "place", "row")
#: Bytes of a row of the source that a tile takes, and rows of it at most.  From past the caches rows of the result are
#: walked whole, so that the core asks for the other operands by itself: a sum of 4096 x 8192 took 26 ms with a kilobyte
#: of 128 rows, a copy's tile, and 18 so, two threads 15 to 19 and 10 to 12; half the bytes take as long (Zen 4).  Where
#: groups of rows stay in the first-level cache, turning is what takes time: 19.2 ms by whole rows, 14.7 so, two threads
#: 11.7 and 9.6; twice as many columns or rows take 1.1 to 1.2 times as long (Zen 5).  Where the third level waits, half
#: the bytes of twice the rows take 0.9 of the time, 45 ms for 4096 x 8192 (Granite Rapids).
FAR, FAR_ROOMY, FAR_WAITING, NEAR = (256, 8192), (1024, 256), (512, 512), (256, 128)
#: Cycles that a tile takes besides.
OVERHEAD = 400
#: And a call: with so much scratch memory Python starts it, 1.6 us on a Zen 4; 64 x 64 took 3.9 us for 2.3 by `blocks`.
START = 7000
#: Rows and columns, at least.
LEAST = 16


def apart_of(problem: Any) -> list[int]:
    """The arrays whose neighbours along a row do not lie side by side: they are turned."""
    return [k for k, (_, inner) in enumerate(problem.strides) if inner not in ((0,), (1,))]


def turned_along(problem: Any) -> int:
    """The kept dimension along which what does not lie as the result does is contiguous; -1 if there is none."""
    if len(problem.reduced) != 1 or problem.strides[0][1] != (1,):
        return -1
    parts = [dataclasses.replace(problem, strides=(problem.strides[0], problem.strides[k])) for k in apart_of(problem)]
    found = set(map(inner_of, parts))
    at = found.pop() if len(found) == 1 else -1
    return at if at >= 0 and min(problem.kept[at], problem.n) >= LEAST else -1


@functools.cache
def make_bands() -> RangeKernel:
    """Tiles of rows, of which some operands are turned into the worker's region first."""

    @range_kernel("reduce_bands", BANDS.types(), spec=())
    def reduce_bands(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        given = record(BANDS, block_of(args))  # type: ignore[call-arg, var-annotated]
        turn = stack_record(TURN)
        block = stack_record(ROWS)
        copy_fields(turn, given, "workspace worker_bytes rows")
        copy_fields(block, given, "f0 f1 f2 f3 f4 f5")
        for tile in range(lo, hi):
            rows, column = 0, 0
            for k in range(args.count):
                each = record_at(OPERAND, args.operands, k)
                row, column, _, of = tile_of(each.plan, tile)
                rows = min(load_word(each.plan, TILE_A), load_word(each.plan, A) - row)
                start = load_word(block_of(args), k)
                address = start + each.size * (of + row * each.down + column * each.along)
                if each.turn != 0:
                    address = address_of(args.bands[worker]) + each.place
                    turn.y = address - each.size * (row * each.row + column)
                    turn.x, turn.plan = start, each.plan
                    call_range(each.turn, turn, worker, tile, tile + 1)
                store_word(block_of(block), k, address)
            block.plan = args.last if column >= args.rest else args.whole
            call_range(args.compute, block, worker, 0, rows)

    return reduce_bands


class Bands(Reduce):
    """Tiles of operands that are contiguous along another dimension turned into scratch memory, and rows of them."""

    name = "bands"

    def why_not(self, problem: Any, target: Any) -> str | None:
        refusal = no_map(problem)
        if refusal:
            return refusal
        if problem.layout != "strided" or turned_along(problem) < 0:
            return f"no dimension of {LEAST} and more that its operands are contiguous along if not as the result is"
        return None

    def tile(self, problem: Any, target: Any) -> tuple[int, int]:
        """Rows and columns."""
        size = min(DTYPES[each.dtype].itemsize for each in problem.arrays)
        roomy = FAR_WAITING if target.rates.waits else FAR_ROOMY
        piece, columns = NEAR if not far(problem, target) else roomy if leaving(target) == FIRST else FAR
        parts = -(-problem.n // columns)
        columns = min(problem.n, -(-problem.n // parts // LINE) * LINE)
        return min(piece // size, -(-problem.kept[turned_along(problem)] // LEAST) * LEAST), columns

    def turned(self, problem: Any, target: Any, k: int) -> tuple[Any, int, int]:
        """(the copy of an operand into a tile, whether and how it comes from past the caches, lanes of a vector)"""
        at, (_, columns) = turned_along(problem), self.tile(problem, target)
        size = DTYPES[problem.arrays[k].dtype].itemsize
        # rows begin with lines that do not share sets, and do not lie one behind the other
        row = -(-columns * size // LINE) * (LINE // size) + LINE // size
        row += LINE // size * (row == problem.n)
        band = tuple(row * (d == at) for d in range(len(problem.kept)))
        part = dataclasses.replace(problem, dtype=problem.arrays[k].dtype, strides=((band, (1,)), problem.strides[k]))
        past = far(problem, target) and in_groups(part, target)
        return part, leaving(target) if past else STAYING, lanes_of(part, LINE if past else target.vector_bytes, size)

    def places(self, problem: Any, target: Any) -> tuple[dict[int, int], int]:
        """(bytes from the region's beginning to each array's tile, bytes in all)"""
        places, end, (rows, _) = dict[int, int](), 0, self.tile(problem, target)
        for k in apart_of(problem):
            part, _, W = self.turned(problem, target, k)
            row = max(part.strides[0][0]) * DTYPES[part.dtype].itemsize
            # blocks at the edges of a tile begin up to a line and W rows before it, and end as much behind it
            places[k] = end + W * row + LINE
            end = places[k] + (rows + W) * row
        return places, end

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        own = {"bands": self.places(problem, target)[1]}
        for k in apart_of(problem):
            part, past, W = self.turned(problem, target, k)
            each = turn_regions(part, W, past, self.tile(problem, target)[0] * DTYPES[part.dtype].itemsize)
            own |= {name: max(size, own.get(name, 0)) for name, size in each.items()}
        return Regions(own=own)

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        past = problem.bytes_moved() > target.kept * PAST and not problem.in_place
        names = ["stream", "plain"] if past else ["plain", "stream"]
        return tuple({"stores": name} for name in (names if in_lines(problem) else ["plain"]))

    def seconds(self, problem: Any, target: Any) -> float:
        elements = problem.rows * problem.n
        vectors = elements / lanes(compute_of(problem), target.vector_bytes)
        arithmetic = vectors * CYCLES * graph_of(problem.formula).operations / target.rates.clock
        tiles = self.phase_tiles(problem, target)
        turned = target.rates.cycles(elements * len(apart_of(problem)) / 2 + OVERHEAD * tiles + START)
        return float(1.2 * moving(problem, target) + arithmetic + turned)

    def phase_tiles(self, problem: Any, target: Any) -> int:
        (rows, columns), a = self.tile(problem, target), problem.kept[turned_along(problem)]
        return int(problem.rows // a * -(-a // rows) * -(-problem.n // columns))

    def _tile_rows(self, problem: Any, target: Any, columns: int) -> Any:
        """The rows of a tile, as a problem."""
        at, (rows, _), steps, arrays = turned_along(problem), self.tile(problem, target), [], []
        for k, (each, (kept, inner)) in enumerate(zip(problem.arrays, problem.strides, strict=True)):
            if k in apart_of(problem):
                (band, inner), _ = self.turned(problem, target, k)[0].strides
                kept = band
            steps.append(((kept[at],), inner))
            arrays.append(each._replace(kind="one") if each.kind == "flat" else each)
        words = [":".join(each) for each in flattened([Operand(*each) for each in arrays], (rows,), steps)]
        return dataclasses.replace(
            problem, kept=(rows,), reduced=(columns,), layout="rows", strides=tuple(steps),
            results=tuple(words[:1]), inputs=tuple(words[1:]),
        )  # fmt: skip

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        at, (rows, columns), n = turned_along(problem), self.tile(problem, target), problem.n
        whole = self._tile_rows(problem, target, columns)
        variant = self.of_rows.variant(whole, target, config, "rows")
        if columns < n:
            variant = variant._replace(run=0)
        last = n - (n - 1) // columns * columns
        plans = [plan_of(self._tile_rows(problem, target, each), Cut.of(whole, CHUNK)) for each in (columns, last)]
        places, table, tiles, kernels = self.places(problem, target)[0], {}, 0, []
        for k, place in places.items():
            part, past, W = self.turned(problem, target, k)
            size = DTYPES[part.dtype].itemsize
            ahead = 4 * W if size >= 4 and problem.bytes_moved() > target.l2 else 0
            plan, tiles = turn_plan(part, W, past, ahead, (rows, columns))
            kernels.append(kernel_of(part, target.vector_bytes, W, size, past, True))
            plans.append(plan)
            table[k] = {"turn": kernels[-1].address, "place": place, "row": max(part.strides[0][0])}
        for k, (array, (kept, inner)) in enumerate(zip(problem.arrays, problem.strides, strict=True)):
            # the tiles of all are alike, wherever they lie
            plan = plans[2 + list(places).index(k)] if k in places else plans[2].copy()
            plan[HEAD + 2 :: 3] = [step for d, step in enumerate(kept) if d != at]
            plans.append(plan)
            table[k] = {"turn": 0, "place": 0, "row": 0, **table.get(k, {})}
            table[k] |= {
                "size": DTYPES[array.dtype].itemsize, "plan": plan.ctypes.data, "down": kept[at], "along": inner[0],
            }  # fmt: skip
        operands, compute = OPERAND.table(*(table[k] for k in sorted(table))), make_kernel(variant)
        work = self.seconds(problem, target)
        ints = {
            "operands": operands.ctypes.data, "count": len(table), "whole": plans[0].ctypes.data,
            "last": plans[1].ctypes.data, "rest": (n - 1) // columns * columns, "compute": compute.address,
        }  # fmt: skip
        chunk = target.rates.grain(tiles, work)
        return Program.of(
            BANDS, ints, [Phase(make_bands(), tiles, chunk)], regions=self.regions(problem, target, config),
            **target.rates.waking(work), keep=(operands, compute, *plans, *kernels),
        )  # fmt: skip
