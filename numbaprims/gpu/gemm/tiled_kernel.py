"""The kernel of `tiled`, `split_k`, `dp4a` and `dmma`: tiles of out, sums in registers, tiles of A and B in shared
memory.

One block computes one tile of out, or its part over one chunk of k.  While a block of k is multiplied, the copies of
the next `stages - 1` are under way; one barrier for each block of k.  Each sum runs over k from front to back, so that
results do not depend on the tile's size, and are those of `naive` bit for bit (but for tensor cores, which add the
products of one instruction as they will).

Count, for 128 x 128 of float32 (8 x 8 sums a thread), each k:
    64 multiply-adds a thread, 16 words loaded in 4 instructions: 4 multiply-adds a word.
    a warp's loads are two accesses of shared memory each (multiply.py), 64 for a block, beside 16384 multiply-adds, 128
    clocks of a multiprocessor that does 128 a clock.
    a block reads (128 + 128) words of A and B for 16384 multiply-adds: 32 flops a byte of second-level cache; 132
    multiprocessors at 60 TFLOP/s ask 1.9 TB/s of it, a third of what it gives.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.copy import copy_commit, copy_wait, shared_address
from numbaprims.gpu.device.memory import advance, opaque
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.gemm.arguments import OFFSETS, common_types
from numbaprims.gpu.gemm.epilogue import local_sums, make_drain
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
    BM, BN, BK, STAGES, THREADS, SUMS = size.bm, size.bn, size.bk, size.stages, size.threads, size.tm * size.tn
    PAD = padding(W, size.mma)
    LDA, LDB = BM + PAD, BN + PAD
    STAGE, SPAN, PENDING = BK * (LDA + LDB), BK * E, STAGES - 2
    LAST, LEFT = -(STAGES - 1) * SPAN, size.shared(W) // 4
    a_load, b_load = (
        make_load(a_dtype, a_way, BM, BK, THREADS, PAD), make_load(b_dtype, b_way, BN, BK, THREADS, PAD)
    )  # fmt: skip
    place_a, start_a, fetch_a, put_a, A_REGS, a_element = a_load
    place_b, start_b, fetch_b, put_b, B_REGS, b_element = b_load
    drain = make_drain(a_dtype, out_dtype, acc, activation, BM, BN, LDB, THREADS, partial)

    @device_function
    def place(offsets, flags, product, first_step, second_step, column):  # type: ignore[no-untyped-def]
        at = I64(product)
        first, second = at * first_step, at * second_step
        if (flags & OFFSETS) != 0:
            first, second = offsets[at * 4 + column], offsets[at * 4 + column + 1]
        return first, second

    @device_function
    def fetch(a_regs, b_regs, a_to, b_to, pa, pb, whole, lengths, k_left, a_rs, a_cs, b_rs, b_cs, t):  # type: ignore[no-untyped-def]
        if whole and k_left >= SPAN:
            pa = fetch_a(a_regs, True, a_to, pa, I32(0), k_left, a_rs, a_cs, t)
            pb = fetch_b(b_regs, True, b_to, pb, I32(0), k_left, b_cs, b_rs, t)
        else:
            m_left, n_left = lengths[LEFT], lengths[LEFT + 1]
            pa = fetch_a(a_regs, False, a_to, pa, m_left, k_left, a_rs, a_cs, t)
            pb = fetch_b(b_regs, False, b_to, pb, n_left, k_left, b_cs, b_rs, t)
        return pa, pb

    begin, load, add, multiply_rows, keep, ROWS = make_multiply(a_dtype, b_dtype, size)
    signature = types.void(
        *common_types(a_dtype, b_dtype, out_dtype, acc), types.CPointer(STORAGE[acc]), *(types.int32,) * 5
    )

    @gpu_kernel(
        "gemm_tiled", signature, spec=(a_dtype, b_dtype, out_dtype, tile, a_way, b_way, activation, int(partial)),
        threads=THREADS, blocks_per_sm=size.residents(W), shared=size.shared(W) + 16, registers=size.registers(W),
    )  # fmt: skip
    def gemm_tiled(  # type: ignore[no-untyped-def]
        out, a, b, c, bias, offsets, m, n, k, a_rs, a_cs, b_rs, b_cs, out_rs, out_cs, c_rs, c_cs, bias_step,
        a_bs, b_bs, out_bs, c_bs, has_c, bias_axis, code, flags, alpha, beta, p0, p1, p2,
        workspace, tiles_m, tiles_n, chunks, chunk, room,
    ):  # fmt: skip
        sm = shared_array(0, WORD, alignment=16)
        drained, lengths = shared_array(0, S, alignment=16), shared_array(0, I32, alignment=16)  # the same memory
        sums = cuda.local.array(SUMS, S)
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
        m_left, n_left = I32(m - m0), I32(n - n0)
        # not known to be constant: what is added to it then becomes immediates of the copies
        base = U32(opaque(I32(shared_address(sm, 0))))
        a_target, b_target = U32(base + a_slot * W), U32(base + (b_slot + BK * LDA) * W)
        for e in range(SUMS):
            sums[e] = S(0)

        first_a, first_b = begin(t)
        at_a, at_b = U32(base + first_a * W), U32(base + (first_b + BK * LDA) * W)
        # what is left of m and n waits in shared memory, for whole tiles do not ask: registers are scarce
        whole = m_left >= BM and n_left >= BN
        if t == 0:
            lengths[LEFT], lengths[LEFT + 1] = m_left, n_left
        cuda.syncthreads()
        # k_left counts what is not yet on its way, and goes on below 0, too
        write = I32(0)
        while write < (STAGES - 1) * STAGE:
            if k_left > 0:
                pa, pb = fetch(
                    a_regs, b_regs, U32(a_target + write * W), U32(b_target + write * W), pa, pb, whole, lengths,
                    k_left, a_rs, a_cs, b_rs, b_cs, t,
                )  # fmt: skip
                put_a(a_regs, sm, I32(write + a_slot), t)
                put_b(b_regs, sm, I32(write + (b_slot + BK * LDA)), t)
            copy_commit()
            k_left, write = I32(k_left - SPAN), I32(write + STAGE)
        copy_wait(PENDING)
        cuda.syncthreads()
        if k > 0:
            read = I32(0)
            xa, xb = load(sm, at_a, at_b)
            while k_left > LAST:
                write = I32(read - STAGE) if read > 0 else I32((STAGES - 1) * STAGE)
                if k_left > 0:
                    pa, pb = fetch(
                        a_regs, b_regs, U32(a_target + write * W), U32(b_target + write * W), pa, pb, whole, lengths,
                        k_left, a_rs, a_cs, b_rs, b_cs, t,
                    )  # fmt: skip
                copy_commit()
                xa, xb = multiply_rows(sm, at_a, at_b, xa, xb, sums)
                if k_left > 0:
                    put_a(a_regs, sm, I32(write + a_slot), t)
                    put_b(b_regs, sm, I32(write + (b_slot + BK * LDA)), t)
                ya, yb = load(sm, U32(at_a + (BK - ROWS) * LDA * W), U32(at_b + (BK - ROWS) * LDB * W))
                add(sums, xa, xb)
                k_left = I32(k_left - SPAN)
                copy_wait(PENDING)
                cuda.syncthreads()
                if k_left > LAST:
                    onward = I32(STAGE) if read < (STAGES - 1) * STAGE else I32(-(STAGES - 1) * STAGE)
                    read, at_a, at_b = I32(read + onward), U32(at_a + onward * W), U32(at_b + onward * W)
                    xa, xb = load(sm, at_a, at_b)
                add(sums, ya, yb)

        # Nobody reads the last block any more: each has its last fragments.  What follows is computed here anew,
        # instead of being kept in registers.
        t = opaque(t)
        m0, n0 = I32(m - lengths[LEFT]), I32(n - lengths[LEFT + 1])
        keep(drained, t, sums)
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
GATES: list[tuple[Any, ...]] = [
    (
        make_tiled,
        ("f32", "f32", "f32", "128x128", "q", "v", "switch", False),
        ("FFMA", "LDGSTS.E.BYPASS.128", "LDG.E.128", *_COPIES),
    ),
    (
        make_tiled,
        ("f32", "f32", "f32", "128x128", "q", "k", "switch", False),
        ("FFMA", *_COPIES),
    ),
    (make_tiled, ("f64", "f64", "f64", "128x128_k8", "k", "v", "switch", False), ("DMMA.16", "LDS.64"), ("sm_90a",)),
    (make_tiled, ("f64", "f64", "f64", "128x128_k4", "v", "k", "switch", False), ("DMMA.884", "LDS.64"), ("sm_80",)),
    (make_tiled, ("f32", "f32", "f32", "128x64_8x8", "q", "k", "switch", False), ("FFMA", *_COPIES)),
    (make_tiled, ("f32", "f32", "f32", "64x64", "o", "k", "gelu", False), ("FFMA", *_COPIES)),
    (make_tiled, ("f32", "f32", "f32", "16x128", "k", "k", "switch", True), ("FFMA", *_COPIES)),
    (make_tiled, ("f64", "f64", "f64", "128x64", "k", "v", "switch", False), ("DFMA", "LDGSTS.E.64", *_COPIES)),
    (make_tiled, ("bf16", "bf16", "bf16", "128x64", "k", "o", "switch", False), ("FFMA", "LDG.E.U16", "STG.E.64")),
    (make_tiled, ("i8", "i8", "i32", "128x64", "k", "t", "switch", False), ("IDP.4A", *_COPIES)),
    (make_tiled, ("u8", "i8", "i32", "128x128", "k", "k", "switch", False), ("IDP.4A", *_COPIES)),
]
