"""Local response normalisation: windows over channels or pixels, a line of neighbouring elements at a time."""

from __future__ import annotations

from numbaprims.cpu.lrn.solvers import SOLVERS as SOLVERS
