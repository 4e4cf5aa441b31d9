"""The gradient of attention on tensor cores by mma.sync, without atomics: each sum has one order.

One kernel, made twice.  A block has rows of two arrays, its *lefts*, and passes over tiles of two others, its *rights*:

    gradient of   lefts      rights     s          d           sums
    q             q, dout    k, v       q k^T      dout v^T    dq = ds k
    k and v       k, v       q, dout    k q^T      v dout^T    dk = ds^T q, dv = p^T dout

with p = exp(s - lse) and ds = p (d - delta).  In both s and d are sums in registers, and p and ds are left operands
where they lie.  The second, *turned*, passes over all query heads that read its head of k and v.  That is seven
products where five would do, if dq were added to memory by all blocks at once.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from numbaprims.gpu.attention.kernels import STEPS, THREADS as DELTA_THREADS, WARPS, block_of, start
from numbaprims.gpu.attention.mma import CAUSAL, LEAST, Tile, signature
from numbaprims.gpu.attention.softmax import LOG2E, make_close, make_power, make_put_rows
from numbaprims.gpu.attention.tiles import (
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
from numbaprims.gpu.device.copy import copy_async_partial, copy_commit, copy_wait, shared_address
from numbaprims.gpu.device.memory import advance, bits_float, load_shared, widen
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.warp import lane_index, maximum, uniform, warp_index, warp_sum
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, cuda, gpu_kernel, shared_array, thread_index, types

F32, I32, I64, U32, U64 = types.float32, types.int32, types.int64, types.uint32, types.uint64
BACKWARD_TILES = {
    64: {"4x16x64": Tile(4, 16, 64, 2, 2), "8x16x64": Tile(8, 16, 64, 2, 1), "4x16x32": Tile(4, 16, 32, 2, 3)},
    128: {"4x16x32": Tile(4, 16, 32, 2, 2), "8x16x32": Tile(8, 16, 32, 2, 1)},
}
"""By columns; `rows` of a warp are lefts, `keys` rights."""


def backward_shared(tile: Tile, columns: int) -> int:
    """Bytes: two lefts, the stages of two rights, and two numbers for each of their rows."""
    return 4 * columns * (tile.block_rows + tile.stages * tile.keys) + 8 * tile.stages * tile.keys


@functools.cache
def make_delta(dtype: str, mask: str) -> GpuKernel:
    """A warp for each row: the product of its dout and out, and its lse in the units that `make_power` takes."""
    kind, element, number = mask, types.CPointer(STORAGE[dtype]), types.CPointer(F32)
    arrays = types.void(number, number, element, element, number, *[I64] * 4, *[STEPS] * 3)

    @gpu_kernel("attention_delta", arrays, spec=(dtype, mask), threads=DELTA_THREADS, registers=64)
    def attention_delta(units, delta, dout, out, lse, count, rows, heads, values, dout_s, out_s, lse_s):  # type: ignore[no-untyped-def]
        index = I64(block_index()) * WARPS + I64(warp_index())
        if index < count:
            head = I64(quotient(U64(index), U64(rows)))
            row = index - head * rows
            batch = I64(quotient(U64(head), U64(heads)))
            head -= batch * heads
            at, there = start(dout_s, batch, head, row), start(out_s, batch, head, row)
            total = F32(0.0)
            c = I64(lane_index())
            while c < values:
                total += widen(dout[at + c * dout_s[3]], dtype) * widen(out[there + c * out_s[3]], dtype)
                c += 32
            total = warp_sum(total)
            if lane_index() == 0:
                x = lse[start(lse_s, batch, head, row)]
                x = F32(0.0) if x == F32(-math.inf) else x
                units[index] = x if kind == "float" else x * F32(LOG2E)
                delta[index] = total

    return attention_delta


@functools.cache
def make_backward(
    dtype: str, mask: str, width_tiles: int, value_tiles: int, columns: int, copy_bytes: int, tile: Tile, held: bool,
    turned: bool,
) -> GpuKernel:  # fmt: skip
    """The gradient of q, or with `turned` those of k and v; widths as those of `make_mma`."""
    kind, BM, BN, STAGES, THREADS, ROWS = mask, tile.block_rows, tile.keys, tile.stages, tile.threads, tile.rows
    FM, FN, KS, VS = tile.rows // 16, tile.keys // 8, width_tiles, value_tiles
    LEFT, RIGHT = 2 * BM * columns, 2 * BN * columns
    STAGE, NEWEST = 2 * RIGHT, tile.stages - 2
    STATS, STATS_STAGE = 2 * LEFT + tile.stages * STAGE, 8 * BN
    HELD0, HELD1 = (4 * FM * KS, 4 * FM * VS) if held else (1, 1)
    SUMS0, SUMS1, SCORES, HALVES = 8 * FM * KS, 8 * FM * VS if turned else 1, 4 * FM * FN, 2 * FM
    copy_left = make_copy(dtype, BM, columns, THREADS, copy_bytes)
    copy_right = make_copy(dtype, BN, columns, THREADS, copy_bytes)
    hold0, hold1 = make_hold(FM, KS, BM), make_hold(FM, VS, BM)
    scores0, scores1 = (make_scores(dtype, FM, FN, steps, held, BM, BN) for steps in (KS, VS))
    gather0, gather1 = (make_gather(dtype, FM, 2 * steps, BN // 16, BN) for steps in (KS, VS))
    close, power = make_close(dtype, mask, FM, FN, turned), make_power(mask)
    put0, put1 = (make_put_rows(dtype, FM, 2 * steps, BM, copy_bytes) for steps in (KS, VS))
    spec = (dtype, mask, width_tiles, value_tiles, columns, copy_bytes, *tile, int(held), int(turned))

    @gpu_kernel(
        "attention_backward", signature(dtype, mask, 6, 2, 7), spec=spec, threads=THREADS, blocks_per_sm=tile.blocks,
        shared=backward_shared(tile, columns), registers=tile.registers,
    )  # fmt: skip
    def attention_backward(  # type: ignore[no-untyped-def]
        c0, c1, a0, a1, b0, b1, mask, units, delta, scale, blocks, all_heads, rows, right_rows, heads, share, flags,
        width, values, c0_s, c1_s, a0_s, a1_s, b0_s, b1_s, mask_s,
    ):  # fmt: skip
        memory_array = shared_array(0, types.uint16, alignment=1024)
        memory = shared_address(memory_array, 0)
        thread, lane, warp = thread_index(), lane_index(), uniform(warp_index())
        causal = (flags & I32(CAUSAL)) != 0
        head, part = block_of(causal, turned, blocks, all_heads)
        first = I32(part * U32(BM))
        own_heads = I32(quotient(U32(heads), U32(share))) if turned else heads
        batch = I64(quotient(U32(head), U32(own_heads)))
        inside = I32(head - I32(batch) * own_heads)
        rows_left = I32(rows - first)
        # ---- which tiles of the rights, of how many heads
        begin, end, passes, right_head = I32(0), right_rows, I32(1), I32(quotient(U32(inside), U32(share)))
        if turned:
            passes, right_head = share, I32(inside * share)
        if causal:
            if turned:
                begin = I32(quotient(U32(first), U32(BN)) * U32(BN))
            else:
                end = I32(min(right_rows, I32(first + I32(min(I32(BM), rows_left)))))
        per_head = I32(quotient(U32(max(I32(0), I32(end - begin)) + I32(BN - 1)), U32(BN)))
        left_over, next_row, next_head = I32(per_head * passes), begin, right_head
        row, column, place = piece_of(thread)
        a0_tile = advance(a0, start(a0_s, batch, I64(inside), I64(first)))
        a1_tile = advance(a1, start(a1_s, batch, I64(inside), I64(first)))
        copy_left(
            U32(memory + place), a0_tile, I64(row) * a0_s[2] + I64(column), a0_s[2], row, column, rows_left, width
        )
        copy_left(
            U32(memory + U32(LEFT) + place), a1_tile, I64(row) * a1_s[2] + I64(column), a1_s[2], row, column,
            rows_left, values,
        )  # fmt: skip
        copy_commit()
        target = U32(memory + U32(2 * LEFT) + place)
        b0_at, b1_at = I64(row) * b0_s[2] + I64(column), I64(row) * b1_s[2] + I64(column)
        my_row = I32(first + I32(warp * U32(ROWS)) + I32(lane >> U32(2)))
        my_column = I32((lane & U32(3)) << U32(1))
        factor = scale if kind == "float" else scale * F32(LOG2E)
        never = F32(-math.inf)
        if kind != "float":
            factor = F32(LEAST) if maximum(factor, -factor) < F32(LEAST) else factor
            never = F32(math.inf) if factor < F32(0.0) else never
        under, less = cuda.local.array(HALVES, F32), cuda.local.array(HALVES, F32)
        if not turned:
            for e in range(HALVES):
                r = I32(my_row + I32(8 * e))
                under[e], less[e] = F32(0.0), F32(0.0)
                if r < rows:
                    under[e] = units[I64(head) * I64(rows) + I64(r)]
                    less[e] = delta[I64(head) * I64(rows) + I64(r)]
        warp_row = U32(warp * U32(ROWS))
        left0 = U32(memory + U32(warp_row * U32(ROW)) + place_by_rows())
        left1 = U32(left0 + U32(LEFT))
        words0, words1 = cuda.local.array(HELD0, U32), cuda.local.array(HELD1, U32)
        sums0, sums1 = cuda.local.array(SUMS0, F32), cuda.local.array(SUMS1, F32)
        for e in range(SUMS0):
            sums0[e] = F32(0.0)
        for e in range(SUMS1):
            sums1[e] = F32(0.0)
        by_columns = U32(memory + U32(2 * LEFT) + place_by_columns())
        by_rows = U32(memory + U32(2 * LEFT) + place_by_rows())
        this_row, this_head = begin, right_head
        # the ring begins STAGES - 1 tiles early, so that one place in the code copies
        step, stage, free = I32(1 - STAGES), U32(0), U32(0)
        count = left_over
        while step < count:
            if step >= I32(0):
                copy_wait(NEWEST)
                barrier()
            if left_over > 0:
                b0_tile = advance(b0, start(b0_s, batch, I64(next_head), I64(next_row)))
                b1_tile = advance(b1, start(b1_s, batch, I64(next_head), I64(next_row)))
                to = U32(target + U32(free * U32(STAGE)))
                copy_right(to, b0_tile, b0_at, b0_s[2], row, column, I32(right_rows - next_row), width)
                copy_right(
                    U32(to + U32(RIGHT)), b1_tile, b1_at, b1_s[2], row, column, I32(right_rows - next_row), values
                )
                if turned:
                    if thread < U32(BN):
                        r = I32(next_row + I32(thread))
                        at = (batch * I64(heads) + I64(next_head)) * I64(right_rows) + I64(r)
                        there = U32(memory + U32(STATS) + U32(free * U32(STATS_STAGE)) + U32(thread << U32(2)))
                        valid = I32(4) if r < right_rows else I32(0)
                        copy_async_partial(there, units, at, 4, valid)
                        copy_async_partial(U32(there + U32(4 * BN)), delta, at, 4, valid)
                next_row, left_over = I32(next_row + I32(BN)), I32(left_over - I32(1))
                if turned:
                    if next_row >= end:
                        next_row, next_head = begin, I32(next_head + I32(1))
                free = U32(free + U32(1)) if free != U32(STAGES - 1) else U32(0)
            copy_commit()
            if step >= I32(0):
                if held:
                    if step == I32(0):
                        hold0(words0, left0)
                        hold1(words1, left1)
                open_all, takes_part = I32(this_row + I32(BN)) <= right_rows, True
                if causal:
                    warp_first = I32(first + I32(warp_row))
                    if turned:
                        takes_part = I32(this_row + I32(BN)) > warp_first
                        open_all = open_all and this_row >= I32(warp_first + I32(ROWS - 1))
                    else:
                        takes_part = this_row < I32(warp_first + I32(ROWS))
                        open_all = open_all and I32(this_row + I32(BN)) <= I32(warp_first + I32(1))
                if takes_part:
                    s, d = cuda.local.array(SCORES, F32), cuda.local.array(SCORES, F32)
                    for e in range(SCORES):
                        s[e], d[e] = F32(0.0), F32(0.0)
                    here = U32(stage * U32(STAGE))
                    scores0(s, words0, left0, U32(by_columns + here))
                    if kind or not open_all:
                        mask_at = start(mask_s, batch, I64(this_head if turned else inside), I64(0))
                        row_step, column_step = (mask_s[3], mask_s[2]) if turned else (mask_s[2], mask_s[3])
                        close(
                            s, mask, mask_at, row_step, column_step, my_row, I32(this_row + my_column), rows,
                            right_rows, causal, factor, never,
                        )  # fmt: skip
                    scores1(d, words1, left1, U32(by_columns + here + U32(RIGHT)))
                    stats = U32(memory + U32(STATS) + U32(stage * U32(STATS_STAGE)) + U32(U32(my_column) << U32(2)))
                    for j in range(FN):
                        for e in range(2):
                            if turned:
                                u = bits_float(load_shared(U32(stats + U32(32 * j + 4 * e))))
                                x = bits_float(load_shared(U32(stats + U32(32 * j + 4 * e + 4 * BN))))
                            for i in range(FM):
                                for h in range(2):
                                    if not turned:
                                        u, x = under[2 * i + h], less[2 * i + h]
                                    at = 4 * (i * FN + j) + 2 * h + e
                                    p = power(s[at], u, factor)
                                    s[at], d[at] = p, p * (d[at] - x)
                    if turned:
                        gather1(sums1, s, U32(by_rows + here + U32(RIGHT)))
                    gather0(sums0, d, U32(by_rows + here))
                stage = U32(stage + U32(1)) if stage != U32(STAGES - 1) else U32(0)
                this_row = I32(this_row + I32(BN))
                if turned:
                    if this_row >= end:
                        this_row, this_head = begin, I32(this_head + I32(1))
            step = I32(step + I32(1))
        copy_wait(0)
        barrier()
        for e in range(SUMS0):
            sums0[e] *= scale
        to_c0 = advance(c0, start(c0_s, batch, I64(inside), I64(first)))
        put0(memory_array, memory, sums0, warp_row, to_c0, c0_s[2], c0_s[3], rows_left, width)
        if turned:
            to_c1 = advance(c1, start(c1_s, batch, I64(inside), I64(first)))
            put1(memory_array, U32(memory + U32(LEFT)), sums1, warp_row, to_c1, c1_s[2], c1_s[3], rows_left, values)

    return attention_backward


#: What the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_delta, ("bf16", ""), ("SHFL", "LDG.E.U16")),
    (make_backward, ("bf16", "", 4, 4, 64, 16, BACKWARD_TILES[64]["4x16x64"], True, True),
     ("HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDSM.16.MT88.4", "LDGSTS.E.BYPASS.128", "MUFU.EX2", "STG.E.128")),
    (make_backward, ("f16", "float", 4, 4, 64, 16, BACKWARD_TILES[64]["4x16x64"], True, False), ("HMMA.16816.F32",)),
    (make_backward, ("bf16", "bool", 8, 8, 128, 16, BACKWARD_TILES[128]["4x16x32"], False, True),
     ("HMMA.16816.F32.BF16", "LDG.E.U8")),
    (make_backward, ("f16", "", 8, 8, 128, 16, BACKWARD_TILES[128]["4x16x32"], False, False), ("HMMA.16816.F32",)),
]  # fmt: skip
