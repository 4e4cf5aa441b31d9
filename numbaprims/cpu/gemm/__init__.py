"""Matrix products on the CPU: solvers, the best first."""

from numbaprims.cpu.gemm.amx import Amx, AmxX3, AmxX4, AmxX6, Planned
from numbaprims.cpu.gemm.dots import Dots
from numbaprims.cpu.gemm.inner import Inner
from numbaprims.cpu.gemm.naive import Naive
from numbaprims.cpu.gemm.solvers import Blocked, Direct, Private
from numbaprims.cpu.gemm.split import Split
from numbaprims.cpu.gemm.vector import Vector

SOLVERS = (
    Amx(), AmxX4(), AmxX3(), AmxX6(), Blocked(), Private(), Direct(), Dots(), Inner(), Split(), Vector(), Naive(),
)  # fmt: skip
PREPARED = Planned()
