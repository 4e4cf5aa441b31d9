"""The definition as a loop: every type, stride and size.  The last resort; never chosen where another solver can."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from numbaprims.cpu.gemm.arguments import ARGS, batch_offsets, bias_dtype, common_ints
from numbaprims.cpu.gemm.blocked import begins
from numbaprims.cpu.gemm.finish import activate_in_place, activation_address
from numbaprims.cpu.gemm.long import in_parts
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import (
    address_of,
    advance,
    load_scalar,
    load_wide_scalar,
    scalar,
    stack_array,
    store_narrow_scalar,
    store_scalar,
)
from numbaprims.cpu.solver import Config, Solver


@functools.cache
def make_naive(a: str, b: str, out: str, bias: str, acc: str) -> RangeKernel:
    """Kernel over the rows of all products."""
    c = "i32" if acc == "i32" else out
    types = ARGS.types(out=out, a=a, b=b, c=c, bias=bias, factors="f32")
    requantized, integers = acc == "i32" and out != acc, acc == "i32"
    LOW, HIGH = (0, 255) if out == "u8" else (-128, 127)

    @range_kernel("gemm_naive", types, spec=(a, b, out, bias, acc))
    def naive(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        room = stack_array(acc, 8)  # one element, in the form that an activation's kernel takes
        for row in range(lo, hi):
            product = row // args.m
            i = row - product * args.m
            begin = begins(args, product)
            a = advance(args.a, begin.a + i * args.a_rs)
            b = advance(args.b, begin.b)
            out = advance(args.out, begin.out + i * args.out_rs)
            c = advance(args.c, begin.c + i * args.c_rs)
            for j in range(args.n):
                total = scalar(0, acc)
                for p in range(args.k):
                    x = load_wide_scalar(a, p * args.a_cs)
                    if integers:
                        x = scalar(x - int(args.p0), acc)
                    total = scalar(total + x * load_wide_scalar(b, p * args.b_rs + j * args.b_cs), acc)
                if not requantized:
                    total = scalar(total * scalar(args.alpha, acc), acc)
                if args.has_c:
                    term = load_wide_scalar(c, j * args.c_cs)
                    total = scalar(total + (term if requantized else term * scalar(args.beta, acc)), acc)
                if args.bias_axis == 1:
                    total = scalar(total + load_wide_scalar(args.bias, j * args.bias_step), acc)
                elif args.bias_axis == 2:
                    total = scalar(total + load_wide_scalar(args.bias, i * args.bias_step), acc)
                if args.activation != 0:
                    store_scalar(room, 0, total)
                    activate_in_place(args, room, 1)
                    total = load_scalar(room, 0)
                if requantized:
                    factor = scalar(args.alpha, "f32")
                    if address_of(args.factors) != 0:
                        factor = load_scalar(args.factors, j)
                    y = np.rint(scalar(total, "f32") * factor) + scalar(args.beta, "f32")
                    total = scalar(min(max(y, LOW), HIGH), acc)
                store_narrow_scalar(out, j * args.out_cs, total)

    return naive


@in_parts
class Naive(Solver):
    """One element at a time."""

    name = "naive"

    def estimate(self, problem: Any, target: Any) -> float:
        # a scalar multiply-add with its conversions, strided reads of B: 16 to 50 cycles each were measured
        cycles = 8.2 * problem.flops() + 16.4 * problem.batch * problem.m * problem.n
        return float(1.67 * target.rates.call + target.rates.cycles(cycles))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        offsets = batch_offsets(problem)
        kernel = make_naive(
            problem.a_dtype, problem.b_dtype, problem.out_dtype, bias_dtype(problem), problem.accumulate
        )
        ints = common_ints(problem, offsets, activation_address(problem, target))
        rows = problem.batch * problem.m
        phases = [(kernel, rows, max(1, min(64, rows // 8)))]
        return Program.of(
            ARGS, ints, phases, keep=(offsets,), parallel=self.estimate(problem, target) > 5 * target.rates.wake
        )
