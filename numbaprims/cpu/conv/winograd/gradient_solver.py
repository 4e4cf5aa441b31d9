"""The solver of the weight's gradient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from numbaprims.cook_toom import filtering, program, transposed
from numbaprims.cpu.conv.long import in_parts
from numbaprims.cpu.conv.winograd import cost, driver, gradient
from numbaprims.cpu.conv.winograd.pieces import Axis, best_axis, whole
from numbaprims.cpu.conv.winograd.pixels import DENSE, make_read
from numbaprims.cpu.conv.winograd.solvers import (
    MOST_TAPS,
    common_refusal,
    filter_order,
    form_of,
    launch_ints,
    table_and_pieces,
)
from numbaprims.cpu.conv.winograd.table import CALL, forward_pose, pose_words
from numbaprims.cpu.conv.winograd.transform_in import PLACES, make_input
from numbaprims.cpu.gemm.cost import ceil_div, peak, round_up, worth_threads
from numbaprims.cpu.gemm.finish import activation_address
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.solver import Config, Regions, Solver
from numbaprims.dtypes import DTYPES

NV = 2
FEW_TILES = 16
# Bytes of the transforms of one block, half of what a core may expect of a shared third-level cache.
BLOCK_BYTES = 6 << 20


@in_parts
class WinogradWeight(Solver):
    """The weight's gradient with F(4x4, 3x3), F(2x2, 3x3) for small images; other windows by pieces.

    The error of an element, in 2^-24 sum |x y'|, measured with random numbers, is at most 41 (float32).
    """

    name = "winograd_weight"
    amplification = 24

    def axes(self, problem: Any) -> tuple[Axis, Axis]:
        """The cut along the height and the width."""
        # sums of few tiles are mostly written and read again: fewer positions for more tiles
        m = 4 if problem.n * ceil_div(problem.y_size[1], 4) * ceil_div(problem.y_size[2], 4) >= FEW_TILES else 2
        return tuple(
            whole(m, 3) if (taps, stride) == (3, 1) else best_axis(taps, stride, out)
            for taps, stride, out in zip(problem.kernel[1:], problem.stride[1:], problem.y_size[1:], strict=True)
        )  # type: ignore[return-value]

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.direction != "weight":
            return f"direction {problem.direction} is not the weight's gradient"
        refusal = common_refusal(problem)
        if refusal is not None:
            return refusal
        taps = problem.kernel[1] * problem.kernel[2]
        if not 1 < taps <= MOST_TAPS:
            return f"it takes windows of 2 to {MOST_TAPS} taps, not {taps}"
        if max(len(axis.firsts) for axis in self.axes(problem)) > PLACES:
            return f"the stride cuts the window into more than {PLACES} pieces along an axis"
        return None

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        sizes = self._sizes(problem, target)
        a_tile = sizes["positions"] * sizes["size"] * (sizes["c"] + sizes["k"])
        known = []
        for most in (BLOCK_BYTES, BLOCK_BYTES // 4, BLOCK_BYTES * 4):
            tiles = min(sizes["tiles"], max(16, most // a_tile))
            tiles = ceil_div(sizes["tiles"], ceil_div(sizes["tiles"], tiles))
            if tiles not in known:
                known.append(tiles)
                yield {"tiles": tiles}

    def _sizes(self, problem: Any, target: Any) -> dict[str, int]:
        """Padded channels of x (once for each piece) and y, tiles, positions, bytes of an element."""
        q, axes = forward_pose(problem), self.axes(problem)
        W = lanes(problem.accumulate, target.vector_bytes)
        return {
            "c": cost.pieces_of(axes) * round_up(q.x_channels, W), "k": round_up(q.out_channels, NV * W),
            "tiles": cost.count_tiles(q, axes), "positions": cost.positions_of(axes),
            "size": DTYPES[problem.accumulate].itemsize,
        }  # fmt: skip

    def estimate(self, problem: Any, target: Any) -> float:
        q, s = forward_pose(problem), self._sizes(problem, target)
        scale = lanes(problem.accumulate, target.vector_bytes) / 16
        blocks = ceil_div(s["tiles"], int(next(iter(self.configs(problem, target)))["tiles"]))
        sums = s["positions"] * s["c"] * s["k"]
        products = 2.0 * sums * s["tiles"] / (peak(problem, target) * 1.02)
        there = round_up(q.out_channels, lanes(problem.accumulate, target.vector_bytes))
        inputs = s["positions"] * s["tiles"] * (s["c"] + there) * 0.328 / scale
        # sums are read and written once for each block, transformed back once
        size, rates = sums * s["size"], target.rates
        byte = 0.0 if size < target.l2 // 2 else 1.05 / rates.l3 if size < target.l3 // 3 else 2.4 / rates.memory
        again = size * (2 * blocks - 1) * byte
        back = s["positions"] * s["c"] * there * 0.287 / scale
        each = products + rates.vectors(inputs + back) + again + blocks * 10 / 3 * rates.phase
        return float(5 * rates.call + q.groups * each)

    def _words(self, problem: Any, target: Any, config: Config) -> tuple[dict[str, int], dict[str, int]]:
        """The table, and that of y's gradient as an input."""
        q, acc, axes, s = forward_pose(problem), problem.accumulate, self.axes(problem), self._sizes(problem, target)
        W = lanes(acc, target.vector_bytes)
        h, w = axes
        of_h, of_w = filtering(h.m, h.r), filtering(w.m, w.r)
        tile, piece, n, stride = (h.m, w.m), (h.r, w.r), (h.n, w.n), (h.stride, w.stride)
        rows = int(config["tiles"])
        x_blocks, panels, positions = ceil_div(q.x_channels, W), s["k"] // (NV * W), s["positions"]
        v_step, u_step = s["c"] * rows + W, s["k"] * rows + W
        combined = bool(problem.scaled or problem.has_c)
        dense = filter_order(q, problem.kernel[1:]) == DENSE
        mr = 8 if target.isa in ("avx512", "neon") else min(4, W)
        kernels = {
            "read": make_read(q.x_dtype, acc, form_of(problem.x_order, q.x_steps), W),
            "input": make_input(acc, tile, n, stride, n, 1, W, program(of_h.b_t), program(of_w.b_t)),
            "output": make_input(
                acc, tile, tile, (1, 1), n, NV, W, program(transposed(of_h.a_t)), program(transposed(of_w.a_t))
            ),
            "products": gradient.make_correlate(acc, min(mr, W), NV, W),
            "weights": gradient.make_back(
                acc, problem.w_dtype, problem.kernel[1:], piece, stride, n, NV, W, dense, combined,
                program(transposed(of_h.g)), program(transposed(of_w.g)),
            ),
        }  # fmt: skip
        words = (
            pose_words(q)
            | driver.kernel_words(kernels)
            | {
                "tiles_h": ceil_div(q.out[0], h.m), "tiles_w": ceil_div(q.out[1], w.m), "tiles": s["tiles"],
                "block": rows, "blocks": ceil_div(s["tiles"], rows), "rows": rows, "mr": rows,
                "x_blocks": x_blocks,
                "c_blocks": s["c"] // W, "panels": panels, "vectors": NV, "positions": positions,
                "pieces_w": len(w.firsts), "v_step": v_step, "u_step": u_step, "m_step": s["c"] * s["k"] + W,
                "sum_size": s["size"],
            }
        )  # fmt: skip
        mine = words | {
            "x_channels": q.out_channels, "x_h": q.out[0], "x_w": q.out[1], "pad_h": 0, "pad_w": 0, "pieces_w": 1,
            "x_blocks": panels * NV, "v_step": u_step,
            "read": make_read(q.out_dtype, acc, form_of(problem.y_order, q.out_steps), W).address,
        }  # fmt: skip
        mine |= dict(zip(("x_sn", "x_sc", "x_sh", "x_sw"), q.out_steps, strict=True))
        return words, mine

    @staticmethod
    def _regions(words: dict[str, int]) -> Regions:
        each = {f"all_{name}": words["positions"] * words[f"{name}_step"] * words["sum_size"] + 64 for name in "vum"}
        return Regions(each, {"room": words["room"]})

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        return self._regions(self._words(problem, target, config)[0])

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        q = forward_pose(problem)
        words, mine = self._words(problem, target, config)
        other, zeros = table_and_pieces(mine, ((0,), (0,)))
        axes = self.axes(problem)
        table, places = table_and_pieces(words | {"y_table": int(other.ctypes.data)}, (axes[0].firsts, axes[1].firsts))
        W = lanes(problem.accumulate, target.vector_bytes)
        y_blocks = ceil_div(q.out_channels, W)
        products = words["positions"] * words["c_blocks"]
        phases = [
            (gradient.make_both_inputs(), words["c_blocks"] + y_blocks, 1),
            (gradient.make_correlate_phase(), products, max(1, products // 32)),
            (gradient.make_back_phase(), y_blocks, 1),
        ]
        keep: tuple[np.ndarray, ...] = (table, places, other, zeros)
        ints = launch_ints(table, problem, activation_address(problem, target))
        return Program.of(
            CALL, ints, phases, steps=q.groups * words["blocks"], keep=keep, parallel=worth_threads(problem, target),
            regions=self._regions(words),
        )  # fmt: skip
