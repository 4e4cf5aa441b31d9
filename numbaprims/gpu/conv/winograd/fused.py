"""`winograd_fused`: F(2x2, 3x3) in one kernel (fused_kernel.py), without scratch memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.conv.arguments import LARGEST, common_values
from numbaprims.gpu.conv.products import spans
from numbaprims.gpu.conv.transformed import pose
from numbaprims.gpu.conv.winograd.fused_kernel import DEPTH, OUTS, THREADS, TILES, make_fused
from numbaprims.gpu.conv.winograd.solvers import Square, source_order
from numbaprims.gpu.gemm import cost
from numbaprims.gpu.gemm.activations import compiled_kind
from numbaprims.gpu.gemm.arguments import C_VECTORS, OUT_VECTORS, ceil_div
from numbaprims.gpu.launch import make_launcher, program_of, step

#: Instructions of a thread for 8 channels, counted in the code for sm_90a: multiply-adds; in all, with plain windows
#: and with prepared ones; and of the end of a block.
PRODUCTS, PLAIN, KEPT, END = 512, 850, 775, 600
#: What barriers and loads under way leave of the multiprocessor's rate.
EFFICIENCY = 0.85


class WinogradFused(Square):
    """F(2x2, 3x3) with transforms and products in one kernel: no scratch memory, one launch."""

    name = "winograd_fused"
    M = 2

    def why_not(self, problem: Any, target: Any) -> str | None:
        found = super().why_not(problem, target)
        if found is not None:
            return found
        if not problem.planar:
            return "it takes images, without a depth"
        if problem.accumulate != "f32":
            return "it keeps float32 in shared memory and registers"
        if spans(problem) >= LARGEST:
            return "an array is too large for 32-bit offsets"
        if self._blocks(problem)[0] >= 2**31:
            return "there are more tiles than one launch may have blocks"
        return None

    def _blocks(self, problem: Any) -> tuple[int, int, int]:
        """Blocks in all, of tiles, of channels of the result."""
        q = pose(problem)
        tiles, outs = ceil_div(self._tiles(q, problem), TILES), ceil_div(q.out_channels, OUTS)
        return q.groups * tiles * outs, tiles, outs

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        return ({},)

    def estimate(self, problem: Any, target: Any) -> float:
        q, size = pose(problem), DTYPES[problem.in_dtype].itemsize
        blocks, _, _ = self._blocks(problem)
        chunks = ceil_div(q.x_channels, DEPTH)
        # of a warp: what its scheduler issues, and what its multipliers take
        lanes = target.peak("f32") / (2.0 * target.multiprocessors * target.clock)
        issued = chunks * (KEPT if problem.prepared else PLAIN) + END
        clocks = THREADS / 32 * max(issued / 4.0, chunks * PRODUCTS * 32 / lanes) / EFFICIENCY
        arithmetic = ceil_div(blocks, target.multiprocessors) * clocks / target.clock
        windows = DEPTH * OUTS * (64 if problem.prepared else 9 * size)
        # of 32 tiles in a row 4 rows of 66 pixels
        reread = blocks * chunks * (windows + DEPTH * 4 * (2 * TILES + 2) * size)
        memory = max(problem.bytes_moved() / cost.MEMORY, reread / cost.CACHE) / target.bandwidth
        return float(cost.LAUNCH + cost.FILL + max(arithmetic, memory))

    def workspace(self, problem: Any, target: Any, config: Config) -> int:
        return 0

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        q, order = pose(problem), source_order(problem)
        blocks, tile_blocks, out_blocks = self._blocks(problem)
        windows = "outs" if abs(q.w_steps[0]) < abs(q.w_steps[1]) else "channels"
        domain = self._domains(problem, q)[0][1]
        common = common_values(problem)
        numbers = (
            self._tiles(q, problem), q.x_channels, q.out_channels, tile_blocks, out_blocks, ceil_div(q.out[0], self.M),
            ceil_div(q.out[1], self.M), *q.pad, *q.x, *q.out,
        )  # fmt: skip
        steps = (*q.x_steps, *q.w_steps, q.w_start, q.w_group, *domain.u[:3], *q.out_steps, *q.c_steps)
        known: dict[tuple[int, int, bool], Launcher] = {}

        def make(key: tuple[int, int, bool]) -> Launcher:
            out, c, kept = key
            flags = 0
            nbytes = 2 * DTYPES[problem.out_dtype].itemsize
            for bit, pointer, of in ((OUT_VECTORS, out, q.out_steps), (C_VECTORS, c, q.c_steps)):
                if of[3] == 1 and pointer % nbytes == 0 and all(value % 2 == 0 for value in of[:3]):
                    flags |= bit
            activation = compiled_kind(problem.activation.kind)
            kernel = make_fused(problem.in_dtype, problem.out_dtype, order, "kept" if kept else windows, activation)

            def values(arrays: Any, floats: Any, _: Any) -> tuple[Any, ...]:
                packed = arrays[5].pointer if kept else 0
                return (*common(arrays, floats), packed, *numbers, flags, *steps)

            return known.setdefault(key, make_launcher([step(kernel, blocks, values)]))

        make((0, 0, problem.prepared))

        def launch(  # type: ignore[no-untyped-def]
            a0, a1=None, a2=None, a3=None, a4=None, a5=None, a6=None, f0=0.0, f1=0.0, f2=0.0, f3=0.0, f4=0.0, f5=0.0
        ):
            key = (a0.pointer & 15, 0 if a3 is None else a3.pointer & 15, a5 is not None)
            found = known.get(key) or make(key)
            found(a0, a1, a2, a3, a4, a5, a6, f0, f1, f2, f3, f4, f5)

        launch.program = lambda: program_of(make((0, 0, problem.prepared)))  # type: ignore[attr-defined]
        return launch
