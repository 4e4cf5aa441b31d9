"""A^T m A of a block of tiles, then bias, activation and the way into the result, W channels at a time in the lanes.

A line of tiles is finished in a buffer of the first-level cache, where the activation's kernel runs over it; where
the result's channels lie in planes it leaves through transposes in registers.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.pixels import AHEAD, SHIFT, WRITE_ROWS
from numbaprims.cpu.conv.winograd.table import BLOCK, WORD
from numbaprims.cpu.conv.winograd.transform_in import AT, BUFFER, CHANNELS, COLUMNS, COUNT, LINE, STEP, Plane
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
    store_rows,
    store_word,
    straight_line,
)
from numbaprims.dtypes import DTYPES

WRITE, M_STEP, TILES_H, TILES_W = (WORD[name] for name in ("write", "m_step", "tiles_h", "tiles_w"))
OUT_CHANNELS, OUT_H, OUT_W, FAR = (WORD[name] for name in ("out_channels", "out_h", "out_w", "far"))
O_SN, O_SK, O_SH, O_SW = (WORD[name] for name in ("o_sn", "o_sk", "o_sh", "o_sw"))
C_SN, C_SK, C_SH, C_SW = (WORD[name] for name in ("c_sn", "c_sk", "c_sh", "c_sw"))
SHIFTS, AT_C = BLOCK.slot("shifts"), BLOCK.slot("at_c")


@functools.cache
def make_output(acc: str, tile: Plane, n: Plane, NV: int, W: int, CODE: str, END: str, LONG: int = LINE) -> RangeKernel:
    """out = act(alpha A^T m A + beta c + bias) for the vectors lo ... hi - 1 of a panel's NV and the tiles of a block.

    CODE is the program of A^T along the height, END that along the width with a column of ones, which meets the bias
    where neither alpha nor c come between.  LONG: outputs along a line that the buffer holds.
    """
    types = BLOCK.types(m=acc)
    (MH, MW), (NH, NW) = tile, n
    MOST = LONG // MW
    COLS = MOST * MW
    NR = NV * W
    ROOM = (MH * COLS + W) * W
    HALF = MH * NW * W
    TWO = 2 * W

    @range_kernel(
        "winograd_output",
        types,
        spec=(acc, tile, n, NV, W, CODE, END, LONG),
        room=ROOM * DTYPES[acc].itemsize,
    )
    def winograd_output(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t, block = args.table, block_of(args)
        room = pointer_from_address(args.room, acc)
        half, shifts = stack_array(acc, HALF), stack_array(acc, TWO)
        tiles_w, tiles_h, m_step = load_word(t, TILES_W), load_word(t, TILES_H), load_word(t, M_STEP)
        store_word(block, BUFFER, args.room)
        store_word(block, STEP, COLS * W)
        store_word(block, SHIFTS, address_of(shifts))
        for vector in range(lo, hi):
            k0 = (args.panel * NV + vector) * W
            channels = min(W, load_word(t, OUT_CHANNELS) - k0)
            if channels <= 0:
                break
            channel = args.out_channel + k0
            store_word(block, CHANNELS, channels)
            store_word(block, AT, channel)
            call_range(load_word(t, WRITE), block, 0, SHIFT, SHIFT + 1)
            early = load(shifts, 0, W)
            done = 0
            while done < args.count:
                rest, tw = divmod(args.first + done, tiles_w)
                n, th = divmod(rest, tiles_h)
                tiles = min(min(tiles_w - tw, args.count - done), MOST)
                first = n * load_word(t, O_SN) + channel * load_word(t, O_SK)
                first += th * MH * load_word(t, O_SH) + tw * MW * load_word(t, O_SW)
                at = n * load_word(t, C_SN) + channel * load_word(t, C_SK)
                at += th * MH * load_word(t, C_SH) + tw * MW * load_word(t, C_SW)
                store_word(block, AT, first)
                store_word(block, AT_C, at)
                store_word(block, COLUMNS, min(tiles * MW, load_word(t, OUT_W) - tw * MW))
                store_word(block, COUNT, min(MH, load_word(t, OUT_H) - th * MH))
                if load_word(t, FAR):
                    # planes too large for the second-level cache: 64 x 224 x 224 takes 4 % less
                    call_range(load_word(t, WRITE), block, 0, AHEAD, AHEAD + 1)
                for k in range(tiles):
                    m = advance(args.m, (done + k) * NR + vector * W)
                    for j in range(NW):
                        column = straight_line(load_rows(advance(m, j * m_step), NW * m_step, NH, W), CODE)
                        store_rows(advance(half, j * W), NW * W, column)
                    for i in range(MH):
                        line = straight_line(load_rows(advance(half, i * NW * W), W, NW, W) + (early,), END)
                        store_rows(advance(room, (i * COLS + k * MW) * W), W, line)
                call_range(load_word(t, WRITE), block, 0, WRITE_ROWS, WRITE_ROWS + 1)
                done += tiles

    return winograd_output
