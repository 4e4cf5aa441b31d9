"""Resizing: rows mixed along and across, or pixels of channels."""

from __future__ import annotations

from numbaprims.cpu.resize.solvers import SOLVERS as SOLVERS
