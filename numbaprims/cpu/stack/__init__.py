"""Stacks of element-wise layers and pooling, depth first.

stages   what a sequence is made of, its buffers and bands;  planner  how a stack is cut, and what that takes
emit     rows of a stage;  planes, channels  what a vector of a row is;  kernels  theirs
walk     tiles through all stages;  forward  a stack by them;  gradients  theirs;  solvers  which there are
"""

from __future__ import annotations

from numbaprims.cpu.stack.solvers import SOLVERS as SOLVERS
