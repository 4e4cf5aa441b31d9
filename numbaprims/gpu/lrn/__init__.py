"""Local response normalisation on a GPU: a thread for four elements, whose windows come from the caches."""

from numbaprims.gpu.lrn.solvers import SOLVERS as SOLVERS
