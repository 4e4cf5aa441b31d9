"""The solver implicit_gemm: convolution as a product whose column matrix is never made (Chetlur et al. 2014)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from numbaprims.arrays import DTYPES
from numbaprims.cpu.conv.arguments import bias_dtype
from numbaprims.cpu.conv.gather import make_gather, make_stage
from numbaprims.cpu.conv.implicit_blocks import choose, words
from numbaprims.cpu.conv.implicit_passes import Pass, passes
from numbaprims.cpu.conv.implicit_planes import AT, IMPLICIT, make_pack_driver, make_planes
from numbaprims.cpu.conv.implicit_weights import make_pack_weights
from numbaprims.cpu.drivers import Program
from numbaprims.cpu.gemm import cost
from numbaprims.cpu.gemm.cost import ceil_div, round_up
from numbaprims.cpu.gemm.finish import activation_address, make_finish
from numbaprims.cpu.gemm.multiply import make_multiply
from numbaprims.cpu.launch import make_launcher
from numbaprims.cpu.simd import lanes
from numbaprims.dispatch.solver import Config, Launcher, Solver

SLACK = 1024  # bytes behind a part of the workspace: vectors may reach past its end
PARALLEL_FLOPS = 2e6
HEIGHTS = (12, 10, 8, 14)


class Layout:
    """One problem cut into tiles, and where everything lies in the workspace."""

    def __init__(self, problem: Any, target: Any, config: Config) -> None:
        self.problem = problem
        self.acc = problem.accumulate
        self.size = DTYPES[self.acc].itemsize
        self.W = lanes(self.acc, target.vector_bytes)
        self.MR, self.NV = int(config["mr"]), int(config["nv"])
        self.walks = [walk for walk in passes(problem) if walk.pixels]
        rows = self.walks[0].rows
        self.m_blocks = ceil_div(rows, int(config["mc"]))
        self.mc = round_up(ceil_div(rows, self.m_blocks), self.MR)
        self.m_blocks = ceil_div(rows, self.mc)
        self.parallel = problem.flops() > PARALLEL_FLOPS
        self.blocks = [
            choose(
                walk, min(self.mc, rows), self.m_blocks, self.W, self.size, target.l2, int(config["kc"]), self.parallel
            )
            for walk in self.walks
        ]
        self.in_out = problem.out_dtype == self.acc and not problem.has_c
        self.table, self.keep = self._table()
        self.panel_bytes = sum(self._panels(walk) for walk in self.walks) * self.size
        self.shared = 0 if problem.prepared else round_up(self.panel_bytes + SLACK, 64)
        each = list(zip(self.walks, self.blocks, strict=True))
        widest = max(blocks.channels * walk.window for walk, blocks in each)
        staged = max(blocks.channels * blocks.staged(walk) for walk, blocks in each)
        sums = max(
            0 if row[AT["sums_in_out"]] else self.mc * row[AT["sums_step"]] for row in self.table.reshape(len(each), -1)
        )
        self.staged_at = round_up(widest * self.NV * self.W * self.size + SLACK, 64)
        self.sums_at = self.staged_at + round_up(staged * self.size + SLACK, 64)
        self.worker = self.sums_at + round_up(sums * self.size + SLACK, 64)

    def _panels(self, walk: Pass) -> int:
        return walk.groups * round_up(walk.rows, self.MR) * walk.depth * walk.window

    def _table(self) -> tuple[np.ndarray, tuple[Any, ...]]:
        rows, keep, start = [], [], 0
        for walk, blocks in zip(self.walks, self.blocks, strict=True):
            row, arrays = words(walk, blocks, self.MR, self.m_blocks, start, self.in_out, self.problem.has_c)
            rows += row
            keep += arrays
            start += self._panels(walk)
        table = np.array(rows, np.int64)
        return table, (table, *keep)

    def ints(self, kernels: dict[str, int]) -> list[int]:
        """The integers of IMPLICIT."""
        p = self.problem
        w_dtype = p.w_dtype
        values = kernels | {
            "table": int(self.table.ctypes.data), "passes": len(self.walks), "has_c": int(p.has_c),
            "has_bias": int(p.bias), "bias_step": p.strides.bias, "in_size": DTYPES[p.in_dtype].itemsize,
            "w_size": DTYPES[w_dtype].itemsize, "out_size": DTYPES[p.out_dtype].itemsize, "acc_size": self.size,
            "mr": self.MR, "nr": self.NV * self.W, "mc": self.mc, "m_blocks": self.m_blocks, "shared_bytes": self.shared, "worker_bytes": self.worker,
            "staged_at": self.staged_at, "sums_at": self.sums_at,
        }  # fmt: skip
        return [values.get(name, 0) for name in IMPLICIT.ints]

    def count(self, name: str) -> int:
        """A word of the table, summed over the passes."""
        return int(self.table.reshape(len(self.walks), -1)[:, AT[name]].sum())


class ImplicitGemm(Solver):
    """Patches gathered into panels, a tile at a time."""

    name = "implicit_gemm"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.direction not in ("forward", "data"):
            return f"it computes results and data gradients, not direction {problem.direction}"
        if problem.accumulate not in ("f32", "f64"):
            return "it sums in float32 or float64 only"
        return None

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        rows = problem.group_k if problem.direction == "forward" else problem.group_c
        mr = 6
        if target.isa in ("avx512", "neon"):
            padded = {height: round_up(rows, height) for height in HEIGHTS}
            mr = next(height for height in HEIGHTS if padded[height] <= 1.02 * min(padded.values()))
        yield {"mr": mr, "nv": 2, "kc": 2048 // DTYPES[problem.accumulate].itemsize, "mc": round_up(252, mr)}

    def estimate(self, problem: Any, target: Any) -> float:
        layout = Layout(problem, target, next(iter(self.configs(problem, target))))
        peak = cost.peak(problem, target)
        seconds = 2e-6
        for walk, blocks in zip(layout.walks, layout.blocks, strict=True):
            vectors = math.prod(blocks.counts(walk)) * ceil_div(blocks.pixels(), layout.W)
            k = walk.depth * walk.window
            padded = 2.0 * walk.groups * vectors * layout.W * round_up(walk.rows, layout.MR) * k
            copied = math.prod(blocks.counts(walk)) * blocks.staged(walk) * walk.depth * walk.groups * layout.m_blocks
            seconds += padded / (0.9 * peak)
            seconds += walk.groups * layout.m_blocks * vectors * k * 0.6e-9
            seconds += copied * 0.15e-9
        if not problem.prepared:
            seconds += layout.panel_bytes / layout.size * cost.PACK_ACROSS
        return seconds

    def workspace(self, problem: Any, target: Any, config: Config) -> int:
        layout = Layout(problem, target, config)
        return layout.shared + layout.worker

    def _kernels(self, problem: Any, target: Any, layout: Layout) -> dict[str, int]:
        """Addresses of the kernels: what they are depends on types and tile only."""
        acc, W = layout.acc, layout.W
        finish = 0
        if problem.ends or not all(layout.table.reshape(len(layout.walks), -1)[:, AT["sums_in_out"]]):
            finish = make_finish(acc, problem.out_dtype, bias_dtype(problem), W).address
        return {
            "stage": make_stage(problem.in_dtype, acc, W).address,
            "gather": make_gather(acc, layout.NV, W).address,
            "multiply": make_multiply(acc, layout.MR, layout.NV, W).address,
            "pack": make_pack_weights(problem.w_dtype, acc, layout.MR, W).address,
            "finish": finish, "activation": activation_address(problem, target),
        }  # fmt: skip

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        layout = Layout(problem, target, config)
        packed = np.zeros(layout.panel_bytes + SLACK, np.uint8)
        packed = packed[-packed.ctypes.data % 64 :]
        ints = layout.ints(self._kernels(problem, target, layout))
        program = Program(ints, [(make_pack_driver(), layout.count("pack_tiles"), 1)], keep=layout.keep)
        make_launcher(program, parallel=False)(packed, None, weights, None, None, packed)
        return packed

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        layout = Layout(problem, target, config)
        ints = layout.ints(self._kernels(problem, target, layout))
        phases = [(make_planes(), layout.count("tiles"), 1)]
        if not problem.prepared:
            tiles = layout.count("pack_tiles")
            phases.insert(0, (make_pack_driver(), tiles, max(1, tiles // 8)))
        program = Program(ints, phases, keep=layout.keep)
        return make_launcher(program, parallel=layout.parallel, shared=layout.shared, per_worker=layout.worker)
