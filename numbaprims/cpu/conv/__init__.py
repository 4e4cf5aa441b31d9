"""Convolutions on the CPU: solvers, the best first."""

from numbaprims.cpu.conv.depthwise import Depthwise
from numbaprims.cpu.conv.naive import Naive

SOLVERS = (Depthwise(), Naive(),)
