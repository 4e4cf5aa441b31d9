"""Convolutions on a GPU: solvers, the best first."""

from numbaprims.gpu.conv.implicit import ImplicitGemm
from numbaprims.gpu.conv.naive import Naive

SOLVERS = (ImplicitGemm(), Naive())
