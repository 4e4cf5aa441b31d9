"""The second kernel of `split_k`: the sums of all chunks, added from the first to the last, and the end of the product.

Bound: it reads chunks x m x n sums once, 16 bytes a thread and chunk, neighbouring threads neighbouring vectors, and
writes m x n results; the loads of all chunks are independent of one another.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.memory import advance, load_vector
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.gemm.arguments import OFFSETS, common_types, vector_length
from numbaprims.gpu.gemm.epilogue import local_sums, make_finish
from numbaprims.gpu.gemm.lists import TUPLES
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, cuda, gpu_kernel, thread_index, types

REDUCE_THREADS = 128
I32, I64, U32 = types.int32, types.int64, types.uint32


@functools.cache
def make_reduce(a_dtype: str, out_dtype: str, activation: str) -> GpuKernel:
    """One vector of sums a thread: those of a row of one product; workspace is [batch][chunks][m][room]."""
    acc = DTYPES[a_dtype].accumulate
    V, S = vector_length(acc), local_sums(acc)
    finish = make_finish(a_dtype, out_dtype, acc, activation, V)
    _, fill = TUPLES[V]
    # B's type does not matter here
    signature = types.void(
        *common_types(a_dtype, a_dtype, out_dtype, acc), types.CPointer(STORAGE[acc]), *(types.int32,) * 4
    )

    @gpu_kernel("gemm_reduce", signature, spec=(a_dtype, out_dtype, activation), threads=REDUCE_THREADS, registers=64)
    def gemm_reduce(  # type: ignore[no-untyped-def]
        out, a, b, c, bias, offsets, m, n, k, a_rs, a_cs, b_rs, b_cs, out_rs, out_cs, c_rs, c_cs, bias_step,
        a_bs, b_bs, out_bs, c_bs, has_c, bias_axis, code, flags, alpha, beta, p0, p1, p2,
        workspace, chunks, room, vectors, rows,
    ):  # fmt: skip
        x, y = cuda.local.array(V, S), cuda.local.array(V, S)
        number = U32(block_index() * U32(REDUCE_THREADS) + thread_index())
        row = quotient(number, U32(vectors))
        if row < U32(rows):
            j = I32(U32(number - row * U32(vectors)) * U32(V))
            product = quotient(row, U32(m))
            i = I32(row - product * U32(m))
            for e in range(V):
                x[e] = S(0)
            at = (I64(product) * I64(chunks) * I64(m) + I64(i)) * I64(room) + I64(j)
            between = I64(m) * I64(room)
            for _ in range(chunks):
                fill(y, load_vector(workspace, at, V))
                for e in range(V):
                    x[e] = x[e] + y[e]
                at += between
            z = I64(product)
            at_out, at_c = z * out_bs, z * c_bs
            if (flags & OFFSETS) != 0:
                at_out, at_c = offsets[z * 4 + 2], offsets[z * 4 + 3]
            finish(
                x, i, j, advance(out, at_out), advance(c, at_c), bias, n, out_rs, out_cs, c_rs, c_cs, bias_step,
                has_c, bias_axis, code, flags, alpha, beta, p0, p1, p2,
            )  # fmt: skip

    return gemm_reduce


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_reduce, ("f32", "f32", "switch"), ("LDG.E.128", "STG.E.128")),
    (make_reduce, ("bf16", "bf16", "gelu"), ("LDG.E.128", "STG.E.64")),
]
