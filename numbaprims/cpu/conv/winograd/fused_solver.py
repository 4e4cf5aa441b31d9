"""The solver whose workspace is 128 kB a worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from numbaprims.cpu.conv.winograd import cost
from numbaprims.cpu.conv.winograd.fused import make_chunk_products, make_fused, make_fused_weights
from numbaprims.cpu.conv.winograd.pieces import Axis, whole
from numbaprims.cpu.conv.winograd.products import ahead
from numbaprims.cpu.conv.winograd.solvers import R, Winograd, launch_ints, table_and_pieces, table_words
from numbaprims.cpu.conv.winograd.table import CALL, Pose, pose
from numbaprims.cpu.gemm.cost import ceil_div, peak, round_up, worth_threads
from numbaprims.cpu.gemm.finish import activation_address
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.solver import Config, Regions, run
from numbaprims.dtypes import DTYPES

# Bytes of the result's channels whose sums a block keeps, and of the channels that are transformed at once: with what
# plans prepared, and with filters that are transformed for each block, whose transforms take 40 kB.
SUMS, CHUNK = (256, 128), (128, 64)
LINE = 32  # outputs along a line that the transforms' buffers hold
OUTPUTS = (4, 2)  # of a tile along a side
# Cycles of two vector units for an element of a transformed filter; the part of the filters' way from afar that
# products do not hide.
FILTER, SHOWN = 0.2665, 0.15
# How much longer products take with tiles of so many rows.
HEIGHTS = {8: 1.0, 7: 1.01, 6: 1.06, 5: 1.12, 4: 1.25}


class WinogradFused(Winograd):
    """F(4x4, 3x3) or F(2x2, 3x3) with all that lies between x and the result in 128 kB of a worker.

    A block of 4 to 8 tiles, 16 of 2 x 2, keeps its sums for 64 channels (float32), 70 kB; 32 channels of x at a time
    are transformed and multiplied.  Each 64 channels of the result transform x again; without a plan each block
    transforms the filters again.
    """

    name = "winograd_fused"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.kernel != (1, R, R):
            return f"it takes windows of 3 x 3, not {' x '.join(map(str, problem.kernel))}"
        if problem.stride[1:] != (1, 1):
            return "it takes stride 1"
        return self._refusal(problem)

    def _best(self, problem: Any, target: Any) -> list[tuple[int, float, int]]:
        """(m, seconds, height) with the best height for either m, the better m for a plan first: a call without one
        takes the same, for the same bits."""
        plan = dataclasses.replace(problem, prepared=True)
        found = []
        for m in OUTPUTS:
            plans = min(self._seconds(plan, target, m, height) for height in heights(target))
            seconds, height = min((self._seconds(problem, target, m, height), -height) for height in heights(target))
            found.append((plans, m, seconds, -height))
        return [best[1:] for best in sorted(found)]

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        for m, _, height in self._best(problem, target):
            yield {"m": m, "tiles": height if m == 4 else 2 * height}

    def is_valid(self, problem: Any, target: Any, config: Config) -> bool:
        if set(config) != {"m", "tiles"} or config["m"] not in OUTPUTS:
            return False
        return config["tiles"] in [height * (1 if config["m"] == 4 else 2) for height in heights(target)]

    def estimate(self, problem: Any, target: Any) -> float:
        return self._best(problem, target)[0][1]

    def _seconds(self, problem: Any, target: Any, m: int, height: int) -> float:
        """Of a call with tiles of m x m outputs and register tiles of `height` rows."""
        q, axes = pose(problem), both(m)
        W, size = lanes(problem.accumulate, target.vector_bytes), DTYPES[problem.accumulate].itemsize
        plain = int(not problem.prepared)
        scale = W / 16  # the constants are for 16 lanes
        tiles, positions = cost.count_tiles(q, axes), cost.positions_of(axes)
        blocks = ceil_div(tiles, height if m == 4 else 2 * height)
        rows = blocks * (height if m == 4 else round_up(min(tiles, 2 * height), height))
        c, k = round_up(q.x_channels, W), round_up(q.out_channels, (1 if plain else 2) * W)
        products = 2.0 * positions * rows * c * k * HEIGHTS[height] / (peak(problem, target) * (0.85 if plain else 1.0))
        parts = ceil_div(k * size, SUMS[plain])
        rates = target.rates
        work = positions * tiles * (parts * c * cost.IN + round_up(q.out_channels, W) * cost.OUT) / scale
        again = positions * c * k * blocks
        if plain:
            # reversed filters are read in short pieces
            filters = rates.vectors(again * FILTER / scale) * (1.5 if problem.direction == "data" else 1.0)
            given = c * k * R * R * DTYPES[q.w_dtype].itemsize
            filters += given * blocks * cost.L3 / rates.l3 if given > target.l2 else 0.0
        else:
            # the filters of one part pass by once for each block: first from where all of them fit, then from a cache
            part = positions * c * SUMS[plain]
            later = (blocks - 1) * cost.L3 / rates.l3 if part > target.l2 * 3 // 4 else 0.0
            stream = again * size * (cost.filter_seconds(part * parts, target) + later) / blocks
            filters = max(0.0, stream - products)
            filters += cost.shown(part * parts, target, SHOWN) * min(stream, products)
        x = q.n * q.x_channels * q.x[0] * q.x[1] * DTYPES[q.x_dtype].itemsize
        far = cost.far_time(target, x * q.groups, cost.result_bytes(q))
        return float(cost.LAUNCH * rates.call + q.groups * (products + rates.vectors(work) + filters) + far)

    def _regions(self, problem: Any, words: dict[str, int]) -> Regions:
        size, positions = words["sum_size"], words["positions"]
        filters = 0 if problem.prepared else positions * words["u_step"]
        sums = words["some_panels"] * words["m_panel"]
        v = positions * words["v_step"] * size
        return Regions(own={"v": v, "m": sums * size, "u": filters * size, "room": words["room"]})

    def _words(self, q: Pose, target: Any, problem: Any, config: Config) -> dict[str, int]:
        acc = problem.accumulate
        W, size = lanes(acc, target.vector_bytes), DTYPES[acc].itemsize
        m, tiles = int(config["m"]), int(config["tiles"])
        plain = int(not problem.prepared)
        # filters that are transformed for each block come one vector at a time
        NV, far = (1, 0) if plain else (2, ahead(acc))
        products = make_chunk_products(acc, tiles if m == 4 else tiles // 2, NV, W, far)
        words = table_words(problem, q, target, both(m), (tiles, tiles, NV), products, LINE)
        chunk = min(CHUNK[plain] // (W * size), words["c_blocks"])
        m_step = words["rows"] * NV * W
        return words | {
            "chunk": chunk, "some_panels": min(words["panels"], SUMS[plain] // (NV * W * size)), "lanes": W,
            "m_step": m_step, "m_panel": words["positions"] * m_step, "v_step": chunk * tiles * W + W,
            "u_step": chunk * W * NV * W + W,
        }  # fmt: skip

    def _table(self, problem: Any, words: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
        return table_and_pieces(words, ((0,), (0,)))

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        words = self._words(pose(problem), target, problem, config)
        tiles = words["groups"] * words["panels"] * ceil_div(words["c_blocks"], words["chunk"])
        # what is asked for ahead of the last product may lie behind the end: that is no access
        packed = np.empty(tiles * words["positions"] * words["u_step"] * words["sum_size"] + 64, np.uint8)
        packed = packed[-packed.ctypes.data % 64 :]
        table, places = self._table(problem, words)
        program = Program.of(
            CALL, launch_ints(table, problem, 0), [(make_fused_weights(), tiles, 1)], keep=(table, places),
            regions=Regions(own={"room": words["weights_room"]}),
        )  # fmt: skip
        run(program, packed, None, weights, None, None, packed)
        return packed

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        words = self._words(pose(problem), target, problem, config)
        table, places = self._table(problem, words)
        tiles = words["groups"] * ceil_div(words["panels"], words["some_panels"]) * words["blocks"]
        ints = launch_ints(table, problem, activation_address(problem, target))
        return Program.of(
            CALL,
            ints,
            [(make_fused(), tiles, 1)],
            keep=(table, places),
            parallel=worth_threads(problem, target),
            regions=self._regions(problem, words),
        )


def both(m: int) -> tuple[Axis, Axis]:
    """F(m x m, 3 x 3)."""
    return whole(m, R), whole(m, R)


def heights(target: Any) -> Iterable[int]:
    """Rows of register tiles."""
    return HEIGHTS if target.isa in ("avx512", "neon") else (6, 5, 4)
