"""The way to turn rows on a GPU."""

from __future__ import annotations

from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.launch import Addresses, by_alignment, make_launcher, step
from numbaprims.gpu.pointwise.walk import divisor, wide_places
from numbaprims.gpu.rope.kernels import DIMS, THREADS, make_kernel
from numbaprims.gpu.solver import Solver
from numbaprims.ops._rope_problem import COS, OUT, SIN, X, dims_of

LAUNCH = 3e-6


class Pairs(Solver):
    """A thread for four pairs, or for one."""

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
        tables = [lies[COS], lies[SIN]] if not p.places else []
        last = [p.strides[at][-1] for at in (OUT, X, COS, SIN)]
        rows = [p.strides[at][-2] for at in (COS, SIN)]
        ends = (p.half, p.width - 2 * p.half, *rows, *(each for lie in (lies[OUT], lies[X], *tables) for each in lie))
        least = max(DTYPES[p.dtype].itemsize, DTYPES[p.cache].itemsize)
        four = least <= 4 and last == [1] * 4 and not any(each % 4 for each in ends)
        far = [(n - 1) * abs(step) for lie in lies for n, step in zip((*(1,) * lead, *sizes), lie, strict=True)]
        wide = wide_places(p.rows * p.width, sum(far) + p.width * max(map(abs, last)))

        def launcher(whole: bool) -> Launcher:
            W = 4 if whole else 1
            items = (p.width - p.half) // W
            count = p.rows * items
            divisors = [divisor(each, wide) for each in (items, *(*(1,) * lead, *sizes)[1:])]
            fixed = [count, p.half, p.width, p.limit, *(part for each in divisors for part in each)]
            fixed += [each for lie in lies for each in lie]
            fixed += [*last, *rows]

            def values(arrays: Any, floats: Any, at: Addresses) -> tuple[Any, ...]:
                given = [each.pointer for each in arrays if each is not None][: len(steps)]
                return (*given, *(0,) * (5 - len(given)), *fixed)

            kernel = make_kernel(p.dtype, p.cache, p.places, p.interleaved, p.inverse, W, wide)
            return make_launcher([step(kernel, -(-count // THREADS), values)])

        if not four:
            return launcher(False)
        size, table = DTYPES[p.dtype].itemsize, DTYPES[p.cache].itemsize
        return by_alignment(launcher, {OUT: 4 * size, X: 4 * size, COS: 4 * table, SIN: 4 * table})


SOLVERS = (Pairs(),)
