"""The kernel of `implicit_mma`: tiles of an implicit product (products.py) on tensor cores, by mma.sync.

It is gemm's kernel on mma.sync (gpu/gemm/mma.py) with other copies (mma_gather.py) and another end (ending.py).

Count, for 128 x 128 of float16 in pieces, 128 threads, a tile of 32 k: a thread issues 64 mma and 16 ldmatrix, and 8
copies; one that is gathered takes 9 instructions, one of the matrix 5, with their tables 80 in all, beside the 170 of
gemm's loop.  In elements a thread of a 64 x 64 tile loads 16 halves and packs them, 200 instructions for 16 mma: what
a source with its channels first costs on tensor cores.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.gpu.conv.arguments import common_types
from numbaprims.gpu.conv.ending import make_drain
from numbaprims.gpu.conv.gather import DIGITS, make_entry, store_entry
from numbaprims.gpu.conv.implicit_kernel import COUNTS, STRIDES, TILING
from numbaprims.gpu.conv.mma_gather import entries_of, layout_of, make_fetch
from numbaprims.gpu.device.block import barrier
from numbaprims.gpu.device.copy import copy_commit, copy_wait, shared_address
from numbaprims.gpu.device.memory import advance, opaque, store_vector
from numbaprims.gpu.device.mma import mma
from numbaprims.gpu.device.tile import quotient, remainder
from numbaprims.gpu.device.warp import lane_index, warp_index
from numbaprims.gpu.gemm.mma import PAD, TILES, make_corner
from numbaprims.gpu.gemm.tiles import TILE_BYTES, make_operand, tile_k
from numbaprims.gpu.jit import GpuKernel, block_index, cuda, gpu_kernel, shared_array, thread_index, types

I32, I64, U32, F32 = types.int32, types.int64, types.uint32, types.float32


def shared_bytes(tile: str) -> int:
    """Bytes of shared memory: gemm's, a table of v, a table of k for twice as many as there are threads."""
    shape = TILES[tile]
    return shape.shared + 4 * (4 * max(shape.m, shape.n) + 2 * shape.threads * 5)


def residents(tile: str, staged: bool) -> int:
    """Blocks that a multiprocessor is to hold; elements of both operands in registers (`staged`) take some of them."""
    return max(1, TILES[tile].blocks - (1 if staged else 0))


@functools.cache
def make_implicit_mma(
    dtype: str, out_dtype: str, tile: str, plain_form: str, gather_form: str, v_order: str, k_order: str,
    rows_are_u: bool, flat: bool, activation: str, partial: bool,
) -> GpuKernel:  # fmt: skip
    """A tile of u x v (v x u unless `rows_are_u`); with `partial`, of the sums over one chunk of k."""
    shape = TILES[tile]
    KIND = "tf32" if dtype == "f32" else dtype
    THREADS, STAGES, BM, BN, BK = shape.threads, shape.stages, shape.m, shape.n, tile_k(dtype)
    WM, WN, WARPS_N = BM // shape.warps_m, BN // shape.warps_n, shape.warps_n
    FM, FN = WM // 16, WN // 8
    SUMS, RIGHT, NEWEST = 4 * FM * FN, 2 * FN, STAGES - 2
    STAGE, A_BYTES, PITCH = (BM + BN) * TILE_BYTES, BM * TILE_BYTES, BN + PAD
    BU, BV = (BM, BN) if rows_are_u else (BN, BM)
    U_AT, V_AT = (0, A_BYTES) if rows_are_u else (A_BYTES, 0)
    VS, KS = shape.shared // 4, shape.shared // 4 + 4 * BV
    RING = 2 * THREADS
    PLAINS, OUTS, CS = KS + 4 * RING, KS, KS + BV
    locate_u, _, fetch_plain, put_u, U_REGS = make_fetch(dtype, plain_form, BU, THREADS, flat)
    locate_v, fetch_gathered, _, put_v, V_REGS = make_fetch(dtype, gather_form, BV, THREADS, flat)
    ENTRIES = entries_of(dtype, gather_form)
    PER_ENTRY = BK // ENTRIES
    # a matrix is walked along k, what comes by elements through the table
    ALONG = 1 if plain_form == "matrix" else 0
    assert THREADS >= ENTRIES * (STAGES - 1) and THREADS % ENTRIES == 0
    assert plain_form == "matrix" or PER_ENTRY == 1
    a_form, b_form = (plain_form, gather_form) if rows_are_u else (gather_form, plain_form)
    fragments_a = make_operand(dtype, layout_of(a_form), BM, 16, THREADS, True).fragments
    fragments_b = make_operand(dtype, layout_of(b_form), BN, 16, THREADS, False).fragments
    v_entry, k_entry, v_digits = make_entry(v_order), make_entry(k_order), DIGITS[v_order]
    drain = make_drain(dtype, out_dtype, "f32", activation, BM, BN, PITCH, THREADS, rows_are_u, partial)
    corner = make_corner(BV, BU)
    blocks = residents(tile, min(U_REGS, V_REGS) > 1)
    spec = (
        dtype, out_dtype, tile, plain_form, gather_form, v_order, k_order, int(rows_are_u), int(flat), activation,
        int(partial),
    )  # fmt: skip
    signature = types.void(
        *common_types(dtype, dtype, out_dtype), *(types.int32,) * COUNTS, *(types.int64,) * STRIDES,
        types.CPointer(F32), *(types.int32,) * TILING,
    )  # fmt: skip

    @gpu_kernel(
        "conv_implicit_mma", signature, spec=spec, threads=THREADS, blocks_per_sm=blocks, shared=shared_bytes(tile),
        registers=min(255, 65536 // (THREADS * blocks)),
    )  # fmt: skip
    def conv_implicit_mma(  # type: ignore[no-untyped-def]
        out, source, plain, c, bias, has_c, has_bias, bias_step, code, alpha, beta, p0, p1, p2,
        u_count, v_count, k_count, v_c, v_d, v_h, v_w, vg_d, vg_h, vg_w, vb_d, vb_h, vb_w,
        k_c, k_d, k_h, k_w, kg_d, kg_h, kg_w, v_step, k_step, s_d, s_h, s_w, size_d, size_h, size_w, bias_axis,
        p_u, p_c, p_d, p_h, p_w, p_base, p_group, s_group, o_u, o_c, o_d, o_h, o_w, o_base, o_group,
        c_u, c_c, c_d, c_h, c_w, c_base, c_group,
        workspace, tiles_u, tiles_v, chunks, chunk, room, flags,
    ):  # fmt: skip
        sums = shared_array(0, F32, alignment=1024)
        tables = shared_array(0, I32, alignment=1024)  # the same memory
        memory = shared_address(sums, 0)
        u_regs, v_regs = cuda.local.array(U_REGS, types.uint16), cuda.local.array(V_REGS, types.uint16)
        t = I32(thread_index())
        # ---- which tile of which group, which part of k
        tiles = U32(tiles_u * tiles_v)
        part = quotient(block_index(), tiles)
        number = quotient(part, U32(chunks))
        group = I64(number)
        first_k = I32(U32(part - number * U32(chunks)) * U32(chunk))
        end_k = I32(min(k_count, first_k + chunk))
        v0, u0 = corner(U32(block_index() - part * tiles), tiles_v, tiles_u)
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
            I32(first_k + t * PER_ENTRY), end_k, k_c, k_d, k_h, k_w, kg_d, kg_h, kg_w, I32(0), I32(0), I32(0), k_step,
            s_d, s_h, s_w,
        )  # fmt: skip
        store_entry(tables, I32(KS + 4 * t), entry)
        tables[I64(PLAINS + t)] = I32(e_c * p_c + e_d * p_d + e_h * p_h + e_w * p_w)
        total = cuda.local.array(SUMS, F32)
        for e in range(SUMS):
            total[e] = F32(0)
        barrier()
        warp = warp_index()
        row = U32(quotient(warp, U32(WARPS_N)) * U32(WM))
        col = U32(remainder(warp, U32(WARPS_N)) * U32(WN))
        steps = I32((end_k - first_k + (BK - 1)) // BK)
        stage, free, step = U32(0), U32(0), I32(1 - STAGES)
        while step < steps:
            if step >= 0:
                copy_wait(NEWEST)
                barrier()
            fetched = I32(step + (STAGES - 1))
            if fetched < steps:
                # what follows from t alone is computed here anew: registers are scarcer than instructions
                own = opaque(t)
                at = I32((fetched * ENTRIES) & (RING - 1))
                if ((fetched * ENTRIES) & (THREADS - 1)) == 0:
                    # the k after those in use: read from the next turn on, a barrier later
                    entry, e_c, e_d, e_h, e_w = k_entry(
                        I32(first_k + fetched * BK + (THREADS + own) * PER_ENTRY), end_k, k_c, k_d, k_h, k_w, kg_d,
                        kg_h, kg_w, I32(0), I32(0), I32(0), k_step, s_d, s_h, s_w,
                    )  # fmt: skip
                    other = I32((THREADS - at) + own)
                    store_entry(tables, I32(KS + 4 * other), entry)
                    tables[I64(PLAINS + other)] = I32(e_c * p_c + e_d * p_d + e_h * p_h + e_w * p_w)
                k_left = I32(end_k - first_k - fetched * BK)
                u_row, u_inner, u_place = locate_u(own)
                fetch_plain(
                    u_regs, U32(memory + free + U32(U_AT) + u_place), tables, I32(PLAINS + at),
                    advance(plain, I64(first_k + fetched * BK) * ALONG), u_left, k_left, p_u, u_row, u_inner,
                )  # fmt: skip
                v_row, v_inner, v_place = locate_v(own)
                fetch_gathered(
                    v_regs, U32(memory + free + U32(V_AT) + v_place), tables, I32(VS), I32(KS + 4 * at), source,
                    size_d, size_h, size_w, v_row, v_inner,
                )  # fmt: skip
            copy_commit()
            if step >= 0:
                right = cuda.local.array(RIGHT, U32)
                for half in range(2):
                    for j in range(FN // 2):
                        words = fragments_b(U32(memory + U32(A_BYTES) + stage), U32(col + U32(16 * j)), half)
                        right[4 * j], right[4 * j + 1] = words[0], words[1]
                        right[4 * j + 2], right[4 * j + 3] = words[2], words[3]
                    for i in range(FM):
                        left = fragments_a(U32(memory + stage), U32(row + U32(16 * i)), half)
                        for j in range(FN):
                            e = 4 * (i * FN + j)
                            before = (total[e], total[e + 1], total[e + 2], total[e + 3])
                            after = mma(left, (right[2 * j], right[2 * j + 1]), before, KIND, KIND)
                            total[e], total[e + 1], total[e + 2], total[e + 3] = after[0], after[1], after[2], after[3]
                stage = U32(stage + U32(STAGE)) if stage != U32((STAGES - 1) * STAGE) else U32(0)
            if fetched < steps:
                own = opaque(t)
                _, _, u_place = locate_u(own)
                _, _, v_place = locate_v(own)
                put_u(u_regs, tables, I32(U32(free + U32(U_AT) + u_place) >> U32(2)))
                put_v(v_regs, tables, I32(U32(free + U32(V_AT) + v_place) >> U32(2)))
                free = U32(free + U32(STAGE)) if free != U32((STAGES - 1) * STAGE) else U32(0)
            step = I32(step + 1)
        # ---- the sums go through shared memory; the places of v in the result take those of k
        barrier()
        lane = lane_index()
        at_sum = U32((row + (lane >> U32(2))) * U32(PITCH) + col + ((lane & U32(3)) << U32(1)))
        for i in range(FM):
            for j in range(FN):
                e = 4 * (i * FN + j)
                store_vector(sums, U32(at_sum + U32(16 * i * PITCH + 8 * j)), (total[e], total[e + 1]))
                store_vector(sums, U32(at_sum + U32((16 * i + 8) * PITCH + 8 * j)), (total[e + 2], total[e + 3]))
        v = t
        while v < BV:
            e_c, e_d, e_h, e_w = v_digits(I32(v0 + v), v_c, v_d, v_h, v_w)
            tables[I64(OUTS + v)] = I32(o_base + e_c * o_c + e_d * o_d + e_h * o_h + e_w * o_w)
            tables[I64(CS + v)] = I32(c_base + e_c * c_c + e_d * c_d + e_h * c_h + e_w * c_w)
            v = I32(v + THREADS)
        barrier()
        rows_of = I64(u_count) if rows_are_u else I64(v_count)
        drain(
            sums, tables, I32(OUTS), I32(CS), t, u0, u_count, v0, v_count, advance(out, group * o_group),
            advance(c, group * c_group), advance(bias, group * u_count * bias_step), o_u, c_u, has_c, bias_axis,
            bias_step, code, flags, alpha, beta, p0, p1, p2, advance(workspace, I64(part) * rows_of * room), room,
        )  # fmt: skip

    return conv_implicit_mma


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_implicit_mma, ("f16", "f16", "128x128", "matrix", "pieces", "slow", "fast", False, True, "switch", False),
     ("HMMA.16816.F32", "LDSM.16.M88.4", "LDGSTS.E.BYPASS.128", "STG.E.64")),
    (make_implicit_mma, ("bf16", "bf16", "128x256", "matrix", "pieces", "slow", "fast", False, True, "switch", False),
     ("HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS.128", "STG.E.64")),
    (make_implicit_mma, ("f16", "f16", "64x64", "matrix", "elements", "slow", "slow", True, True, "gelu", False),
     ("HMMA.16816.F32", "LDG.E.U16", "STS.128")),
    (make_implicit_mma, ("bf16", "bf16", "64x64", "elements", "elements", "fast", "slow", True, False, "switch", True),
     ("HMMA.16816.F32.BF16", "LDG.E.U16", "STS.128", "STG.E.128")),
    (make_implicit_mma, ("bf16", "bf16", "128x128", "rows", "rows", "fast", "slow", True, True, "switch", True),
     ("HMMA.16816.F32.BF16", "LDSM.16.MT88.4", "LDGSTS.E.BYPASS.128", "STG.E.128")),
    (make_implicit_mma, ("f32", "f32", "128x128", "matrix", "pieces", "slow", "fast", False, True, "switch", False),
     ("HMMA.1688.F32.TF32", "LDGSTS.E.BYPASS.128", "STG.E.128")),
    (make_implicit_mma, ("f32", "f32", "64x64", "elements", "elements", "slow", "slow", True, True, "switch", False),
     ("HMMA.1688.F32.TF32", "LDGSTS.E", "STG.E.128")),
]  # fmt: skip
