"""Spectra of the filters, into the panels that the products read."""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.table import BLOCK, TABLE
from numbaprims.cpu.gemm.finish import load_steps
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    advance,
    load,
    load_rows,
    pointer_from_address,
    record,
    scalar,
    splat,
    stack_array,
    store,
    store_rows,
    straight_line,
    zeros,
)
from numbaprims.dtypes import DTYPES


@helper
def store_spectrum(u, u_step, depth, spectrum, HALF, real, scale, zero, W):  # type: ignore[no-untyped-def]
    """HALF pairs of a column: (re, im) for the first part of a product, (-im, re) for the second.

    `depth` is from one half of the channels to the other; a `real` first pair holds two numbers by themselves.
    """
    for i in range(HALF):
        re = load(spectrum, i * W, W) * scale
        im = load(spectrum, (HALF + i) * W, W) * scale
        first = advance(u, 2 * i * u_step)
        second = advance(first, u_step)
        if real and i == 0:
            store(first, 0, re)
            store(second, 0, im)
        else:
            store(first, 0, re)
            store(first, depth, im)
            store(second, 0, zero - im)
            store(second, depth, re)


@functools.cache
def make_weights(dtype: str, acc: str, N: int, NV: int, W: int, REAL: str, COMPLEX: str) -> RangeKernel:
    """u[panel][pair][part][2 channels][k] for W output channels at a time: tile = panel * NV + vector.

    The spectra are divided by N * N, which the way back multiplies by.
    """
    types = BLOCK.types(w=dtype, u=acc)
    NR = NV * W
    HALF = N // 2
    ROOM = N * N * W
    COLUMN = 2 * N * W

    @range_kernel("fft_weights", types, spec=(dtype, acc, N, NV, W, REAL, COMPLEX), room=ROOM * DTYPES[acc].itemsize)
    def fft_weights(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = record(TABLE, args.table)
        rows = pointer_from_address(args.room, acc)
        column = stack_array(acc, COLUMN)
        zero = zeros(acc, W)
        scale = splat(scalar(1.0 / (N * N), acc), W)
        u_step = t.u_step
        padded = t.c_blocks * W
        for place in range(lo, hi):
            panel, vector = divmod(place, NV)
            k0 = place * W
            filters = min(W, t.out_channels - k0)
            u = advance(args.u, panel * N * N * u_step + vector * W)
            if filters <= 0:
                # columns past the last channel: what they hold is never used, but it is multiplied
                for row in range(N * N * 2 * padded):
                    store(u, row * NR, zero)
                continue
            for c in range(t.x_channels):
                own = advance(u, c * NR)
                for i in range(N * N):
                    store(rows, i * W, zero)
                for r in range(t.taps_h):
                    row = advance(rows, r * N * W)
                    for s in range(t.taps_w):
                        at = k0 * t.w_sk + c * t.w_sc
                        at += r * t.w_sr + s * t.w_ss
                        store(row, s * W, load_steps(args.w, at, t.w_sk, filters, W, acc))
                    store_rows(row, W, straight_line(load_rows(row, W, N, W), REAL))
                for slot in range(0, N, HALF):
                    store_rows(column, W, straight_line(load_rows(advance(rows, slot * W), N * W, N, W), REAL))
                    start = advance(own, 2 * slot * u_step)
                    store_spectrum(start, u_step, padded * NR, column, HALF, True, scale, zero, W)
                for slot in range(1, HALF):
                    re = load_rows(advance(rows, slot * W), N * W, N, W)
                    im = load_rows(advance(rows, (HALF + slot) * W), N * W, N, W)
                    store_rows(column, W, straight_line(re + im, COMPLEX))
                    start = advance(own, 2 * N * slot * u_step)
                    store_spectrum(start, u_step, padded * NR, column, N, False, scale, zero, W)
            for c in range(t.x_channels, padded):
                for position in range(N * N):
                    store(u, position * u_step + c * NR, zero)
                    store(u, position * u_step + (padded + c) * NR, zero)

    return fft_weights
