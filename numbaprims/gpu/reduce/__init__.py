"""Formulas with reductions on a GPU: kernels from traced graphs (`numbaprims.formulas.graph`).

Bytes: each input once where a row stays in registers, else once a pass, and each result once.
"""

from numbaprims.gpu.reduce.solvers import SOLVERS as SOLVERS
