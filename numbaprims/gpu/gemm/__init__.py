"""Matrix products on a GPU: solvers, the best first."""

from numbaprims.gpu.gemm.solvers import Dp4a, Naive, SplitK, Tiled

SOLVERS = (Dp4a(), Tiled(), SplitK(), Naive())
