"""The products: for each pair of a spectrum, tiles x channels x NR channels of the result, real or complex."""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.products import ahead
from numbaprims.cpu.conv.winograd.table import BLOCK, TABLE
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import advance, record, tile_multiply_blocks, tile_store


@functools.cache
def make_products(acc: str, N: int, MR: int, NV: int, W: int) -> RangeKernel:
    """m[pair][part][tile][j] for pairs lo / 2 ... hi / 2 - 1.

    A complex product is two real ones of twice as many channels: the parts of v lie behind one another, and u holds
    (re, im) for the first part of the result and (-im, re) for the second (the filter's spectrum is conjugated).
    """
    types = BLOCK.types(v=acc, u=acc, m=acc)
    NR = NV * W
    HALF = N // 2
    AHEAD = ahead(acc)

    @range_kernel("fft_products", types, spec=(acc, N, MR, NV, W, AHEAD))
    def fft_products(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = record(TABLE, args.table)
        rows, c_blocks = t.rows, t.c_blocks
        for pair in range(lo // 2, hi // 2):
            real = pair == 0 or pair == HALF
            blocks = c_blocks if real else 2 * c_blocks
            for part in range(2):
                v = advance(args.v, pair * t.v_step)
                if real:
                    v = advance(v, part * c_blocks * rows * W)
                u = advance(args.u, (2 * pair + part) * t.u_step)
                m = advance(args.m, (2 * pair + part) * t.m_step)
                for i in range(0, rows, MR):
                    tile = tile_multiply_blocks(advance(v, i * W), rows * W, u, blocks, MR, NV, W, AHEAD)
                    tile_store(advance(m, i * NR), NR, tile, MR, NV, W)

    return fft_products
