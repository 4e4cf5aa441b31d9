"""Recurrent networks on a GPU: one input product for all steps, then a launch for all of them or two or three for each.

Bytes: x and the weights once, the recurrent weights once a step where they do not stay in the second-level cache.
"""

from numbaprims.gpu.rnn.solvers import SOLVERS as SOLVERS
