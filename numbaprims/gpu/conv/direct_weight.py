"""`direct_weight`: gradients of the weight for few channels a group, without tensor cores and without unfolding.

What `direct` is forward: a tile of an implicit product has 16 rows and 128 columns, or more, where a group of four
channels has 4 and 36.  Chunks of pixels, cut by the problem only, are summed side by side and added up in one order.
"""

from __future__ import annotations

from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu import parts
from numbaprims.gpu.conv import implicit
from numbaprims.gpu.conv.arguments import common_values
from numbaprims.gpu.conv.direct import MOST_CHANNELS, MOST_TAPS, WIDEST
from numbaprims.gpu.conv.direct_kernel import THREADS, WARPS, Window
from numbaprims.gpu.conv.direct_weight_kernel import (
    COLUMNS,
    PIXELS,
    Slots,
    instructions,
    make_direct_weight,
    room_of,
    slots_of,
)
from numbaprims.gpu.conv.products import products
from numbaprims.gpu.gemm import cost
from numbaprims.gpu.gemm.arguments import ceil_div, round_up, vector_length
from numbaprims.gpu.launch import Addresses, make_launcher, step
from numbaprims.gpu.solver import Solver

#: Blocks that fill a large GPU; a constant, because chunks must not depend on the GPU: results would.
WANTED_BLOCKS = 792
#: No chunk has fewer turns: the sums of one are written and read again.
LEAST_TURNS = 4
MOST_WORKSPACE = 64 << 20
#: The part of the clocks that issue something, with warps enough: barriers, and copies that are waited for.
EFFICIENCY = 0.9


def window_of(problem: Any) -> Window:
    """What the kernel has in its code; steps that nobody takes are 1."""
    p = problem
    gain = [p.stride[i] if p.y_size[i] > 1 else 1 for i in (1, 2)]
    gap = [p.dilation[i] if p.kernel[i] > 1 else 1 for i in (1, 2)]
    return Window(p.kernel[1], p.kernel[2], *gain, *gap)


def cut_of(problem: Any) -> Slots | None:
    """What a block computes."""
    p = problem
    return slots_of(p.group_k, p.group_c * p.kernel[0], window_of(p), DTYPES[p.in_dtype].itemsize == 4)


def room_of_sums(problem: Any) -> int:
    """Elements from row to row of sums that are kept."""
    return round_up(problem.group_c * problem.taps, vector_length(problem.accumulate))


class DirectWeight(Solver):
    """Taps times channels in registers, rows of x and of dy in shared memory, chunks of pixels side by side."""

    name = "direct_weight"

    def why_not(self, problem: Any, target: Any) -> str | None:
        p = problem
        if p.direction != "weight":
            return f"direction {p.direction} is not weight"
        found = implicit.refusal(p)
        if found is not None:
            return found
        if p.accumulate != "f32":
            return "it keeps its sums in float32"
        if p.group_c > MOST_CHANNELS:
            return f"a group has {p.group_c} channels of x, more than {MOST_CHANNELS}"
        if max(p.kernel) > MOST_TAPS:
            return f"a kernel of {max(p.kernel)} elements is wider than {MOST_TAPS}"
        window = window_of(p)
        if (window.taps_w - 1) * window.gap_w // window.gain_w > WIDEST or cut_of(p) is None:
            return "the rows that one window sees do not fit into shared memory"
        return None

    def _turns(self, problem: Any, slots: Slots) -> int:
        p = problem
        return int(p.n * p.y_size[0] * ceil_div(p.y_size[1], slots.lines) * ceil_div(p.y_size[2], COLUMNS))

    def _tiles(self, problem: Any, slots: Slots) -> tuple[int, int]:
        """Of channels of y, and of planes."""
        p = problem
        return ceil_div(p.group_k, slots.bk), ceil_div(p.group_c * p.kernel[0], slots.planes)

    def _chunks(self, problem: Any, slots: Slots) -> tuple[int, int]:
        """How many chunks the turns are cut into, and how many one has."""
        turns, tiles = self._turns(problem, slots), self._tiles(problem, slots)
        wanted = ceil_div(WANTED_BLOCKS, problem.groups * tiles[0] * tiles[1])
        one = 4 * problem.k * room_of_sums(problem)
        # a thread adds four pixels of each row of its slice
        terms = turns * slots.lines // slots.slices * PIXELS
        wanted = max(1, min(wanted, turns // LEAST_TURNS, MOST_WORKSPACE // one), ceil_div(terms, parts.TERMS))
        each = ceil_div(turns, wanted)
        return ceil_div(turns, each), each

    def estimate(self, problem: Any, target: Any) -> float:
        p, slots, window = problem, self._slots(problem), window_of(problem)
        chunks, each = self._chunks(p, slots)
        tiles = self._tiles(p, slots)
        size = DTYPES[p.in_dtype].itemsize
        room = room_of(slots, window)
        made, issued, accesses = instructions(slots, window, size == 4)
        rate = target.peak("f32") / (2 * 32 * target.multiprocessors * target.clock)
        ending = WARPS * (200 + 30 * ceil_div(slots.used * room.sums, THREADS))
        clocks = (each * max(made / rate, issued / 4, accesses) + ending / 4) / EFFICIENCY
        blocks = p.groups * tiles[0] * tiles[1] * chunks
        busiest = ceil_div(blocks, target.multiprocessors)
        warps = WARPS * min(busiest, max(1, target.blocks_per_multiprocessor(THREADS, 168, 4 * room.words)))
        arithmetic = busiest * clocks / target.clock / min(1.0, 1.5 * warps / (warps + 4.0))
        memory = p.bytes_moved() / (cost.MEMORY * target.bandwidth)
        reread = blocks * each * (room.x + room.dy) * size / (cost.CACHE * target.bandwidth)
        sums = cost.sweep_seconds(2 * self._sums_bytes(p, chunks), target)
        return float(cost.LAUNCH + cost.FILL + max(arithmetic, memory, reread) + sums)

    def _slots(self, problem: Any) -> Slots:
        found = cut_of(problem)
        assert found is not None
        return found

    def _sums_bytes(self, problem: Any, chunks: int) -> int:
        return int(4 * chunks * problem.k * room_of_sums(problem))

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        return None

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        p, slots = problem, self._slots(problem)
        chunks, each = self._chunks(p, slots)
        tiles = self._tiles(p, slots)
        product = products(p)[0]
        room, x, y = room_of_sums(p), p.strides.x, p.strides.y
        numbers = (
            p.group_k, p.group_c * p.kernel[0], room, chunks, each, self._turns(p, slots), *tiles,
            ceil_div(p.y_size[1], slots.lines), ceil_div(p.y_size[2], COLUMNS), p.kernel[0], *p.y_size, *p.stride,
            p.dilation[0], *p.padding, *p.x_size, *x[1:], *y[1:], product.source_group, x[0],
            product.plain.group, y[0],
        )  # fmt: skip
        kernel = make_direct_weight(p.in_dtype, slots, window_of(p), p.kernel[0] == 1)

        def values(arrays: Any, floats: Any, at: Addresses) -> tuple[Any, ...]:
            return (at["sums"], arrays[2].pointer, arrays[1].pointer, *numbers)

        last = implicit.reduce_step(p, product, True, "slow", chunks, room, common_values(p))
        blocks = p.groups * tiles[0] * tiles[1] * chunks
        return make_launcher([step(kernel, blocks, values), last], {"sums": self._sums_bytes(p, chunks)})
