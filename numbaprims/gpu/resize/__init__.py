"""Resizing on a GPU: tables of taps, then a thread an element."""

from numbaprims.gpu.resize.solvers import SOLVERS as SOLVERS
