"""The k first elements by size on a GPU: a thread a row."""

from numbaprims.gpu.topk.solvers import SOLVERS as SOLVERS
