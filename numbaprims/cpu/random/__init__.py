"""Dropout and random numbers on the CPU, as formulas of the pointwise engine that know where an element stands."""

from __future__ import annotations

from numbaprims.cpu.random.solvers import SOLVERS as SOLVERS
