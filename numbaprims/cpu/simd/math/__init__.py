"""Elementary functions of vectors, branch-free, with the same bits in every kernel and at every width."""

from numbaprims.cpu.simd.math.erf import erf as erf
from numbaprims.cpu.simd.math.exp import exp as exp, expm1 as expm1
from numbaprims.cpu.simd.math.log import log as log, log1p as log1p
from numbaprims.cpu.simd.math.tanh import sigmoid as sigmoid, tanh as tanh
