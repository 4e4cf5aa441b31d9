"""Gradients of the bias: db[k] = the sum of dy over images and pixels, by the reduce engine.

Bound: the bytes of dy, each read once.
"""

from __future__ import annotations

from typing import Any

from numbaprims.cpu.conv.long import in_parts
from numbaprims.cpu.program import Program
from numbaprims.cpu.reduce.posed import PosedReduction
from numbaprims.cpu.solver import Config, Solver


@in_parts
class Sums(Solver):
    """One row a channel."""

    name = "sums"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.direction != "bias":
            return "it computes gradients of the bias"
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        return _sum(problem).estimate(target)

    def workspace(self, problem: Any, target: Any, config: Config) -> int:
        return _sum(problem).program(target).shared

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        return _sum(problem).program(target)


def _sum(problem: Any) -> PosedReduction:
    p, steps = problem, problem.strides.y
    shape, strides = (p.k, p.n, *p.y_size), (steps[1], steps[0], *steps[2:])
    return PosedReduction.sum("total", [p.w_dtype, p.y_dtype], shape, ((p.strides.w[0], *(0,) * 4), strides))
