"""G g G^T of the filters, into the panels that the products read."""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.table import BLOCK, WORD
from numbaprims.cpu.conv.winograd.transform_in import AT, BUFFER, CHANNELS, COUNT, PLACES, Plane
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
    stack_array,
    store,
    store_rows,
    store_word,
    straight_line,
    zeros,
)
from numbaprims.dtypes import DTYPES

X_CHANNELS, OUT_CHANNELS, C_BLOCKS, U_STEP, X_BLOCKS, PIECES, PIECES_W = (
    WORD[name] for name in ("x_channels", "out_channels", "c_blocks", "u_step", "x_blocks", "pieces", "pieces_w")
)
READ, W_SK, W_SC = WORD["read_weights"], WORD["w_sk"], WORD["w_sc"]


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
        t, block = args.table, block_of(args)
        # what a reversed filter is short of whole vectors lies before its first tap
        given = advance(pointer_from_address(args.room, acc), W * W)
        own = stack_array(acc, OWN)
        half = stack_array(acc, HALF)
        zero = zeros(acc, W)
        u_step, x_blocks, firsts = load_word(t, U_STEP), load_word(t, X_BLOCKS), load_word(t, PIECES)
        pieces = load_word(t, C_BLOCKS) // x_blocks
        for place in range(lo, hi):
            panel, vector = divmod(place, NV)
            k0 = place * W
            filters = min(W, load_word(t, OUT_CHANNELS) - k0)
            u = advance(args.u, panel * NH * NW * u_step + vector * W)
            if filters <= 0:
                # columns past the last channel: what they hold is never used, but it is multiplied
                for xi in range(NH * NW):
                    for row in range(load_word(t, C_BLOCKS) * W):
                        store(u, xi * u_step + row * NR, zero)
                continue
            for xb in range(x_blocks):
                channels = min(W, load_word(t, X_CHANNELS) - xb * W)
                store_word(block, AT, k0 * load_word(t, W_SK) + xb * W * load_word(t, W_SC))
                store_word(block, BUFFER, address_of(given))
                store_word(block, COUNT, filters)
                store_word(block, CHANNELS, channels)
                call_range(load_word(t, READ), block, 0, 0, 1)
                for p in range(pieces):
                    piece_h, piece_w = divmod(p, load_word(t, PIECES_W))
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
