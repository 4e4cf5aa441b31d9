"""Rotary position embedding on a GPU: a thread for four pairs, in the order of memory."""

from numbaprims.gpu.rope.solvers import SOLVERS as SOLVERS
