"""The kernel of `implicit_gemm` in float32 and float64: tiles of an implicit product (products.py), sums in registers.

It is gemm's kernel of tiles (tiled_kernel.py) with other copies (gather.py) and another end (ending.py): while a block
of k is multiplied, the copies of the next are under way, with one barrier for each.

Count, for 128 x 128 of float32, 256 threads, a block of 32 k: a thread issues 2048 multiply-adds, 256 loads of shared
memory for them, 32 copies; an element that is gathered takes about 9 instructions and one of the plain matrix 5, 220 in
all.  The table of k is made by all threads for 256 k at a time: 100 instructions for 8 blocks.  Bytes: each tile reads
(128 + 128) words for each k out of the caches, 16 flops a byte; a gathered word is read again for every tap, which the
first-level cache serves where taps overlap.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.conv.arguments import common_types
from numbaprims.gpu.conv.ending import make_drain
from numbaprims.gpu.conv.gather import DIGITS, make_entry, make_fetch, store_entry
from numbaprims.gpu.device.copy import copy_commit, copy_wait, shared_address
from numbaprims.gpu.device.memory import advance, opaque
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.gemm.epilogue import local_sums
from numbaprims.gpu.gemm.loads import words_of
from numbaprims.gpu.gemm.multiply import make_four, make_multiply
from numbaprims.gpu.gemm.sizes import TILES, padding
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, cuda, gpu_kernel, shared_array, thread_index, types

BAND = 8
"""Rows of tiles that are computed side by side: what they share stays in the second-level cache."""
I32, I64, U32 = types.int32, types.int64, types.uint32
#: Behind the common parameters: int32, int64 and int32 again.
COUNTS, STRIDES, TILING = 29, 22, 6


def shared_bytes(dtype: str, tile: str) -> tuple[int, int]:
    """Bytes of shared memory before the tables, and in all."""
    size, word = TILES[tile], words_of(dtype).size
    begin = size.shared(word)
    # v: 4 int32 each; k: twice as many as threads, 4 int32 and an offset each
    return begin, begin + 4 * (4 * max(size.bm, size.bn) + 2 * size.threads * 5)


def residents(dtype: str, tile: str) -> int:
    """Blocks that a multiprocessor is to hold: as many as gemm's, where an A100's shared memory has room for them."""
    return min(TILES[tile].residents(words_of(dtype).size), 164 * 1024 // (shared_bytes(dtype, tile)[1] + 1024))


@functools.cache
def make_implicit(
    dtype: str, out_dtype: str, tile: str, plain_way: str, gather_way: str, v_order: str, k_order: str,
    rows_are_u: bool, flat: bool, activation: str, partial: bool,
) -> GpuKernel:  # fmt: skip
    """A tile of u x v (v x u unless `rows_are_u`); with `partial`, of the sums over one chunk of k."""
    size, acc = TILES[tile], DTYPES[dtype].accumulate
    words, S = words_of(dtype), local_sums(acc)
    W, WORD = words.size, words.type
    BM, BN, BK, STAGES, THREADS, SUMS = size.bm, size.bn, size.bk, size.stages, size.threads, size.tm * size.tn
    LDA, LDB = BM + padding(W), BN + padding(W)
    STAGE, PENDING, LDS = BK * (LDA + LDB), STAGES - 2, BN + padding(W)
    BU, BV = (BM, BN) if rows_are_u else (BN, BM)
    # where in a stage the words of u and of v begin
    U_AT, V_AT = (0, BK * LDA) if rows_are_u else (BK * LDA, 0)
    begin, shared = shared_bytes(dtype, tile)
    VS, KS = begin // 4, begin // 4 + 4 * BV
    RING = 2 * THREADS
    PLAINS = KS + 4 * RING
    OUTS, CS = KS, KS + BV
    assert THREADS >= BK * (STAGES - 1) and THREADS % BK == 0  # a barrier between a table's making and its use
    fetch_plain = make_fetch(dtype, plain_way, BU, BK, THREADS, flat).plain
    fetch_gathered = make_fetch(dtype, gather_way, BV, BK, THREADS, flat).gathered
    v_entry, k_entry, v_digits = make_entry(v_order), make_entry(k_order), DIGITS[v_order]
    corner, _, _, _, keep, _ = make_multiply(dtype, dtype, size)
    multiply_four = make_four(dtype, dtype, size)
    drain = make_drain(dtype, out_dtype, acc, activation, BM, BN, LDS, THREADS, rows_are_u, partial)
    spec = (
        dtype, out_dtype, tile, plain_way, gather_way, v_order, k_order, int(rows_are_u), int(flat), activation,
        int(partial),
    )  # fmt: skip
    signature = types.void(
        *common_types(dtype, dtype, out_dtype), *(types.int32,) * COUNTS, *(types.int64,) * STRIDES,
        types.CPointer(STORAGE[acc]), *(types.int32,) * TILING,
    )  # fmt: skip

    @gpu_kernel(
        "conv_implicit", signature, spec=spec, threads=THREADS, blocks_per_sm=residents(dtype, tile), shared=shared,
        registers=min(255, 65536 // (THREADS * residents(dtype, tile)) // 8 * 8),
    )  # fmt: skip
    def conv_implicit(  # type: ignore[no-untyped-def]
        out, source, plain, c, bias, has_c, has_bias, bias_step, code, alpha, beta, p0, p1, p2,
        u_count, v_count, k_count, v_c, v_d, v_h, v_w, vg_d, vg_h, vg_w, vb_d, vb_h, vb_w,
        k_c, k_d, k_h, k_w, kg_d, kg_h, kg_w, v_step, k_step, s_d, s_h, s_w, size_d, size_h, size_w, bias_axis,
        p_u, p_c, p_d, p_h, p_w, p_base, p_group, s_group, o_u, o_c, o_d, o_h, o_w, o_base, o_group,
        c_u, c_c, c_d, c_h, c_w, c_base, c_group,
        workspace, tiles_u, tiles_v, chunks, chunk, room, flags,
    ):  # fmt: skip
        sm = shared_array(0, WORD, alignment=16)
        drained = shared_array(0, S, alignment=16)  # the same memory
        tables = shared_array(0, I32, alignment=16)
        sums = cuda.local.array(SUMS, S)
        t = I32(thread_index())
        # ---- which tile of which group, which part of k
        tiles = U32(tiles_u * tiles_v)
        part = quotient(U32(block_index()), tiles)
        inside = U32(U32(block_index()) - part * tiles)
        number = quotient(part, U32(chunks))
        group = I64(number)
        first_k = I32(U32(part - number * U32(chunks)) * U32(chunk))
        end_k = I32(min(k_count, first_k + chunk))
        in_band = U32(BAND * tiles_u)
        band = quotient(inside, in_band)
        inside = U32(inside - band * in_band)
        height = U32(min(U32(tiles_v) - band * U32(BAND), U32(BAND)))
        column = quotient(inside, height)
        v0 = I32((band * U32(BAND) + inside - column * height) * U32(BV))
        u0 = I32(column * U32(BU))
        source = advance(source, group * s_group)
        plain = advance(plain, group * p_group + p_base + I64(u0) * p_u)
        u_left = I32(u_count - u0)
        # ---- the tables: all v of the tile, the first k
        v = t
        while v < BV:
            entry, _, _, _, _ = v_entry(
                I32(v0 + v), v_count, v_c, v_d, v_h, v_w, vg_d, vg_h, vg_w, vb_d, vb_h, vb_w, v_step, s_d, s_h, s_w
            )  # fmt: skip
            store_entry(tables, I32(VS + 4 * v), entry)
            v = I32(v + THREADS)
        entry, e_c, e_d, e_h, e_w = k_entry(
            I32(first_k + t), end_k, k_c, k_d, k_h, k_w, kg_d, kg_h, kg_w, I32(0), I32(0), I32(0), k_step, s_d, s_h, s_w
        )  # fmt: skip
        store_entry(tables, I32(KS + 4 * t), entry)
        tables[I64(PLAINS + t)] = I32(e_c * p_c + e_d * p_d + e_h * p_h + e_w * p_w)
        for e in range(SUMS):
            sums[e] = S(0)
        base = shared_address(sm, 0)
        row0, column0 = corner(t)
        cuda.syncthreads()

        steps = I32((end_k - first_k + (BK - 1)) // BK)
        read, write, step = I32(0), I32(0), I32(1 - STAGES)
        while step < steps:
            if step >= 0:
                copy_wait(PENDING)
                cuda.syncthreads()
            fetched = I32(step + (STAGES - 1))
            if fetched < steps:
                # what follows from t alone is computed here anew: registers are scarcer than instructions
                own = opaque(t)
                done = I32(fetched * BK)
                at = I32(done & (RING - 1))
                if (done & (THREADS - 1)) == 0:
                    # the k after those in use: read from the next turn on, a barrier later
                    entry, e_c, e_d, e_h, e_w = k_entry(
                        I32(first_k + done + THREADS + own), end_k, k_c, k_d, k_h, k_w, kg_d, kg_h, kg_w, I32(0),
                        I32(0), I32(0), k_step, s_d, s_h, s_w,
                    )  # fmt: skip
                    other = I32((THREADS - at) + own)
                    store_entry(tables, I32(KS + 4 * other), entry)
                    tables[I64(PLAINS + other)] = I32(e_c * p_c + e_d * p_d + e_h * p_h + e_w * p_w)
                fetch_plain(
                    U32(base + (write + U_AT) * W), tables, I32(PLAINS + at), plain, u_left,
                    I32(end_k - first_k - done), p_u, own,
                )  # fmt: skip
                fetch_gathered(
                    U32(base + (write + V_AT) * W), tables, I32(VS), I32(KS + 4 * at), source, size_d, size_h, size_w,
                    own,
                )  # fmt: skip
                write = I32(write + STAGE) if write < (STAGES - 1) * STAGE else I32(0)
            copy_commit()
            if step >= 0:
                at_a, at_b = U32(base + (read + row0) * W), U32(base + (read + (column0 + BK * LDA)) * W)
                rows = I32(min(end_k - first_k - step * BK, I32(BK)))
                while rows > 0:
                    multiply_four(sm, at_a, at_b, sums)
                    at_a, at_b, rows = U32(at_a + 4 * LDA * W), U32(at_b + 4 * LDB * W), I32(rows - 4)
                read = I32(read + STAGE) if read < (STAGES - 1) * STAGE else I32(0)
            step = I32(step + 1)

        # ---- the sums go through shared memory; the places of v in the result take those of k
        cuda.syncthreads()
        t = opaque(t)
        keep(drained, t, sums)
        v = t
        while v < BV:
            e_c, e_d, e_h, e_w = v_digits(I32(v0 + v), v_c, v_d, v_h, v_w)
            tables[I64(OUTS + v)] = I32(o_base + e_c * o_c + e_d * o_d + e_h * o_h + e_w * o_w)
            tables[I64(CS + v)] = I32(c_base + e_c * c_c + e_d * c_d + e_h * c_h + e_w * c_w)
            v = I32(v + THREADS)
        cuda.syncthreads()
        rows_of = I64(u_count) if rows_are_u else I64(v_count)
        drain(
            drained, tables, I32(OUTS), I32(CS), t, u0, u_count, v0, v_count, advance(out, group * o_group),
            advance(c, group * c_group), advance(bias, group * u_count * bias_step), o_u, c_u, has_c, bias_axis,
            bias_step, code, flags, alpha, beta, p0, p1, p2, advance(workspace, I64(part) * rows_of * room), room,
        )  # fmt: skip

    return conv_implicit


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_implicit, ("f32", "f32", "128x128", "k", "o", "slow", "slow", True, True, "switch", False),
     ("FFMA", "LDGSTS.E", "LDS.128", "STG.E.128")),
    (make_implicit, ("f32", "f32", "128x64", "k", "k", "slow", "fast", False, True, "gelu", False),
     ("FFMA", "LDGSTS.E", "LDS.128", "STG.E.128")),
    (make_implicit, ("f32", "f32", "64x64", "o", "o", "fast", "slow", True, False, "switch", True),
     ("FFMA", "LDGSTS.E", "LDS.128", "STG.E.128")),
    (make_implicit, ("f64", "f64", "64x64", "k", "o", "slow", "slow", True, True, "switch", False),
     ("DFMA", "LDGSTS.E.64", "LDS.128", "STG.E.128")),
]  # fmt: skip
