"""Stacks on a GPU, depth first: a patch of a plane goes through all steps of a sequence in shared memory.

Bytes: x and what is added once, with the halo of each patch, and the last results once; between sequences each result
written and read.
"""

from numbaprims.gpu.stack.solvers import SOLVERS as SOLVERS
