"""Real two-dimensional spectra of N x N tiles, W channels at a time in the lanes of a vector.

Rows first, whose spectra are half-complex (numbaprims.fourier); then columns: slots 0 and N / 2 of the rows are real,
the others are pairs.  A spectrum of N * N reals is kept as N * N / 2 pairs: q < N / 2 of the column of slot 0,
q < N of that of slot N / 2, then N of each complex column.  Pairs 0 and N / 2 are two real numbers, the others the two
parts of a complex one.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.table import BLOCK, WORD
from numbaprims.cpu.conv.winograd.transform_in import copy_row
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    advance,
    load_rows,
    load_word,
    some_vectors,
    stack_array,
    store,
    store_rows,
    straight_line,
    zeros,
)

ROWS, C_BLOCKS, V_STEP = (WORD[name] for name in ("rows", "c_blocks", "v_step"))
TILES_H, TILES_W, M_H, M_W = (WORD[name] for name in ("tiles_h", "tiles_w", "m_h", "m_w"))
X_CHANNELS, X_H, X_W, PAD_H, PAD_W = (WORD[name] for name in ("x_channels", "x_h", "x_w", "pad_h", "pad_w"))
X_SN, X_SC, X_SH, X_SW = (WORD[name] for name in ("x_sn", "x_sc", "x_sh", "x_sw"))


@helper
def store_pairs(v, pair_step, part_step, spectrum, HALF):  # type: ignore[no-untyped-def]
    """A tuple of HALF first parts and HALF second parts, to HALF pairs."""
    store_rows(v, pair_step, some_vectors(spectrum, 0, HALF))
    store_rows(advance(v, part_step), pair_step, some_vectors(spectrum, HALF, HALF))


@functools.cache
def make_input(dtype: str, acc: str, N: int, W: int, FORM: int, REAL: str, COMPLEX: str) -> RangeKernel:
    """v[pair][part][cb][tile][lane] for the blocks cb = lo ... hi - 1 of W channels and the tiles of a block.

    The table's v_step is from pair to pair.
    """
    types = BLOCK.types(x=dtype, v=acc)
    ROOM = (N * N + W) * W  # a last transpose reaches W - 1 pixels past its row
    HALF = N // 2

    @range_kernel("fft_input", types, spec=(dtype, acc, N, W, FORM, REAL, COMPLEX))
    def fft_input(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = args.table
        room = stack_array(acc, ROOM)
        zero = zeros(acc, W)
        tiles_w, tiles_h = load_word(t, TILES_W), load_word(t, TILES_H)
        step = load_word(t, V_STEP)
        part = load_word(t, C_BLOCKS) * load_word(t, ROWS) * W
        for cb in range(lo, hi):
            channels = min(W, load_word(t, X_CHANNELS) - cb * W)
            for index in range(args.count):
                rest, tw = divmod(args.first + index, tiles_w)
                n, th = divmod(rest, tiles_h)
                h0 = th * load_word(t, M_H) - load_word(t, PAD_H)
                w0 = tw * load_word(t, M_W) - load_word(t, PAD_W)
                left = max(0, min(N, -w0))
                right = max(left, min(N, load_word(t, X_W) - w0))
                at = n * load_word(t, X_SN) + (args.x_channel + cb * W) * load_word(t, X_SC)
                for i in range(N):
                    row = advance(room, i * N * W)
                    h = h0 + i
                    if h < 0 or h >= load_word(t, X_H) or left == right:
                        for j in range(N):
                            store(row, j * W, zero)
                    else:
                        x = advance(args.x, at + h * load_word(t, X_SH) + w0 * load_word(t, X_SW))
                        for j in range(left):
                            store(row, j * W, zero)
                        copy_row(row, x, load_word(t, X_SC), load_word(t, X_SW), left, right, channels, FORM, W, acc)
                        for j in range(right, N):
                            store(row, j * W, zero)
                        store_rows(row, W, straight_line(load_rows(row, W, N, W), REAL))
                v = advance(args.v, (cb * load_word(t, ROWS) + index) * W)
                for slot in range(0, N, HALF):
                    column = straight_line(load_rows(advance(room, slot * W), N * W, N, W), REAL)
                    store_pairs(advance(v, slot * step), step, part, column, HALF)
                for slot in range(1, HALF):
                    re = load_rows(advance(room, slot * W), N * W, N, W)
                    im = load_rows(advance(room, (HALF + slot) * W), N * W, N, W)
                    store_pairs(advance(v, N * slot * step), step, part, straight_line(re + im, COMPLEX), N)

    return fft_input
