"""The weight's gradient: sums over tiles in the transforms' domain, G^T [sum of (B^T d B) * (A y' A^T)] G.

Where the forward direction sums over channels, products here sum over the tiles of a block; all blocks' sums for all
pairs of channels stay in the workspace, and only the last block's are transformed back.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.arguments import ARGS
from numbaprims.cpu.conv.winograd.driver import open_call
from numbaprims.cpu.conv.winograd.pixels import PLANES, STRIDED, store_row
from numbaprims.cpu.conv.winograd.table import BLOCK, WORD
from numbaprims.cpu.conv.winograd.transform_in import PLACES, Plane
from numbaprims.cpu.gemm.finish import activate_in_place, load_steps
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    call_range,
    load,
    load_rows,
    load_word,
    pointer_from_address,
    scalar,
    splat,
    stack_array,
    stack_words,
    store,
    store_rows,
    store_word,
    straight_line,
    tile_add,
    tile_load,
    tile_multiply,
    tile_store,
)
from numbaprims.dtypes import DTYPES

GROUPS, X_CHANNELS, OUT_CHANNELS, X_BLOCKS, C_BLOCKS, PANELS, PIECES, PIECES_W = (
    WORD[name]
    for name in (
        "groups", "x_channels", "out_channels", "x_blocks", "c_blocks", "panels", "pieces", "pieces_w",
    )
)  # fmt: skip
ROWS, V_STEP, M_STEP, U_STEP, TILES, TILE_BLOCK, BLOCKS = (
    WORD[name] for name in ("rows", "v_step", "m_step", "u_step", "tiles", "block", "blocks")
)
W_SK, W_SC, W_SR, W_SS, W_GROUP, SUM_SIZE = (
    WORD[name] for name in ("w_sk", "w_sc", "w_sr", "w_ss", "w_group", "sum_size")
)
C_SK, C_SC, C_SR, C_SS = (WORD[name] for name in ("c_sn", "c_sk", "c_sh", "c_sw"))
X_INPUT, Y_INPUT, PRODUCTS, BACK = (WORD[name] for name in ("input", "output", "products", "weights"))
Y_TABLE, V_AT, U_AT, M_AT = (WORD[name] for name in ("y_table", "v_at", "u_at", "m_at"))
X, V, U, M, OUT = (BLOCK.slot(name) for name in ("x", "v", "u", "m", "out"))
TABLE_AT, FIRST, COUNT, X_CHANNEL, OUT_CHANNEL = (
    BLOCK.slot(name) for name in ("table", "first", "count", "x_channel", "out_channel")
)
BYTES = ARGS.types()


@functools.cache
def make_correlate(acc: str, MR: int, NV: int, W: int) -> RangeKernel:
    """m[xi][c][k] = or += sum over tiles of v[xi][c // W][tile][c % W] * u[xi][k // NR][tile][k % NR]; tile = position
    and vector of c.  The first block's sums are stored."""
    types = BLOCK.types(v=acc, u=acc, m=acc)
    NR = NV * W

    @range_kernel("winograd_correlate", types, spec=(acc, MR, NV, W))
    def winograd_correlate(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = args.table
        rows, panels, blocks = load_word(t, ROWS), load_word(t, PANELS), load_word(t, C_BLOCKS)
        for place in range(lo, hi):
            xi, cb = divmod(place, blocks)
            v = advance(args.v, xi * load_word(t, V_STEP) + cb * rows * W)
            u = advance(args.u, xi * load_word(t, U_STEP))
            for panel in range(panels):
                b = advance(u, panel * rows * NR)
                for i in range(0, W, MR):
                    total = advance(args.m, xi * load_word(t, M_STEP) + (cb * W + i) * panels * NR + panel * NR)
                    tile = tile_multiply(advance(v, i), 1, W, MR, b, NR, NR, args.count, MR, NV, W)
                    if args.first > 0:
                        tile = tile_add(tile_load(total, panels * NR, MR, NV, W), tile)
                    tile_store(total, panels * NR, tile, MR, NV, W)

    return winograd_correlate


@functools.cache
def make_back(
    acc: str, out: str, taps: Plane, piece: Plane, stride: Plane, n: Plane, NV: int, W: int, DENSE: bool,
    COMBINED: bool, CODE_H: str, CODE_W: str,
) -> RangeKernel:  # fmt: skip
    """out[k][c][r][s] = act(alpha (G^T m G) + beta c) for the vectors lo ... hi - 1 of output channels."""
    types = BLOCK.types(m=acc, out=out, c=out)
    (R, S), (RH, RW), (SH, SW), (NH, NW) = taps, piece, stride, n
    TAPS = R * S
    NR = NV * W
    ROOM = (TAPS * W + W) * W
    HALF = RH * NW * W
    OWN = RH * RW * W

    @range_kernel(
        "winograd_back",
        types,
        spec=(acc, out, taps, piece, stride, n, NV, W, DENSE, COMBINED, CODE_H, CODE_W),
        room=ROOM * DTYPES[acc].itemsize,
    )
    def winograd_back(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = args.table
        room = pointer_from_address(args.room, acc)
        half = stack_array(acc, HALF)
        own = stack_array(acc, OWN)
        m_step, x_blocks, firsts = load_word(t, M_STEP), load_word(t, X_BLOCKS), load_word(t, PIECES)
        columns = load_word(t, PANELS) * NR
        pieces = load_word(t, C_BLOCKS) // x_blocks
        for vector in range(lo, hi):
            k0 = vector * W
            filters = min(W, load_word(t, OUT_CHANNELS) - k0)
            for xb in range(x_blocks):
                channels = min(W, load_word(t, X_CHANNELS) - xb * W)
                for p in range(pieces):
                    piece_h, piece_w = divmod(p, load_word(t, PIECES_W))
                    r0, s0 = load_word(firsts, piece_h), load_word(firsts, piece_w + PLACES)
                    for c in range(channels):
                        m = advance(args.m, ((p * x_blocks + xb) * W + c) * columns + k0)
                        for j in range(NW):
                            column = straight_line(load_rows(advance(m, j * m_step), NW * m_step, NH, W), CODE_H)
                            store_rows(advance(half, j * W), NW * W, column)
                        for i in range(RH):
                            line = straight_line(load_rows(advance(half, i * NW * W), W, NW, W), CODE_W)
                            store_rows(advance(own, i * RW * W), W, line)
                        for i in range(RH):
                            for j in range(RW):
                                r, s = r0 + i * SH, s0 + j * SW
                                if r < R and s < S:
                                    store(room, ((c * R + r) * S + s) * W, load(own, (i * RW + j) * W, W))
                if COMBINED:
                    alpha = splat(scalar(args.alpha, acc), W)
                    beta = splat(scalar(args.beta, acc), W)
                    start = (args.out_channel + k0) * load_word(t, C_SK) + xb * W * load_word(t, C_SC)
                    for e in range(channels * TAPS):
                        x = load(room, e * W, W) * alpha
                        if args.has_c:
                            c, tap = divmod(e, TAPS)
                            r, s = divmod(tap, S)
                            at = start + c * load_word(t, C_SC) + r * load_word(t, C_SR) + s * load_word(t, C_SS)
                            x = x + load_steps(args.c, at, load_word(t, C_SK), filters, W, acc) * beta
                        store(room, e * W, x)
                if args.activation != 0:
                    activate_in_place(args, room, channels * TAPS * W)
                target = advance(args.out, (args.out_channel + k0) * load_word(t, W_SK) + xb * W * load_word(t, W_SC))
                if DENSE:
                    store_row(target, load_word(t, W_SK), 1, room, channels * TAPS, filters, PLANES, W)
                else:
                    for e in range(channels * TAPS):
                        c, tap = divmod(e, TAPS)
                        r, s = divmod(tap, S)
                        at = c * load_word(t, W_SC) + r * load_word(t, W_SR) + s * load_word(t, W_SS)
                        store_row(
                            advance(target, at), load_word(t, W_SK), 0, advance(room, e * W), 1, filters, STRIDED, W
                        )

    return winograd_back


@helper
def open_step(args, worker):  # type: ignore[no-untyped-def]
    """The words of a step: a group and a block of its tiles."""
    t = args.geometry
    block = open_call(args, worker)
    group, index = divmod(args.step, load_word(t, BLOCKS))
    size = load_word(t, TILE_BLOCK)
    base = address_of(args.workspace)
    store_word(block, X, address_of(args.second))
    store_word(block, V, base + load_word(t, V_AT))
    store_word(block, U, base + load_word(t, U_AT))
    store_word(block, M, base + load_word(t, M_AT))
    store_word(block, FIRST, index * size)
    store_word(block, COUNT, min(size, load_word(t, TILES) - index * size))
    store_word(block, X_CHANNEL, group * load_word(t, X_CHANNELS))
    store_word(block, OUT_CHANNEL, group * load_word(t, OUT_CHANNELS))
    return block


@functools.cache
def make_both_inputs() -> RangeKernel:
    """The transforms of x and of y's gradient; tile = a vector of channels of x, then of y."""

    @range_kernel("winograd_both_inputs", BYTES, spec=())
    def winograd_both_inputs(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = args.geometry
        block = open_step(args, worker)
        blocks = load_word(t, C_BLOCKS)
        if lo < blocks:
            call_range(load_word(t, X_INPUT), block, 0, lo, min(hi, blocks))
        if hi > blocks:
            other = stack_words(80)
            for slot in range(80):
                store_word(other, slot, load_word(block, slot))
            store_word(other, X, address_of(args.first))
            store_word(other, V, load_word(block, U))
            store_word(other, TABLE_AT, load_word(t, Y_TABLE))
            store_word(other, X_CHANNEL, load_word(block, OUT_CHANNEL))
            call_range(load_word(t, Y_INPUT), other, 0, max(lo - blocks, 0), hi - blocks)

    return winograd_both_inputs


@functools.cache
def make_correlate_phase() -> RangeKernel:
    """The products of a step's block."""

    @range_kernel("winograd_correlate_phase", BYTES, spec=())
    def winograd_correlate_phase(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        block = open_step(args, worker)
        call_range(load_word(args.geometry, PRODUCTS), block, 0, lo, hi)

    return winograd_correlate_phase


@functools.cache
def make_back_phase() -> RangeKernel:
    """The gradient of a group, after its last block; tile = a vector of output channels."""

    @range_kernel("winograd_back_phase", BYTES, spec=())
    def winograd_back_phase(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = args.geometry
        blocks = load_word(t, BLOCKS)
        if args.step % blocks == blocks - 1:
            block = open_step(args, worker)
            call_range(load_word(t, BACK), block, 0, lo, hi)

    return winograd_back_phase
