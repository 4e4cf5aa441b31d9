"""Matrix products on the CPU: solvers, the best first."""

from numbaprims.cpu.gemm.naive import Naive

SOLVERS = (Naive(),)
