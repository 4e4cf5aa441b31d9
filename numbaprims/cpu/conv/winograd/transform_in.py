"""B^T d B of a block of tiles, W channels at a time in the lanes of a vector.

The rows of a line of tiles are copied into a buffer of the first-level cache, W channels of a pixel side by side:
channels that lie in planes go through transposes in registers (12.5 ns for 16 x 16), and what lies outside of the image
becomes zero.  Columns are transformed in place, once for the two tiles that share them, then the rows of each tile.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.table import BLOCK, WORD
from numbaprims.cpu.gemm.finish import load_steps
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    advance,
    load_rows,
    load_wide,
    load_wide_first,
    load_wide_rows,
    load_word,
    pointer_from_address,
    store,
    store_rows,
    straight_line,
    transpose,
    zeros,
)
from numbaprims.dtypes import DTYPES

PLANES, CHANNELS_LAST, STRIDED = 0, 1, 2  # how channels lie: in planes, behind the pixels, or in any other way
LINE = 64  # outputs along a line that the buffer holds: with 6 x 66 pixels of 64 bytes it takes 25 kB
PLACES = 16  # words for the first taps along one axis
Plane = tuple[int, int]
ROWS, V_STEP, X_BLOCKS, PIECES, PIECES_W = (WORD[name] for name in ("rows", "v_step", "x_blocks", "pieces", "pieces_w"))
TILES_H, TILES_W = WORD["tiles_h"], WORD["tiles_w"]
X_CHANNELS, X_H, X_W, PAD_H, PAD_W = (WORD[name] for name in ("x_channels", "x_h", "x_w", "pad_h", "pad_w"))
X_SN, X_SC, X_SH, X_SW = (WORD[name] for name in ("x_sn", "x_sc", "x_sh", "x_sw"))


@helper
def copy_row(row, x, step_c, step_w, left, right, channels, FORM, W, acc):  # type: ignore[no-untyped-def]
    """Pixels left ... right - 1 of a row of x, `channels` of them in each, to row[pixel][W]."""
    if FORM == PLANES:
        j = left
        while j + W <= right:
            block = load_wide_rows(advance(x, j), step_c, channels, W, W)
            store_rows(advance(row, j * W), W, transpose(block))
            j += W
        if j < right:
            block = load_wide_rows(advance(x, j), step_c, channels, right - j, W)
            store_rows(advance(row, j * W), W, transpose(block))
    elif FORM == CHANNELS_LAST:
        if channels == W:
            for j in range(left, right):
                store(row, j * W, load_wide(x, j * step_w, W))
        else:
            for j in range(left, right):
                store(row, j * W, load_wide_first(x, j * step_w, channels, W))
    else:
        for j in range(left, right):
            store(row, j * W, load_steps(x, j * step_w, step_c, channels, W, acc))


@functools.cache
def make_input(
    dtype: str, acc: str, tile: Plane, window: Plane, stride: Plane, n: Plane, NV: int, W: int, FORM: int,
    CODE_H: str, CODE_W: str, LONG: int = LINE,
) -> RangeKernel:  # fmt: skip
    """v[i * NW + j][cb // NV][tile][cb % NV][lane] for the vectors cb = lo ... hi - 1 and the tiles of a block.

    `window` pixels, `stride` apart, make `n` positions; windows begin `tile` pixels, of those that are as far apart,
    after one another.  Vectors are those of x's channels, once for each piece of the filters: windows of a piece begin
    at its first tap.  The buffer holds LONG outputs along a line.
    """
    types = BLOCK.types(x=dtype, v=acc)
    (MH, MW), (IH, IW), (SH, SW), (NH, NW) = tile, window, stride, n
    MOST = max(1, LONG // (MW * SW))
    COLS = ((MOST - 1) * MW + IW - 1) * SW + 1
    ROOM = (max(IH, NH) * COLS + W) * W  # a last transpose reaches W - 1 pixels past its row

    @range_kernel(
        "winograd_input",
        types,
        spec=(dtype, acc, tile, window, stride, n, NV, W, FORM, CODE_H, CODE_W, LONG),
        room=ROOM * DTYPES[acc].itemsize,
    )
    def winograd_input(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = args.table
        room = pointer_from_address(args.room, acc)
        zero = zeros(acc, W)
        tiles_w, tiles_h = load_word(t, TILES_W), load_word(t, TILES_H)
        v_step = load_word(t, V_STEP)
        for cb in range(lo, hi):
            piece, xb = divmod(cb, load_word(t, X_BLOCKS))
            piece_h, piece_w = divmod(piece, load_word(t, PIECES_W))
            firsts = load_word(t, PIECES)
            off_h = load_word(firsts, piece_h) - load_word(t, PAD_H)
            off_w = load_word(firsts, piece_w + PLACES) - load_word(t, PAD_W)
            channels = min(W, load_word(t, X_CHANNELS) - xb * W)
            done = 0
            while done < args.count:
                rest, tw = divmod(args.first + done, tiles_w)
                n, th = divmod(rest, tiles_h)
                tiles = min(min(tiles_w - tw, args.count - done), MOST)
                cols = ((tiles - 1) * MW + IW - 1) * SW + 1
                h0 = th * MH * SH + off_h
                w0 = tw * MW * SW + off_w
                left = max(0, min(cols, -w0))
                right = max(left, min(cols, load_word(t, X_W) - w0))
                at = n * load_word(t, X_SN) + (args.x_channel + xb * W) * load_word(t, X_SC)
                for i in range(IH):
                    row = advance(room, i * COLS * W)
                    h = h0 + i * SH
                    if h < 0 or h >= load_word(t, X_H):
                        for j in range(cols):
                            store(row, j * W, zero)
                    else:
                        x = advance(args.x, at + h * load_word(t, X_SH) + w0 * load_word(t, X_SW))
                        for j in range(left):
                            store(row, j * W, zero)
                        copy_row(row, x, load_word(t, X_SC), load_word(t, X_SW), left, right, channels, FORM, W, acc)
                        for j in range(right, cols):
                            store(row, j * W, zero)
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
