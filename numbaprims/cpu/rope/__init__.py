"""Rotary position embedding: rows whose pairs of elements are turned, a vector of pairs at a time."""

from __future__ import annotations

from numbaprims.cpu.rope.solvers import SOLVERS as SOLVERS
