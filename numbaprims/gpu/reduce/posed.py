"""Sums that other primitives pose: the gradients of prelu's weight and of a convolution's bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numbaprims.formulas.reductions import FORMULAS
from numbaprims.gpu.reduce.solvers import SOLVERS, SPLIT
from numbaprims.ops._reduction_problem import Operand, Reduction, collapse, layout_of


def posed(formula: str, dtypes: Sequence[str], shape: Sequence[int], strides: Sequence[Sequence[int]]) -> Reduction:
    """A formula of one sum over all dimensions but the first.

    `dtypes` and `strides` have the result first, whose strides are 0 along what is summed.
    """
    known = FORMULAS[formula]
    arrays = [Operand(*each, dtype) for each, dtype in zip((*known.results, *known.operands), dtypes, strict=True)]
    kept, reduced, steps = collapse(shape, range(1, len(shape)), strides, 1)
    words = tuple(":".join(each) for each in arrays)
    return Reduction(
        formula, dtypes[1], kept, reduced, layout_of(kept, reduced, arrays, steps), words[:1], words[1:], steps
    )


def solver_of(problem: Reduction) -> Any:
    """The one that computes it, whatever the GPU: another would add in another order."""
    if SPLIT.chunks(problem) > 1:
        return SPLIT
    return next(solver for solver in SOLVERS if solver is not SPLIT and solver.why_not(problem, None) is None)
