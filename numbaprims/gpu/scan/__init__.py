"""Cumulative sums on a GPU: a warp a row, or a thread where rows lie side by side."""

from numbaprims.gpu.scan.solvers import SOLVERS as SOLVERS
