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
    stack_array,
    store,
    store_rows,
    straight_line,
    transpose,
    zeros,
)

PLANES, LAST, STRIDED = 0, 1, 2  # how channels lie: in planes, behind the pixels, or in any other way
LINE = 64  # outputs along a line that the buffer holds: with 6 x 66 pixels of 64 bytes it takes 25 kB
ROWS, C_BLOCKS, V_STEP = (WORD[name] for name in ("rows", "c_blocks", "v_step"))
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
    elif FORM == LAST:
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
def make_input(dtype: str, acc: str, M: int, N: int, W: int, FORM: int, CODE: str) -> RangeKernel:
    """v[i * N + j][cb][tile][lane] for the blocks cb = lo ... hi - 1 of W channels and the tiles of a block."""
    types = BLOCK.types(x=dtype, v=acc)
    MOST = LINE // M
    COLS = MOST * M + N - M
    ROOM = (N * COLS + W) * W  # a last transpose reaches W - 1 pixels past its row

    @range_kernel("winograd_input", types, spec=(dtype, acc, M, N, W, FORM, CODE, LINE))
    def winograd_input(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = args.table
        room = stack_array(acc, ROOM)
        zero = zeros(acc, W)
        tiles_w, tiles_h = load_word(t, TILES_W), load_word(t, TILES_H)
        v_step = load_word(t, V_STEP)
        for cb in range(lo, hi):
            channels = min(W, load_word(t, X_CHANNELS) - cb * W)
            done = 0
            while done < args.count:
                rest, tw = divmod(args.first + done, tiles_w)
                n, th = divmod(rest, tiles_h)
                tiles = min(min(tiles_w - tw, args.count - done), MOST)
                cols = tiles * M + N - M
                h0 = th * M - load_word(t, PAD_H)
                w0 = tw * M - load_word(t, PAD_W)
                left = max(0, min(cols, -w0))
                right = max(left, min(cols, load_word(t, X_W) - w0))
                at = n * load_word(t, X_SN) + (args.x_channel + cb * W) * load_word(t, X_SC)
                for i in range(N):
                    row = advance(room, i * COLS * W)
                    h = h0 + i
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
                for j in range(cols):
                    column = advance(room, j * W)
                    store_rows(column, COLS * W, straight_line(load_rows(column, COLS * W, N, W), CODE))
                v = advance(args.v, (cb * load_word(t, ROWS) + done) * W)
                for k in range(tiles):
                    for i in range(N):
                        line = load_rows(advance(room, (i * COLS + k * M) * W), W, N, W)
                        store_rows(advance(v, i * N * v_step + k * W), v_step, straight_line(line, CODE))
                done += tiles

    return winograd_input
