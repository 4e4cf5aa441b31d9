"""Activations on a GPU: formulas and gradients, the switch from a kind's name to them, kernels, solvers."""

from numbaprims.gpu.activation.solvers import SOLVERS as SOLVERS
