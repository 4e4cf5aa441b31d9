"""G g G^T of the filters, into the panels that the products read."""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.table import BLOCK, WORD
from numbaprims.cpu.conv.winograd.transform_in import PLACES, Plane
from numbaprims.cpu.gemm.finish import load_steps
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    advance,
    load,
    load_rows,
    load_wide_rows,
    load_word,
    pointer_from_address,
    stack_array,
    store,
    store_rows,
    straight_line,
    transpose,
    zeros,
)
from numbaprims.dtypes import DTYPES

X_CHANNELS, OUT_CHANNELS, C_BLOCKS, U_STEP, X_BLOCKS, PIECES, PIECES_W = (
    WORD[name] for name in ("x_channels", "out_channels", "c_blocks", "u_step", "x_blocks", "pieces", "pieces_w")
)
# The taps of a channel, and the channels of a filter, lie side by side; the taps do, turned round; neither.
DENSE, REVERSED, STRIDED = 0, 1, 2
W_SK, W_SC, W_SR, W_SS = (WORD[name] for name in ("w_sk", "w_sc", "w_sr", "w_ss"))


@functools.cache
def make_weights(
    dtype: str, acc: str, taps: Plane, piece: Plane, stride: Plane, n: Plane, NV: int, W: int, ORDER: int,
    CODE_H: str, CODE_W: str,
) -> RangeKernel:  # fmt: skip
    """u[panel][i * NW + j][piece][c][k] for W output channels at a time: tile = panel * NV + vector.

    A piece has up to `piece` of the filter's `taps`, `stride` apart; those past the filter's last are zero.  ORDER
    says how filters lie: they are read whole and transposed where that is possible.
    """
    types = BLOCK.types(w=dtype, u=acc)
    (R, S), (RH, RW), (SH, SW), (NH, NW) = taps, piece, stride, n
    TAPS = R * S
    NR = NV * W
    ROOM = (TAPS + W) * W * W
    OWN = RH * RW * W
    HALF = NH * RW * W

    @range_kernel(
        "winograd_weights",
        types,
        spec=(dtype, acc, taps, piece, stride, n, NV, W, ORDER, CODE_H, CODE_W),
        room=ROOM * DTYPES[acc].itemsize,
    )
    def winograd_weights(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = args.table
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
                w = advance(args.w, k0 * load_word(t, W_SK) + xb * W * load_word(t, W_SC))
                if ORDER == DENSE:
                    for e in range(0, channels * TAPS, W):
                        valid = min(W, channels * TAPS - e)
                        block = load_wide_rows(advance(w, e), load_word(t, W_SK), filters, valid, W)
                        store_rows(advance(given, e * W), W, transpose(block))
                elif ORDER == REVERSED:
                    for c in range(channels - 1, -1, -1):
                        last = advance(w, c * load_word(t, W_SC) - (TAPS - 1))
                        for e in range(0, TAPS, W):
                            block = load_wide_rows(advance(last, e), load_word(t, W_SK), filters, min(W, TAPS - e), W)
                            store_rows(advance(given, ((c + 1) * TAPS - 1 - e) * W), -W, transpose(block))
                else:
                    for c in range(channels):
                        for r in range(R):
                            for s in range(S):
                                at = c * load_word(t, W_SC) + r * load_word(t, W_SR) + s * load_word(t, W_SS)
                                value = load_steps(w, at, load_word(t, W_SK), filters, W, acc)
                                store(given, ((c * R + r) * S + s) * W, value)
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
