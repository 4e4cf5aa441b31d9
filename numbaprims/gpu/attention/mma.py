"""Attention of float16 and bfloat16 on tensor cores, by mma.sync or wgmma: FlashAttention-2 (Dao 2023).

A block computes 64 or 128 rows of out of one head.  Its warps share the rows, 16 or 32 each; keys and values pass in
tiles through a ring in shared memory (cp.async), which all warps read.  The scores of a warp's rows and a tile of keys
are sums in registers; their exponentials, rounded to 16 bits, are the left operand of the product with the values.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from numbaprims.gpu.attention import wgmma
from numbaprims.gpu.attention.kernels import STEPS, block_of, start
from numbaprims.gpu.attention.softmax import LOG2E, flip_signs, make_close, make_put_rows, make_soften
from numbaprims.gpu.attention.tiles import (
    PIECES,
    ROW,
    make_copy,
    make_gather,
    make_hold,
    make_scores,
    piece_of,
    place_by_columns,
    place_by_rows,
)
from numbaprims.gpu.device.block import barrier
from numbaprims.gpu.device.copy import copy_commit, copy_wait, fence_async, shared_address
from numbaprims.gpu.device.math import divide, log
from numbaprims.gpu.device.memory import advance, set_elements
from numbaprims.gpu.device.mma import wgmma_wait
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.warp import group_reduce, lane_index, maximum, uniform, warp_index
from numbaprims.gpu.jit import STORAGE, GpuKernel, cuda, gpu_kernel, shared_array, thread_index, types

F32, I32, I64, U32 = types.float32, types.int32, types.int64, types.uint32
LEAST = 2.0**-126
"""The smallest scale: 0 would make NaN of what a mask closes."""
CAUSAL, TRAIN = 1, 2
"""Bits of `flags`."""


class Tile(NamedTuple):
    """How a block's rows and the keys are cut."""

    warps: int
    rows: int
    """Of a warp: 16 or 32."""
    keys: int
    """Of a tile of k and v."""
    stages: int
    blocks: int
    """Blocks that a multiprocessor shall hold."""
    wide: bool = False
    """By wgmma."""
    ahead: bool = False
    """Whether the next tile's scores are multiplied while exponentials are made; it takes three stages, and wgmma."""

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def block_rows(self) -> int:
        return self.warps * self.rows

    def shared(self, columns: int) -> int:
        """Bytes: the tile of q (later of out), then the stages of k and v."""
        return 2 * columns * (self.block_rows + 2 * self.stages * self.keys)

    @property
    def registers(self) -> int:
        return min(255, 65536 // (self.threads * self.blocks))


TILES = {
    64: {
        "4x16x64": Tile(4, 16, 64, 2, 4), "8x16x64": Tile(8, 16, 64, 2, 2), "4x32x64": Tile(4, 32, 64, 2, 2),
        "4x16x128": Tile(4, 16, 128, 2, 2), "4x16x64x3": Tile(4, 16, 64, 3, 4),
    },
    128: {"4x16x64": Tile(4, 16, 64, 2, 2), "8x16x64": Tile(8, 16, 64, 2, 1), "8x16x64x3": Tile(8, 16, 64, 3, 1)},
    192: {"4x16x32": Tile(4, 16, 32, 2, 2)},
}  # fmt: skip
"""By the columns of a tile of q, k or v."""
WIDE_TILES = {
    64: {
        "4x64": Tile(4, 16, 64, 2, 4, True), "4x64_ahead": Tile(4, 16, 64, 3, 3, True, True),
        "4x128": Tile(4, 16, 128, 2, 2, True), "8x64": Tile(8, 16, 64, 2, 2, True),
        "8x128": Tile(8, 16, 128, 2, 1, True), "8x64_ahead": Tile(8, 16, 64, 3, 1, True, True),
    },
    128: {
        "4x64_ahead": Tile(4, 16, 64, 3, 2, True, True), "4x64": Tile(4, 16, 64, 2, 2, True),
        "8x64": Tile(8, 16, 64, 2, 1, True), "8x128": Tile(8, 16, 128, 2, 1, True),
        "8x64_ahead": Tile(8, 16, 64, 3, 1, True, True),
    },
}  # fmt: skip
"""The same for wgmma."""


def signature(dtype: str, mask: str, operands: int, floats: int, arrays: int) -> Any:
    """Operands, the mask, float32 arrays, the scale, nine int32, steps of each array."""
    element = types.CPointer(STORAGE[dtype])
    masks = element if mask == "float" else types.CPointer(types.uint8)
    numbers = [types.CPointer(F32)] * floats
    return types.void(*[element] * operands, masks, *numbers, F32, *[I32] * 9, *[STEPS] * arrays)


@functools.cache
def make_mma(
    dtype: str, mask: str, width_tiles: int, value_tiles: int, columns: int, copy_bytes: int, tile: Tile, hold_q: bool
) -> GpuKernel:
    """Forward; rows of q of up to 16 `width_tiles` elements, of v of up to 16 `value_tiles`, in tiles of `columns`."""
    kind, shape, BM, BN, STAGES = mask, tile, tile.block_rows, tile.keys, tile.stages
    THREADS, ROWS, KS = tile.threads, tile.rows, width_tiles
    FM, FN, FV = tile.rows // 16, tile.keys // 8, 2 * value_tiles
    Q_BYTES, KV_BYTES = 2 * BM * columns, 2 * BN * columns
    AHEAD = int(tile.ahead)
    STAGE, NEWEST, QUERIES = 2 * KV_BYTES, tile.stages - 2 - AHEAD, tile.stages - 1 - AHEAD
    HELD, SUMS, SCORES, HALVES = 4 * FM * KS if hold_q else 1, 4 * FM * FV, 4 * FM * FN, 2 * FM
    BOXES, Q_ROUNDS, ROUND = columns // 64, BM * PIECES // THREADS, THREADS // PIECES * ROW
    copy_q = make_copy(dtype, BM, columns, THREADS, copy_bytes)
    copy_kv = make_copy(dtype, BN, columns, THREADS, copy_bytes)
    hold = make_hold(FM, KS, BM)
    WIDE, TEAM = int(tile.wide), 64 if tile.wide else tile.rows
    if tile.wide:
        start_scores = wgmma.make_start(dtype, FN, KS, BM, BN)
        scores, gather = wgmma.make_scores(start_scores), wgmma.make_gather(dtype, FV, BN // 16, BN)
    else:
        start_scores, scores = None, make_scores(dtype, FM, FN, KS, hold_q, BM, BN)
        gather = make_gather(dtype, FM, FV, BN // 16, BN)
    close, soften = make_close(dtype, mask, FM, FN, False), make_soften(mask, FM, FN, FV)
    put_rows = make_put_rows(dtype, FM, FV, BM, copy_bytes)
    spec = (dtype, mask, width_tiles, value_tiles, columns, copy_bytes, *tile, int(hold_q))

    @gpu_kernel(
        "attention_mma", signature(dtype, mask, 4, 1, 5), spec=spec, threads=THREADS, blocks_per_sm=shape.blocks,
        shared=shape.shared(columns), registers=shape.registers,
    )  # fmt: skip
    def attention_mma(  # type: ignore[no-untyped-def]
        out, q, k, v, mask, lse, scale, blocks, all_heads, rows, heads, share, keys, flags, width, values,
        out_s, q_s, k_s, v_s, mask_s,
    ):  # fmt: skip
        memory_array = shared_array(0, types.uint16, alignment=1024)
        memory = shared_address(memory_array, 0)
        thread, lane, warp = thread_index(), lane_index(), uniform(warp_index())
        causal = (flags & I32(CAUSAL)) != 0
        head, part = block_of(causal, False, blocks, all_heads)
        first = I32(part * U32(BM))
        batch = I64(quotient(U32(head), U32(heads)))
        inside = I32(head - I32(batch) * heads)
        group = I64(quotient(U32(inside), U32(share)))
        rows_left = I32(rows - first)
        limit = I32(min(keys, I32(first + I32(min(I32(BM), rows_left))))) if causal else keys
        count = I32(quotient(U32(limit + I32(BN - 1)), U32(BN)))
        # ---- q, and the first tiles of k and v
        row, column, place = piece_of(thread)
        q_tile = advance(q, start(q_s, batch, I64(inside), I64(first)))
        k_tile, v_tile = advance(k, start(k_s, batch, group, I64(0))), advance(v, start(v_s, batch, group, I64(0)))
        to_q = U32(memory + place)
        copy_q(to_q, q_tile, I64(row) * q_s[2] + I64(column), q_s[2], row, column, rows_left, width)
        copy_commit()
        k_at, v_at = I64(row) * k_s[2] + I64(column), I64(row) * v_s[2] + I64(column)
        k_step, v_step = I64(BN) * k_s[2], I64(BN) * v_s[2]
        target, keys_left = U32(to_q + U32(Q_BYTES)), keys
        tiles_left = count
        for s in range(STAGES - 1):
            if tiles_left > 0:
                copy_kv(U32(target + U32(s * STAGE)), k_tile, k_at, k_s[2], row, column, keys_left, width)
                copy_kv(U32(target + U32(s * STAGE + KV_BYTES)), v_tile, v_at, v_s[2], row, column, keys_left, values)
            copy_commit()
            k_at += k_step
            v_at += v_step
            tiles_left, keys_left = I32(tiles_left - I32(1)), I32(keys_left - I32(BN))
        copy_wait(QUERIES)
        if scale < F32(0.0):  # rows of -q: the scores' maximum is then that of their products
            for b in range(BOXES):
                flip_signs(U32(to_q + U32(b * BM * ROW)), ROUND, Q_ROUNDS)
        if WIDE:
            fence_async()
        barrier()
        size = maximum(maximum(scale, -scale), F32(LEAST))
        factor = size if kind == "float" else size * F32(LOG2E)
        warp_row = U32(warp * U32(ROWS))
        # the rows that are multiplied together, by one warp or four
        team_row = U32(quotient(warp_row, U32(TEAM)) * U32(TEAM))
        left, k_place = U32(memory + U32(team_row * U32(ROW))), U32(memory + U32(Q_BYTES))
        v_place = U32(k_place + U32(KV_BYTES))
        if not WIDE:
            left, v_place = U32(left + place_by_rows()), U32(v_place + place_by_rows())
            k_place = U32(k_place + place_by_columns())
        words = cuda.local.array(HELD, U32)
        if hold_q:
            hold(words, left)
        base, total = cuda.local.array(HALVES, F32), cuda.local.array(HALVES, F32)
        sums = cuda.local.array(SUMS, F32)
        for e in range(HALVES):
            base[e], total[e] = F32(-math.inf), F32(0.0)
        for e in range(SUMS):
            sums[e] = F32(0.0)
        my_row = I32(first + I32(warp_row) + I32(lane >> U32(2)))
        my_key = I32((lane & U32(3)) << U32(1))
        # keys that all rows of this warp see, and that the last of its team sees
        open_keys, last_keys = keys, keys
        if causal:
            open_keys = I32(min(keys, I32(first + I32(warp_row) + I32(1))))
            last_keys = I32(min(keys, I32(first + I32(team_row) + I32(TEAM))))
        mask_at = start(mask_s, batch, I64(inside), I64(0))
        stage, free = U32(0), U32((STAGES - 1) * STAGE)
        first_key = I32(0)
        s = cuda.local.array(SCORES, F32)
        if AHEAD:
            scores(s, words, left, k_place)
        while first_key < limit:
            copy_wait(NEWEST)
            if WIDE:
                fence_async()
            barrier()
            if tiles_left > 0:
                copy_kv(U32(target + free), k_tile, k_at, k_s[2], row, column, keys_left, width)
                copy_kv(U32(target + U32(free + U32(KV_BYTES))), v_tile, v_at, v_s[2], row, column, keys_left, values)
            copy_commit()
            k_at += k_step
            v_at += v_step
            tiles_left, keys_left = I32(tiles_left - I32(1)), I32(keys_left - I32(BN))
            if first_key < last_keys:
                if AHEAD:  # the last tile's once more behind it
                    after = U32(stage + U32(STAGE)) if stage != U32((STAGES - 1) * STAGE) else U32(0)
                    after = after if I32(first_key + I32(BN)) < last_keys else stage
                    coming = start_scores(left, U32(k_place + after))
                else:
                    for e in range(SCORES):
                        s[e] = F32(0.0)
                    scores(s, words, left, U32(k_place + stage))
                if kind or I32(first_key + I32(BN)) > open_keys:
                    close(
                        s, mask, mask_at, mask_s[2], mask_s[3], my_row, I32(first_key + my_key), rows, keys, causal,
                        factor, F32(-math.inf),
                    )  # fmt: skip
                soften(s, sums, base, total, factor)
                gather(sums, s, U32(v_place + stage))
                if AHEAD:
                    set_elements(s, 0, wgmma_wait(coming, 0))
            free = stage
            stage = U32(stage + U32(STAGE)) if stage != U32((STAGES - 1) * STAGE) else U32(0)
            first_key = I32(first_key + I32(BN))
        # ---- the sums of the exponentials are in four lanes
        for i in range(FM):
            for h in range(2):
                whole = group_reduce(total[2 * i + h], 4, "sum")
                # not by `/`, which calls: wgmma is then waited for one by one
                inverse = F32(0.0) if whole == F32(0.0) else divide(F32(1.0), whole)
                for j in range(FV):
                    for e in range(2):
                        sums[4 * (i * FV + j) + 2 * h + e] *= inverse
                r = I32(my_row + I32(16 * i + 8 * h))
                if (flags & I32(TRAIN)) != 0 and (lane & U32(3)) == 0 and r < rows:
                    high = base[2 * i + h] if kind == "float" else base[2 * i + h] * size
                    lse[I64(head) * I64(rows) + I64(r)] = high + log(whole)
        copy_wait(0)
        if WIDE:  # all warps of a team read its rows of q
            barrier()
        put_rows(
            memory_array, memory, sums, warp_row, advance(out, start(out_s, batch, I64(inside), I64(first))), out_s[2],
            out_s[3], rows_left, values,
        )  # fmt: skip

    return attention_mma


#: What the compile gates look at.
GATES: list[tuple[Any, ...]] = [
    (make_mma, ("bf16", "", 4, 4, 64, 16, TILES[64]["4x16x64"], True),
     ("HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDSM.16.MT88.4", "LDGSTS.E.BYPASS.128", "MUFU.EX2", "STG.E.128")),
    (make_mma, ("f16", "bool", 4, 3, 64, 8, TILES[64]["4x32x64"], True), ("HMMA.16816.F32", "LDGSTS.E.64", "LDG.E.U8")),
    (make_mma, ("bf16", "float", 8, 8, 128, 16, TILES[128]["4x16x64"], False), ("HMMA.16816.F32.BF16", "LDG.E.U16")),
    (make_mma, ("f16", "", 8, 8, 128, 0, TILES[128]["8x16x64"], True), ("HMMA.16816.F32", "STS.U16")),
    (make_mma, ("f16", "float", 12, 12, 192, 16, TILES[192]["4x16x32"], False), ("HMMA.16816.F32",)),
    (make_mma, ("bf16", "", 4, 4, 64, 16, WIDE_TILES[64]["4x64"], False),
     ("HGMMA.64", "LDGSTS.E.BYPASS.128", "MUFU.EX2"), ("sm_90a",)),
    (make_mma, ("f16", "float", 4, 4, 64, 16, WIDE_TILES[64]["8x128"], False), ("HGMMA.64",), ("sm_90a",)),
    (make_mma, ("f16", "bool", 8, 8, 128, 16, WIDE_TILES[128]["8x64"], False), ("HGMMA.64",), ("sm_90a",)),
    (make_mma, ("bf16", "", 8, 8, 128, 16, WIDE_TILES[128]["4x64_ahead"], False), ("HGMMA.64",), ("sm_90a",)),
    (make_mma, ("f16", "float", 4, 4, 64, 16, WIDE_TILES[64]["4x64_ahead"], False), ("HGMMA.64",), ("sm_90a",)),
]  # fmt: skip
