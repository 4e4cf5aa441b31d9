"""Resizing on a GPU: tables of taps, then a thread for a pixel of four channels."""

from numbaprims.gpu.resize.solvers import SOLVERS as SOLVERS
