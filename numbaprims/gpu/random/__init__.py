"""Dropout and random numbers on a GPU: kernels and solvers."""

from numbaprims.gpu.random.solvers import SOLVERS as SOLVERS
