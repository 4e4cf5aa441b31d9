"""The definition, one thread for each element of out: every type, stride and size.  The last resort."""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.memory import advance, widen
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.gemm.arguments import OFFSETS, common_types, register_type
from numbaprims.gpu.gemm.epilogue import make_finish
from numbaprims.gpu.jit import GpuKernel, block_index, cuda, gpu_kernel, thread_index, types

ROWS, COLUMNS = 8, 32
THREADS = ROWS * COLUMNS


@functools.cache
def make_naive(a_dtype: str, b_dtype: str, out_dtype: str, activation: str) -> GpuKernel:
    """One element of out a thread: 2 k loads, k multiply-adds, the sum of every `terms` of them by itself.

    A block is 8 rows of 32 columns, a warp 32 neighbours of one row: its loads of a are one, those of b neighbours
    where b's rows have unit stride.
    """
    acc = DTYPES[a_dtype].accumulate
    finish = make_finish(a_dtype, out_dtype, acc, activation, 1)
    I32, I64, U32, S = types.int32, types.int64, types.uint32, register_type(a_dtype)
    signature = types.void(*common_types(a_dtype, b_dtype, out_dtype, acc), *(types.int32,) * 3)

    @gpu_kernel("gemm_naive", signature, spec=(a_dtype, b_dtype, out_dtype, activation), threads=THREADS, registers=64)
    def gemm_naive(  # type: ignore[no-untyped-def]
        out, a, b, c, bias, offsets, m, n, k, a_rs, a_cs, b_rs, b_cs, out_rs, out_cs, c_rs, c_cs, bias_step,
        a_bs, b_bs, out_bs, c_bs, has_c, bias_axis, activation, flags, alpha, beta, p0, p1, p2,
        row_blocks, column_blocks, terms,
    ):  # fmt: skip
        block, t = U32(block_index()), U32(thread_index())
        row = quotient(block, U32(column_blocks))
        j = I32(U32(block - row * U32(column_blocks)) * U32(COLUMNS) + (t & U32(COLUMNS - 1)))
        product = quotient(row, U32(row_blocks))
        i = I32(U32(row - product * U32(row_blocks)) * U32(ROWS) + (t >> U32(5)))
        if i < m and j < n:
            at = I64(product)
            if (flags & OFFSETS) != 0:
                at_a, at_b = offsets[4 * at], offsets[4 * at + 1]
                at_out, at_c = offsets[4 * at + 2], offsets[4 * at + 3]
            else:
                at_a, at_b, at_out, at_c = at * a_bs, at * b_bs, at * out_bs, at * c_bs
            at_a += I64(i) * a_rs
            at_b += I64(j) * b_cs
            x = cuda.local.array(1, S)
            x[0] = S(0)
            first = I32(0)
            while first < k:
                length = I32(min(I32(k - first), terms))
                total = S(0)
                for p in range(length):
                    left = widen(a[at_a + I64(p) * a_cs], a_dtype)
                    total = S(total + left * widen(b[at_b + I64(p) * b_rs], b_dtype))
                x[0] = S(x[0] + total)
                at_a += I64(length) * a_cs
                at_b += I64(length) * b_rs
                first = I32(first + length)
            finish(
                x, i, j, advance(out, at_out), advance(c, at_c), bias, n, out_rs, out_cs, c_rs, c_cs, bias_step,
                has_c, bias_axis, activation, flags, alpha, beta, p0, p1, p2,
            )  # fmt: skip

    return gemm_naive


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_naive, ("f32", "f32", "f32", "switch"), ("FFMA", "LDG.E")),
    (make_naive, ("u8", "i8", "i32", "switch"), ("IMAD", "LDG.E")),
]
