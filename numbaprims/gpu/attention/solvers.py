"""The way to attend on a GPU, and what it is estimated to take."""

from __future__ import annotations

from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.gpu.attention.kernels import WARPS, make_forward, make_keys, make_queries
from numbaprims.gpu.launch import make_launcher, step
from numbaprims.gpu.solver import Solver
from numbaprims.ops._attention_problem import (
    B_K,
    B_LSE,
    B_MASK,
    B_OUT,
    B_Q,
    B_V,
    DK,
    DOUT,
    DQ,
    DV,
    LSE,
    MASK,
    OUT,
    AttentionProblem,
    K,
    Q,
    V,
)

LAUNCH = 3e-6
WIDEST = 512
"""Elements of a row: two rows of each warp of a block are in 32 KiB of shared memory."""


def batch_step(p: AttentionProblem, strides: tuple[int, ...]) -> int | None:
    """From one matrix of heads to the next, where all are evenly apart; else None."""
    found, size = 0, 1
    for n, stride in list(zip(p.batch_shape, strides, strict=False))[::-1]:
        if n > 1:
            found = stride if size == 1 else found
            if stride != size * found:
                return None
            size *= n
    return found


def steps_of(p: AttentionProblem, at: int) -> tuple[int, ...]:
    """What kernels take of an array's strides; zeros for one that is not there."""
    strides = p.strides[at]
    return (batch_step(p, strides) or 0, *strides[-3:]) if strides else (0, 0, 0, 0)


class Rows(Solver):
    """A warp for each row."""

    name = "rows"

    def why_not(self, problem: Any, target: Any) -> str | None:
        p = problem
        if max(p.width, p.values) > WIDEST:
            return f"a row of a head has more than {WIDEST} elements"
        if any(strides and batch_step(p, strides) is None for strides in p.strides):
            return "batches of an array are not evenly apart"
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        # scalar multiply-adds, each with a load: 0.9 TFLOP/s on an H100, whose peak is 67
        return float(
            2 * LAUNCH + 75.0 * problem.flops() / target.peak("f32") + problem.bytes_moved() / target.bandwidth
        )

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        p: AttentionProblem = problem
        wide = -(-max(p.width, p.values) // 32)
        flags = int(p.causal) + 2 * (p.way == "train")
        sizes = (p.width << 32) + p.values

        def one(make: Any, count: int, operands: tuple[int, ...], mask: int, lse: int) -> Any:
            steps = [each for at in (*operands, mask, lse) for each in steps_of(p, at)]
            fixed = (count, p.rows, p.heads, p.heads // p.groups, p.keys, flags, sizes, *steps)

            def values(arrays: Any, floats: Any, at: Any) -> tuple[Any, ...]:
                given = (arrays[n] if n < len(arrays) else None for n in (*operands, mask, lse))
                return (*(0 if each is None else each.pointer for each in given), floats[0], *fixed)

            return step(make(p.dtype, p.mask, wide), -(-count // WARPS), values)

        queries, keys = p.batch * p.heads * p.rows, p.batch * p.groups * p.keys
        if p.way != "backward":
            return make_launcher([one(make_forward, queries, (OUT, Q, K, V), MASK, LSE)])
        inputs = (DOUT, B_Q, B_K, B_V, B_OUT)
        return make_launcher([
            one(make_queries, queries, (DQ, *inputs), B_MASK, B_LSE),
            one(make_keys, keys, (DK, DV, *inputs), B_MASK, B_LSE),
        ])  # fmt: skip
