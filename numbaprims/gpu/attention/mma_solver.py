"""The solvers on tensor cores."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.gpu.attention.kernels import WARPS
from numbaprims.gpu.attention.mma import CAUSAL, TILES, TRAIN, WIDE_TILES, Tile, make_mma
from numbaprims.gpu.attention.mma_backward import BACKWARD_TILES, make_backward, make_delta
from numbaprims.gpu.attention.solvers import LAUNCH, batch_step, steps_of
from numbaprims.gpu.attention.tiles import columns_of
from numbaprims.gpu.gemm.arguments import ceil_div
from numbaprims.gpu.gemm.tiles import copies
from numbaprims.gpu.launch import Step, by_alignment, make_launcher, step
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

FILL = 3e-6
"""Seconds until the first tiles have come."""
HELD = {"": 32, "bool": 32, "float": 16}
"""Registers of a thread that hold a warp's rows, by the mask; more are read from shared memory for each tile of the
other side."""
#: What is copied 16 bytes at a time or written so, forward and backward.
INPUTS = ((OUT, Q, K, V), (DQ, DK, DV, DOUT, B_Q, B_K, B_V))


def copy_bytes(p: AttentionProblem, operands: tuple[int, ...]) -> int:
    """Bytes of each copy of arrays that begin at multiples of 16 bytes: 16, 8, 4, or 0 for single elements."""
    apart = 16
    for at in operands:
        steps, shape = steps_of(p, at), (p.batch, 2, 2)
        apart = math.gcd(apart, *(2 * each for each, size in zip(steps[:3], shape, strict=True) if size > 1))
    return copies(2, apart)


def steps_of_all(p: AttentionProblem, operands: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(each for at in operands for each in steps_of(p, at))


def addresses(arrays: Any, operands: tuple[int, ...]) -> tuple[int, ...]:
    """Of a call's arrays; 0 for one that is not there."""
    given = (arrays[at] if at < len(arrays) else None for at in operands)
    return tuple(0 if each is None else each.pointer for each in given)


class Mma(Solver):
    """Tensor cores by mma.sync, float16 and bfloat16."""

    name = "mma"
    rate: ClassVar = {8: 0.55, 9: 0.35}
    """The part of the peak that the loop leaves, by capability: mma.sync reaches 0.62 of it from 9.0 on."""

    def why_not(self, problem: Any, target: Any) -> str | None:
        p: AttentionProblem = problem
        if p.dtype not in ("f16", "bf16"):
            return "it multiplies float16 and bfloat16 only"
        if target.capability < (8, 0):
            return f"it needs compute capability 8.0; this GPU has {'.'.join(map(str, target.capability))}"
        if max(p.width, p.values) > max(self._table(p)):
            return f"a row of a head has more than {max(self._table(p))} elements"
        if any(strides and batch_step(p, strides) is None for strides in p.strides):
            return "batches of an array are not evenly apart"
        lengths = {"q": p.width, "k": p.width, "v": p.values, "dout": p.values}
        if any(size > 1 and name in p.names and p.lies(name)[1] != 1 for name, size in lengths.items()):
            return "rows of q, k, v or dout are not contiguous"
        if max(p.rows, p.keys, p.batch * p.heads * ceil_div(p.rows, 64)) >= 2**30:
            return "there are more rows or heads than 32-bit indices reach"
        return None

    def _table(self, problem: Any) -> dict[int, dict[str, Tile]]:
        return BACKWARD_TILES if problem.way == "backward" else TILES

    def _tiles(self, problem: Any, target: Any) -> dict[str, Tile]:
        columns = columns_of(max(problem.width, problem.values))
        return self._table(problem)[columns]

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        tiles = self._tiles(problem, target)
        return tuple({"tile": name} for name in sorted(tiles, key=lambda x: self._seconds(problem, target, tiles[x])))

    def _seconds(self, problem: Any, target: Any, tile: Tile) -> float:
        """Of the multiprocessor with the most blocks; with few warps at a part of its rate (gemm's cost.py)."""
        p: AttentionProblem = problem
        rate = target.peak(p.dtype) * self.rate[min(9, target.capability[0])] / target.multiprocessors
        busiest = ceil_div(p.batch * p.heads * ceil_div(p.rows, tile.block_rows), target.multiprocessors)
        widths = 16 * ceil_div(p.width, 16), 16 * ceil_div(p.values, 16)
        each = 4 * widths[0] + 3 * widths[1] if p.way == "backward" else sum(widths)
        whole = 2.0 * tile.block_rows * p.keys * each

        def seconds(flops: float, blocks: int) -> float:
            warps = tile.warps * min(blocks, tile.blocks)
            return blocks * flops / (rate * min(1.0, 1.5 * warps / (warps + 4.0)))

        # of a causal call the blocks are unequal, and the longest goes first
        products = max(seconds(whole * p.pairs / (p.rows * p.keys), busiest), seconds(whole, 1))
        launches = 3 if p.way == "backward" else 1
        return float(launches * (LAUNCH + FILL) + max(products, p.bytes_moved() / target.bandwidth))

    def estimate(self, problem: Any, target: Any) -> float:
        return min(self._seconds(problem, target, tile) for tile in self._tiles(problem, target).values())

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        make = self._bind_backward if problem.way == "backward" else self._bind_forward
        tile = self._tiles(problem, target)[str(config["tile"])]
        operands = INPUTS[problem.way == "backward"]

        def of(aligned: bool) -> Launcher:
            return make(problem, tile, copy_bytes(problem, operands) if aligned else 0)

        return by_alignment(of, dict.fromkeys(operands, 16))

    def _bind_forward(self, p: AttentionProblem, tile: Tile, nbytes: int) -> Launcher:
        tiles = ceil_div(p.width, 16), ceil_div(p.values, 16)
        columns, held = columns_of(max(p.width, p.values)), 4 * (tile.rows // 16) * tiles[0]
        hold_q = held <= HELD[p.mask] and not tile.wide
        kernel = make_mma(p.dtype, p.mask, *tiles, columns, nbytes, tile, hold_q)
        flags = CAUSAL * p.causal + TRAIN * (p.way == "train")
        blocks, all_heads = ceil_div(p.rows, tile.block_rows), p.batch * p.heads
        sizes = (p.rows, p.heads, p.heads // p.groups, p.keys, flags, p.width, p.values)
        steps = steps_of_all(p, (OUT, Q, K, V, MASK))

        def values(arrays: Any, floats: Any, at: Any) -> tuple[Any, ...]:
            return (*addresses(arrays, (OUT, Q, K, V, MASK, LSE)), floats[0], blocks, all_heads, *sizes, *steps)

        return make_launcher([step(kernel, blocks * all_heads, values)])

    def _bind_backward(self, p: AttentionProblem, tile: Tile, nbytes: int) -> Launcher:
        tiles = ceil_div(p.width, 16), ceil_div(p.values, 16)
        columns, held = columns_of(max(p.width, p.values)), 4 * (tile.rows // 16) * sum(tiles) <= HELD[p.mask]
        share, queries = p.heads // p.groups, p.batch * p.heads * p.rows
        deltas = steps_of_all(p, (DOUT, B_OUT, B_LSE))

        def delta_values(arrays: Any, floats: Any, at: Any) -> tuple[Any, ...]:
            given = addresses(arrays, (DOUT, B_OUT, B_LSE))
            return (at["units"], at["delta"], *given, queries, p.rows, p.heads, p.values, *deltas)

        def gradient(turned: bool) -> Step:
            rows, rights, heads = (p.keys, p.rows, p.groups) if turned else (p.rows, p.keys, p.heads)
            operands = (DK, DV, B_K, B_V, B_Q, DOUT) if turned else (DQ, DQ, B_Q, DOUT, B_K, B_V)
            kernel = make_backward(p.dtype, p.mask, *tiles, columns, nbytes, tile, held, turned)
            blocks, all_heads = ceil_div(rows, tile.block_rows), p.batch * heads
            sizes = (rows, rights, p.heads, share, CAUSAL * p.causal, p.width, p.values)
            steps = steps_of_all(p, (*operands, B_MASK))

            def values(arrays: Any, floats: Any, at: Any) -> tuple[Any, ...]:
                given = (*addresses(arrays, (*operands, B_MASK)), at["units"], at["delta"])
                return (*given, floats[0], blocks, all_heads, *sizes, *steps)

            return step(kernel, blocks * all_heads, values)

        delta = step(make_delta(p.dtype, p.mask), ceil_div(queries, WARPS), delta_values)
        numbers = {"units": 4 * queries, "delta": 4 * queries}
        return make_launcher([delta, gradient(False), gradient(True)], numbers)


class Wgmma(Mma):
    """Tensor cores by wgmma, forward."""

    name = "wgmma"
    rate: ClassVar = {9: 0.55}

    def why_not(self, problem: Any, target: Any) -> str | None:
        if target.capability != (9, 0):
            return f"wgmma is of compute capability 9.0; this GPU has {'.'.join(map(str, target.capability))}"
        return "it has no gradient" if problem.way == "backward" else super().why_not(problem, target)

    def _table(self, problem: Any) -> dict[int, dict[str, Tile]]:
        return WIDE_TILES
