"""The ways to turn rows, and what each is estimated to take."""

from __future__ import annotations

from typing import Any

from numbaprims.cpu.program import Block, Phase, Program, Run
from numbaprims.cpu.rope.kernels import ARGS, ARRAYS, make_kernel
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.simd.emit import LINE
from numbaprims.cpu.solver import Config, Solver
from numbaprims.dtypes import DTYPES
from numbaprims.ops._rope_problem import COS, OUT, POSITIONS, SIN, X, walk_of

TILE_BYTES = 1 << 20
"""Of x in a tile at most: 67 MB take 3.3 ms by tiles of 16 KiB, 2.9 by those of 256 and 2.5 by those of 1024, whose
cosines come from the second-level cache (Zen 4)."""
LEAST = 8192
"""Bytes of a tile that is worth to be handed out."""
CHUNKS = 32
"""Parts of the work, where rows are enough: something for every worker."""
STRAIGHT = 4
"""Vectors of pairs, at most, whose number a kernel knows."""
VECTOR_CYCLES = 8


class Rows(Solver):
    """Rows whose elements lie side by side, a vector of pairs at a time."""

    name = "rows"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.layout != "rows":
            return "the elements of a row do not lie side by side in every array"
        return None

    def lanes(self, problem: Any, target: Any) -> int:
        W = lanes(DTYPES[problem.dtype].accumulate, target.vector_bytes)
        while W > 4 and W >= 2 * problem.half and W >= 2 * (problem.width - 2 * problem.half):
            W //= 2
        return W

    def estimate(self, problem: Any, target: Any) -> float:
        p, W = problem, self.lanes(problem, target)
        vectors = p.rows * (1 + -(-p.half // W) + -(-(p.width - 2 * p.half) // W) / 4)
        moved = p.bytes_moved()
        cycles = VECTOR_CYCLES * vectors
        return float(target.rates.call + target.rates.cycles(cycles) + moved / target.bandwidth(moved))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        p, walk = problem, walk_of(problem)
        row = p.width * DTYPES[p.dtype].itemsize
        block = max(1, min(walk.rows, min(TILE_BYTES, max(LEAST, p.rows * row // CHUNKS)) // row))
        tiles = -(-walk.rows // block) * len(walk.starts)
        ints = {"rows": walk.rows, "block": block, "outer": len(walk.starts), "starts": walk.starts.ctypes.data}
        ints |= {"width": p.width, "half": p.half, "limit": p.limit, "positions_row": 0}
        for name, at in zip(ARRAYS, (OUT, X, COS, SIN), strict=True):
            row = p.strides[at][-2] if p.places and at in (COS, SIN) else walk.steps[at]
            ints |= {f"{name}_row": row, f"{name}_col": p.strides[at][-1]}
        if p.places:
            ints["positions_row"] = walk.steps[POSITIONS]
        W = self.lanes(p, target)
        pairs = p.half if W > 1 and p.half % W == 0 and p.half <= STRAIGHT * W else 0
        # 68 MB from memory, 32 x 2048 x 128, take 6.1 ms by plain stores, 3.5 so (Emerald Rapids); on a Zen 4 2.7
        # either way
        lines = pairs > 0 and W * DTYPES[p.dtype].itemsize == LINE
        past = lines and target.rates.waits and p.bytes_moved() > target.kept
        kernel = make_kernel(p.dtype, p.cache, p.places, p.interleaved, p.inverse, pairs, W, past)
        return Program(
            (Run((Phase(kernel, tiles, max(1, tiles // CHUNKS)),), (Block(ARGS, ints),)),),
            **target.rates.waking(self.estimate(p, target)), keep=(walk.starts,),
        )  # fmt: skip


class Naive(Rows):
    """A pair after the other, however they lie."""

    name = "naive"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def lanes(self, problem: Any, target: Any) -> int:
        return 1


SOLVERS = (Rows(), Naive())
