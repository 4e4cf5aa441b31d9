"""Products on tensor cores by wgmma, tiles by TMA: float16, bfloat16 and int8 on compute capability 9.0.

As many blocks as the GPU runs at a time compute tile after tile of out.  One warp copies: for each 128 bytes of k it
waits until a stage of shared memory has been read (mbarrier "empty"), announces the bytes, and starts the tensor copies
of A's and B's tiles; whatever lies past a matrix arrives as zeros.  It runs ahead: the next tile's first stages arrive
while the last tile's sums are written.  One warpgroup for each 64 rows of out multiplies: it waits for the bytes
(mbarrier "full"), issues four wgmma of 32 bytes of k, waits for them, and gives the stage back.  While one warpgroup
waits, or writes its sums (wgmma_epilogue.py), the other's wgmma run.

Tiles lie with 128-byte swizzle: rows of 128 bytes along k, or, where the other dimension is contiguous ("x", 16-bit
elements only), boxes of 64 of it for each row of k, which wgmma turns as it reads.

Count for 128 x 256 and bfloat16, 64 k a stage, 2048 multiply-adds a clock:

- arithmetic: 8 wgmma of 64 x 256 x 16 take 1024 clocks.
- shared memory: each reads 2 KiB of A and 8 KiB of B, the copies write 48 KiB: 128 KiB in 1024 clocks, 125 of 128 bytes
  a clock. Tiles of 128 x 128 ask 80 KiB in 512 clocks, 1.25 times what there is: 0.8 of the peak at best.
- second-level cache: 85 flops a byte; at 770 TFLOP/s that is 9 TB/s.
- registers: 128 sums and 40 others, all that 9 warps leave each: a scheduler with 3 of them has 170 for each.
- issue: the loop is 4 wgmma and 40 scalar instructions, descriptors in uniform registers.

The two tensor maps are one parameter by value: in constant memory, which the launch writes, they need no fence before
the first copy (PTX: fence.proxy.tensormap), as they would in global memory.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.block import barrier
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
from numbaprims.gpu.device.memory import advance, repeat
from numbaprims.gpu.device.mma import wgmma, wgmma_commit, wgmma_descriptor, wgmma_fence, wgmma_wait
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.warp import lane_index, uniform, warp_index
from numbaprims.gpu.gemm.arguments import common_types
from numbaprims.gpu.gemm.mma import make_corner
from numbaprims.gpu.gemm.wgmma_epilogue import ROOM, ROWS, make_rows, make_short
from numbaprims.gpu.jit import (
    ByValue,
    GpuKernel,
    block_index,
    device_function,
    gpu_kernel,
    grid_size,
    shared_array,
    types,
)  # fmt: skip

I32, I64, U32, U64 = types.int32, types.int64, types.uint32, types.uint64
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
    ahead: int = 0
    """Stages whose wgmma may still run while the next one is waited for: 1 where no other warpgroup fills the gap."""
    band: int = 2048
    """Rows of out that are computed side by side: with 132 tiles of 128 x 256 under way their part of out is a square,
    which asks least of A and B."""

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
    def rooms(self) -> int:
        """Bytes of the stages, behind which the warps' rooms for their sums lie."""
        return self.stages * self.stage

    @property
    def barriers(self) -> int:
        """Bytes of both; two barriers for each stage follow."""
        return self.rooms + self.consumers // 32 * ROOM

    @property
    def shared(self) -> int:
        return self.barriers + 16 * self.stages


TILES = {
    "128x256": Tile(128, 256, 4), "128x128": Tile(128, 128, 6),
    "64x128": Tile(64, 128, 4, 1), "64x64": Tile(64, 64, 10, 1),
}  # fmt: skip


@device_function
def release(empty, lane):  # type: ignore[no-untyped-def]
    """Give back a stage that the warp has read."""
    if lane == U32(0):
        mbarrier_arrive(empty)


@functools.cache
def make_wgmma(
    a_dtype: str, b_dtype: str, out_dtype: str, a_layout: str, b_layout: str, tile: str, activation: str
) -> GpuKernel:
    """The kernel for operands of one type; layout "k": contiguous along k, "x": along the other dimension."""
    shape = TILES[tile]
    acc = DTYPES[a_dtype].accumulate
    BM, BN, STAGES, STAGE, AHEAD = shape.m, shape.n, shape.stages, shape.stage, shape.ahead
    PRODUCER, WARPS = shape.consumers // 32, shape.consumers // 32
    BK = ROW // DTYPES[a_dtype].itemsize
    SUMS, ROOMS, PER_ROOM = BN // 2, shape.rooms // 4, ROOM // 4
    A_BYTES, BARRIERS = BM * ROW, shape.barriers // 4
    A_BOXES, B_BOXES = BM // 64, BN // 64
    A_TRANSPOSED, B_TRANSPOSED = int(a_layout == "x"), int(b_layout == "x")
    # 32 bytes along k: a quarter of each row, or 16 whole rows; in the descriptor's units
    A_STEP, B_STEP = (ROW if A_TRANSPOSED else 2), (ROW if B_TRANSPOSED else 2)
    S = types.int32 if acc == "i32" else types.float32
    rows = make_rows(a_dtype, out_dtype, acc, activation, BN)
    short = make_short(a_dtype, out_dtype, BN)
    corner = make_corner(BM, BN, shape.band // BM)
    spec = (a_dtype, b_dtype, out_dtype, a_layout, b_layout, tile, activation)
    signature = types.void(*common_types(a_dtype, b_dtype, out_dtype, acc), ByValue(2 * MAP, 64), *(I32,) * 6)

    @gpu_kernel(
        "gemm_wgmma", signature, spec=spec, threads=shape.threads, blocks_per_sm=1, shared=shape.shared,
        # each of the four schedulers holds a quarter of the warps, rounded up
        registers=min(255, 512 // -(-shape.threads // 128) // 8 * 8),
    )  # fmt: skip
    def gemm_wgmma(  # type: ignore[no-untyped-def]
        out, a, b, c, bias, offsets, m, n, k, a_rs, a_cs, b_rs, b_cs, out_rs, out_cs, c_rs, c_cs, bias_step,
        a_bs, b_bs, out_bs, c_bs, has_c, bias_axis, code, flags, alpha, beta, p0, p1, p2,
        maps, tiles_m, tiles_n, tiles, a_batched, b_batched, way,
    ):  # fmt: skip
        sums_tile = shared_array(0, S, alignment=1024)
        memory = shared_address(sums_tile, 0)
        # a barrier of a stage says that its tiles have come, the one behind all of those that they have been read
        full = shared_address(sums_tile, BARRIERS)
        empty = U32(full + U32(8 * STAGES))
        lane, warp = lane_index(), uniform(warp_index())
        if warp == U32(0) and lane == U32(0):
            for s in range(STAGES):
                mbarrier_init(U32(full + U32(8 * s)), 1)
                mbarrier_init(U32(empty + U32(8 * s)), WARPS)
            fence_async()
        barrier()
        in_product = U32(tiles_m * tiles_n)
        number, step = block_index(), grid_size()
        k_tiles = I32(quotient(U32(k + I32(BK - 1)), U32(BK)))
        stage, parity = U32(0), U32(0)
        if warp == U32(PRODUCER):
            if lane == U32(0):
                prefetch_tensor_map(maps)
                prefetch_tensor_map(maps + U64(MAP))
                while number < U32(tiles):
                    product = quotient(number, in_product)
                    first_m, first_n = corner(U32(number - product * in_product), tiles_m, tiles_n)
                    a_product, b_product = I32(product) * a_batched, I32(product) * b_batched
                    for t in range(k_tiles):
                        mbarrier_wait(U32(empty + U32(8) * stage), U32(parity ^ U32(1)))
                        ready = U32(full + U32(8) * stage)
                        mbarrier_expect(ready, STAGE)
                        target = U32(memory + U32(STAGE) * stage)
                        at_k = I32(I32(t) * I32(BK))
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
                                tensor_copy(U32(target + U32(box * BOX)), maps + U64(MAP), at, ready)
                        else:
                            tensor_copy(target, maps + U64(MAP), (at_k, first_n, I32(b_product)), ready)
                        stage = U32(stage + U32(1))
                        if stage == U32(STAGES):
                            stage, parity = U32(0), U32(parity ^ U32(1))
                    number = U32(number + step)
        else:
            group = U32(warp >> U32(2))
            i0 = I32(I32(warp) * I32(ROWS))
            at_room = U32(U32(ROOMS) + warp * U32(PER_ROOM))
            total = repeat(S(0), SUMS)
            last = U32(0)
            while number < U32(tiles):
                for t in range(k_tiles):
                    mbarrier_wait(U32(full + U32(8) * stage), parity)
                    begin = U32(memory + U32(STAGE) * stage)
                    at_a = wgmma_descriptor(U32(begin + group * U32(BOX)), BOX, GROUP)
                    at_b = wgmma_descriptor(U32(begin + U32(A_BYTES)), BOX, GROUP)
                    wgmma_fence()
                    for quarter in range(4):
                        total = wgmma(
                            total, U64(at_a + U64(quarter * A_STEP)), U64(at_b + U64(quarter * B_STEP)),
                            I32(1) if quarter > 0 else I32(t), a_dtype, b_dtype, A_TRANSPOSED, B_TRANSPOSED,
                        )  # fmt: skip
                    wgmma_commit()
                    total = wgmma_wait(total, AHEAD)
                    if AHEAD == 0 or t > 0:
                        release(U32(empty + U32(8) * (last if AHEAD else stage)), lane)
                    last = stage
                    stage = U32(stage + U32(1))
                    if stage == U32(STAGES):
                        stage, parity = U32(0), U32(parity ^ U32(1))
                if AHEAD:
                    total = wgmma_wait(total, 0)
                    release(U32(empty + U32(8) * last), lane)
                product = quotient(number, in_product)
                first_m, first_n = corner(U32(number - product * in_product), tiles_m, tiles_n)
                first_m = I32(first_m + i0)
                at_out = advance(out, I64(product) * out_bs)
                if way != 0:
                    short(
                        way, total, U32(memory + U32(4) * at_room), lane, first_m, first_n, m, n, at_out, out_rs, alpha,
                        bias, code,
                    )  # fmt: skip
                else:
                    rows(
                        total, sums_tile, at_room, lane, first_m, first_n, m, at_out,
                        advance(c, I64(product) * c_bs), bias, n, out_rs, out_cs, c_rs, c_cs, bias_step, has_c,
                        bias_axis, code, flags, alpha, beta, p0, p1, p2,
                    )  # fmt: skip
                number = U32(number + step)

    return gemm_wgmma


#: What the compile gate checks: factory, arguments, opcodes that must be there.
GATES = [
    (make_wgmma, ("bf16", "bf16", "bf16", "k", "k", "128x256", "switch"),
     ("HGMMA.64", "UTMALDG.3D", "SYNCS.PHASECHK", "STSM.16.M88.4", "STG.E.128"), ("sm_90a",)),
    (make_wgmma, ("i8", "i8", "i32", "k", "k", "64x128", "switch"), ("IGMMA.64", "UTMALDG.3D"), ("sm_90a",)),
    (make_wgmma, ("f16", "f16", "f16", "k", "x", "128x128", "switch"), ("HGMMA.64", "UTMALDG.3D"), ("sm_90a",)),
]  # fmt: skip
