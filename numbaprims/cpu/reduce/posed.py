"""Formulas that other primitives pose: sums, for the gradients of prelu's weight and of a bias; element-wise stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from numbaprims.cpu.program import Program
from numbaprims.cpu.reduce.solvers import SOLVERS, SPLIT
from numbaprims.dispatch.solver import default_config
from numbaprims.ops._reduction_problem import Reduction, posed


class PosedReduction(NamedTuple):
    """A formula and its problem."""

    problem: Reduction

    @classmethod
    def sum(
        cls, formula: str, dtypes: Sequence[str], shape: Sequence[int], strides: Sequence[Sequence[int]]
    ) -> PosedReduction:
        """One sum over all dimensions but the first."""
        return cls(posed(formula, dtypes, shape, range(1, len(shape)), strides))

    def _solver(self, target: Any, naive: bool = False) -> Any:
        able = [each for each in SOLVERS if each.why_not(self.problem, target) is None]
        if naive:
            return able[-1]
        # one lane does not add up all of a long row
        chunks = [each for each in able if each.name.startswith("split")] if self.problem.n > SPLIT else []
        return min(chunks or able, key=lambda each: each.estimate(self.problem, target))

    def estimate(self, target: Any) -> float:
        solver, problem = self._solver(target), self.problem
        if solver is SOLVERS[-1]:
            # elements with gaps: 1.6 cycles each (Zen 4), less than a formula with passes takes
            return float(target.rates.call + 2 * problem.rows * problem.n / target.rates.clock)
        return float(solver.estimate(problem, target))

    def program(self, target: Any, *, naive: bool = False) -> Program:
        """It takes the result, then the operands."""
        solver = self._solver(target, naive)
        program: Program = solver.program(self.problem, target, default_config(solver, self.problem, target))
        return program
