"""Sums that other primitives pose: the gradients of prelu's weight and of a convolution's bias."""

from __future__ import annotations

from typing import Any

from numbaprims.gpu.reduce.solvers import SOLVERS, SPLIT
from numbaprims.ops._reduction_problem import Reduction


def solver_of(problem: Reduction) -> Any:
    """The one that computes it, whatever the GPU: another would add in another order."""
    if SPLIT.chunks(problem) > 1:
        return SPLIT
    return next(solver for solver in SOLVERS if solver is not SPLIT and solver.why_not(problem, None) is None)
