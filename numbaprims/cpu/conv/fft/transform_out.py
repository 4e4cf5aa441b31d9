"""From spectra to the outputs that no window wraps around, then the epilogue; W channels at a time in the lanes."""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.pixels import SHIFT, WRITE_ROWS
from numbaprims.cpu.conv.winograd.table import BLOCK, WORD
from numbaprims.cpu.conv.winograd.transform_in import AT, BUFFER, CHANNELS, COLUMNS, COUNT, STEP
from numbaprims.cpu.conv.winograd.transform_out import AT_C, SHIFTS, WRITE
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    block_of,
    call_range,
    load_rows,
    load_word,
    pointer_from_address,
    some_vectors,
    stack_array,
    store_rows,
    store_word,
    straight_line,
)
from numbaprims.dtypes import DTYPES

M_STEP, TILES_H, TILES_W, M_H, M_W = (WORD[name] for name in ("m_step", "tiles_h", "tiles_w", "m_h", "m_w"))
OUT_CHANNELS, OUT_H, OUT_W = WORD["out_channels"], WORD["out_h"], WORD["out_w"]
O_SN, O_SK, O_SH, O_SW = (WORD[name] for name in ("o_sn", "o_sk", "o_sh", "o_sw"))
C_SN, C_SK, C_SH, C_SW = (WORD[name] for name in ("c_sn", "c_sk", "c_sh", "c_sw"))


@functools.cache
def make_output(acc: str, N: int, NV: int, W: int, REAL: str, COMPLEX: str) -> RangeKernel:
    """out = act(alpha y + beta c + bias) for the vectors lo ... hi - 1 of a panel's NV and the tiles of a block.

    All N x N values of a tile come back, for one kernel to serve all windows; the first m_h x m_w are outputs.
    """
    types = BLOCK.types(m=acc)
    NR = NV * W
    HALF = N // 2
    ROOM = (N * N + W) * W  # a last transpose reaches W - 1 pixels past its row
    TWO = 2 * W

    @range_kernel("fft_output", types, spec=(acc, N, NV, W, REAL, COMPLEX), room=ROOM * DTYPES[acc].itemsize)
    def fft_output(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t, block = args.table, block_of(args)
        shifts = stack_array(acc, TWO)
        rows = pointer_from_address(args.room, acc)
        tiles_w, tiles_h, step = load_word(t, TILES_W), load_word(t, TILES_H), load_word(t, M_STEP)
        m_h, m_w = load_word(t, M_H), load_word(t, M_W)
        store_word(block, BUFFER, args.room)
        store_word(block, STEP, N * W)
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
                height = min(m_h, load_word(t, OUT_H) - th * m_h)
                for i in range(height):
                    row = advance(rows, i * N * W)
                    store_rows(row, W, straight_line(load_rows(row, W, N, W), REAL))
                at = n * load_word(t, C_SN) + channel * load_word(t, C_SK)
                store_word(block, AT_C, at + th * m_h * load_word(t, C_SH) + tw * m_w * load_word(t, C_SW))
                at = n * load_word(t, O_SN) + channel * load_word(t, O_SK)
                store_word(block, AT, at + th * m_h * load_word(t, O_SH) + tw * m_w * load_word(t, O_SW))
                store_word(block, COLUMNS, min(m_w, load_word(t, OUT_W) - tw * m_w))
                store_word(block, COUNT, height)
                call_range(load_word(t, WRITE), block, 0, WRITE_ROWS, WRITE_ROWS + 1)

    return fft_output
