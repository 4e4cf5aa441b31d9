"""Convolutions on the CPU: solvers, the best first."""

from numbaprims.cpu.conv import long
from numbaprims.cpu.conv.bias import Sums
from numbaprims.cpu.conv.depthwise.solver import Depthwise
from numbaprims.cpu.conv.depthwise.walk import DepthwiseWalk
from numbaprims.cpu.conv.direct.solver import Direct
from numbaprims.cpu.conv.fft import Fft, FftWeight
from numbaprims.cpu.conv.im2col.solver import Im2col
from numbaprims.cpu.conv.implicit.solvers import Gemm1x1, ImplicitGemm
from numbaprims.cpu.conv.naive import Naive
from numbaprims.cpu.conv.vnni.amx import ImplicitGemmAmx, ImplicitGemmAmxX3, ImplicitGemmAmxX4, ImplicitGemmAmxX6
from numbaprims.cpu.conv.vnni.solver import ImplicitGemmVnni
from numbaprims.cpu.conv.weight_gradient.amx import (
    WeightGemmAmx,
    WeightGemmAmxX3,
    WeightGemmAmxX4,
    WeightGemmAmxX6,
)
from numbaprims.cpu.conv.weight_gradient.columns import Im2colWeight
from numbaprims.cpu.conv.weight_gradient.solver import WeightGemm
from numbaprims.cpu.conv.winograd import (
    Winograd2,
    Winograd4,
    Winograd6,
    WinogradFused,
    WinogradPieces,
    WinogradWeight,
)

# One a line: whoever adds one changes one.
SOLVERS = (
    Depthwise(),
    DepthwiseWalk(),
    Direct(),
    Gemm1x1(),
    ImplicitGemm(),
    Im2col(),
    ImplicitGemmAmx(),
    ImplicitGemmAmxX4(),
    ImplicitGemmAmxX3(),
    ImplicitGemmAmxX6(),
    ImplicitGemmVnni(),
    WeightGemm(),
    WeightGemmAmx(),
    WeightGemmAmxX4(),
    WeightGemmAmxX3(),
    WeightGemmAmxX6(),
    Im2colWeight(),
    Sums(),
    Winograd4(),
    Winograd6(),
    Winograd2(),
    WinogradFused(),
    WinogradPieces(),
    WinogradWeight(),
    Fft(),
    FftWeight(),
    Naive(),
)
long.SOLVERS += SOLVERS
