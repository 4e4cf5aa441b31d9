"""Convolutions on a GPU: solvers, the best first."""

from numbaprims.gpu.conv.naive import Naive

SOLVERS = (Naive(),)
