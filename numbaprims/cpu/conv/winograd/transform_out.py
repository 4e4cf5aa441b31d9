"""A^T m A of a block of tiles, then bias, activation and the way into the result, W channels at a time in the lanes.

A line of tiles is finished in a buffer of the first-level cache, where the activation's kernel runs over it; where
the result's channels lie in planes it leaves through transposes in registers.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.pixels import AHEAD, SHIFT, WRITE_ROWS
from numbaprims.cpu.conv.winograd.table import BLOCK, TABLE
from numbaprims.cpu.conv.winograd.transform_in import LINE, Plane
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    block_of,
    call_range,
    load,
    load_rows,
    pointer_from_address,
    record,
    stack_array,
    store_rows,
    straight_line,
)
from numbaprims.dtypes import DTYPES


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
        t, block = record(TABLE, args.table), record(BLOCK, block_of(args))
        room = pointer_from_address(args.room, acc)
        half, shifts = stack_array(acc, HALF), stack_array(acc, TWO)
        tiles_w, tiles_h, m_step = t.tiles_w, t.tiles_h, t.m_step
        block.buffer = args.room
        block.row_step = COLS * W
        block.shifts = address_of(shifts)
        for vector in range(lo, hi):
            k0 = (args.panel * NV + vector) * W
            channels = min(W, t.out_channels - k0)
            if channels <= 0:
                break
            channel = args.out_channel + k0
            block.channels = channels
            block.at = channel
            call_range(t.write, block, 0, SHIFT, SHIFT + 1)
            early = load(shifts, 0, W)
            done = 0
            while done < args.count:
                rest, tw = divmod(args.first + done, tiles_w)
                n, th = divmod(rest, tiles_h)
                tiles = min(min(tiles_w - tw, args.count - done), MOST)
                first = n * t.o_sn + channel * t.o_sk
                first += th * MH * t.o_sh + tw * MW * t.o_sw
                at = n * t.c_sn + channel * t.c_sk
                at += th * MH * t.c_sh + tw * MW * t.c_sw
                block.at = first
                block.at_c = at
                block.columns = min(tiles * MW, t.out_w - tw * MW)
                block.rows = min(MH, t.out_h - th * MH)
                if t.far:
                    # planes too large for the second-level cache: 64 x 224 x 224 takes 4 % less
                    call_range(t.write, block, 0, AHEAD, AHEAD + 1)
                for k in range(tiles):
                    m = advance(args.m, (done + k) * NR + vector * W)
                    for j in range(NW):
                        column = straight_line(load_rows(advance(m, j * m_step), NW * m_step, NH, W), CODE)
                        store_rows(advance(half, j * W), NW * W, column)
                    for i in range(MH):
                        line = straight_line(load_rows(advance(half, i * NW * W), W, NW, W) + (early,), END)
                        store_rows(advance(room, (i * COLS + k * MW) * W), W, line)
                call_range(t.write, block, 0, WRITE_ROWS, WRITE_ROWS + 1)
                done += tiles

    return winograd_output
