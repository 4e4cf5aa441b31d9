"""The solver by tiles of multiply-adds, float32."""

from __future__ import annotations

from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.gpu.attention.mma import CAUSAL, TRAIN
from numbaprims.gpu.attention.mma_solver import FILL, addresses, steps_of_all
from numbaprims.gpu.attention.solvers import LAUNCH, batch_step, steps_of
from numbaprims.gpu.attention.tiled import WIDEST, make_tiled, scores_of, tiled_shared
from numbaprims.gpu.attention.tiles import columns_of
from numbaprims.gpu.gemm.arguments import ceil_div
from numbaprims.gpu.gemm.loads import way_of
from numbaprims.gpu.launch import by_alignment, make_launcher, step
from numbaprims.gpu.solver import Solver
from numbaprims.ops._attention_problem import LSE, MASK, OUT, AttentionProblem, K, Q, V

RATE = 0.55
"""The part of the peak that the products leave, with four warps on a multiprocessor."""


class Tiled(Solver):
    """Tiles of multiply-adds."""

    name = "tiled"

    def why_not(self, problem: Any, target: Any) -> str | None:
        p: AttentionProblem = problem
        if p.dtype != "f32" or p.way == "backward":
            return "it computes float32, and no gradient"
        if max(p.width, p.values) > WIDEST:
            return f"a row of a head has more than {WIDEST} elements"
        if tiled_shared(columns_of(max(p.width, p.values)), p.mask) > target.shared_per_block:
            return "a block may not have the shared memory that it needs"
        if any(strides and batch_step(p, strides) is None for strides in p.strides):
            return "batches of an array are not evenly apart"
        if max(p.rows, p.keys, p.batch * p.heads * ceil_div(p.rows, 64)) >= 2**30:
            return "there are more rows or heads than 32-bit indices reach"
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        p: AttentionProblem = problem
        columns = columns_of(max(p.width, p.values))
        rows = scores_of(columns, p.mask).bm
        blocks = p.batch * p.heads * ceil_div(p.rows, rows)
        whole = 2.0 * rows * p.keys * (p.width + columns)  # the first product stops at the width
        rate = RATE * target.peak("f32") / target.multiprocessors
        busiest = ceil_div(blocks, target.multiprocessors) * whole * p.pairs / (p.rows * p.keys)
        return float(LAUNCH + FILL + max(max(busiest, whole) / rate, p.bytes_moved() / target.bandwidth))

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        p: AttentionProblem = problem
        columns = columns_of(max(p.width, p.values))
        blocks, all_heads = ceil_div(p.rows, scores_of(columns, p.mask).bm), p.batch * p.heads
        flags = CAUSAL * p.causal + TRAIN * (p.way == "train")
        sizes = (p.rows, p.heads, p.heads // p.groups, p.keys, flags, p.width, p.values)
        steps, ends = steps_of_all(p, (OUT, Q, K, V, MASK)), steps_of(p, OUT)

        def values(arrays: Any, floats: Any, at: Any) -> tuple[Any, ...]:
            return (*addresses(arrays, (OUT, Q, K, V, MASK, LSE)), floats[0], blocks, all_heads, *sizes, *steps)

        def make(aligned: bool) -> Launcher:
            pointer = 0 if aligned else 4

            def way(at: int, outer: int, inner: int, lengths: tuple[int, int]) -> str:
                apart = steps_of(p, at)
                found = way_of("f32", pointer, apart[outer], apart[inner], *lengths, apart[:2])
                return "k" if found == "q" else found  # words that are copied on the side, not through registers

            ways = way(Q, 2, 3, (p.rows, p.width)), way(K, 2, 3, (p.keys, p.width)), way(V, 3, 2, (p.values, p.keys))
            whole = aligned and ends[3] == 1 and not any(each % 4 for each in ends[:3])
            return make_launcher([step(make_tiled(p.mask, columns, *ways, whole), blocks * all_heads, values)])

        return by_alignment(make, dict.fromkeys((OUT, Q, K, V), 16))
