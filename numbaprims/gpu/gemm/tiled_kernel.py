"""The kernel of `tiled`, `split_k` and `dp4a`: tiles of out, sums in registers, tiles of A and B in shared memory.

One block computes one tile of out, or its part over one chunk of k.  While a block of k is multiplied, the copies of
the next `stages - 1` are under way; one barrier for each block of k.  Each sum runs over k from front to back, so that
results do not depend on the tile's size, and are those of `naive` bit for bit.

Count, for 128 x 128 of float32 (8 x 8 sums a thread), each k:
    64 multiply-adds a thread, 16 words loaded in 4 instructions: 4 multiply-adds a word.
    a warp reads 32 + 64 words of shared memory (the rest are the same words for several threads) for 2048
    multiply-adds, 16 clocks of a multiprocessor that does 128 a clock; 384 bytes are 3 clocks of its 128 bytes a clock.
    a block reads (128 + 128) words of A and B for 16384 multiply-adds: 16 flops a byte of second-level cache (32 flops
    for 1 word), 132 multiprocessors at 60 TFLOP/s ask 1.9 TB/s of it, a third of what it gives.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.copy import copy_commit, copy_wait, shared_address
from numbaprims.gpu.device.memory import advance, opaque, store_vector
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.gemm.arguments import OFFSETS, common_types, vector_length
from numbaprims.gpu.gemm.epilogue import local_sums, make_drain
from numbaprims.gpu.gemm.lists import TUPLES
from numbaprims.gpu.gemm.loads import make_load, words_of
from numbaprims.gpu.gemm.multiply import make_multiply
from numbaprims.gpu.gemm.sizes import TILES, padding
from numbaprims.gpu.jit import (
    STORAGE,
    GpuKernel,
    block_index,
    cuda,
    device_function,
    gpu_kernel,
    shared_array,
    thread_index,
    types,
)

# Rows of tiles that are computed side by side: A's rows of one group stay in the second-level cache for all of B.
GROUP = 8
I32, I64, U32 = types.int32, types.int64, types.uint32


@functools.cache
def make_tiled(
    a_dtype: str, b_dtype: str, out_dtype: str, tile: str, a_way: str, b_way: str, activation: str, partial: bool
) -> GpuKernel:
    """A tile of out; with `partial`, of the sums over one chunk of k, into the workspace."""
    size = TILES[tile]
    acc = DTYPES[a_dtype].accumulate
    words, S = words_of(a_dtype), local_sums(acc)
    W, E, WORD = words.size, words.elements, words.type
    V = vector_length(acc)
    TM, TN, LM, LN, BK, STAGES = size.tm, size.tn, size.lm, size.ln, size.bk, size.stages
    BM, BN, THREADS, SUMS = size.bm, size.bn, size.threads, size.tm * size.tn
    LDA, LDB = BM + padding(W), BN + padding(W)
    STAGE, SPAN, PENDING = BK * (LDA + LDB), BK * E, STAGES - 2
    a_load, b_load = make_load(a_dtype, a_way, BM, BK, THREADS), make_load(b_dtype, b_way, BN, BK, THREADS)
    place_a, start_a, fetch_a, put_a, A_REGS, a_element = a_load
    place_b, start_b, fetch_b, put_b, B_REGS, b_element = b_load
    LDS = BN + padding(W)
    drain = make_drain(a_dtype, out_dtype, acc, activation, BM, BN, LDS, THREADS, partial)
    as_tuple, fill = TUPLES[V]

    @device_function
    def place(offsets, flags, product, first_step, second_step, column):  # type: ignore[no-untyped-def]
        at = I64(product)
        first, second = at * first_step, at * second_step
        if (flags & OFFSETS) != 0:
            first, second = offsets[at * 4 + column], offsets[at * 4 + column + 1]
        return first, second

    corner, multiply_four = make_multiply(a_dtype, b_dtype, size)
    signature = types.void(
        *common_types(a_dtype, b_dtype, out_dtype, acc), types.CPointer(STORAGE[acc]), *(types.int32,) * 5
    )

    @gpu_kernel(
        "gemm_tiled", signature, spec=(a_dtype, b_dtype, out_dtype, tile, a_way, b_way, activation, int(partial)),
        threads=THREADS, blocks_per_sm=size.residents(W), shared=size.shared(W), registers=size.registers(W),
    )  # fmt: skip
    def gemm_tiled(  # type: ignore[no-untyped-def]
        out, a, b, c, bias, offsets, m, n, k, a_rs, a_cs, b_rs, b_cs, out_rs, out_cs, c_rs, c_cs, bias_step,
        a_bs, b_bs, out_bs, c_bs, has_c, bias_axis, code, flags, alpha, beta, p0, p1, p2,
        workspace, tiles_m, tiles_n, chunks, chunk, room,
    ):  # fmt: skip
        sm = shared_array(0, WORD, alignment=16)
        drained = shared_array(0, S, alignment=16)  # the same memory
        sums, vector = cuda.local.array(SUMS, S), cuda.local.array(V, S)
        xa, xb = cuda.local.array(TM, WORD), cuda.local.array(TN, WORD)
        a_regs, b_regs = cuda.local.array(A_REGS, a_element), cuda.local.array(B_REGS, b_element)
        t = I32(thread_index())
        block, tiles = U32(block_index()), U32(tiles_m * tiles_n)
        part = quotient(block, tiles)
        in_tiles = U32(block - part * tiles)
        product = quotient(part, U32(chunks))
        number = I32(part - product * U32(chunks))
        in_group = U32(GROUP * tiles_n)
        group = quotient(in_tiles, in_group)
        in_tiles = U32(in_tiles - group * in_group)
        height = U32(min(U32(tiles_m) - group * U32(GROUP), U32(GROUP)))
        column = quotient(in_tiles, height)
        m0 = I32((group * U32(GROUP) + in_tiles - column * height) * U32(BM))
        n0 = I32(column * U32(BN))
        at_a, at_b = place(offsets, flags, product, a_bs, b_bs, I64(0))
        k_first = I32(number * chunk)
        k_left = I32(min(k - k_first, chunk))
        a_outer, a_first, a_slot = place_a(t)
        b_outer, b_first, b_slot = place_b(t)
        pa = advance(a, at_a + I64(m0) * a_rs + I64(k_first) * a_cs + start_a(a_outer, a_first, a_rs, a_cs))
        pb = advance(b, at_b + I64(n0) * b_cs + I64(k_first) * b_rs + start_b(b_outer, b_first, b_cs, b_rs))
        a_step, b_step = I64(SPAN) * a_cs, I64(SPAN) * b_rs
        m_left, n_left = I32(m - m0), I32(n - n0)
        base = shared_address(sm, 0)
        for e in range(TM * TN):
            sums[e] = S(0)

        row0, column0 = corner(t)
        steps = I32((k_left + (SPAN - 1)) // SPAN)
        to_do = I32((k_left + (E - 1)) // E)
        read, write = I64(0), I32(0)
        step = I32(1 - STAGES)
        while step < steps:
            if step >= 0:
                copy_wait(PENDING)
                cuda.syncthreads()
            more = I32(step + (STAGES - 1)) < steps
            if more:
                fetch_a(
                    a_regs, m_left >= BM and k_left >= SPAN, U32(base + (write + a_slot) * W), pa,
                    m_left, k_left, a_rs, a_cs, t,
                )  # fmt: skip
                fetch_b(
                    b_regs, n_left >= BN and k_left >= SPAN, U32(base + (write + (b_slot + BK * LDA)) * W), pb,
                    n_left, k_left, b_cs, b_rs, t,
                )  # fmt: skip
                pa, pb, k_left = advance(pa, a_step), advance(pb, b_step), I32(k_left - SPAN)
            copy_commit()
            if step >= 0:
                # indices of 64 bits, whose constant parts become immediates of the loads
                at_a, at_b = read + I64(row0), read + I64(column0 + BK * LDA)
                rows, to_do = I32(min(to_do, I32(BK))), I32(to_do - BK)
                while rows > 0:
                    multiply_four(sm, at_a, at_b, xa, xb, sums)
                    at_a, at_b, rows = at_a + 4 * LDA, at_b + 4 * LDB, I32(rows - 4)
                read = read + STAGE if read < (STAGES - 1) * STAGE else I64(0)
            if more:
                put_a(a_regs, sm, I32(write + a_slot), t)
                put_b(b_regs, sm, I32(write + (b_slot + BK * LDA)), t)
                write = I32(write + STAGE) if write < (STAGES - 1) * STAGE else I32(0)
            step = I32(step + 1)

        cuda.syncthreads()
        t = opaque(t)
        row0, column0 = corner(t)
        for i in range(TM):
            for g in range(TN // V):
                at = I64((row0 + (i // V) * (LM * V) + i % V) * LDS + column0 + g * (LN * V))
                for e in range(V):
                    vector[e] = sums[i * TN + g * V + e]
                store_vector(drained, at, as_tuple(vector))
        cuda.syncthreads()
        at_out, at_c = place(offsets, flags, product, out_bs, c_bs, I64(2))
        drain(
            drained, t, m0, n0, m, advance(out, at_out), advance(c, at_c), bias, n, out_rs, out_cs, c_rs, c_cs,
            bias_step, has_c, bias_axis, code, flags, alpha, beta, p0, p1, p2,
            advance(workspace, I64(part) * I64(m) * I64(room)), room,
        )  # fmt: skip

    return gemm_tiled


_COPIES = ("LDGSTS.E", "LDS.128", "STS.128", "STG.E.128")
#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (
        make_tiled,
        ("f32", "f32", "f32", "128x128", "k", "v", "switch", False),
        ("FFMA", "LDGSTS.E.BYPASS.128", *_COPIES),
    ),
    (make_tiled, ("f32", "f32", "f32", "64x64", "o", "k", "gelu", False), ("FFMA", *_COPIES)),
    (make_tiled, ("f32", "f32", "f32", "16x128", "k", "k", "switch", True), ("FFMA", *_COPIES)),
    (make_tiled, ("f64", "f64", "f64", "128x64", "k", "v", "switch", False), ("DFMA", "LDGSTS.E.64", *_COPIES)),
    (make_tiled, ("bf16", "bf16", "bf16", "128x64", "k", "o", "switch", False), ("FFMA", "LDG.E.U16", "STG.E.64")),
    (make_tiled, ("i8", "i8", "i32", "128x64", "k", "t", "switch", False), ("IDP.4A", *_COPIES)),
    (make_tiled, ("u8", "i8", "i32", "128x128", "k", "k", "switch", False), ("IDP.4A", *_COPIES)),
]
