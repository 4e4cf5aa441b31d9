"""Attention on a GPU: a warp a row, with an online softmax."""

from numbaprims.gpu.attention.kernels import GATES as GATES
from numbaprims.gpu.attention.solvers import SOLVERS as SOLVERS
