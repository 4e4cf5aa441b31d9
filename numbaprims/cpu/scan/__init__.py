"""Cumulative sums: prefix sums in registers along rows, a running line across them."""

from __future__ import annotations

from numbaprims.cpu.scan.solvers import SOLVERS as SOLVERS
