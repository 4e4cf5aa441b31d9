"""The way to find the k first elements on a GPU."""

from __future__ import annotations

from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.gpu.launch import Addresses, make_launcher, step
from numbaprims.gpu.solver import Solver
from numbaprims.gpu.topk.kernels import DIMS, THREADS, make_kernel
from numbaprims.ops._topk_problem import dims_of

LAUNCH = 3e-6
LATENCY = 5e-7
"""Of reading an element and comparing it, for one who waits for it."""


class List(Solver):
    """A thread for each row."""

    name = "list"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if dims_of(problem, DIMS) is None:
            return f"rows lie in more than {DIMS} dimensions"
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        return float(LAUNCH + LATENCY * problem.n + 8 * problem.bytes_moved() / target.bandwidth)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        p, dims = problem, dims_of(problem, DIMS)
        assert dims is not None
        fixed = [p.rows, p.n, p.k, *(each for dim in dims for each in dim), *(step for _, step in p.lies)]

        def values(arrays: Any, floats: Any, at: Addresses) -> tuple[Any, ...]:
            return (*(each.pointer for each in arrays[:3]), *fixed)

        return make_launcher([step(make_kernel(p.dtype, p.largest), -(-p.rows // THREADS), values)])


SOLVERS = (List(),)
