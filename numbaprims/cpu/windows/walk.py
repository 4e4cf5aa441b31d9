"""Maxima and averages by the stage of a stack: rows of results together, columns in registers.

A row of x is loaded once for four rows of results, and what its columns give together is carried along the row; maxima
take one instruction, and a band that had NaN is computed once more.
"""

from __future__ import annotations

import math
from typing import Any

from numbaprims.cpu.program import Part, Program, array, join
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.solver import Config, Solver
from numbaprims.cpu.stack import forward
from numbaprims.cpu.stack.channels import MOST_TAPS
from numbaprims.cpu.windows.arguments import computed
from numbaprims.dtypes import DTYPES
from numbaprims.ops._stack_problem import StackProblem
from numbaprims.stacks.operations import Window


def _lies(problem: Any, at: int) -> bool:
    """Whether neighbours along dimension `at` of x and y are neighbours in memory; a dimension of one element is so."""
    p = problem
    out, _, x, *_ = p.strides
    both = ((out, (p.n, p.c, *p.out)), (x, (p.n, p.c, *p.size)))
    return all(steps[at] == 1 or sizes[at] == 1 for steps, sizes in both)


def _window(problem: Any) -> Window:
    p = problem
    window = Window(p.op, p.kernel, p.stride, p.before, p.after, p.dilation, False, p.count_include_pad)
    return window if window.out_size(p.size) == p.out else window._replace(ceil=True)


#: Cycles of a row of results beside its vectors.
ROW = 8.0
#: Bytes of a way of a first-level cache.  Pixels that lie at so few places of it push each other out: 512 x 14 x 14
#: took 67 us, 480 x 14 x 14 24 (Zen 4).
PAGE, FEW = 4096, 4


class Walk(Solver):
    """One stage of a stack, over planes or channels last."""

    name = "walk"

    def why_not(self, problem: Any, target: Any) -> str | None:
        p = problem
        if p.direction != "forward" or p.indices:
            return "it goes forward only, and tells no places"
        if p.op == "lp" or p.adaptive:
            return "a stage has maxima and averages of windows of one size"
        if computed(p) == "i32":
            return "a stage computes in floats"
        if len(p.size) != 2:
            return "it has two spatial dimensions"
        if max(*p.kernel, *p.dilation) > MOST_TAPS:
            return f"it takes windows of up to {MOST_TAPS} rows and columns, as far apart at most"
        if not (_lies(p, 3) or _lies(p, 1)):
            return "neither the columns of x and y are contiguous, nor their channels"
        return None

    def stack(self, problem: Any) -> tuple[Any, StackProblem]:
        """The walk, and the problem as a stack of one stage."""
        p, pixels = problem, not _lies(problem, 3)
        layout = "channels_last" if pixels else "channels_first"
        strides = (p.strides[0], p.strides[2], (0, 0))
        posed = StackProblem(p.dtype, p.n, p.c, p.size, (_window(p).text,), layout, strides=strides)
        return forward.Pixels() if pixels else forward.Walk(), posed

    def estimate(self, problem: Any, target: Any) -> float:
        p, moved = problem, problem.bytes_moved()
        W, pixels = lanes(computed(p), target.vector_bytes), not _lies(p, 3)
        (high, wide), (down, across) = p.kernel, p.stride
        if pixels:  # lines of x that a result is the first to read
            cycles = -(-p.c // W) * math.prod(p.out) * (4.5 * down * across + high + wide + 0.5)
            apart = DTYPES[p.dtype].itemsize * abs(p.strides[2][3])
            if PAGE // math.gcd(apart, PAGE) <= FEW:
                cycles *= 2.5
        else:
            cycles = p.c * p.out[0] * (ROW + -(-p.out[1] // W) * (across * (high + 1.5) + wide))
        rates = target.rates
        return float(rates.call + moved / target.bandwidth(moved) + rates.cycles(p.n * cycles))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        walk, posed = self.stack(problem)
        return join([Part(walk.sequences(posed, target), [array(0), array(2), None], [])])
