"""int8 products of few rows: B is read where it lies, by rows, and interleaved in registers.

Bound: k n bytes of B from wherever they lie. Packing writes and reads each of them once more: 1 x 1000 x 2048 took 205
us packed, and takes 65 (Zen 4). Interleaving costs two instructions for each vector of B and row tile, so that for many
rows B is packed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from numbaprims.cpu.gemm import blocked, cost
from numbaprims.cpu.gemm.arguments import MULTIPLY, PRIVATE, batch_offsets, bias_dtype, common_ints
from numbaprims.cpu.gemm.cost import ceil_div, round_up
from numbaprims.cpu.gemm.finish import activation_address, finish_kernel
from numbaprims.cpu.gemm.multiply import keep_part
from numbaprims.cpu.gemm.solvers import SIGN_BITS, SLACK, dot_kind, keeps_sums_in_out, sum_bytes
from numbaprims.cpu.gemm.vnni import make_pack_groups
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import (
    address_of,
    advance,
    lanes,
    stack_tile,
    tile_add,
    tile_load,
    tile_reduce_store,
    tile_store,
)
from numbaprims.cpu.simd.dot import byte_kind, dot_feature
from numbaprims.cpu.simd.tiles.dot_columns import tile_dot_columns, tile_inner_dot
from numbaprims.cpu.solver import Config, Regions, Solver

MOST = 24
"""Rows at most: of 32 a packed panel is read often enough."""
ROWS, ALIASED = 256, 64
"""Rows of B side by side, and where they share the sets of the first-level cache."""
AHEAD = 16384
"""Bytes of B between what is prefetched and its use."""
COLUMNS = 4
"""Columns of a tile of inner products."""
# Cycles that the interleaving of four rows of 4 vectors takes.
INTERLEAVE = 8


@helper
def multiply_strip(args, j, columns, room, MR, W, summed, kind):  # type: ignore[no-untyped-def]
    """All rows of A with 4 W columns of B, of which `columns` are there."""
    step = args.total_step
    groups = (args.k + 3) // 4
    b = advance(args.b, j)
    for i in range(0, args.rows, MR):
        rows = min(MR, args.rows - i)
        total = advance(args.total, i * step + j)
        a, ahead = advance(args.a, i * groups), max(8 * W, AHEAD // args.k)
        tile = tile_dot_columns(a, b, args.b_step, columns, args.k, args.shift, ahead, MR, W, summed, kind)
        if rows == MR and columns == 4 * W:
            if not args.first:
                tile = tile_add(tile_load(total, step, MR, 4, W), tile)
            tile_store(total, step, tile, MR, 4, W)
        else:
            tile_store(room, 4 * W, tile, MR, 4, W)
            keep_part(room, total, step, rows, columns, args.first, 4 * W, W)


@functools.cache
def make_multiply_columns(MR: int, W: int, kind: str) -> RangeKernel:
    """Multiply packed groups of A with rows of B where they lie."""
    types = MULTIPLY.types(a="i32", b="i8", total="i32")

    @range_kernel("gemm_multiply_columns", types, spec=(MR, W, kind))
    def gemm_multiply_columns(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        room = stack_tile("i32", MR, 4, W)
        # of a wide block whose rows begin alike, strips begin where lines do: 1 x 4096 x 1024 took 0.39, not 0.25 ms
        off = address_of(args.b) % (4 * W)
        j = 0
        while j < args.columns:
            columns = min(4 * W, args.columns - j)
            if j == 0 and args.b_step % (4 * W) == 0 and args.columns >= 32 * W:
                columns = 4 * W - off
            if columns < 4 * W:
                multiply_strip(args, j, columns, room, MR, W, 1, kind)
            elif args.shift == 0:
                multiply_strip(args, j, 4 * W, room, MR, W, 0, kind)
            else:
                multiply_strip(args, j, 4 * W, room, MR, W, 1, kind)
            j += columns

    return gemm_multiply_columns


@functools.cache
def make_multiply_inner(dtype: str, R: int, C: int, W: int) -> RangeKernel:
    """Multiply rows of A with columns of B, both along k where they lie; b_step is that of columns."""
    types = MULTIPLY.types(a=dtype, b="i8", total="i32")

    @range_kernel("gemm_multiply_inner", types, spec=(dtype, R, C, W))
    def gemm_multiply_inner(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        step = args.total_step
        for j in range(0, args.columns, C):
            b, columns = advance(args.b, j * args.b_step), min(C, args.columns - j)
            for i in range(0, args.rows, R):
                a, rows = advance(args.a, i * args.a_step), min(R, args.rows - i)
                sums = tile_inner_dot(a, args.a_step, rows, b, args.b_step, columns, args.k, args.shift, R, C, W)
                tile_reduce_store(advance(args.total, i * step + j), step, rows, 1, columns, sums, R, C)

    return gemm_multiply_inner


class Dots(Solver):
    """B where it lies: by rows, which are interleaved in registers, or by columns, read along k as the rows of A."""

    name = "dots"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if dot_kind(problem, target) != "u8s8":
            return "it multiplies integers of 8 bits"
        if problem.k == 0:
            return "k is 0"
        if problem.strides.b[1] != 1 and not self._along(problem):
            return "neither the rows of B are contiguous, nor its columns and the rows of A"
        if problem.m > MOST:
            return f"more than {MOST} rows are packed for"
        return None

    @staticmethod
    def _along(problem: Any) -> bool:
        """Whether columns of B are read along k, with rows of A; nothing is then packed."""
        return bool(problem.strides.b[1] != 1 and problem.strides.b[0] == problem.strides.a[1] == 1)

    @staticmethod
    def _height(problem: Any, target: Any) -> int:
        """Rows of a tile: four vectors of sums each."""
        most = 4 if target.isa in ("avx512", "neon") else 2
        return int(ceil_div(problem.m, ceil_div(problem.m, most)))

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        strip = 4 * lanes("i32", target.vector_bytes)
        nc = max(strip, round_up(ceil_div(problem.n, 8), strip))
        if self._along(problem):
            yield {"mr": self._height(problem, target), "kc": problem.k, "nc": max(COLUMNS, ceil_div(nc, 4))}
            return
        aliased = problem.strides.b[0] % 4096 == 0
        yield {"mr": self._height(problem, target), "kc": ALIASED if aliased else ROWS, "nc": nc}

    @staticmethod
    def _blocks(problem: Any, target: Any, config: Config) -> dict[str, int]:
        MR, nc, kc = (int(config[name]) for name in ("mr", "nc", "kc"))
        kc = round_up(kc, 4)
        return {
            "mr": MR, "nr": 4 * lanes("i32", target.vector_bytes), "kc": kc, "mc": problem.m, "nc": nc, "m_blocks": 1,
            "n_blocks": ceil_div(problem.n, nc),
        }  # fmt: skip

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        blocks = self._blocks(problem, target, config)
        packed = 0 if self._along(problem) else round_up(problem.m, blocks["mr"]) * blocks["kc"] + SLACK
        return Regions(own={"packed_a": packed, "sums": sum_bytes(problem, problem.m * blocks["nc"])})

    def estimate(self, problem: Any, target: Any) -> float:
        config = next(iter(self.configs(problem, target)))
        mr, strip = int(config["mr"]), 4 * lanes("i32", target.vector_bytes)
        groups = problem.batch * ceil_div(problem.k, 4) * ceil_div(problem.n, strip)
        cycles = groups * ceil_div(problem.m, mr) * max(INTERLEAVE + 4 * mr, 12)
        rates = target.rates
        return float(
            cost.launch_time(target, "direct") + rates.cycles(cycles) + cost.far_time(problem, target, "bytes")
        )

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        W, MR = lanes("i32", target.vector_bytes), int(config["mr"])
        offsets = batch_offsets(problem)
        in_out = keeps_sums_in_out(problem)
        kind, flip = byte_kind(problem.a_dtype == "i8", W)
        if self._along(problem):
            # one block of k, so that the step between rows of B is not needed
            own = {
                "multiply": make_multiply_inner(problem.a_dtype, MR, COLUMNS, W).address,
                "b_rs": problem.strides.b[1],
            }
        else:
            pack = make_pack_groups(problem.a_dtype, MR, W, 4, SIGN_BITS if flip else 0, False, dot_feature("u8s8", W))
            own = {"multiply": make_multiply_columns(MR, W, kind).address, "pack_a": pack.address}
        finish = finish_kernel(problem, bias_dtype(problem), W).address if problem.ends or not in_out else 0
        ints = common_ints(problem, offsets, activation_address(problem, target)) | {
            "flip": flip, "k_group": 4, "finish": finish, "sums_in_out": int(in_out),
        } | own | self._blocks(problem, target, config)  # fmt: skip
        tiles = problem.batch * ints["n_blocks"]
        return Program.of(
            PRIVATE, ints, [(blocked.make_direct_driver(), tiles, 1)], keep=(offsets,),
            parallel=cost.worth_threads(problem, target), regions=self.regions(problem, target, config),
        )  # fmt: skip
