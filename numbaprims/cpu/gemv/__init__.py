"""gemv on the CPU: its solvers, the best first."""

from __future__ import annotations

from numbaprims.cpu.gemv.naive import Naive
from numbaprims.cpu.gemv.register_block import RegisterBlock
from numbaprims.cpu.gemv.row_block import RowBlock

SOLVERS = (RegisterBlock(), RowBlock(), Naive())
