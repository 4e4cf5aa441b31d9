"""gemv on a GPU: its solvers, the best first."""

from __future__ import annotations

from numbaprims.gpu.gemv.kernels import GATES as GATES
from numbaprims.gpu.gemv.solvers import SOLVERS as SOLVERS
