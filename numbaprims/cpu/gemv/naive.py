"""The definition as a loop: every type, stride and size."""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.cpu import parts
from numbaprims.cpu.gemv.arguments import ARGS, accumulate, walk
from numbaprims.cpu.gemv.blocks import START, bytes_a_second
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import advance, load_wide_scalar, scalar, store_narrow_scalar
from numbaprims.cpu.solver import Config, Solver

TILE = 64
"""Rows that a worker takes at a time."""


@functools.cache
def make_naive(dtype: str, terms: int) -> RangeKernel:
    """Rows of out, summed in parts of so many terms; tile = one row."""
    acc = accumulate(dtype)
    types = ARGS.types(out=dtype, a=dtype, x=dtype, y=dtype, sums=acc)

    @range_kernel("gemv_naive", types, spec=(dtype, terms))
    def naive(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        x = advance(args.x, args.x_start)
        for i in range(lo, hi):
            a = advance(args.a, args.a_start + i * args.a_rs)
            total = scalar(0.0, acc)
            for first in range(0, args.n, terms):
                part = scalar(0.0, acc)
                for j in range(first, min(first + terms, args.n)):
                    part += load_wide_scalar(a, j * args.a_cs) * load_wide_scalar(x, j * args.x_step)
                total += part
            total *= scalar(args.alpha, acc)
            if args.has_y:
                added = load_wide_scalar(args.y, args.y_start + i * args.y_step)
                total += scalar(args.beta, acc) * added
            store_narrow_scalar(args.out, args.out_start + i * args.out_step, total)

    return naive


class Naive(Solver):
    """One product and one addition after the other; refuses nothing."""

    name = "naive"

    def estimate(self, problem: Any, target: Any) -> float:
        # one dependent addition a term
        moving = problem.bytes_moved() / bytes_a_second(problem, target)
        return float(START * target.rates.call + moving + target.rates.cycles(5.33 * problem.m * problem.n))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        phases = [(make_naive(problem.dtype, parts.TERMS), problem.m, TILE)]
        return Program.of(ARGS, walk(problem), phases, parallel=problem.m * problem.n >= 1 << 15)
