"""The weight's gradient: spectra of x times conjugated spectra of y's gradient, added up over all tiles, then back."""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.driver import BYTES
from numbaprims.cpu.conv.winograd.gradient import open_step
from numbaprims.cpu.conv.winograd.pixels import PLANES, STRIDED, store_row
from numbaprims.cpu.conv.winograd.table import BLOCK, TABLE
from numbaprims.cpu.gemm.finish import activate_in_place, load_steps
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    call_range,
    load,
    load_rows,
    pointer_from_address,
    prefetch_write,
    record,
    scalar,
    some_vectors,
    splat,
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
    """m[2 pair + part][c][k] = or += sum over tiles and parts of v[c // W][pair][tile][part][c % W] *
    u[k // NR][2 pair + part][tile][part][k % NR] for squares of W x NR channels; the first block's sums are stored.
    Tile = vector of c and panel of k.

    A square's sums are 0.5 MB with tiles of 16 x 16: they come from the second-level cache when the way back reads
    them.  All sums at once, 17 MB for 128 x 128 channels, took three times as long as the products.
    """
    types = BLOCK.types(v=acc, u=acc, m=acc)
    NR = NV * W

    @range_kernel("fft_correlate", types, spec=(acc, MR, NV, W))
    def fft_correlate(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = record(TABLE, args.table)
        positions, panels, depth = t.positions, t.panels, 2 * args.count
        v_step, u_step = t.v_step, t.u_step
        for square in range(lo, hi):
            cb, panel = divmod(square, panels)
            a = advance(args.v, cb * t.v_block)
            b = advance(args.u, panel * t.u_group)
            for xi in range(positions):
                v, u = advance(a, xi // 2 * v_step), advance(b, xi * u_step)
                for i in range(0, W, MR):
                    total = advance(args.m, (xi * W + i) * NR)
                    tile = tile_multiply(advance(v, i), 1, W, MR, u, NR, NR, depth, MR, NV, W)
                    if args.first > 0:
                        tile = tile_add(tile_load(total, NR, MR, NV, W), tile)
                    tile_store(total, NR, tile, MR, NV, W)

    return fft_correlate


@functools.cache
def make_back(
    acc: str, out: str, N: int, MOST: int, NV: int, W: int, DENSE: bool, REAL: str, COMPLEX: str
) -> RangeKernel:
    """out[k][c][r][s] = act(alpha dw + beta c) for squares lo ... hi - 1 of channels.

    Of the N x N values of a pair of channels the first taps_h x taps_w, at most MOST x MOST, are those of a window.
    """
    types = BLOCK.types(m=acc, out=out, c=out)
    HALF = N // 2
    FIELD = N * N * W
    STEP = NV * W * W
    ROOM = (MOST * MOST + N + W) * W  # rows are written whole, and transposes reach past the last

    @range_kernel(
        "fft_back",
        types,
        spec=(acc, out, N, MOST, NV, W, DENSE, REAL, COMPLEX),
        room=(FIELD + ROOM) * DTYPES[acc].itemsize,
    )
    def fft_back(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = record(TABLE, args.table)
        field = pointer_from_address(args.room, acc)
        room = advance(field, FIELD)
        taps_h, taps_w = t.taps_h, t.taps_w
        taps = taps_h * taps_w
        panels, x_channels, out_channels = t.panels, t.x_channels, t.out_channels
        alpha = splat(scalar(args.alpha / (N * N), acc), W)  # the way back multiplies by N * N
        beta = splat(scalar(args.beta, acc), W)
        for pair in range(lo * NV * W, hi * NV * W):
            square, place = divmod(pair, NV * W)
            cb, panel = divmod(square, panels)
            lane, vector = divmod(place, NV)
            c, k0 = cb * W + lane, (panel * NV + vector) * W
            filters = min(W, out_channels - k0)
            if c < x_channels and filters > 0:
                m = advance(args.m, (lane * NV + vector) * W)
                target = advance(args.out, (args.out_channel + k0) * t.w_sk + c * t.w_sc)
                if DENSE:
                    # windows of one channel lie far apart: 128 x 28 x 28 by 7 x 7 took 1.56 ms without, 1.05 with
                    for k in range(filters):
                        for e in range(0, taps + W - 1, W):
                            prefetch_write(target, k * t.w_sk + min(e, taps - 1), 3)
                for slot in range(0, N, HALF):
                    column = advance(m, 2 * slot * STEP)
                    re = load_rows(column, 2 * STEP, HALF, W)
                    im = load_rows(advance(column, STEP), 2 * STEP, HALF, W)
                    store_rows(advance(field, slot * W), N * W, straight_line(re + im, REAL))
                for slot in range(1, HALF):
                    column = advance(m, 2 * N * slot * STEP)
                    re = load_rows(column, 2 * STEP, N, W)
                    im = load_rows(advance(column, STEP), 2 * STEP, N, W)
                    values = straight_line(re + im, COMPLEX)
                    store_rows(advance(field, slot * W), N * W, some_vectors(values, 0, N))
                    store_rows(advance(field, (HALF + slot) * W), N * W, some_vectors(values, N, N))
                for r in range(taps_h):
                    # what a row has past the window's last tap is overwritten by the next
                    line = straight_line(load_rows(advance(field, r * N * W), W, N, W), REAL)
                    store_rows(advance(room, r * taps_w * W), W, line)
                start = (args.out_channel + k0) * t.c_sn + c * t.c_sk
                for e in range(taps):
                    x = load(room, e * W, W) * alpha
                    if args.has_c:
                        r, s = divmod(e, taps_w)
                        at = start + r * t.c_sh + s * t.c_sw
                        x = x + load_steps(args.c, at, t.c_sn, filters, W, acc) * beta
                    store(room, e * W, x)
                if args.activation != 0:
                    activate_in_place(args, room, taps * W)
                if DENSE:
                    store_row(target, t.w_sk, 1, room, taps, filters, PLANES, W)
                else:
                    for e in range(taps):
                        r, s = divmod(e, taps_w)
                        place = advance(target, r * t.w_sr + s * t.w_ss)
                        store_row(place, t.w_sk, 0, advance(room, e * W), 1, filters, STRIDED, W)

    return fft_back


@functools.cache
def make_square_phase() -> RangeKernel:
    """The products of a step's block, and after the last one of a group the way back; tile = a square of channels.

    Where there is one block only, a worker keeps the sums of one square."""

    @range_kernel("fft_square_phase", BYTES, spec=())
    def fft_square_phase(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = record(TABLE, args.geometry)
        block = open_step(args, worker)
        blocks = t.blocks
        for square in range(lo, hi):
            if blocks == 1:
                m = address_of(args.m[worker])
            else:
                m = address_of(args.all_m) + square * t.m_panel * t.sum_size
            block.m = m
            call_range(t.products, block, 0, square, square + 1)
            if args.step % blocks == blocks - 1:
                call_range(t.weights, block, 0, square, square + 1)

    return fft_square_phase
