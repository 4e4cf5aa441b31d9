"""Products on tensor cores by mma.sync: float16, bfloat16, tfloat32 and int8, from compute capability 8.0 on.

A block computes a tile of out; its warps share it, each with its sums in registers.  Four tiles of 64 bytes of k stand
in shared memory: while one is multiplied, the copies of the next three are under way (cp.async), with one barrier for
each.  Fragments come by ldmatrix.  The sums go through the same shared memory at the end, so that rows of out are
written whole.  Each sum runs over k from front to back, so results do not depend on the tile.

Count, for bfloat16; k goes in steps of 16, two in a tile of k:

    tile        warps    a block's copies, flops    flops a byte   registers   blocks a multiprocessor, shared memory
    128 x 256   64 x 64  24 KiB, 2.10 M per tile    85             220         1 of 256 threads, 132 KiB
    128 x 128   64 x 64  16 KiB, 1.05 M             64             216         2 of 128 threads, 68 KiB
    64 x 64     32 x 32   8 KiB, 0.26 M             32             109         4 of 128 threads, 32 KiB

- second-level cache: 85 flops a byte are 3.7 TB/s at the 312 TFLOP/s of an A100, of about 5 that it gives.
- shared memory: a warp of 64 x 64 reads 4 KiB for 32 mma. Four of them take 256 clocks of an A100's tensor cores and
  128 clocks of 128 bytes; writing the tiles takes 192 clocks beside 1024 of products. A warp of 32 x 32 reads 2 KiB for
  8 mma: 64 clocks of reading for 64 of products, which is why small tiles reach half of the peak.
- issue: the loop of 128 x 128 holds 64 mma among about 170 instructions, where all of a tile exists (others take a
  longer way); two blocks' warps issue 340 in the 1024 clocks that an A100 computes, in 512 on an H100.
- from compute capability 9.0 on mma.sync reaches about 0.62 of the peak; see wgmma.py.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.block import barrier
from numbaprims.gpu.device.copy import copy_commit, copy_wait, shared_address
from numbaprims.gpu.device.memory import advance, store_vector
from numbaprims.gpu.device.mma import mma
from numbaprims.gpu.device.tile import quotient, remainder
from numbaprims.gpu.device.warp import lane_index, warp_index
from numbaprims.gpu.gemm.arguments import OFFSETS, common_types
from numbaprims.gpu.gemm.epilogue import make_drain
from numbaprims.gpu.gemm.tiles import TILE_BYTES, make_operand, tile_k
from numbaprims.gpu.jit import (
    GpuKernel,
    block_index,
    cuda,
    device_function,
    gpu_kernel,
    shared_array,
    thread_index,
    types,
)

I32, I64, U32 = types.int32, types.int64, types.uint32
PAD = 8
"""Sums between rows of the tile of sums: lanes of four rows then write to different banks."""


BAND = 8
"""Rows of tiles that are computed side by side: what they read of A stays in the second-level cache for all of B."""


class Tile(NamedTuple):
    """A block's tile of out, and how its warps share it."""

    m: int
    n: int
    warps_m: int
    warps_n: int
    stages: int
    blocks: int
    """Blocks that a multiprocessor shall hold."""

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def shared(self) -> int:
        """Bytes: the stages, and later, in the same place, the sums."""
        return max(self.stages * (self.m + self.n) * TILE_BYTES, self.m * (self.n + PAD) * 4)


TILES = {
    "128x256": Tile(128, 256, 2, 4, 4, 1),
    "128x128": Tile(128, 128, 2, 2, 4, 2),
    "64x64": Tile(64, 64, 2, 2, 4, 4),
}


@device_function
def begin_of(offsets, flags, product, first_step, second_step, column):  # type: ignore[no-untyped-def]
    """Where a product of the batch begins in two operands, columns `column` and the next of the table of offsets."""
    at = I64(product)
    first, second = at * first_step, at * second_step
    if (flags & OFFSETS) != 0:
        first, second = offsets[at * 4 + column], offsets[at * 4 + column + 1]
    return first, second


@functools.cache
def make_corner(BM: int, BN: int, band: int = BAND) -> Any:
    """corner(number, tiles_m, tiles_n): row and column of out where tile `number` begins, in bands of `band` rows."""

    @device_function
    def corner(number, tiles_m, tiles_n):  # type: ignore[no-untyped-def]
        # bands of rows of tiles, walked column by column
        in_band = U32(band * tiles_n)
        first = quotient(number, in_band)
        inside = U32(number - first * in_band)
        height = U32(min(U32(tiles_m) - first * U32(band), U32(band)))
        column = quotient(inside, height)
        return I32((first * U32(band) + inside - column * height) * U32(BM)), I32(column * U32(BN))

    return corner


@functools.cache
def make_mma(
    a_dtype: str, b_dtype: str, out_dtype: str, a_layout: str, b_layout: str, a_width: int, b_width: int, tile: str,
    activation: str, partial: bool,
) -> GpuKernel:  # fmt: skip
    """The kernel for operands of one type and layout, copied `a_width` and `b_width` bytes at a time."""
    acc = DTYPES[a_dtype].accumulate
    kinds = ("tf32", "tf32") if a_dtype == "f32" else (a_dtype, b_dtype)
    A_KIND, B_KIND = kinds
    shape = TILES[tile]
    THREADS, STAGES, BM, BN, BK = shape.threads, shape.stages, shape.m, shape.n, tile_k(a_dtype)
    WM, WN, WARPS_N = BM // shape.warps_m, BN // shape.warps_n, shape.warps_n
    FM, FN = WM // 16, WN // 8
    SUMS, RIGHT, NEWEST = 4 * FM * FN, 2 * FN, STAGES - 2
    STAGE, A_BYTES, PITCH = (BM + BN) * TILE_BYTES, BM * TILE_BYTES, BN + PAD
    S = types.int32 if acc == "i32" else types.float32
    locate_a, copy_a, fragments_a, A_ROUND = make_operand(a_dtype, a_layout, BM, a_width, THREADS, True)
    locate_b, copy_b, fragments_b, B_ROUND = make_operand(b_dtype, b_layout, BN, b_width, THREADS, False)
    a_along_k, b_along_k = a_layout == "k", b_layout == "k"
    drain = make_drain(a_dtype, out_dtype, acc, activation, BM, BN, PITCH, THREADS, partial)
    corner = make_corner(BM, BN)
    spec = (a_dtype, b_dtype, out_dtype, a_layout, b_layout, a_width, b_width, tile, activation, int(partial))
    signature = types.void(*common_types(a_dtype, b_dtype, out_dtype, acc), types.CPointer(S), *(types.int32,) * 5)

    @gpu_kernel(
        "gemm_mma", signature, spec=spec, threads=THREADS, blocks_per_sm=shape.blocks, shared=shape.shared,
        registers=min(255, 65536 // (THREADS * shape.blocks)),
    )  # fmt: skip
    def gemm_mma(  # type: ignore[no-untyped-def]
        out, a, b, c, bias, offsets, m, n, k, a_rs, a_cs, b_rs, b_cs, out_rs, out_cs, c_rs, c_cs, bias_step,
        a_bs, b_bs, out_bs, c_bs, has_c, bias_axis, code, flags, alpha, beta, p0, p1, p2,
        workspace, tiles_m, tiles_n, chunks, chunk, room,
    ):  # fmt: skip
        sums = shared_array(0, S, alignment=1024)
        memory = shared_address(sums, 0)
        thread = thread_index()
        # ---- which tile of which product, which part of k
        tiles = U32(tiles_m * tiles_n)
        part = quotient(block_index(), tiles)
        product = quotient(part, U32(chunks))
        k_first = I32(I32(part - product * U32(chunks)) * chunk)
        first_m, first_n = corner(U32(block_index() - part * tiles), tiles_m, tiles_n)
        at_a, at_b = begin_of(offsets, flags, product, a_bs, b_bs, I64(0))
        at_a, at_b = at_a + I64(k_first) * a_cs, at_b + I64(k_first) * b_rs
        a_tile, b_tile = advance(a, at_a), advance(b, at_b)
        # ---- what this thread copies
        a_outer, b_outer = a_rs if a_along_k else a_cs, b_cs if b_along_k else b_rs
        a_step, b_step = I64(BK) * (I64(1) if a_along_k else a_cs), I64(BK) * (I64(1) if b_along_k else b_rs)
        a_row, a_inner, a_at, a_place = locate_a(thread, first_m, a_outer)
        b_row, b_inner, b_at, b_place = locate_b(thread, first_n, b_outer)
        a_delta, b_delta = I64(A_ROUND) * a_outer, I64(B_ROUND) * b_outer
        m_left, n_left, k_left = I32(m - first_m), I32(n - first_n), I32(min(k - k_first, chunk))
        a_target, b_target = U32(memory + a_place), U32(memory + U32(A_BYTES) + b_place)
        total = cuda.local.array(SUMS, S)
        for e in range(SUMS):
            total[e] = S(0)
        for s in range(STAGES - 1):
            if k_left > 0:
                copy_a(U32(a_target + U32(s * STAGE)), a_tile, a_at, a_delta, a_row, a_inner, m_left, k_left)
                copy_b(U32(b_target + U32(s * STAGE)), b_tile, b_at, b_delta, b_row, b_inner, n_left, k_left)
            copy_commit()
            a_at += a_step
            b_at += b_step
            k_left = I32(k_left - I32(BK))
        warp = warp_index()
        row = U32(quotient(warp, U32(WARPS_N)) * U32(WM))
        col = U32(remainder(warp, U32(WARPS_N)) * U32(WN))
        stage, free = U32(0), U32((STAGES - 1) * STAGE)
        while k_left + I32((STAGES - 1) * BK) > 0:
            copy_wait(NEWEST)
            barrier()
            if k_left > 0:
                copy_a(U32(a_target + free), a_tile, a_at, a_delta, a_row, a_inner, m_left, k_left)
                copy_b(U32(b_target + free), b_tile, b_at, b_delta, b_row, b_inner, n_left, k_left)
            copy_commit()
            a_at += a_step
            b_at += b_step
            k_left = I32(k_left - I32(BK))
            right = cuda.local.array(RIGHT, U32)
            for step in range(2):
                for j in range(FN // 2):
                    words = fragments_b(U32(memory + U32(A_BYTES) + stage), U32(col + U32(16 * j)), step)
                    right[4 * j], right[4 * j + 1] = words[0], words[1]
                    right[4 * j + 2], right[4 * j + 3] = words[2], words[3]
                for i in range(FM):
                    left = fragments_a(U32(memory + stage), U32(row + U32(16 * i)), step)
                    for j in range(FN):
                        e = 4 * (i * FN + j)
                        before = (total[e], total[e + 1], total[e + 2], total[e + 3])
                        after = mma(left, (right[2 * j], right[2 * j + 1]), before, A_KIND, B_KIND)
                        total[e], total[e + 1], total[e + 2], total[e + 3] = after[0], after[1], after[2], after[3]
            free = stage
            stage = U32(stage + U32(STAGE)) if stage != U32((STAGES - 1) * STAGE) else U32(0)
        # ---- the sums go through shared memory, so that rows of out are written whole
        copy_wait(0)
        barrier()
        lane = lane_index()
        at_sum = U32((row + (lane >> U32(2))) * U32(PITCH) + col + ((lane & U32(3)) << U32(1)))
        for i in range(FM):
            for j in range(FN):
                e = 4 * (i * FN + j)
                store_vector(sums, U32(at_sum + U32(16 * i * PITCH + 8 * j)), (total[e], total[e + 1]))
                store_vector(sums, U32(at_sum + U32((16 * i + 8) * PITCH + 8 * j)), (total[e + 2], total[e + 3]))
        barrier()
        at_out, at_c = begin_of(offsets, flags, product, out_bs, c_bs, I64(2))
        drain(
            sums, I32(thread), first_m, first_n, m, advance(out, at_out), advance(c, at_c), bias, n, out_rs, out_cs,
            c_rs, c_cs, bias_step, has_c, bias_axis, code, flags, alpha, beta, p0, p1, p2,
            advance(workspace, I64(part) * I64(m) * I64(room)), room,
        )  # fmt: skip

    return gemm_mma


#: What the compile gate checks: factory, arguments, opcodes that must be there.
GATES = [
    (make_mma, ("bf16", "bf16", "bf16", "k", "k", 16, 16, "128x256", "switch", False),
     ("HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS.E.BYPASS.128")),
    (make_mma, ("f16", "f16", "f16", "k", "x", 16, 16, "128x128", "switch", False),
     ("HMMA.16816.F32", "LDSM.16.MT88.4", "LDGSTS.E.BYPASS.128")),
    (make_mma, ("bf16", "bf16", "f32", "x", "k", 8, 4, "64x64", "switch", True),
     ("HMMA.16816.F32.BF16", "LDGSTS.E.64")),
    (make_mma, ("f16", "f16", "f16", "k", "k", 0, 0, "64x64", "gelu_tanh", False), ("HMMA.16816.F32", "STS.U16")),
    (make_mma, ("f32", "f32", "f32", "k", "x", 16, 16, "128x128", "switch", False),
     ("HMMA.1688.F32.TF32", "LDSM.16.M88.4", "LDS", "LDGSTS.E.BYPASS.128")),
    (make_mma, ("i8", "i8", "i32", "k", "k", 16, 16, "128x256", "switch", False),
     ("IMMA.16832.S8.S8", "LDSM.16.M88.4", "LDGSTS.E.BYPASS.128")),
    (make_mma, ("u8", "i8", "i32", "k", "k", 16, 16, "64x64", "switch", False), ("IMMA.16832.U8.S8", "LDSM.16.M88.4")),
]  # fmt: skip
