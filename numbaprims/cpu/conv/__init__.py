"""Convolutions on the CPU: solvers, the best first."""

from numbaprims.cpu.conv.depthwise import Depthwise
from numbaprims.cpu.conv.implicit import ImplicitGemm
from numbaprims.cpu.conv.naive import Naive
from numbaprims.cpu.conv.weight import WeightGemm
from numbaprims.cpu.conv.winograd import Winograd2, Winograd4, Winograd6

# One a line: whoever adds one changes one.
SOLVERS = (
    Depthwise(),
    ImplicitGemm(),
    WeightGemm(),
    Winograd4(),
    Winograd6(),
    Winograd2(),
    Naive(),
)
