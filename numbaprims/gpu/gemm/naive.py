"""The definition, one thread for each element of out: every type, stride and size.  The last resort."""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.memory import advance, widen
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.gemm.arguments import OFFSETS, common_types, register_type
from numbaprims.gpu.gemm.epilogue import make_finish
from numbaprims.gpu.jit import GpuKernel, block_index, cuda, gpu_kernel, grid_size, thread_index, types

ROWS, COLUMNS = 8, 32
THREADS = ROWS * COLUMNS


@functools.cache
def make_naive(a_dtype: str, b_dtype: str, out_dtype: str, activation: str) -> GpuKernel:
    """One element of out a thread: 2 k loads, k multiply-adds, the sum of every `terms` of them by itself.

    A block is 8 rows of 32 columns, a warp 32 neighbours of one row: its loads of a are one, those of b neighbours
    where b's rows have unit stride.  Sizes and blocks are counted in 64 bits.
    """
    acc = DTYPES[a_dtype].accumulate
    finish = make_finish(a_dtype, out_dtype, acc, activation, 1)
    I32, I64, U32, U64, S = types.int32, types.int64, types.uint32, types.uint64, register_type(a_dtype)
    common = common_types(a_dtype, b_dtype, out_dtype, acc)
    signature = types.void(*common[:6], I64, I64, I64, *common[9:], I64, I64, I64, I32)

    @gpu_kernel("gemm_naive", signature, spec=(a_dtype, b_dtype, out_dtype, activation), threads=THREADS, registers=64)
    def gemm_naive(  # type: ignore[no-untyped-def]
        out, a, b, c, bias, offsets, m, n, k, a_rs, a_cs, b_rs, b_cs, out_rs, out_cs, c_rs, c_cs, bias_step,
        a_bs, b_bs, out_bs, c_bs, has_c, bias_axis, activation, flags, alpha, beta, p0, p1, p2,
        row_blocks, column_blocks, blocks, terms,
    ):  # fmt: skip
        block, t = I64(block_index()), thread_index()
        x = cuda.local.array(1, S)
        while block < blocks:
            row = I64(quotient(U64(block), U64(column_blocks)))
            j = (block - row * column_blocks) * COLUMNS + I64(t & U32(COLUMNS - 1))
            at = I64(quotient(U64(row), U64(row_blocks)))
            i = (row - at * row_blocks) * ROWS + I64(t >> U32(5))
            if i < m and j < n:
                if (flags & OFFSETS) != 0:
                    at_a, at_b = offsets[4 * at], offsets[4 * at + 1]
                    at_out, at_c = offsets[4 * at + 2], offsets[4 * at + 3]
                else:
                    at_a, at_b, at_out, at_c = at * a_bs, at * b_bs, at * out_bs, at * c_bs
                at_a += i * a_rs
                at_b += j * b_cs
                x[0] = S(0)
                first = I64(0)
                while first < k:
                    length = min(k - first, I64(terms))
                    total = S(0)
                    for p in range(length):
                        left = widen(a[at_a + p * a_cs], a_dtype)
                        total = S(total + left * widen(b[at_b + p * b_rs], b_dtype))
                    x[0] = S(x[0] + total)
                    at_a += length * a_cs
                    at_b += length * b_rs
                    first += length
                # of a row that ends here: how many columns are left has 32 bits
                finish(
                    x, i, j, advance(out, at_out), advance(c, at_c), bias, j + 1, out_rs, out_cs, c_rs, c_cs,
                    bias_step, has_c, bias_axis, activation, flags, alpha, beta, p0, p1, p2,
                )  # fmt: skip
            block += I64(grid_size())

    return gemm_naive


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_naive, ("f32", "f32", "f32", "switch"), ("FFMA", "LDG.E")),
    (make_naive, ("u8", "i8", "i32", "switch"), ("IMAD", "LDG.E")),
]
