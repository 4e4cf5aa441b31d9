"""The way to turn rows on a GPU."""

from __future__ import annotations

from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.gpu.launch import Addresses, make_launcher, step
from numbaprims.gpu.rope.kernels import DIMS, THREADS, make_kernel
from numbaprims.gpu.solver import Solver
from numbaprims.ops._rope_problem import COS, OUT, SIN, X, dims_of

LAUNCH = 3e-6


class Pairs(Solver):
    """A thread a pair."""

    name = "pairs"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if len(dims_of(problem)[0]) > DIMS:
            return f"rows lie in more than {DIMS} dimensions"
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        return float(LAUNCH + problem.bytes_moved() / (0.8 * target.bandwidth))

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        p = problem
        sizes, steps = dims_of(p)
        lead = DIMS - len(sizes)
        lies = [(*(0,) * lead, *each) for each in steps]
        while len(lies) < 5:
            lies.append((0,) * DIMS)
        count = p.rows * (p.width - p.half)
        fixed = [count, p.half, p.width, p.limit, *(1,) * lead, *sizes]
        fixed += [each for lie in lies for each in lie]
        fixed += [p.strides[at][-1] for at in (OUT, X, COS, SIN)]
        fixed += [p.strides[at][-2] for at in (COS, SIN)]

        def values(arrays: Any, floats: Any, at: Addresses) -> tuple[Any, ...]:
            given = [each.pointer for each in arrays if each is not None][: len(steps)]
            return (*given, *(0,) * (5 - len(given)), *fixed)

        kernel = make_kernel(p.dtype, p.cache, p.places, p.interleaved, p.inverse)
        return make_launcher([step(kernel, -(-count // THREADS), values)])


SOLVERS = (Pairs(),)
