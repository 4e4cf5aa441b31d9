"""Rotary position embedding on a GPU: a thread a pair, in the order of memory."""

from numbaprims.gpu.rope.solvers import SOLVERS as SOLVERS
