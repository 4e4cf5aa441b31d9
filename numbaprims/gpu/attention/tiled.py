"""Attention of float32 by multiply-adds: tiles in shared memory, scores and sums in registers; forward.

A block computes 64 or 128 rows of one head, each warp's rows whole, so that maxima and sums stay in its eight lanes.  q
and k lie transposed, features along the rows, v as it is; gemm's loads bring them, whatever their strides, and its
products multiply them.  The exponentials go to shared memory, transposed, for the second product.  Tiles of k are
copied while exponentials are made and multiplied, those of v meanwhile scores.

Count, 64 elements a row: 4096 multiply-adds a thread for scores and as many for sums, 16 for each load of 16 bytes; 64
exponentials, one `ex2` each, 32 copies of a word of k, 8 of v.  Two blocks of 128 threads on an H100, one on an A100.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from numbaprims.gpu.attention.kernels import STEPS, block_of, start
from numbaprims.gpu.attention.mma import CAUSAL, TRAIN
from numbaprims.gpu.attention.softmax import LOG2E
from numbaprims.gpu.device.block import barrier
from numbaprims.gpu.device.copy import copy_commit, copy_wait, shared_address
from numbaprims.gpu.device.math import divide, exp2_fast, log
from numbaprims.gpu.device.memory import advance, load_vector, store_vector
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.warp import maximum, shuffle_xor, warp_barrier
from numbaprims.gpu.gemm.loads import make_load
from numbaprims.gpu.gemm.multiply import make_four, make_multiply
from numbaprims.gpu.gemm.sizes import Tile, padding
from numbaprims.gpu.jit import (
    GpuKernel,
    cuda,
    device_function,
    gpu_kernel,
    shared_array,
    thread_index,
    types,
)

F32, I32, I64, U32 = types.float32, types.int32, types.int64, types.uint32
KEYS, PAD, V = 64, padding(4), 4
WIDEST = 128


def scores_of(columns: int, mask: str) -> Tile:
    """The tile of scores; that of the sums is as high, and as wide as there are columns.

    With a mask 8 rows a thread are more code than LLVM unrolls, and would be left in local memory."""
    return Tile(8 if columns == 64 and not mask else 4, 8, 4, 8, 4, 1, columns, 1)


def tiled_shared(columns: int, mask: str) -> int:
    """Bytes: q, k and v, and the exponentials."""
    rows = scores_of(columns, mask).bm
    return 4 * ((columns + KEYS) * (rows + PAD) + columns * (KEYS + PAD) + KEYS * (columns + PAD))


@functools.cache
def make_close(kind: str, size: Tile) -> Any:
    """close(s, i, mask, at, step, column, last, factor): scores of row i of a thread, scaled by `factor`, masked."""
    FM, LN = size.tn, size.ln

    @device_function
    def close(s, i, mask, at, step, column, last, factor):  # type: ignore[no-untyped-def]
        for j in range(FM):
            c = I32(column + I32((j // V) * (LN * V) + j % V))
            x = F32(-math.inf)
            if c < last:
                x = s[i * FM + j] * factor
                if kind == "bool":
                    x = x if mask[at + I64(c) * step] != 0 else F32(-math.inf)
                if kind == "float":
                    x += mask[at + I64(c) * step]
            s[i * FM + j] = x

    return close


@functools.cache
def make_power(kind: str) -> Any:
    """power(x, under): as softmax.py's, of scores that are scaled."""

    @device_function
    def power(x, under):  # type: ignore[no-untyped-def]
        return exp2_fast((x - under) * F32(LOG2E) if kind == "float" else x - under)

    return power


@functools.cache
def make_tiled(mask: str, columns: int, q_way: str, k_way: str, v_way: str, whole: bool) -> GpuKernel:
    """Rows of up to `columns` elements; how each array comes in as in gemm's loads; `whole`: rows of out are contiguous
    and aligned to 16 bytes."""
    kind, size = mask, scores_of(columns, mask)
    BM, D, THREADS, TM, TN = size.bm, columns, size.threads, size.tm, columns // size.ln
    LM, LN, FM = size.lm, size.ln, size.tn
    LDQ, LDK, LDV = BM + PAD, KEYS + PAD, columns + PAD
    K_AT, V_AT = D * LDQ, D * LDQ + D * LDK
    P_AT, SUMS, WEIGHTS = V_AT + KEYS * LDV, TM * TN, TM * FM
    both = size._replace(tn=TN)
    corner, scores = make_multiply("f32", "f32", size).begin, make_four("f32", "f32", size)
    keep, gather = make_multiply("f32", "f32", both).keep, make_four("f32", "f32", both)
    close, power = make_close(mask, size), make_power(mask)
    place_q, start_q, fetch_q, _, _, _ = make_load("f32", q_way, BM, D, THREADS, PAD)
    place_k, start_k, fetch_k, _, _, _ = make_load("f32", k_way, KEYS, D, THREADS, PAD)
    place_v, start_v, fetch_v, _, _, _ = make_load("f32", v_way, D, KEYS, THREADS, PAD)
    element = types.CPointer(F32)
    masks = element if mask == "float" else types.CPointer(types.uint8)
    arrays = types.void(*[element] * 4, masks, element, F32, *[I32] * 9, *[STEPS] * 5)
    shared = tiled_shared(columns, mask)

    @gpu_kernel(
        "attention_tiled", arrays, spec=(mask, columns, q_way, k_way, v_way, int(whole)), threads=THREADS,
        blocks_per_sm=1, shared=shared, registers=255,
    )  # fmt: skip
    def attention_tiled(  # type: ignore[no-untyped-def]
        out, q, k, v, mask, lse, scale, blocks, all_heads, rows, heads, share, keys, flags, width, values,
        out_s, q_s, k_s, v_s, mask_s,
    ):  # fmt: skip
        sm = shared_array(0, F32, alignment=16)
        memory = shared_address(sm, 0)
        t = I32(thread_index())
        causal = (flags & I32(CAUSAL)) != 0
        head, part = block_of(causal, False, blocks, all_heads)
        first = I32(part * U32(BM))
        batch = I64(quotient(U32(head), U32(heads)))
        inside = I32(head - I32(batch) * heads)
        group = I64(quotient(U32(inside), U32(share)))
        rows_left = I32(rows - first)
        limit = I32(min(keys, I32(first + I32(min(I32(BM), rows_left))))) if causal else keys
        idle = cuda.local.array(1, F32)
        outer, inner, at = place_q(t)
        source = advance(q, start(q_s, batch, I64(inside), I64(first)) + start_q(outer, inner, q_s[2], q_s[3]))
        fetch_q(idle, False, U32(memory + U32(at * 4)), source, rows_left, width, q_s[2], q_s[3], t)
        outer, inner, at = place_k(t)
        to_k = U32(memory + U32((at + K_AT) * 4))
        k_tile = advance(k, start(k_s, batch, group, I64(0)) + start_k(outer, inner, k_s[2], k_s[3]))
        outer, inner, at = place_v(t)
        to_v = U32(memory + U32((at + V_AT) * 4))
        v_tile = advance(v, start(v_s, batch, group, I64(0)) + start_v(outer, inner, v_s[3], v_s[2]))
        keys_left = keys
        fetch_k(idle, keys_left >= KEYS and width == D, to_k, k_tile, keys_left, width, k_s[2], k_s[3], t)
        copy_commit()
        fetch_v(idle, keys_left >= KEYS and values == D, to_v, v_tile, values, keys_left, v_s[3], v_s[2], t)
        copy_commit()
        base, total, less = cuda.local.array(TM, F32), cuda.local.array(TM, F32), cuda.local.array(TM, F32)
        s, sums = cuda.local.array(WEIGHTS, F32), cuda.local.array(SUMS, F32)
        for i in range(TM):
            base[i], total[i] = F32(-math.inf), F32(0.0)
        for e in range(SUMS):
            sums[e] = F32(0.0)
        row0, column0 = corner(t)
        mask_at = start(mask_s, batch, I64(inside), I64(0))
        never, factor = F32(-math.inf), scale if kind == "float" else F32(scale * F32(LOG2E))
        first_key = I32(0)
        while first_key < limit:
            copy_wait(1)
            barrier()
            for e in range(WEIGHTS):
                s[e] = F32(0.0)
            at_a, at_b = U32(memory + U32(row0 * 4)), U32(memory + U32((column0 + K_AT) * 4))
            left = width
            while left > 0:
                scores(sm, at_a, at_b, s)
                at_a, at_b, left = U32(at_a + 16 * LDQ), U32(at_b + 16 * LDK), I32(left - I32(4))
            barrier()
            k_tile, v_tile = advance(k_tile, I64(KEYS) * k_s[2]), advance(v_tile, I64(KEYS) * v_s[2])
            keys_left = I32(keys_left - I32(KEYS))
            more = I32(first_key + I32(KEYS)) < limit
            if more:
                fetch_k(idle, keys_left >= KEYS and width == D, to_k, k_tile, keys_left, width, k_s[2], k_s[3], t)
            copy_commit()
            # ---- the softmax of this thread's rows, whose other columns are in seven lanes
            for i in range(TM):
                r = I32(first + row0 + I32((i // V) * (LM * V) + i % V))
                last = I32(min(keys, I32(r + I32(1)))) if causal else keys
                close(
                    s, i, mask, mask_at + I64(r) * mask_s[2], mask_s[3], I32(first_key + column0),
                    last if r < rows else I32(0), factor,
                )  # fmt: skip
            for i in range(TM):
                best = base[i]
                for j in range(FM):
                    best = maximum(best, s[i * FM + j])
                for e in range(3):  # of gemm's pairs of rows
                    best = maximum(best, shuffle_xor(best, U32(2 << e)))
                under = F32(0.0) if best == never else best
                less[i] = power(base[i], under)
                base[i] = best
            for i in range(TM):
                under = F32(0.0) if base[i] == never else base[i]
                here = F32(0.0)
                for j in range(FM):
                    y = power(s[i * FM + j], under)
                    s[i * FM + j] = y
                    here += y
                total[i] = total[i] * less[i] + here
            for i in range(TM):
                for j in range(TN):
                    sums[i * TN + j] *= less[i]
            for j in range(FM):
                c = I32(column0 + I32((j // V) * (LN * V) + j % V))
                for g in range(TM // V):
                    at = I64(c * LDQ + row0 + I32(g * LM * V)) + I64(P_AT)
                    four = (
                        s[(V * g) * FM + j], s[(V * g + 1) * FM + j], s[(V * g + 2) * FM + j], s[(V * g + 3) * FM + j],
                    )  # fmt: skip
                    store_vector(sm, at, four)
            warp_barrier()
            copy_wait(1)
            barrier()
            at_a, at_b = U32(memory + U32((row0 + P_AT) * 4)), U32(memory + U32((column0 + V_AT) * 4))
            left = I32(KEYS)
            while left > 0:
                gather(sm, at_a, at_b, sums)
                at_a, at_b, left = U32(at_a + 16 * LDQ), U32(at_b + 16 * LDV), I32(left - I32(4))
            barrier()
            if more:
                fetch_v(idle, keys_left >= KEYS and values == D, to_v, v_tile, values, keys_left, v_s[3], v_s[2], t)
            copy_commit()
            first_key = I32(first_key + I32(KEYS))
        copy_wait(0)
        barrier()
        # ---- out goes through shared memory, so that its rows are written whole
        for i in range(TM):
            r = I32(row0 + I32((i // V) * (LM * V) + i % V))
            sum_of = total[i]
            for e in range(3):
                sum_of += shuffle_xor(sum_of, U32(2 << e))
            inverse = F32(0.0) if sum_of == F32(0.0) else divide(F32(1.0), sum_of)
            for j in range(TN):
                sums[i * TN + j] *= inverse
            if column0 == 0:
                sm[BM * LDV + r] = base[i]
                sm[BM * LDV + BM + r] = sum_of
        keep(sm, t, sums)
        barrier()
        if (flags & I32(TRAIN)) != 0 and t < BM and t < rows_left:
            high = sm[BM * LDV + t]
            high = high if kind == "float" else high * F32(1.0 / LOG2E)
            lse[I64(head) * I64(rows) + I64(first + t)] = high + log(sm[BM * LDV + BM + t])
        to = advance(out, start(out_s, batch, I64(inside), I64(first)))
        piece = t
        while piece < I32(BM * D // V):
            r = I32(quotient(U32(piece), U32(D // V)))
            c = I32(I32(piece - I32(r * I32(D // V))) * I32(V))
            if r < rows_left:
                four = load_vector(sm, I64(r * LDV + c), 4)
                if whole and I32(c + I32(V)) <= values:
                    store_vector(to, I64(r) * out_s[2] + I64(c), four)
                else:
                    for e in range(V):
                        if I32(c + I32(e)) < values:
                            to[I64(r) * out_s[2] + I64(c + I32(e)) * out_s[3]] = four[e]
            piece = I32(piece + I32(THREADS))

    return attention_tiled


#: What the compile gates look at.
GATES: list[tuple[Any, ...]] = [
    (make_tiled, ("", 64, "k", "k", "v", True), ("FFMA", "LDS.128", "LDGSTS.E.BYPASS.128", "STS.128", "STG.E.128")),
    (make_tiled, ("float", 128, "k", "k", "v", True), ("FFMA", "LDS.128", "STG.E.128")),
    (make_tiled, ("bool", 64, "s", "s", "s", False), ("FFMA", "LDG.E.U8", "STG.E")),
]
