"""Recurrent networks: the input product of all steps, or of a block of them, then a time loop in one native call.

network   memory, rows and products of a program;  forward  a network's layers;  gradient  theirs backward
cells, cells_backward   the end of a step;  kernels  what programs run;  tiles  their sizes
panels, wave   `persistent`, and layers that overlap;  solvers   which there are
"""

from __future__ import annotations

from numbaprims.cpu.rnn.solvers import PREPARED as PREPARED, SOLVERS as SOLVERS
