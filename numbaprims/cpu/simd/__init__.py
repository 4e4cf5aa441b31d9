"""Explicit vectors for Numba kernels: types, memory, arithmetic, lanes, conversions, mathematics.

Nothing else of the CPU side emits LLVM code.
"""

from numbaprims.cpu.simd.arguments import FLOAT_SLOT as FLOAT_SLOT
from numbaprims.cpu.simd.arguments import INT_SLOT as INT_SLOT
from numbaprims.cpu.simd.arguments import Arguments as Arguments
from numbaprims.cpu.simd.arguments import ArgsType as ArgsType
from numbaprims.cpu.simd.arguments import atomic_add_word as atomic_add_word
from numbaprims.cpu.simd.arguments import call_range as call_range
from numbaprims.cpu.simd.arguments import float_bits as float_bits
from numbaprims.cpu.simd.arguments import load_word as load_word
from numbaprims.cpu.simd.arguments import stack_words as stack_words
from numbaprims.cpu.simd.arguments import store_word as store_word
from numbaprims.cpu.simd.arithmetic import *  # noqa: F403
from numbaprims.cpu.simd.block import *  # noqa: F403
from numbaprims.cpu.simd.block_dot import tile_multiply_dot as tile_multiply_dot
from numbaprims.cpu.simd.convert import *  # noqa: F403
from numbaprims.cpu.simd.dot import (
    dot_bf16 as dot_bf16,
    dot_feature as dot_feature,
    dot_s8s8 as dot_s8s8,
    dot_u8s8 as dot_u8s8,
)
from numbaprims.cpu.simd.lanes import *  # noqa: F403
from numbaprims.cpu.simd.math import (
    erf as erf,
    exp as exp,
    expm1 as expm1,
    log as log,
    log1p as log1p,
    sigmoid as sigmoid,
    tanh as tanh,
)
from numbaprims.cpu.simd.memory import *  # noqa: F403
from numbaprims.cpu.simd.types import *  # noqa: F403
