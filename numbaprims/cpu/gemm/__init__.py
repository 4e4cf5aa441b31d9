"""Matrix products on the CPU: solvers, the best first."""

from numbaprims.cpu.gemm.inner import Inner
from numbaprims.cpu.gemm.naive import Naive
from numbaprims.cpu.gemm.solvers import Blocked, Direct, Prepacked, Private

SOLVERS = (Blocked(), Private(), Direct(), Inner(), Naive())
PREPARED = Prepacked()
