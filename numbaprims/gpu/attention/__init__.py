"""Attention on a GPU: on tensor cores, or a warp a row; both with an online softmax."""

from numbaprims.gpu.attention.kernels import GATES as GATES
from numbaprims.gpu.attention.mma_solver import SOLVERS as SOLVERS
