"""B^T d B of a block of tiles, W channels at a time in the lanes of a vector.

The rows of a line of tiles are copied into a buffer of the first-level cache, W channels of a pixel side by side:
channels that lie in planes go through transposes in registers (12.5 ns for 16 x 16), and what lies outside of the image
becomes zero.  Columns are transformed in place, once for the two tiles that share them, then the rows of each tile.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.table import BLOCK, TABLE
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    advance,
    block_of,
    call_range,
    load_rows,
    load_word,
    pointer_from_address,
    record,
    store_rows,
    straight_line,
)
from numbaprims.dtypes import DTYPES

LINE = 64  # outputs along a line that the buffer holds: with 6 x 66 pixels of 64 bytes it takes 25 kB
PLACES = 16  # words for the first taps along one axis
Plane = tuple[int, int]


@functools.cache
def make_input(
    acc: str, tile: Plane, window: Plane, stride: Plane, n: Plane, NV: int, W: int, CODE_H: str, CODE_W: str,
    LONG: int = LINE,
) -> RangeKernel:  # fmt: skip
    """v[i * NW + j][tile // mr][cb // NV][tile % mr][cb % NV][lane] for the vectors cb = lo ... hi - 1 and the tiles of
    a block.

    `window` pixels, `stride` apart, make `n` positions; windows begin `tile` pixels, of those that are as far apart,
    after one another.  Vectors are those of x's channels, once for each piece of the filters: windows of a piece begin
    at its first tap.  The buffer holds LONG outputs along a line.
    """
    types = BLOCK.types(v=acc)
    (MH, MW), (IH, IW), (SH, SW), (NH, NW) = tile, window, stride, n
    MOST = max(1, LONG // (MW * SW))
    COLS = ((MOST - 1) * MW + IW - 1) * SW + 1
    ROOM = (max(IH, NH) * COLS + W) * W  # a last transpose reaches W - 1 pixels past its row

    @range_kernel(
        "winograd_input",
        types,
        spec=(acc, tile, window, stride, n, NV, W, CODE_H, CODE_W, LONG),
        room=ROOM * DTYPES[acc].itemsize,
    )
    def winograd_input(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t, block = record(TABLE, args.table), record(BLOCK, block_of(args))
        room = pointer_from_address(args.room, acc)
        tiles_w, tiles_h = t.tiles_w, t.tiles_h
        v_step, mr = t.v_step, t.mr
        jump = (t.c_blocks // NV - 1) * mr * NV * W  # from the last of tiles that lie together to the next
        block.buffer = args.room
        block.rows = IH
        block.row_step = COLS * W
        block.down = SH
        for cb in range(lo, hi):
            piece, xb = divmod(cb, t.x_blocks)
            piece_h, piece_w = divmod(piece, t.pieces_w)
            firsts = t.pieces
            off_h = load_word(firsts, piece_h) - t.pad_h
            off_w = load_word(firsts, piece_w + PLACES) - t.pad_w
            block.channels = min(W, t.x_channels - xb * W)
            done = 0
            while done < args.count:
                rest, tw = divmod(args.first + done, tiles_w)
                n, th = divmod(rest, tiles_h)
                tiles = min(min(tiles_w - tw, args.count - done), MOST)
                cols = ((tiles - 1) * MW + IW - 1) * SW + 1
                w0 = tw * MW * SW + off_w
                left = max(0, min(cols, -w0))
                at = n * t.x_sn + (args.x_channel + xb * W) * t.x_sc
                block.at = at + w0 * t.x_sw
                block.at_h = th * MH * SH + off_h
                block.columns = cols
                block.left = left
                block.right = max(left, min(cols, t.x_w - w0))
                call_range(t.read, block, 0, 0, 1)
                for j in range(0, cols, SW):
                    column = advance(room, j * W)
                    store_rows(column, COLS * W, straight_line(load_rows(column, COLS * W, IH, W), CODE_H))
                panel, vector = divmod(cb, NV)
                place, row = divmod(done, mr)
                v = advance(args.v, place * jump + (panel * mr + done) * NV * W + vector * W)
                for k in range(tiles):
                    for i in range(NH):
                        line = load_rows(advance(room, (i * COLS + k * MW * SW) * W), SW * W, IW, W)
                        store_rows(advance(v, i * NW * v_step), v_step, straight_line(line, CODE_W))
                    v = advance(v, NV * W)
                    row += 1
                    if row == mr:
                        row = 0
                        v = advance(v, jump)
                done += tiles

    return winograd_input
