"""The way to run a recurrent network on a GPU, and what it is estimated to take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.gpu.rnn.forward import Forward
from numbaprims.gpu.rnn.gradient import Gradient
from numbaprims.gpu.solver import Solver

LAUNCH = 3e-6
_LIMIT = (1 << 31) - (1 << 20)


class SingleGemm(Solver):
    """One input product for all steps; then a product for each direction and one cell kernel a step."""

    name = "single_gemm"

    def why_not(self, problem: Any, target: Any) -> str | None:
        p = problem
        if p.batch * max(p.hidden, p.state) >= _LIMIT:
            return "its indices have 32 bits, and a state has more elements"
        if p.dropout:
            return "it drops no elements between layers"
        return None

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        yield {}

    def estimate(self, problem: Any, target: Any) -> float:
        p = problem
        launches = p.layers * p.steps * (p.directions + 1)
        return float(launches * LAUNCH + p.flops() / target.peak(p.dtype) + p.bytes_moved() / target.bandwidth)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        make = Gradient if problem.way == "backward" else Forward
        return make(problem, target).program().launcher()


SOLVERS = (SingleGemm(),)
