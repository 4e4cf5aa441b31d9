"""The plain matrix of an implicit product written out for tensor cores: rows of u, each with its k side by side, in the
order in which the source is gathered.

It is the weight, 3 % of the bytes of a layer of 56 x 56 pixels and less of its time: 4.7 MB of a 3 x 3 layer of 512
channels in float16 are read and written in 3 us.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.gpu.conv.arguments import pointer
from numbaprims.gpu.conv.gather import DIGITS
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, gpu_kernel, grid_size, thread_index, types

PACK_THREADS = 256
I32, I64, U64 = types.int32, types.int64, types.uint64


@functools.cache
def make_pack(dtype: str, order: str) -> GpuKernel:
    """One element a thread: packed [group][u][pitch], zeros behind the last k."""
    digits, ZERO = DIGITS[order], STORAGE[dtype]
    signature = types.void(pointer(dtype), pointer(dtype), types.int64, *(types.int32,) * 7, *(types.int64,) * 7)

    @gpu_kernel("conv_pack", signature, spec=(dtype, order), threads=PACK_THREADS, registers=64)
    def conv_pack(  # type: ignore[no-untyped-def]
        packed, plain, elements, u_count, k_count, pitch, k_c, k_d, k_h, k_w, p_u, p_c, p_d, p_h, p_w, p_base, p_group
    ):
        number = I64(block_index()) * PACK_THREADS + I64(thread_index())
        stride = I64(grid_size()) * PACK_THREADS
        while number < elements:
            row = I64(U64(number) // U64(pitch))
            k = I32(number - row * pitch)
            group = I64(U64(row) // U64(u_count))
            u = row - group * u_count
            value = ZERO(0)
            if k < k_count:
                c, d, h, w = digits(k, k_c, k_d, k_h, k_w)
                value = plain[group * p_group + u * p_u + c * p_c + d * p_d + h * p_h + w * p_w + p_base]
            packed[number] = value
            number += stride

    return conv_pack


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_pack, ("bf16", "fast"), ("LDG.E.U16", "STG.E.U16")),
    (make_pack, ("f32", "slow"), ("LDG.E", "STG.E")),
]
