"""The weight's gradient: sums over tiles in the transforms' domain, G^T [sum of (B^T d B) * (A y' A^T)] G.

Where the forward direction sums over channels, products here sum over the tiles of a block; all blocks' sums for all
pairs of channels stay in the workspace, and only the last block's are transformed back.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.driver import BYTES, open_call
from numbaprims.cpu.conv.winograd.pixels import PLANES, STRIDED, store_row
from numbaprims.cpu.conv.winograd.table import BLOCK, TABLE
from numbaprims.cpu.conv.winograd.transform_in import PLACES, Plane
from numbaprims.cpu.gemm.finish import activate_in_place, load_steps
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    call_range,
    copy_record,
    load,
    load_rows,
    load_word,
    pointer_from_address,
    record,
    scalar,
    splat,
    stack_array,
    stack_record,
    store,
    store_rows,
    straight_line,
    tile_add,
    tile_load,
    tile_multiply,
    tile_store,
)
from numbaprims.dtypes import DTYPES


@functools.cache
def make_correlate(acc: str, MR: int, NV: int, W: int) -> RangeKernel:
    """m[xi][c][k] = or += sum over tiles of v[xi][c // W][tile][c % W] * u[xi][k // NR][tile][k % NR]; tile = position
    and vector of c.  The first block's sums are stored."""
    types = BLOCK.types(v=acc, u=acc, m=acc)
    NR = NV * W

    @range_kernel("winograd_correlate", types, spec=(acc, MR, NV, W))
    def winograd_correlate(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = record(TABLE, args.table)
        rows, panels, blocks = t.rows, t.panels, t.c_blocks
        for place in range(lo, hi):
            xi, cb = divmod(place, blocks)
            v = advance(args.v, xi * t.v_step + cb * rows * W)
            u = advance(args.u, xi * t.u_step)
            for panel in range(panels):
                b = advance(u, panel * rows * NR)
                for i in range(0, W, MR):
                    total = advance(args.m, xi * t.m_step + (cb * W + i) * panels * NR + panel * NR)
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
        t = record(TABLE, args.table)
        room = pointer_from_address(args.room, acc)
        half = stack_array(acc, HALF)
        own = stack_array(acc, OWN)
        m_step, x_blocks, firsts = t.m_step, t.x_blocks, t.pieces
        columns = t.panels * NR
        pieces = t.c_blocks // x_blocks
        for vector in range(lo, hi):
            k0 = vector * W
            filters = min(W, t.out_channels - k0)
            for xb in range(x_blocks):
                channels = min(W, t.x_channels - xb * W)
                for p in range(pieces):
                    piece_h, piece_w = divmod(p, t.pieces_w)
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
                    start = (args.out_channel + k0) * t.c_sn + xb * W * t.c_sk
                    for e in range(channels * TAPS):
                        x = load(room, e * W, W) * alpha
                        if args.has_c:
                            c, tap = divmod(e, TAPS)
                            r, s = divmod(tap, S)
                            at = start + c * t.c_sk + r * t.c_sh + s * t.c_sw
                            x = x + load_steps(args.c, at, t.c_sn, filters, W, acc) * beta
                        store(room, e * W, x)
                if args.activation != 0:
                    activate_in_place(args, room, channels * TAPS * W)
                target = advance(args.out, (args.out_channel + k0) * t.w_sk + xb * W * t.w_sc)
                if DENSE:
                    store_row(target, t.w_sk, 1, room, channels * TAPS, filters, PLANES, W)
                else:
                    for e in range(channels * TAPS):
                        c, tap = divmod(e, TAPS)
                        r, s = divmod(tap, S)
                        at = c * t.w_sc + r * t.w_sr + s * t.w_ss
                        store_row(advance(target, at), t.w_sk, 0, advance(room, e * W), 1, filters, STRIDED, W)

    return winograd_back


@helper
def open_step(args, worker):  # type: ignore[no-untyped-def]
    """The words of a step: a group and a block of its tiles."""
    t = record(TABLE, args.geometry)
    block = open_call(args, worker)
    group, index = divmod(args.step, t.blocks)
    size = t.block
    block.x = address_of(args.second)
    block.v = address_of(args.all_v)
    block.u = address_of(args.all_u)
    block.m = address_of(args.all_m)
    block.first = index * size
    block.count = min(size, t.tiles - index * size)
    block.x_channel = group * t.x_channels
    block.out_channel = group * t.out_channels
    return block


@functools.cache
def make_both_inputs() -> RangeKernel:
    """The transforms of x and of y's gradient; tile = a vector of channels of x, then of y."""

    @range_kernel("winograd_both_inputs", BYTES, spec=())
    def winograd_both_inputs(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = record(TABLE, args.geometry)
        block = open_step(args, worker)
        blocks = t.c_blocks
        if lo < blocks:
            call_range(t.input, block, 0, lo, min(hi, blocks))
        if hi > blocks:
            other = stack_record(BLOCK)
            copy_record(other, block)
            other.x = address_of(args.first)
            other.v = block.u
            other.table = t.y_table
            other.x_channel = block.out_channel
            call_range(t.output, other, 0, max(lo - blocks, 0), hi - blocks)

    return winograd_both_inputs


@functools.cache
def make_correlate_phase() -> RangeKernel:
    """The products of a step's block."""

    @range_kernel("winograd_correlate_phase", BYTES, spec=())
    def winograd_correlate_phase(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        block = open_step(args, worker)
        call_range(record(TABLE, args.geometry).products, block, 0, lo, hi)

    return winograd_correlate_phase


@functools.cache
def make_back_phase() -> RangeKernel:
    """The gradient of a group, after its last block; tile = a vector of output channels."""

    @range_kernel("winograd_back_phase", BYTES, spec=())
    def winograd_back_phase(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = record(TABLE, args.geometry)
        blocks = t.blocks
        if args.step % blocks == blocks - 1:
            block = open_step(args, worker)
            call_range(t.weights, block, 0, lo, hi)

    return winograd_back_phase
