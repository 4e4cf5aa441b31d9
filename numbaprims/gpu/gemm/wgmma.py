"""Products on tensor cores by wgmma, tiles by TMA: float16, bfloat16 and int8 on compute capability 9.0.

A block computes a tile of out.  One warp copies: for each 128 bytes of k it waits until a stage of shared memory has
been read (mbarrier "empty"), announces the bytes, and starts the tensor copies of A's and B's tiles; whatever lies past
a matrix arrives as zeros.  One warpgroup for each 64 rows of out multiplies: it waits for the bytes (mbarrier "full"),
issues four wgmma of 32 bytes of k, waits for them, and gives the stage back.  While one warpgroup waits, the other's
wgmma run.  The sums go through shared memory at the end, as in mma.py.

Tiles lie with 128-byte swizzle: rows of 128 bytes along k, or, where the other dimension is contiguous ("x", 16-bit
elements only), boxes of 64 of it for each row of k, which wgmma turns as it reads.

Count for 128 x 256 and bfloat16, 64 k a stage, 2048 multiply-adds a clock:

- arithmetic: 8 wgmma of 64 x 256 x 16 take 1024 clocks.
- shared memory: each reads 2 KiB of A and 8 KiB of B, the copies write 48 KiB: 128 KiB in 1024 clocks, 125 of 128 bytes
  a clock. Tiles of 128 x 128 ask 80 KiB in 512 clocks, 1.25 times what there is: 0.8 of the peak at best.
- second-level cache: 85 flops a byte; at 989 TFLOP/s that is 11.6 TB/s, more than it gives. At 8.4 TB/s it bounds the
  product to 0.72 of the peak. Blocks that share tiles (clusters, multicast copies) would halve it: the next step.
- registers: 128 sums and 26 others of the 224 that 288 threads leave each; one block a multiprocessor, 192 KiB.
- issue: the loop is 4 wgmma and 50 scalar instructions, descriptors in uniform registers.

The two tensor maps are one parameter by value: in constant memory, which the launch writes, they need no fence before
the first copy (PTX: fence.proxy.tensormap), as they would in global memory.

Open until it has run on a GPU: whether waiting for all but the newest group (`wgmma_wait(total, 1)`) gains anything
with two warpgroups at work.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.block import barrier, barrier_of
from numbaprims.gpu.device.copy import (
    fence_async,
    mbarrier_arrive,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    prefetch_tensor_map,
    shared_address,
    tensor_copy,
)  # fmt: skip
from numbaprims.gpu.device.memory import advance, repeat, store_vector
from numbaprims.gpu.device.mma import wgmma, wgmma_commit, wgmma_descriptor, wgmma_fence, wgmma_wait
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.warp import lane_index, uniform, warp_index
from numbaprims.gpu.gemm.arguments import common_types
from numbaprims.gpu.gemm.epilogue import make_drain
from numbaprims.gpu.gemm.mma import PAD, make_corner
from numbaprims.gpu.jit import ByValue, GpuKernel, block_index, gpu_kernel, shared_array, thread_index, types

I32, I64, U32 = types.int32, types.int64, types.uint32
ROW = 128
"""Bytes of a row of a tile in shared memory, the span of its swizzle."""
BOX = 64 * ROW
"""Bytes of 64 rows: what one wgmma reads of A, and one tensor copy of an operand that is not contiguous along k."""
GROUP = 8 * ROW
"""Bytes of the eight rows in which the swizzle repeats."""
MAP = 128
"""Bytes of a tensor map."""


class Tile(NamedTuple):
    """A block's tile of out, 64 rows for each warpgroup that multiplies; one more warp copies."""

    m: int
    n: int
    stages: int

    @property
    def consumers(self) -> int:
        """Threads that multiply."""
        return 2 * self.m

    @property
    def threads(self) -> int:
        return self.consumers + 32

    @property
    def stage(self) -> int:
        """Bytes of the tiles of A and B of one stage."""
        return (self.m + self.n) * ROW

    @property
    def shared(self) -> int:
        """Bytes: the stages, and later, in the same place, the sums; then two barriers for each stage."""
        return self.barriers + 16 * self.stages

    @property
    def barriers(self) -> int:
        return max(self.stages * self.stage, self.m * (self.n + PAD) * 4)


TILES = {"128x256": Tile(128, 256, 4), "128x128": Tile(128, 128, 6), "64x128": Tile(64, 128, 4)}


@functools.cache
def make_wgmma(
    a_dtype: str, b_dtype: str, out_dtype: str, a_layout: str, b_layout: str, tile: str, activation: str
) -> GpuKernel:
    """The kernel for operands of one type; layout "k": contiguous along k, "x": along the other dimension."""
    shape = TILES[tile]
    acc = DTYPES[a_dtype].accumulate
    BM, BN, STAGES, STAGE, CONSUMERS = shape.m, shape.n, shape.stages, shape.stage, shape.consumers
    PRODUCER, WARPS = CONSUMERS // 32, CONSUMERS // 32
    BK = ROW // DTYPES[a_dtype].itemsize
    SUMS, PITCH = BN // 2, BN + PAD
    A_BYTES, BARRIERS = BM * ROW, shape.barriers // 4
    A_BOXES, B_BOXES = BM // 64, BN // 64
    A_TRANSPOSED, B_TRANSPOSED = int(a_layout == "x"), int(b_layout == "x")
    # 32 bytes along k: a quarter of each row, or 16 whole rows
    A_STEP, B_STEP = (16 * ROW if A_TRANSPOSED else 32), (16 * ROW if B_TRANSPOSED else 32)
    S = types.int32 if acc == "i32" else types.float32
    drain = make_drain(a_dtype, out_dtype, acc, activation, BM, BN, PITCH, CONSUMERS, False)
    corner = make_corner(BM, BN)
    spec = (a_dtype, b_dtype, out_dtype, a_layout, b_layout, tile, activation)
    signature = types.void(
        *common_types(a_dtype, b_dtype, out_dtype, acc), types.CPointer(S), ByValue(2 * MAP, 64), *(I32,) * 4
    )

    @gpu_kernel(
        "gemm_wgmma", signature, spec=spec, threads=shape.threads, blocks_per_sm=1, shared=shape.shared,
        registers=min(255, 65536 // shape.threads // 8 * 8),
    )  # fmt: skip
    def gemm_wgmma(  # type: ignore[no-untyped-def]
        out, a, b, c, bias, offsets, m, n, k, a_rs, a_cs, b_rs, b_cs, out_rs, out_cs, c_rs, c_cs, bias_step,
        a_bs, b_bs, out_bs, c_bs, has_c, bias_axis, code, flags, alpha, beta, p0, p1, p2,
        workspace, maps, tiles_m, tiles_n, a_batched, b_batched,
    ):  # fmt: skip
        sums_tile = shared_array(0, S, alignment=1024)
        memory = shared_address(sums_tile, 0)
        # a barrier of a stage says that its tiles have come, the one behind all of those that they have been read
        full = shared_address(sums_tile, BARRIERS)
        empty = U32(full + U32(8 * STAGES))
        thread = thread_index()
        if thread == 0:
            for s in range(STAGES):
                mbarrier_init(U32(full + U32(8 * s)), 1)
                mbarrier_init(U32(empty + U32(8 * s)), WARPS)
            fence_async()
        barrier()
        tiles = U32(tiles_m * tiles_n)
        product = quotient(block_index(), tiles)
        first_m, first_n = corner(U32(block_index() - product * tiles), tiles_m, tiles_n)
        k_tiles = I32(quotient(U32(k + I32(BK - 1)), U32(BK)))
        stage, parity = U32(0), U32(0)
        warp = uniform(warp_index())
        if warp == U32(PRODUCER):
            if lane_index() == 0:
                prefetch_tensor_map(maps)
                prefetch_tensor_map(maps + types.uint64(MAP))
                a_product, b_product = I32(product) * a_batched, I32(product) * b_batched
                t = I32(0)
                while t < k_tiles:
                    mbarrier_wait(U32(empty + U32(8) * stage), U32(parity ^ U32(1)))
                    ready = U32(full + U32(8) * stage)
                    mbarrier_expect(ready, STAGE)
                    target = U32(memory + U32(STAGE) * stage)
                    at_k = I32(t * I32(BK))
                    if A_TRANSPOSED:
                        for box in range(A_BOXES):
                            at = (I32(first_m + I32(64 * box)), at_k, I32(a_product))
                            tensor_copy(U32(target + U32(box * BOX)), maps, at, ready)
                    else:
                        tensor_copy(target, maps, (at_k, first_m, I32(a_product)), ready)
                    target = U32(target + U32(A_BYTES))
                    if B_TRANSPOSED:
                        for box in range(B_BOXES):
                            at = (I32(first_n + I32(64 * box)), at_k, I32(b_product))
                            tensor_copy(U32(target + U32(box * BOX)), maps + types.uint64(MAP), at, ready)
                    else:
                        tensor_copy(target, maps + types.uint64(MAP), (at_k, first_n, I32(b_product)), ready)
                    t = I32(t + 1)
                    stage = U32(stage + U32(1))
                    if stage == U32(STAGES):
                        stage, parity = U32(0), U32(parity ^ U32(1))
        else:
            group = U32(warp >> U32(2))
            lane = lane_index()
            total = repeat(S(0), SUMS)
            t = I32(0)
            while t < k_tiles:
                mbarrier_wait(U32(full + U32(8) * stage), parity)
                left = U32(memory + U32(STAGE) * stage + group * U32(BOX))
                right = U32(memory + U32(STAGE) * stage + U32(A_BYTES))
                wgmma_fence()
                for step in range(4):
                    at_a = wgmma_descriptor(U32(left + U32(step * A_STEP)), BOX, GROUP)
                    at_b = wgmma_descriptor(U32(right + U32(step * B_STEP)), BOX, GROUP)
                    total = wgmma(total, at_a, at_b, 1, a_dtype, b_dtype, A_TRANSPOSED, B_TRANSPOSED)
                wgmma_commit()
                total = wgmma_wait(total, 0)
                if lane == U32(0):
                    mbarrier_arrive(U32(empty + U32(8) * stage))
                t = I32(t + 1)
                stage = U32(stage + U32(1))
                if stage == U32(STAGES):
                    stage, parity = U32(0), U32(parity ^ U32(1))
            # ---- the sums go through shared memory, once all warps have read its last tiles
            barrier_of(1, CONSUMERS)
            row = U32(warp * U32(16) + (lane >> U32(2)))
            at_sum = U32(row * U32(PITCH) + ((lane & U32(3)) << U32(1)))
            for j in range(SUMS // 4):
                store_vector(sums_tile, U32(at_sum + U32(8 * j)), (total[4 * j], total[4 * j + 1]))
                store_vector(sums_tile, U32(at_sum + U32(8 * j + 8 * PITCH)), (total[4 * j + 2], total[4 * j + 3]))
            barrier_of(1, CONSUMERS)
            drain(
                sums_tile, I32(thread), first_m, first_n, m, advance(out, I64(product) * out_bs),
                advance(c, I64(product) * c_bs), bias, n, out_rs, out_cs, c_rs, c_cs, bias_step, has_c, bias_axis, code,
                flags, alpha, beta, p0, p1, p2, workspace, I32(0),
            )  # fmt: skip

    return gemm_wgmma


#: What the compile gate checks: factory, arguments, opcodes that must be there.
GATES = [
    (make_wgmma, ("bf16", "bf16", "bf16", "k", "k", "128x256", "switch"),
     ("HGMMA.64", "UTMALDG.3D", "SYNCS.PHASECHK"), ("sm_90a",)),
    (make_wgmma, ("f16", "f16", "f16", "k", "x", "128x128", "switch"), ("HGMMA.64", "UTMALDG.3D"), ("sm_90a",)),
    (make_wgmma, ("i8", "i8", "i32", "k", "k", "64x128", "switch"), ("IGMMA.64", "UTMALDG.3D"), ("sm_90a",)),
]  # fmt: skip
