"""Windows that slide over one to three dimensions: pooling, forward and backward.

combine   the formulas as functions of vectors, and folds along a row
arguments  what kernels take, where windows lie
planes    a vector is a part of a row;  gradients  theirs;  phases  rows of gradients, by the phases of the stride
overlaps  maxima of planes whose rows are a few vectors;  walk  maxima and averages by the stage of a stack
channels  a vector is channels of one place, or one element anywhere
solvers   which there are, and what they are estimated to take
"""

from __future__ import annotations

from numbaprims.cpu.windows.solvers import SOLVERS as SOLVERS
