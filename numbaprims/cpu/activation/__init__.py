"""Activations on the CPU, by the engines.

formulas  y of every kind over vectors;  gradients  dx of every kind
kernels   both as formulas of the pointwise engine
solvers   which there are, and what they are estimated to take
"""

from __future__ import annotations

from numbaprims.cpu.activation.kernels import epilogue_kernel as epilogue_kernel
from numbaprims.cpu.activation.solvers import SOLVERS as SOLVERS
