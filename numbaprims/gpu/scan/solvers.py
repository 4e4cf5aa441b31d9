"""The ways to sum up on a GPU."""

from __future__ import annotations

from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.gpu.launch import Addresses, make_launcher, step
from numbaprims.gpu.scan.kernels import DIMS, THREADS, make_kernel
from numbaprims.gpu.solver import Solver
from numbaprims.ops._scan_problem import dims_of

LAUNCH = 3e-6
LATENCY = 5e-7
"""Of reading elements and adding them, for one who waits for them."""


class Rows(Solver):
    """A warp for each row."""

    name = "rows"
    way = "rows"
    side_by_side = 32
    at_once = 4

    def why_not(self, problem: Any, target: Any) -> str | None:
        if dims_of(problem, DIMS) is None:
            return f"rows lie in more than {DIMS} dimensions"
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        p = problem
        lies_well = (p.layout == "rows") == (self.way == "rows")
        moved = p.bytes_moved() * (1 if lies_well else 8) / (0.8 * target.bandwidth)
        return float(LAUNCH + max(moved, LATENCY * p.n / (self.side_by_side * self.at_once)))

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        p, dims = problem, dims_of(problem, DIMS)
        assert dims is not None
        fixed = [p.rows, p.n, *(each for dim in dims for each in dim), *(step for _, step in p.lies)]
        kernel = make_kernel(self.way, p.dtype, p.exclusive, p.reverse, p.product)

        def values(arrays: Any, floats: Any, at: Addresses) -> tuple[Any, ...]:
            return (*(each.pointer for each in arrays[:2]), *fixed)

        rows = THREADS // self.side_by_side
        return make_launcher([step(kernel, -(-p.rows // rows), values)])


class Each(Rows):
    """A thread for each row."""

    name = "each"
    way = "each"
    side_by_side = 1
    at_once = 1


SOLVERS = (Rows(), Each())
