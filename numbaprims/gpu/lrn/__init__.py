"""Local response normalisation on a GPU: a thread an element, whose window's other elements come from the caches."""

from numbaprims.gpu.lrn.solvers import SOLVERS as SOLVERS
