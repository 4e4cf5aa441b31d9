"""Attention by blocks of queries and keys, with an online softmax between the two products.

kernels   the way forward;  gradient   the way back;  decode   few queries;  solvers   which there are
"""

from __future__ import annotations

from numbaprims.cpu.attention.solvers import SOLVERS as SOLVERS
