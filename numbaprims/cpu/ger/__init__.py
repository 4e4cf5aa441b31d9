"""ger on the CPU: its solvers, the best first."""

from __future__ import annotations

from numbaprims.cpu.ger.solvers import Naive, RegisterBlock, RowBlock

SOLVERS = (RegisterBlock(), RowBlock(), Naive())
