"""G g G^T of the filters, into the panels that the products read."""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.table import BLOCK, TABLE
from numbaprims.cpu.conv.winograd.transform_in import PLACES, Plane
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    block_of,
    call_range,
    load,
    load_rows,
    load_word,
    pointer_from_address,
    record,
    stack_array,
    store,
    store_rows,
    straight_line,
    zeros,
)
from numbaprims.dtypes import DTYPES


@functools.cache
def make_weights(
    acc: str, taps: Plane, piece: Plane, stride: Plane, n: Plane, NV: int, W: int, CODE_H: str, CODE_W: str
) -> RangeKernel:
    """u[panel][i * NW + j][piece][c][k] for W output channels at a time: tile = panel * NV + vector.

    A piece has up to `piece` of the filter's `taps`, `stride` apart; those past the filter's last are zero.
    """
    types = BLOCK.types(u=acc)
    (R, S), (RH, RW), (SH, SW), (NH, NW) = taps, piece, stride, n
    TAPS = R * S
    NR = NV * W
    ROOM = (TAPS + W) * W * W
    OWN = RH * RW * W
    HALF = NH * RW * W

    @range_kernel(
        "winograd_weights",
        types,
        spec=(acc, taps, piece, stride, n, NV, W, CODE_H, CODE_W),
        room=ROOM * DTYPES[acc].itemsize,
    )
    def winograd_weights(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t, block = record(TABLE, args.table), record(BLOCK, block_of(args))
        # what a reversed filter is short of whole vectors lies before its first tap
        given = advance(pointer_from_address(args.room, acc), W * W)
        own = stack_array(acc, OWN)
        half = stack_array(acc, HALF)
        zero = zeros(acc, W)
        u_step, x_blocks, firsts = t.u_step, t.x_blocks, t.pieces
        pieces = t.c_blocks // x_blocks
        for place in range(lo, hi):
            panel, vector = divmod(place, NV)
            k0 = place * W
            filters = min(W, t.out_channels - k0)
            u = advance(args.u, panel * NH * NW * u_step + vector * W)
            if filters <= 0:
                # columns past the last channel: what they hold is never used, but it is multiplied
                for xi in range(NH * NW):
                    for row in range(t.c_blocks * W):
                        store(u, xi * u_step + row * NR, zero)
                continue
            for xb in range(x_blocks):
                channels = min(W, t.x_channels - xb * W)
                block.at = k0 * t.w_sk + xb * W * t.w_sc
                block.buffer = address_of(given)
                block.rows = filters
                block.channels = channels
                call_range(t.read_weights, block, 0, 0, 1)
                for p in range(pieces):
                    piece_h, piece_w = divmod(p, t.pieces_w)
                    r0, s0 = load_word(firsts, piece_h), load_word(firsts, piece_w + PLACES)
                    target = advance(u, (p * x_blocks + xb) * W * NR)
                    for c in range(channels):
                        for i in range(RH):
                            for j in range(RW):
                                value = zero
                                r, s = r0 + i * SH, s0 + j * SW
                                if r < R and s < S:
                                    value = load(given, ((c * R + r) * S + s) * W, W)
                                store(own, (i * RW + j) * W, value)
                        for j in range(RW):
                            column = load_rows(advance(own, j * W), RW * W, RH, W)
                            store_rows(advance(half, j * W), RW * W, straight_line(column, CODE_H))
                        for i in range(NH):
                            line = straight_line(load_rows(advance(half, i * RW * W), W, RW, W), CODE_W)
                            store_rows(advance(target, i * NW * u_step + c * NR), u_step, line)
                    for c in range(channels, W):
                        for xi in range(NH * NW):
                            store(target, xi * u_step + c * NR, zero)

    return winograd_weights
