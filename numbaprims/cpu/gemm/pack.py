"""Packing: blocks of A and B into panels that the register tile reads from front to back.

A panel of B holds, for each k, NR = NV * W neighbouring columns; a panel of A, for each k, MR neighbouring rows.
Either operand may lie by rows or by columns: the unfavourable one goes through in-register transposes, because
scalar packing costs more than the product itself on skinny shapes.  f16 and bf16 become f32 on the way.
"""

from __future__ import annotations

from numbaprims.cpu.jit import helper
from numbaprims.cpu.simd import (
    advance,
    load,
    load_wide,
    load_wide_first,
    load_wide_rows,
    load_wide_scalar,
    scalar,
    stack_tile,
    store,
    store_rows,
    store_scalar,
    transpose,
)


@helper
def pack_panel(panel, source, width_step, k_step, k, width, WIDTH, W, acc):  # type: ignore[no-untyped-def]
    """panel[p * WIDTH + j] = source[j * width_step + p * k_step], p < k, j < width; what lies at j >= width is
    never used.

    May write up to W - 1 elements past the panel's end: panels are written in ascending order, with room behind.
    """
    if width_step == 1:
        _pack_along(panel, source, k_step, k, width, WIDTH, W, acc)
    elif k_step == 1:
        _pack_across(panel, source, width_step, k, width, WIDTH, W, acc)
    else:
        for p in range(k):
            for j in range(width):
                store_scalar(panel, p * WIDTH + j, load_wide_scalar(source, j * width_step + p * k_step))
            for j in range(width, WIDTH):
                store_scalar(panel, p * WIDTH + j, scalar(0, acc))


@helper
def _pack_along(panel, source, k_step, k, width, WIDTH, W, acc):  # type: ignore[no-untyped-def]
    # A WIDTH that is no multiple of W (14 rows of A) writes whole vectors that overlap the next k's: in order, the
    # next k then puts its own values over them.
    if width == WIDTH and WIDTH % W == 0:
        for p in range(k):
            for v in range(0, WIDTH, W):
                store(panel, p * WIDTH + v, load_wide(source, p * k_step + v, W))
    else:
        for p in range(k):
            for v in range(0, WIDTH, W):
                left = max(min(width - v, W), 0)
                store(panel, p * WIDTH + v, load_wide_first(source, p * k_step + v, left, W))


@helper
def _pack_across(panel, source, width_step, k, width, WIDTH, W, acc):  # type: ignore[no-untyped-def]
    # Lanes past `width` hold copies of the last row: what they are multiplied with is never stored.
    whole = k - k % W
    room = stack_tile(acc, W, 1, W)
    for v in range(0, width, W):
        group = advance(source, v * width_step)
        target = advance(panel, v)
        count = min(width - v, W)
        for p in range(0, whole, W):
            block = transpose(load_wide_rows(advance(group, p), width_step, count, W, W))
            store_rows(advance(target, p * WIDTH), WIDTH, block)
        if whole < k:
            block = transpose(load_wide_rows(advance(group, whole), width_step, count, k - whole, W))
            store_rows(room, W, block)
            for p in range(whole, k):
                store(target, p * WIDTH, load(room, (p - whole) * W, W))
