"""B^T d B of a block of tiles, W channels at a time in the lanes of a vector.

The rows of a line of tiles are copied into a buffer of the first-level cache, W channels of a pixel side by side:
channels that lie in planes go through transposes in registers (12.5 ns for 16 x 16), and what lies outside of the image
becomes zero.  Columns are transformed in place, once for the two tiles that share them, then the rows of each tile.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.table import BLOCK, WORD
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    advance,
    block_of,
    call_range,
    load_rows,
    load_word,
    pointer_from_address,
    store_rows,
    store_word,
    straight_line,
)
from numbaprims.dtypes import DTYPES

LINE = 64  # outputs along a line that the buffer holds: with 6 x 66 pixels of 64 bytes it takes 25 kB
PLACES = 16  # words for the first taps along one axis
Plane = tuple[int, int]
READ, ROWS, V_STEP, X_BLOCKS, PIECES, PIECES_W = (
    WORD[name] for name in ("read", "rows", "v_step", "x_blocks", "pieces", "pieces_w")
)
TILES_H, TILES_W = WORD["tiles_h"], WORD["tiles_w"]
X_CHANNELS, X_W, PAD_H, PAD_W = (WORD[name] for name in ("x_channels", "x_w", "pad_h", "pad_w"))
X_SN, X_SC, X_SW = (WORD[name] for name in ("x_sn", "x_sc", "x_sw"))
BUFFER, COUNT, STEP, COLUMNS, CHANNELS, AT, AT_H, DOWN, LEFT, RIGHT = (
    BLOCK.slot(name)
    for name in ("buffer", "rows", "row_step", "columns", "channels", "at", "at_h", "down", "left", "right")
)


@functools.cache
def make_input(
    acc: str, tile: Plane, window: Plane, stride: Plane, n: Plane, NV: int, W: int, CODE_H: str, CODE_W: str,
    LONG: int = LINE,
) -> RangeKernel:  # fmt: skip
    """v[i * NW + j][cb // NV][tile][cb % NV][lane] for the vectors cb = lo ... hi - 1 and the tiles of a block.

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
        t, block = args.table, block_of(args)
        room = pointer_from_address(args.room, acc)
        tiles_w, tiles_h = load_word(t, TILES_W), load_word(t, TILES_H)
        v_step = load_word(t, V_STEP)
        store_word(block, BUFFER, args.room)
        store_word(block, COUNT, IH)
        store_word(block, STEP, COLS * W)
        store_word(block, DOWN, SH)
        for cb in range(lo, hi):
            piece, xb = divmod(cb, load_word(t, X_BLOCKS))
            piece_h, piece_w = divmod(piece, load_word(t, PIECES_W))
            firsts = load_word(t, PIECES)
            off_h = load_word(firsts, piece_h) - load_word(t, PAD_H)
            off_w = load_word(firsts, piece_w + PLACES) - load_word(t, PAD_W)
            store_word(block, CHANNELS, min(W, load_word(t, X_CHANNELS) - xb * W))
            done = 0
            while done < args.count:
                rest, tw = divmod(args.first + done, tiles_w)
                n, th = divmod(rest, tiles_h)
                tiles = min(min(tiles_w - tw, args.count - done), MOST)
                cols = ((tiles - 1) * MW + IW - 1) * SW + 1
                w0 = tw * MW * SW + off_w
                left = max(0, min(cols, -w0))
                at = n * load_word(t, X_SN) + (args.x_channel + xb * W) * load_word(t, X_SC)
                store_word(block, AT, at + w0 * load_word(t, X_SW))
                store_word(block, AT_H, th * MH * SH + off_h)
                store_word(block, COLUMNS, cols)
                store_word(block, LEFT, left)
                store_word(block, RIGHT, max(left, min(cols, load_word(t, X_W) - w0)))
                call_range(load_word(t, READ), block, 0, 0, 1)
                for j in range(0, cols, SW):
                    column = advance(room, j * W)
                    store_rows(column, COLS * W, straight_line(load_rows(column, COLS * W, IH, W), CODE_H))
                panel, vector = divmod(cb, NV)
                v = advance(args.v, (panel * load_word(t, ROWS) + done) * NV * W + vector * W)
                for k in range(tiles):
                    for i in range(NH):
                        line = load_rows(advance(room, (i * COLS + k * MW * SW) * W), SW * W, IW, W)
                        store_rows(advance(v, i * NW * v_step + k * NV * W), v_step, straight_line(line, CODE_W))
                done += tiles

    return winograd_input
