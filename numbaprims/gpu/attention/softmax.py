"""What a warp does with sums in registers, which lie as mma.sync and wgmma leave them: masks, the online softmax, and
the way to rows of out."""

from __future__ import annotations

import functools
import math
from typing import Any

from numbaprims.gpu.attention.tiles import ELEMENTS, ROW, piece_of
from numbaprims.gpu.device.copy import shared_address
from numbaprims.gpu.device.math import exp2_fast
from numbaprims.gpu.device.memory import load_shared, load_vector, pack_halves, store_shared, store_vector, widen
from numbaprims.gpu.device.warp import group_reduce, lane_index, maximum, warp_any, warp_barrier
from numbaprims.gpu.jit import cuda, device_function, types

F32, I32, I64, U32 = types.float32, types.int32, types.int64, types.uint32
LOG2E = math.log2(math.e)


@device_function
def flip_signs(target, count, rounds):  # type: ignore[no-untyped-def]
    """Change the signs of this thread's pieces of a tile, `rounds` of them, `count` bytes apart."""
    for r in range(rounds):
        for w in range(4):
            at = U32(target + U32(r * count + 4 * w))
            store_shared(at, U32(load_shared(at) ^ U32(0x80008000)))


@functools.cache
def make_close(dtype: str, kind: str, fragments: int, tiles: int, turned: bool) -> Any:
    """close(s, mask, at, row_step, column_step, row, column, rows, columns, causal, scale, never): scores of pairs that
    do not take part become `never`; a float mask is added to scores times `scale`.

    `row` and `column` are those of the lane's first score; rows are queries, or with `turned` keys.
    """

    @device_function
    def close(s, mask, at, row_step, column_step, row, column, rows, columns, causal, scale, never):  # type: ignore[no-untyped-def]
        for i in range(fragments):
            for h in range(2):
                r = I32(row + I32(16 * i + 8 * h))
                first, last = I32(0), columns
                if causal:
                    first, last = (r, columns) if turned else (I32(0), I32(min(columns, I32(r + I32(1)))))
                if kind:
                    last = last if r < rows else I32(0)
                there = at + I64(r) * row_step
                for j in range(tiles):
                    for e in range(2):
                        c = I32(column + I32(8 * j + e))
                        place = 4 * (i * tiles + j) + 2 * h + e
                        x = never
                        if c >= first and c < last:
                            x = s[place]
                            if kind == "bool":
                                x = x if mask[there + I64(c) * column_step] != 0 else never
                            if kind == "float":
                                x = x * scale + widen(mask[there + I64(c) * column_step], dtype)
                        s[place] = x

    return close


@functools.cache
def make_power(kind: str) -> Any:
    """power(x, under, scale): the exponential of a score less `under`, which is one to base 2.

    With a float mask scores are scaled already, and `under` is one to base e: bfloat16's lowest number, which such
    masks have, times log2(e) would be infinite.
    """

    @device_function
    def power(x, under, scale):  # type: ignore[no-untyped-def]
        if kind == "float":
            return exp2_fast((x - under) * F32(LOG2E))
        return exp2_fast(x * scale - under)

    return power


@functools.cache
def make_soften(kind: str, fragments: int, tiles: int, out_tiles: int) -> Any:
    """soften(s, out, base, total, scale): scores become exponentials over `base`, and are added to `total`.

    A row's base is a maximum that it had; it is raised, and `out` and `total` scaled, where the maximum has risen by
    more than a factor of 2**8 of the exponentials, which 16 bits have room for.  After a few tiles of keys that is
    rare: no lane need then hear of another's maximum.
    """
    ROOM = 8.0 / LOG2E if kind == "float" else 8.0
    power, HALVES = make_power(kind), 2 * fragments

    @device_function
    def soften(s, out, base, total, scale):  # type: ignore[no-untyped-def]
        never = F32(-math.inf)
        best = cuda.local.array(HALVES, F32)
        risen = False
        for i in range(fragments):
            for h in range(2):
                first, here = 4 * i * tiles + 2 * h, 2 * i + h
                most = maximum(s[first], s[first + 1])
                for j in range(1, tiles):
                    most = maximum(most, maximum(s[first + 4 * j], s[first + 4 * j + 1]))
                best[here] = most
                above = most - base[here]  # NaN where both are -inf
                risen = risen or (above if kind == "float" else above * scale) > F32(ROOM)
        if warp_any(risen):
            for i in range(fragments):
                for h in range(2):
                    here = 2 * i + h
                    most = maximum(base[here], group_reduce(best[here], 4, "max"))
                    under = F32(0.0) if most == never else most
                    less = power(base[here], under if kind == "float" else under * scale, scale)
                    base[here] = most
                    total[here] *= less
                    for j in range(out_tiles):
                        for e in range(2):
                            out[4 * (i * out_tiles + j) + 2 * h + e] *= less
        for i in range(fragments):
            for h in range(2):
                first, here = 4 * i * tiles + 2 * h, 2 * i + h
                under = F32(0.0) if base[here] == never else base[here]
                under = under if kind == "float" else under * scale
                row = F32(0.0)
                for j in range(tiles):
                    for e in range(2):
                        y = power(s[first + 4 * j + e], under, scale)
                        s[first + 4 * j + e] = y
                        row += y
                total[here] += row

    return soften


@functools.cache
def make_put_rows(dtype: str, fragments: int, tiles: int, block_rows: int, width: int) -> Any:
    """put(shared, tile, sums, first, out, row_step, column_step, rows_left, columns): write a warp's sums to rows
    `first` ... of out, through its own rows of a tile in shared memory, so that rows are written whole."""
    box, rows = block_rows * ROW, 16 * fragments
    boxes = -(-tiles // 8)

    @device_function
    def put(shared, tile, sums, first, out, row_step, column_step, rows_left, columns):  # type: ignore[no-untyped-def]
        lane = lane_index()
        g = U32(lane >> U32(2))
        warp_barrier()
        at = U32(tile + U32((U32(first) + g) * U32(ROW) + ((lane & U32(3)) << U32(2))))
        for i in range(fragments):
            for j in range(tiles):
                e = 4 * (i * tiles + j)
                there = U32(at + U32(i * 16 * ROW + (j >> 3) * box) + ((U32(j & 7) ^ g) << U32(4)))
                store_shared(there, pack_halves(sums[e], sums[e + 1], dtype))
                store_shared(U32(there + U32(8 * ROW)), pack_halves(sums[e + 2], sums[e + 3], dtype))
        warp_barrier()
        row, column, place = piece_of(lane)
        base = U32(U32(tile - shared_address(shared, 0)) + U32(first) * U32(ROW) + place)
        for r in range(rows // 4):
            # the swizzle of row 4 r + lane / 8
            where = U32(U32(base + U32(r * 4 * ROW)) ^ U32((r & 1) << 6))
            to = I32(I32(first) + row + I32(4 * r))
            for b in range(boxes):
                c = I32(column + I32(64 * b))
                words = load_vector(shared, U32(U32(where + U32(b * box)) >> U32(1)), 8)
                target = I64(to) * row_step + I64(c) * column_step
                if to < rows_left:
                    if width == 16 and I32(c + I32(ELEMENTS)) <= columns:
                        store_vector(out, target, words)
                    else:
                        for e in range(8):
                            if I32(c + I32(e)) < columns:
                                out[target + I64(e) * column_step] = words[e]

    return put
