"""For each of the n * n positions a small matrix product, tiles x channels x NR channels of the result."""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.table import BLOCK, TABLE
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import advance, record, tile_multiply_blocks, tile_store
from numbaprims.dtypes import DTYPES


def ahead(acc: str) -> int:
    """Elements of filters that products prefetch: 8 kB, one to two positions.

    They pass by once for each block, from the third-level cache or memory: 256 x 14 x 14 took 388 us without and 336
    with, 512 x 7 x 7 760 and 593, spectra of 128 x 28 x 28 by 11 x 11 8.6 ms and 2.2.
    """
    return 8192 // DTYPES[acc].itemsize


@functools.cache
def make_products(acc: str, MR: int, NV: int, W: int) -> RangeKernel:
    """m[xi][tile][j] = sum over c of v[xi][tile // MR][c // W][tile % MR][c % W] * u[xi][c][j], for positions
    xi = lo ... hi - 1.

    Tiles past the block's last are multiplied as far as the next multiple of MR, which rows leaves room for.  The
    NR = NV * W columns of u stay in the first-level cache while MR tiles at a time pass by.
    """
    types = BLOCK.types(v=acc, u=acc, m=acc)
    NR = NV * W
    AHEAD = ahead(acc)

    @range_kernel("winograd_products", types, spec=(acc, MR, NV, W, AHEAD))
    def winograd_products(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = record(TABLE, args.table)
        blocks = t.c_blocks
        for xi in range(lo, hi):
            v = advance(args.v, xi * t.v_step)
            u = advance(args.u, xi * t.u_step)
            m = advance(args.m, xi * t.m_step)
            for i in range(0, args.count, MR):
                tile = tile_multiply_blocks(advance(v, i * blocks * W), MR * W, u, blocks, MR, NV, W, AHEAD)
                tile_store(advance(m, i * NR), NR, tile, MR, NV, W)

    return winograd_products
