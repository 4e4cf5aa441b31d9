"""Real two-dimensional spectra of N x N tiles, W channels at a time in the lanes of a vector.

Rows first, whose spectra are half-complex (numbaprims.fourier); then columns: slots 0 and N / 2 of the rows are real,
the others are pairs.  A spectrum of N * N reals is kept as N * N / 2 pairs: q < N / 2 of the column of slot 0,
q < N of that of slot N / 2, then N of each complex column.  Pairs 0 and N / 2 are two real numbers, the others the two
parts of a complex one.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.table import BLOCK, TABLE
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    advance,
    block_of,
    call_range,
    load,
    load_rows,
    pointer_from_address,
    record,
    some_vectors,
    stack_array,
    store,
    store_rows,
    straight_line,
    zeros,
)
from numbaprims.dtypes import DTYPES


@helper
def store_pairs(v, pair_step, part_step, spectrum, HALF):  # type: ignore[no-untyped-def]
    """A tuple of HALF first parts and HALF second parts, to HALF pairs."""
    store_rows(v, pair_step, some_vectors(spectrum, 0, HALF))
    store_rows(advance(v, part_step), pair_step, some_vectors(spectrum, HALF, HALF))


@helper
def store_twice(u, u_step, depth, column, HALF, real, zero, W):  # type: ignore[no-untyped-def]
    """HALF pairs of a column as the second factor of a product with one that is conjugated: u[2 pair][part] = (re, im)
    gives its real part, u[2 pair + 1][part] = (-im, re) its imaginary one, both as sums over the parts; the two numbers
    of a `real` first pair do not meet."""
    for i in range(HALF):
        re, im = load(column, i * W, W), load(column, (HALF + i) * W, W)
        first = advance(u, 2 * i * u_step)
        second = advance(first, u_step)
        if real and i == 0:
            store(first, 0, re)
            store(first, depth, zero)
            store(second, 0, zero)
            store(second, depth, im)
        else:
            store(first, 0, re)
            store(first, depth, im)
            store(second, 0, zero - im)
            store(second, depth, re)


@functools.cache
def make_input(acc: str, N: int, W: int, REAL: str, COMPLEX: str, NV: int = 1, TWICE: bool = False) -> RangeKernel:
    """v[pair][part][cb][tile][lane] for the blocks cb = lo ... hi - 1 of W channels and the tiles of a block, in the
    order that the table's steps give; v_step is from pair to pair.

    NV blocks lie side by side, a panel.  TWICE: as `store_twice` says, v_step from one real product to the next.
    """
    types = BLOCK.types(v=acc)
    ROOM = (N * N + W) * W  # a last transpose reaches W - 1 pixels past its row
    HALF = N // 2
    COLUMN = 2 * N * W if TWICE else W

    @range_kernel(
        "fft_input",
        types,
        spec=(acc, N, W, REAL, COMPLEX, NV, TWICE),
        room=ROOM * DTYPES[acc].itemsize,
    )
    def fft_input(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t, block = record(TABLE, args.table), record(BLOCK, block_of(args))
        room = pointer_from_address(args.room, acc)
        whole = stack_array(acc, COLUMN)
        zero = zeros(acc, W)
        tiles_w, tiles_h = t.tiles_w, t.tiles_h
        step = t.v_step
        part = t.v_part
        block.buffer = args.room
        block.rows = t.in_h
        block.row_step = N * W
        block.columns = N
        block.down = 1
        for cb in range(lo, hi):
            block.channels = min(W, t.x_channels - cb * W)
            for index in range(args.count):
                rest, tw = divmod(args.first + index, tiles_w)
                n, th = divmod(rest, tiles_h)
                h0 = th * t.m_h - t.pad_h
                w0 = tw * t.m_w - t.pad_w
                left = max(0, min(N, -w0))
                right = max(left, min(t.in_w, t.x_w - w0))
                at = n * t.x_sn + (args.x_channel + cb * W) * t.x_sc
                block.at = at + w0 * t.x_sw
                block.at_h = h0
                block.left = left
                block.right = right
                call_range(t.read, block, 0, 0, 1)
                for i in range(t.in_h):
                    if h0 + i >= 0 and h0 + i < t.x_h and left < right:
                        row = advance(room, i * N * W)
                        store_rows(row, W, straight_line(load_rows(row, W, N, W), REAL))
                for j in range(t.in_h * N, N * N):
                    store(room, j * W, zero)
                panel, vector = divmod(cb, NV)
                v = advance(args.v, panel * t.v_block + vector * W + index * t.v_tile)
                for slot in range(0, N, HALF):
                    column = straight_line(load_rows(advance(room, slot * W), N * W, N, W), REAL)
                    if TWICE:
                        store_rows(whole, W, column)
                        store_twice(advance(v, 2 * slot * step), step, part, whole, HALF, True, zero, W)
                    else:
                        store_pairs(advance(v, slot * step), step, part, column, HALF)
                for slot in range(1, HALF):
                    re = load_rows(advance(room, slot * W), N * W, N, W)
                    im = load_rows(advance(room, (HALF + slot) * W), N * W, N, W)
                    if TWICE:
                        store_rows(whole, W, straight_line(re + im, COMPLEX))
                        store_twice(advance(v, 2 * N * slot * step), step, part, whole, N, False, zero, W)
                    else:
                        store_pairs(advance(v, N * slot * step), step, part, straight_line(re + im, COMPLEX), N)

    return fft_input
