"""Elementary functions of vectors, branch-free, with the same bits in every kernel and at every width."""

from numbaprims.cpu.simd.math.exp import exp as exp
from numbaprims.cpu.simd.math.log import log as log
from numbaprims.cpu.simd.math.tanh import sigmoid as sigmoid, tanh as tanh
