"""A^T m A of a block of tiles, then bias, activation and the way into the result, W channels at a time in the lanes.

A line of tiles is finished in a buffer of the first-level cache, where the activation's kernel runs over it; where
the result's channels lie in planes it leaves through transposes in registers.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.table import BLOCK, WORD
from numbaprims.cpu.conv.winograd.transform_in import CHANNELS_LAST, LINE, PLANES, Plane
from numbaprims.cpu.gemm.finish import activate_in_place, load_steps
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    advance,
    load,
    load_rows,
    load_scalar,
    load_word,
    multiply_add,
    pointer_from_address,
    prefetch_write,
    scalar,
    splat,
    stack_array,
    store,
    store_narrow,
    store_narrow_first,
    store_narrow_rows,
    store_narrow_scalar,
    store_rows,
    straight_line,
    transpose,
    zeros,
)
from numbaprims.dtypes import DTYPES

M_STEP, TILES_H, TILES_W = WORD["m_step"], WORD["tiles_h"], WORD["tiles_w"]
OUT_CHANNELS, OUT_H, OUT_W, FAR = (WORD[name] for name in ("out_channels", "out_h", "out_w", "far"))
O_SN, O_SK, O_SH, O_SW = (WORD[name] for name in ("o_sn", "o_sk", "o_sh", "o_sw"))
C_SN, C_SK, C_SH, C_SW = (WORD[name] for name in ("c_sn", "c_sk", "c_sh", "c_sw"))


@helper
def store_row(out, step_k, step_w, row, width, channels, FORM, W):  # type: ignore[no-untyped-def]
    """row[pixel][W] to `width` pixels of a row of the result."""
    if FORM == PLANES:
        for j in range(0, width, W):
            # a rest is stored again together with pixels before it
            start = j if j + W <= width else max(0, width - W)
            block = transpose(load_rows(advance(row, start * W), W, W, W))
            store_narrow_rows(advance(out, start), step_k, channels, width - start, block)
    elif FORM == CHANNELS_LAST:
        if channels == W:
            for j in range(width):
                store_narrow(out, j * step_w, load(row, j * W, W))
        else:
            for j in range(width):
                store_narrow_first(out, j * step_w, channels, load(row, j * W, W))
    else:
        for j in range(width):
            for k in range(channels):
                store_narrow_scalar(out, j * step_w + k * step_k, load_scalar(row, j * W + k))


@functools.cache
def make_output(
    acc: str,
    out: str,
    bias: str,
    tile: Plane,
    n: Plane,
    NV: int,
    W: int,
    FORM: int,
    COMBINED: bool,
    CODE: str,
    END: str,
    LONG: int = LINE,
) -> RangeKernel:
    """out = act(alpha A^T m A + beta c + bias) for the vectors lo ... hi - 1 of a panel's NV and the tiles of a block.

    CODE is the program of A^T along the height, END that along the width with a column of ones, which meets the bias.
    Without COMBINED alpha is 1 and there is no c.  LONG: outputs along a line that the buffer holds.
    """
    types = BLOCK.types(m=acc, out=out, c=out, bias=bias)
    (MH, MW), (NH, NW) = tile, n
    MOST = LONG // MW
    COLS = MOST * MW
    NR = NV * W
    ROOM = (MH * COLS + W) * W
    HALF = MH * NW * W

    @range_kernel(
        "winograd_output",
        types,
        spec=(acc, out, bias, tile, n, NV, W, FORM, COMBINED, CODE, END, LONG),
        room=ROOM * DTYPES[acc].itemsize,
    )
    def winograd_output(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = args.table
        room = pointer_from_address(args.room, acc)
        half = stack_array(acc, HALF)
        tiles_w, tiles_h, m_step = load_word(t, TILES_W), load_word(t, TILES_H), load_word(t, M_STEP)
        zero = zeros(acc, W)
        for vector in range(lo, hi):
            k0 = (args.panel * NV + vector) * W
            channels = min(W, load_word(t, OUT_CHANNELS) - k0)
            if channels <= 0:
                break
            shift = zero
            if args.has_bias:
                at = (args.out_channel + k0) * args.bias_step
                shift = load_steps(args.bias, at, args.bias_step, channels, W, acc)
            early = zero if COMBINED else shift
            done = 0
            while done < args.count:
                rest, tw = divmod(args.first + done, tiles_w)
                n, th = divmod(rest, tiles_h)
                tiles = min(min(tiles_w - tw, args.count - done), MOST)
                width = min(tiles * MW, load_word(t, OUT_W) - tw * MW)
                height = min(MH, load_word(t, OUT_H) - th * MH)
                first = n * load_word(t, O_SN) + (args.out_channel + k0) * load_word(t, O_SK)
                first += th * MH * load_word(t, O_SH) + tw * MW * load_word(t, O_SW)
                if FORM == PLANES and load_word(t, FAR):
                    # planes too large for the second-level cache: 64 x 224 x 224 takes 4 % less
                    for k in range(channels):
                        for i in range(height):
                            for j in range(0, width, W):
                                prefetch_write(args.out, first + k * load_word(t, O_SK) + i * load_word(t, O_SH) + j, 3)
                for k in range(tiles):
                    m = advance(args.m, (done + k) * NR + vector * W)
                    for j in range(NW):
                        column = straight_line(load_rows(advance(m, j * m_step), NW * m_step, NH, W), CODE)
                        store_rows(advance(half, j * W), NW * W, column)
                    for i in range(MH):
                        line = straight_line(load_rows(advance(half, i * NW * W), W, NW, W) + (early,), END)
                        store_rows(advance(room, (i * COLS + k * MW) * W), W, line)
                for i in range(height):
                    row = advance(room, i * COLS * W)
                    if COMBINED:
                        alpha = splat(scalar(args.alpha, acc), W)
                        beta = splat(scalar(args.beta, acc), W)
                        at = n * load_word(t, C_SN) + (args.out_channel + k0) * load_word(t, C_SK)
                        at += (th * MH + i) * load_word(t, C_SH) + tw * MW * load_word(t, C_SW)
                        for j in range(width):
                            x = multiply_add(load(row, j * W, W), alpha, shift)
                            if args.has_c:
                                c = load_steps(
                                    args.c, at + j * load_word(t, C_SW), load_word(t, C_SK), channels, W, acc
                                )
                                x = multiply_add(c, beta, x)
                            store(row, j * W, x)
                    if args.activation != 0:
                        activate_in_place(args, row, width * W)
                    target = advance(args.out, first + i * load_word(t, O_SH))
                    store_row(target, load_word(t, O_SK), load_word(t, O_SW), row, width, channels, FORM, W)
                done += tiles

    return winograd_output
