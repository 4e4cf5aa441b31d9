"""ger on a GPU: its solvers, the best first."""

from __future__ import annotations

from numbaprims.gpu.ger.kernels import GATES as GATES
from numbaprims.gpu.ger.solvers import SOLVERS as SOLVERS
