"""Attention on a GPU, with an online softmax: solvers, the best first."""

from numbaprims.gpu.attention.mma_solver import Mma, Wgmma
from numbaprims.gpu.attention.solvers import Rows
from numbaprims.gpu.attention.tiled_solver import Tiled

SOLVERS = (Wgmma(), Mma(), Tiled(), Rows())
