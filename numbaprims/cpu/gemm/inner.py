"""Products with few columns (or few rows), as inner products along k.

Of few columns a vector across them would be half empty, and packing the m x k elements of A would cost as much as the
product.  Here vectors run along k: R rows of A times C columns of B are R * C sums in registers, A is read where it
lies, and the next R rows are asked for.  Bound: the bytes of A, or m n k / 16 multiply-adds of a vector.

"x" is the matrix with many rows, "y" the one with few; a product with few rows is the same with A and B exchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from numbaprims.cpu.gemm import cost
from numbaprims.cpu.gemm.arguments import ARGS as PRODUCT, batch_offsets, bias_dtype, common_ints
from numbaprims.cpu.gemm.blocked import begins, finish
from numbaprims.cpu.gemm.finish import activation_address, make_finish
from numbaprims.cpu.gemm.long import in_parts
from numbaprims.cpu.gemv.blocks import read_rate
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import (
    address_of,
    advance,
    lanes,
    load_wide_scalar,
    pointer_from_address,
    store_scalar,
    tile_inner,
    tile_reduce_store,
)
from numbaprims.cpu.solver import Config, Regions, Solver
from numbaprims.dtypes import DTYPES

ARGS = PRODUCT.with_regions(own=("y_copy", "sums"))
# Columns of a tile -> its rows: R * C sums, R rows of x and one of y in 32 registers.
ROWS = {1: 8, 2: 8, 3: 7, 4: 6, 5: 4, 6: 4, 7: 3, 8: 3}
# The same of 16 registers: by 3 x 8, 40 operands of 91 on the stack, 128 x 10 x 256 took 20.5 us, by 4 x 3 8.8.
ROWS_OF_16 = {1: 8, 2: 6, 3: 4}
# Up to so many of the few rows: of 64 by 1024 x 1024 `direct` took 1.37 ms on a Zen 4 and this 1.29, by AVX2 the latter
# took 1.1 times as long with 32.
FEW, FEW_OF_16 = 64, 16
# Cycles of the tree of additions that a sum ends in.
SUM = 5.0
# What a single row takes of that: two of three columns of its tiles are nobody's. 1 x 512 x 256 took 1.1 to 1.45 times
# as long as estimated on six CPUs, as a gemv 0.85 to 1.0.
ALONE = 1.25


@functools.cache
def make_inner(
    dtype: str, out: str, bias: str, acc: str, size: int, R: int, C: int, W: int, x_is_a: bool
) -> RangeKernel:
    """Blocks of `mc` rows of x, all of y; y is first copied so that its rows have unit stride (`k_group` = 1) or read
    where it lies (`k_group` = 0)."""
    types = ARGS.types(out=out, a=dtype, b=dtype, c=out, bias=bias, y_copy=acc, sums=acc)

    @range_kernel("gemm_inner", types, spec=(dtype, out, bias, acc, size, R, C, W, x_is_a))
    def gemm_inner(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        many = args.m if x_is_a else args.n
        few = args.n if x_is_a else args.m
        x_step = args.a_rs if x_is_a else args.b_cs
        y_step = args.b_cs if x_is_a else args.a_rs
        y_k_step = args.b_rs if x_is_a else args.a_cs
        y_copy = args.y_copy[worker]
        copied = -1
        for tile in range(lo, hi):
            product, block = divmod(tile, args.m_blocks)
            i0 = block * args.mc
            rows = min(args.mc, many - i0)
            begin = begins(args, product)
            x = advance(args.a, begin.a) if x_is_a else advance(args.b, begin.b)
            y = advance(args.b, begin.b) if x_is_a else advance(args.a, begin.a)
            if args.k_group and copied != product:
                for j in range(few):
                    for p in range(args.k):
                        store_scalar(y_copy, j * args.k + p, load_wide_scalar(y, j * y_step + p * y_k_step))
                copied = product
            row0 = i0 if x_is_a else 0
            column0 = 0 if x_is_a else i0
            at = begin.out + row0 * args.out_rs + column0 * args.out_cs
            out_address = address_of(args.out) + args.out_size * at
            if args.sums_in_out:
                total = pointer_from_address(out_address, acc)
                total_step = args.out_rs
            else:
                total = args.sums[worker]
                total_step = few if x_is_a else args.mc
            x_total = total_step if x_is_a else 1
            y_total = 1 if x_is_a else total_step
            for i in range(0, rows, R):
                for j in range(0, few, C):
                    left = advance(x, (i0 + i) * x_step)
                    there = min(R, rows - i)
                    width = min(C, few - j)
                    target = advance(total, i * x_total + j * y_total)
                    if args.k_group:
                        right = advance(y_copy, j * args.k)
                        sums = tile_inner(left, x_step, there, right, args.k, width, args.k, R, C, W)
                        tile_reduce_store(target, x_total, there, y_total, width, sums, R, C)
                    else:
                        right_there = advance(y, j * y_step)
                        sums = tile_inner(left, x_step, there, right_there, y_step, width, args.k, R, C, W)
                        tile_reduce_store(target, x_total, there, y_total, width, sums, R, C)
            if args.finish:
                start = begin.c + row0 * args.c_rs + column0 * args.c_cs
                finish(
                    args, out_address, address_of(total), total_step, address_of(args.c) + args.c_size * start,
                    row0, column0, rows if x_is_a else few, few if x_is_a else rows,
                )  # fmt: skip

    return gemm_inner


@in_parts
class Inner(Solver):
    """Inner products along k, for few columns or few rows."""

    name = "inner"
    version = 2  # other tiles

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.accumulate not in ("f32", "f64"):
            return "it sums in float32 or float64 only"
        if problem.k == 0:
            return "k is 0"
        most = FEW if target.isa in ("avx512", "neon") else FEW_OF_16
        x_is_a, _, few = self._few(problem)
        if few <= most and (problem.strides.a[1] if x_is_a else problem.strides.b[0]) == 1:
            return None
        return f"neither A lies by rows with n <= {most}, nor B by columns with m <= {most}"

    @staticmethod
    def _few(problem: Any) -> tuple[bool, int, int]:
        """Whether x is A, then how many rows x and y have."""
        turned = problem.strides.b[0] == 1 and (problem.m < problem.n or problem.strides.a[1] != 1)
        return (False, problem.n, problem.m) if turned else (True, problem.m, problem.n)

    @staticmethod
    def _tile(few: int, target: Any) -> tuple[int, int]:
        """Rows and columns of a tile: the widest of those that pad the few the least, of 3 columns and more."""
        rows = ROWS if target.isa in ("avx512", "neon") else ROWS_OF_16
        C = min((C for C in rows if C >= min(few, 3)), key=lambda C: (cost.round_up(few, C), -C))
        return rows[C], C

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        _, many, few = self._few(problem)
        R, C = self._tile(few, target)
        # an eighth of the rows, but blocks of no less than 0.2 million operations: opening one costs 0.1 us
        rows = max(cost.ceil_div(many, 8), cost.ceil_div(100_000, max(few * problem.k, 1)))
        yield {"r": R, "c": C, "mc": max(R, min(96 // R * R, cost.round_up(rows, R)))}

    def estimate(self, problem: Any, target: Any) -> float:
        _, many, few = self._few(problem)
        R, C = self._tile(few, target)
        W = lanes(problem.accumulate, target.vector_bytes)
        tiles = problem.batch * cost.ceil_div(many, R) * cost.ceil_div(few, C)
        # a vector step costs R * C multiply-adds or R + C loads, each sum ends in a tree of log2 W additions
        rates, steps = target.rates, tiles * cost.ceil_div(problem.k, W) * max(R * C, R + C)
        seconds = 2.0 * steps * W / cost.peak(problem, target) + rates.cycles(SUM * tiles * R * C)
        y_copy = problem.batch * few * problem.k * 4.1 if self._copies(problem) else 0.0
        # x comes once, y for every R rows of x; what takes longest hides three quarters of the others
        size = DTYPES[problem.a_dtype].itemsize * problem.k
        x_bytes, y_bytes = many * size, few * size if few * size > target.l1d else 0
        streams = problem.batch * x_bytes / read_rate(problem.batch * x_bytes, target)
        again = problem.batch * cost.ceil_div(many, R) * y_bytes / read_rate(y_bytes, target)
        # but of a core that takes whole vectors in one turn, whose loads from the second level show: 32 x 1760 x 1760
        # 1.7 ms, of which 0.9 are arithmetic and 0.66 y (Zen 5)
        if not rates.two_turns(target.vector_bytes):
            seconds, again = seconds + again, 0.0
        longest = max(seconds, streams, again)
        both = longest + 0.25 * (seconds + streams + again - longest)
        both *= ALONE if few == 1 else 1.0
        return float(4 / 3 * rates.call + both + rates.cycles(y_copy))

    def _copies(self, problem: Any) -> bool:
        x_is_a, _, few = self._few(problem)
        unit = problem.strides.b[0] if x_is_a else problem.strides.a[1]
        return unit != 1

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        """y's copy, and sums that out cannot hold."""
        size = DTYPES[problem.accumulate].itemsize
        few = self._few(problem)[2]
        in_out = problem.out_dtype == problem.accumulate and problem.strides.out[1] == 1 and not problem.has_c
        y_bytes = few * problem.k * size if self._copies(problem) else 0
        return Regions(own={"y_copy": y_bytes, "sums": 0 if in_out else int(config["mc"]) * few * size})

    def program(self, problem: Any, target: Any, config: Config, column: int = 0) -> Program:
        """`column`: where the problem's columns begin in B, C and out (the bias begins with them)."""
        acc = problem.accumulate
        size = DTYPES[acc].itemsize
        W = lanes(acc, target.vector_bytes)
        x_is_a, many, _ = self._few(problem)
        in_out = problem.out_dtype == acc and problem.strides.out[1] == 1 and not problem.has_c
        mc = int(config["mc"])
        copies = self._copies(problem)
        offsets = batch_offsets(problem)
        steps = problem.strides
        offsets += np.array([0, steps.b[1], steps.out[1], steps.c[1]]) * column
        finish_address = 0
        if problem.ends or not in_out:
            finish_address = make_finish(acc, problem.out_dtype, bias_dtype(problem), W).address
        ints = common_ints(problem, offsets, activation_address(problem, target)) | {
            "mc": mc, "m_blocks": cost.ceil_div(many, mc), "k_group": int(copies), "sums_in_out": int(in_out),
            "finish": finish_address,
        }  # fmt: skip
        kernel = make_inner(
            problem.a_dtype, problem.out_dtype, bias_dtype(problem), acc, size, int(config["r"]), int(config["c"]), W,
            x_is_a,
        )  # fmt: skip
        phases = [(kernel, problem.batch * ints["m_blocks"], 1)]
        return Program.of(
            ARGS, ints, phases, keep=(offsets,), parallel=problem.flops() > 1e6,
            regions=self.regions(problem, target, config),
        )  # fmt: skip
