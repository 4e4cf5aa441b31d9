"""Convolutions on a GPU: solvers, the best first."""

from numbaprims.gpu.conv.depthwise import Depthwise
from numbaprims.gpu.conv.direct import Direct
from numbaprims.gpu.conv.direct_weight import DirectWeight
from numbaprims.gpu.conv.fft import Fft
from numbaprims.gpu.conv.gemm_1x1 import Gemm1x1
from numbaprims.gpu.conv.im2col import Im2col, Im2colWeight
from numbaprims.gpu.conv.implicit import ImplicitGemm
from numbaprims.gpu.conv.mma_solver import ImplicitMma
from numbaprims.gpu.conv.naive import Naive
from numbaprims.gpu.conv.sums import Sums
from numbaprims.gpu.conv.winograd import (
    Winograd2,
    Winograd4,
    Winograd6,
    WinogradFused,
    WinogradPieces,
    WinogradWeight,
)

SOLVERS = (
    Gemm1x1(),
    Depthwise(),
    Direct(),
    DirectWeight(),
    ImplicitMma(),
    ImplicitGemm(),
    Winograd4(),
    Winograd2(),
    Winograd6(),
    WinogradFused(),
    WinogradPieces(),
    WinogradWeight(),
    Fft(),
    Im2col(),
    Im2colWeight(),
    Sums(),
    Naive(),
)
