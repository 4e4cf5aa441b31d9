"""G g G^T of the filters, into the panels that the products read."""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.table import BLOCK, WORD
from numbaprims.cpu.gemm.finish import load_steps
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    advance,
    load_rows,
    load_wide_rows,
    load_word,
    stack_array,
    store,
    store_rows,
    straight_line,
    transpose,
    zeros,
)

X_CHANNELS, OUT_CHANNELS, C_BLOCKS, U_STEP = (
    WORD[name] for name in ("x_channels", "out_channels", "c_blocks", "u_step")
)
W_SK, W_SC, W_SR, W_SS = (WORD[name] for name in ("w_sk", "w_sc", "w_sr", "w_ss"))


@functools.cache
def make_weights(dtype: str, acc: str, R: int, N: int, NV: int, W: int, DENSE: bool, CODE: str) -> RangeKernel:
    """u[panel][i * N + j][c][k] for W output channels at a time: tile = panel * NV + vector.

    DENSE: the taps of a channel, and the channels of a filter, lie side by side; W filters are then read whole and
    transposed.
    """
    types = BLOCK.types(w=dtype, u=acc)
    TAPS = R * R
    NR = NV * W
    ROOM = TAPS * W * W
    HALF = N * R * W

    @range_kernel("winograd_weights", types, spec=(dtype, acc, R, N, NV, W, DENSE, CODE))
    def winograd_weights(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = args.table
        taps = stack_array(acc, ROOM)
        half = stack_array(acc, HALF)
        zero = zeros(acc, W)
        u_step = load_word(t, U_STEP)
        for place in range(lo, hi):
            panel, vector = divmod(place, NV)
            k0 = place * W
            filters = min(W, load_word(t, OUT_CHANNELS) - k0)
            u = advance(args.u, panel * N * N * u_step + vector * W)
            if filters <= 0:
                # columns past the last channel: what they hold is never used, but it is multiplied
                for row in range(N * N * load_word(t, C_BLOCKS) * W):
                    store(u, row * NR, zero)
                continue
            for cb in range(load_word(t, C_BLOCKS)):
                channels = min(W, load_word(t, X_CHANNELS) - cb * W)
                w = advance(args.w, k0 * load_word(t, W_SK) + cb * W * load_word(t, W_SC))
                if DENSE:
                    for e in range(0, channels * TAPS, W):
                        valid = min(W, channels * TAPS - e)
                        block = load_wide_rows(advance(w, e), load_word(t, W_SK), filters, valid, W)
                        store_rows(advance(taps, e * W), W, transpose(block))
                else:
                    for c in range(channels):
                        for r in range(R):
                            for s in range(R):
                                at = c * load_word(t, W_SC) + r * load_word(t, W_SR) + s * load_word(t, W_SS)
                                value = load_steps(w, at, load_word(t, W_SK), filters, W, acc)
                                store(taps, ((c * R + r) * R + s) * W, value)
                for c in range(channels):
                    for s in range(R):
                        column = load_rows(advance(taps, (c * TAPS + s) * W), R * W, R, W)
                        store_rows(advance(half, s * W), R * W, straight_line(column, CODE))
                    for i in range(N):
                        line = straight_line(load_rows(advance(half, i * R * W), W, R, W), CODE)
                        store_rows(advance(u, i * N * u_step + (cb * W + c) * NR), u_step, line)
                for c in range(channels, W):
                    for xi in range(N * N):
                        store(u, xi * u_step + (cb * W + c) * NR, zero)

    return winograd_weights
