"""Connectionist temporal classification: kernels  of the loss and its gradient;  decode  searches;  solvers."""

from __future__ import annotations

from numbaprims.cpu.ctc.solvers import SOLVERS as SOLVERS
