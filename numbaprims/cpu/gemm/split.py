"""A few columns too many: the product in two, whole vectors of columns by tiles and the rest by inner products.

Bound.  A tile works on whole vectors, so that the 49th column of 512 x 49 x 4608 (a 7 x 7 image by convolution) costs
as much as 16: a third of the time. As inner products along k it costs its own operations and one more read of A,
m k elements from the second-level cache: 3 % there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from numbaprims.cpu.gemm.arguments import bias_dtype
from numbaprims.cpu.gemm.inner import Inner
from numbaprims.cpu.gemm.long import in_parts
from numbaprims.cpu.gemm.solvers import Blocked, Direct, Private
from numbaprims.cpu.program import Part, Program, array, join
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.solver import Config, Solver
from numbaprims.dispatch.solver import default_config
from numbaprims.dtypes import DTYPES

MOST = 4
"""Columns left over at most: 256x196x2304 (4 left) gained 5 %, 1000x100x1000 (4 left) 16 %."""


@in_parts
class Split(Solver):
    """The first columns by the best of the tiled solvers, the last one to four by inner products."""

    name = "split_columns"
    whole = {solver.name: solver for solver in (Blocked(), Private(), Direct())}
    rest = Inner()

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.accumulate not in ("f32", "f64"):
            return "it sums in float32 or float64 only"
        W = lanes(problem.accumulate, target.vector_bytes)
        if problem.n < W or not 1 <= problem.n % W <= MOST:
            return f"n is not 1 to {MOST} more than a multiple of the {W} columns of a vector"
        if problem.strides.a[1] != 1:
            return "rows of A are not contiguous, which inner products read"
        left, _ = self._parts(problem, target)
        if all(solver.why_not(left, target) for solver in self.whole.values()):
            return "no tiled solver takes the first columns"
        return None

    @staticmethod
    def _parts(problem: Any, target: Any) -> tuple[Any, Any]:
        left_over = problem.n % lanes(problem.accumulate, target.vector_bytes)
        return (
            dataclasses.replace(problem, n=problem.n - left_over),
            dataclasses.replace(problem, n=left_over),
        )

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        left, _ = self._parts(problem, target)
        able = [solver for solver in self.whole.values() if solver.why_not(left, target) is None]
        for solver in sorted(able, key=lambda solver: solver.estimate(left, target)):
            yield {"whole": solver.name}

    def estimate(self, problem: Any, target: Any) -> float:
        left, right = self._parts(problem, target)
        name = str(default_config(self, problem, target)["whole"])
        return self.whole[name].estimate(left, target) + self.rest.estimate(right, target) + target.rates.phase

    def workspace(self, problem: Any, target: Any, config: Config) -> int:
        left, right = self._parts(problem, target)
        solver = self.whole[str(config["whole"])]
        return max(
            solver.workspace(left, target, default_config(solver, left, target)),
            self.rest.workspace(right, target, default_config(self.rest, right, target)),
        )

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        left, right = self._parts(problem, target)
        solver = self.whole[str(config["whole"])]
        first = solver.program(left, target, default_config(solver, left, target))
        last = self.rest.program(right, target, default_config(self.rest, right, target), column=left.n)
        shift = problem.strides.bias * left.n * DTYPES[bias_dtype(problem)].itemsize if problem.bias == "n" else 0
        arrays = [array(number) for number in range(4)]
        parts = [Part(first, [*arrays, array(4)], range(5)), Part(last, [*arrays, array(4, shift)], range(5))]
        return join(parts)
