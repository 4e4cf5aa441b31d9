"""Products of one row or one column: gemv's kernels.

Bound.  The matrix is read once, from wherever it lies: a quarter of an operation a byte in float32.  Tiles of sums
read it in pieces of a row, and packing would read and write it once more.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from numbaprims.cpu import gemv
from numbaprims.cpu.program import Part, Program, array, join
from numbaprims.cpu.solver import Config, Solver
from numbaprims.dtypes import DTYPES
from numbaprims.shapes import walk_order


class _Strides(NamedTuple):
    """Steps of gemv's operands, in elements."""

    a: tuple[int, int]
    x: int
    y: int
    out: int


@dataclasses.dataclass(frozen=True)
class _Product:
    """out = alpha A x + beta y, as gemv's solvers are told of it."""

    m: int
    n: int
    dtype: str
    order: str
    x_unit: bool
    has_y: bool
    strides: _Strides

    def flops(self) -> float:
        return 2.0 * self.m * self.n

    def bytes_moved(self) -> float:
        vectors = self.n + self.m * (2 if self.has_y else 1)
        return float((self.m * self.n + vectors) * DTYPES[self.dtype].itemsize)


def _product(problem: Any) -> _Product:
    """One column: A times it. One row: B transposed times it."""
    s = problem.strides
    if problem.n == 1:
        m, a, x, y, out = problem.m, s.a, s.b[0], s.c[0], s.out[0]
    else:
        m, a, x, y, out = problem.n, (s.b[1], s.b[0]), s.a[1], s.c[1], s.out[1]
    return _Product(
        m=m,
        n=problem.k,
        dtype=problem.a_dtype,
        order=walk_order(m, problem.k, *a),
        x_unit=x == 1 or problem.k <= 1,
        has_y=problem.has_c,
        strides=_Strides((a[0], a[1]), x, y, out),
    )


class Vector(Solver):
    """One row or one column, by the best solver of gemv."""

    name = "vector"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.m != 1 and problem.n != 1:
            return "neither m nor n is 1"
        if problem.batch != 1:
            return "it computes one product, not a batch"
        if problem.k == 0:
            return "k is 0"
        if problem.accumulate == "i32" or problem.out_dtype != problem.a_dtype:
            return "the result is of another type than the operands"
        if problem.bias != "none" or problem.activation.kind != "identity":
            return "it fuses no bias and no activation"
        return None

    @staticmethod
    def _best(product: _Product, target: Any) -> Solver:
        able = [solver for solver in gemv.SOLVERS if solver.why_not(product, target) is None]
        return min(able, key=lambda solver: solver.estimate(product, target))

    def estimate(self, problem: Any, target: Any) -> float:
        product = _product(problem)
        return self._best(product, target).estimate(product, target)

    def workspace(self, problem: Any, target: Any, config: Config) -> int:
        product = _product(problem)
        solver = self._best(product, target)
        return solver.workspace(product, target, next(iter(solver.configs(product, target))))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        product = _product(problem)
        solver = self._best(product, target)
        program = solver.program(product, target, next(iter(solver.configs(product, target))))
        if problem.n == 1:
            return program
        return join([Part(program, [array(0), array(2), array(1), array(3)], [0, 1])])
