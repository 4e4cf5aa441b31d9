"""From spectra to the outputs that no window wraps around, then the epilogue; W channels at a time in the lanes."""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.pixels import SHIFT, WRITE_ROWS
from numbaprims.cpu.conv.winograd.table import BLOCK, TABLE
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    block_of,
    call_range,
    load_rows,
    pointer_from_address,
    record,
    some_vectors,
    stack_array,
    store_rows,
    straight_line,
)
from numbaprims.dtypes import DTYPES


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
        t, block = record(TABLE, args.table), record(BLOCK, block_of(args))
        shifts = stack_array(acc, TWO)
        rows = pointer_from_address(args.room, acc)
        tiles_w, tiles_h, step = t.tiles_w, t.tiles_h, t.m_step
        m_h, m_w = t.m_h, t.m_w
        block.buffer = args.room
        block.row_step = N * W
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
                height = min(m_h, t.out_h - th * m_h)
                for i in range(height):
                    row = advance(rows, i * N * W)
                    store_rows(row, W, straight_line(load_rows(row, W, N, W), REAL))
                at = n * t.c_sn + channel * t.c_sk
                block.at_c = at + th * m_h * t.c_sh + tw * m_w * t.c_sw
                at = n * t.o_sn + channel * t.o_sk
                block.at = at + th * m_h * t.o_sh + tw * m_w * t.o_sw
                block.columns = min(m_w, t.out_w - tw * m_w)
                block.rows = height
                call_range(t.write, block, 0, WRITE_ROWS, WRITE_ROWS + 1)

    return fft_output
