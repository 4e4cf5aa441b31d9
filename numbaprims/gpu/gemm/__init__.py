"""Matrix products on a GPU: solvers, the best first."""

from numbaprims.gpu.gemm.mma_solvers import Mma, MmaSplitK
from numbaprims.gpu.gemm.solvers import Dmma, Dp4a, Naive, SplitK, Tiled
from numbaprims.gpu.gemm.wgmma_solver import Wgmma

SOLVERS = (Wgmma(), Mma(), MmaSplitK(), Dp4a(), Dmma(), Tiled(), SplitK(), Naive())
