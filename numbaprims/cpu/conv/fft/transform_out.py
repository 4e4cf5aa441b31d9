"""From spectra to the outputs that no window wraps around, then the epilogue; W channels at a time in the lanes."""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.table import BLOCK, WORD
from numbaprims.cpu.conv.winograd.transform_out import store_row
from numbaprims.cpu.gemm.finish import activate_in_place, load_steps
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    advance,
    load,
    load_rows,
    load_word,
    multiply_add,
    pointer_from_address,
    scalar,
    some_vectors,
    splat,
    stack_array,
    store,
    store_rows,
    straight_line,
    zeros,
)
from numbaprims.dtypes import DTYPES

M_STEP, TILES_H, TILES_W, M_H, M_W = (WORD[name] for name in ("m_step", "tiles_h", "tiles_w", "m_h", "m_w"))
OUT_CHANNELS, OUT_H, OUT_W = WORD["out_channels"], WORD["out_h"], WORD["out_w"]
O_SN, O_SK, O_SH, O_SW = (WORD[name] for name in ("o_sn", "o_sk", "o_sh", "o_sw"))
C_SN, C_SK, C_SH, C_SW = (WORD[name] for name in ("c_sn", "c_sk", "c_sh", "c_sw"))


@functools.cache
def make_output(
    acc: str, out: str, bias: str, N: int, NV: int, W: int, FORM: int, REAL: str, COMPLEX: str
) -> RangeKernel:
    """out = act(alpha y + beta c + bias) for the vectors lo ... hi - 1 of a panel's NV and the tiles of a block.

    All N x N values of a tile come back, for one kernel to serve all windows; the first m_h x m_w are outputs.
    """
    types = BLOCK.types(m=acc, out=out, c=out, bias=bias)
    NR = NV * W
    HALF = N // 2
    ROOM = (N + W) * W
    ROWS = N * N * W

    @range_kernel(
        "fft_output",
        types,
        spec=(acc, out, bias, N, NV, W, FORM, REAL, COMPLEX),
        room=ROWS * DTYPES[acc].itemsize,
    )
    def fft_output(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = args.table
        room = stack_array(acc, ROOM)
        rows = pointer_from_address(args.room, acc)
        tiles_w, tiles_h, step = load_word(t, TILES_W), load_word(t, TILES_H), load_word(t, M_STEP)
        m_h, m_w = load_word(t, M_H), load_word(t, M_W)
        alpha = splat(scalar(args.alpha, acc), W)
        beta = splat(scalar(args.beta, acc), W)
        for vector in range(lo, hi):
            k0 = (args.panel * NV + vector) * W
            channels = min(W, load_word(t, OUT_CHANNELS) - k0)
            if channels <= 0:
                break
            shift = zeros(acc, W)
            if args.has_bias:
                first = (args.out_channel + k0) * args.bias_step
                shift = load_steps(args.bias, first, args.bias_step, channels, W, acc)
            for index in range(args.count):
                rest, tw = divmod(args.first + index, tiles_w)
                n, th = divmod(rest, tiles_h)
                m = advance(args.m, index * NR + vector * W)
                for slot in range(0, N, HALF):
                    column = advance(m, 2 * slot * step)
                    re = load_rows(column, 2 * step, HALF, W)
                    im = load_rows(advance(column, step), 2 * step, HALF, W)
                    store_rows(advance(rows, slot * W), N * W, straight_line(re + im, REAL))
                for slot in range(1, HALF):
                    column = advance(m, 2 * N * slot * step)
                    re = load_rows(column, 2 * step, N, W)
                    im = load_rows(advance(column, step), 2 * step, N, W)
                    values = straight_line(re + im, COMPLEX)
                    store_rows(advance(rows, slot * W), N * W, some_vectors(values, 0, N))
                    store_rows(advance(rows, (HALF + slot) * W), N * W, some_vectors(values, N, N))
                width = min(m_w, load_word(t, OUT_W) - tw * m_w)
                for i in range(min(m_h, load_word(t, OUT_H) - th * m_h)):
                    row = advance(room, 0)
                    store_rows(row, W, straight_line(load_rows(advance(rows, i * N * W), W, N, W), REAL))
                    h = th * m_h + i
                    at = n * load_word(t, C_SN) + (args.out_channel + k0) * load_word(t, C_SK)
                    at += h * load_word(t, C_SH) + tw * m_w * load_word(t, C_SW)
                    for j in range(width):
                        x = multiply_add(load(row, j * W, W), alpha, shift)
                        if args.has_c:
                            c_at = at + j * load_word(t, C_SW)
                            x = multiply_add(load_steps(args.c, c_at, load_word(t, C_SK), channels, W, acc), beta, x)
                        store(row, j * W, x)
                    if args.activation != 0:
                        activate_in_place(args, row, width * W)
                    at = n * load_word(t, O_SN) + (args.out_channel + k0) * load_word(t, O_SK)
                    at += h * load_word(t, O_SH) + tw * m_w * load_word(t, O_SW)
                    target = advance(args.out, at)
                    store_row(target, load_word(t, O_SK), load_word(t, O_SW), row, width, channels, FORM, W)

    return fft_output
