"""`sums`: the gradient of a bias, the sum of each channel of y, by the reduce engine: one row a channel.

Bound: y is read once, one addition an element.
"""

from __future__ import annotations

from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.gpu.reduce.posed import solver_of
from numbaprims.gpu.solver import Solver
from numbaprims.ops._reduction_problem import posed


class Sums(Solver):
    """The sum of each channel, in a fixed order."""

    name = "sums"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None if problem.direction == "bias" else "it sums, and this is a sum of products"

    def estimate(self, problem: Any, target: Any) -> float:
        sums = _posed(problem)
        return float(solver_of(sums).estimate(sums, target))

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        return None

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        sums = _posed(problem)
        launcher: Launcher = solver_of(sums).bind(sums, target, config)
        return launcher


def _posed(problem: Any) -> Any:
    p, steps = problem, problem.strides.y
    shape, strides = (p.k, p.n, *p.y_size), (steps[1], steps[0], *steps[2:])
    lies = (p.strides.w[0], *(0,) * 4), strides
    return posed("total", (p.w_dtype, p.y_dtype), shape, range(1, len(shape)), lies)
