"""All three stages for a block of tiles at once, in 128 kB of the worker that computes it.

A block has few tiles and 256 bytes of channels of the result, whose sums at all positions stay in the cache while the
channels of x pass by, one or two vectors at a time: their transform, the products, and at the end the way back.  What
other blocks of channels of the result need of x is transformed again for each of them.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.driver import (
    BYTES,
    open_call,
    open_tiles,
)
from numbaprims.cpu.conv.winograd.table import BLOCK, TABLE
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    block_of,
    call_range,
    copy_record,
    record,
    stack_record,
    tile_load,
    tile_multiply_blocks,
    tile_multiply_more,
    tile_store,
)

WORDS = TABLE.words


@functools.cache
def make_chunk_products(acc: str, MR: int, NV: int, W: int, AHEAD: int) -> RangeKernel:
    """m[xi][tile][j] = or += sum over the c of `blocks` vectors of v[xi][c // W][tile][c % W] * u[xi][c][j].

    One sum over all channels, whatever the chunks: a plan's are larger than a call's.
    """
    types = BLOCK.types(v=acc, u=acc, m=acc)
    NR = NV * W

    @range_kernel("winograd_chunk_products", types, spec=(acc, MR, NV, W, AHEAD))
    def winograd_chunk_products(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = record(TABLE, args.table)
        rows, blocks = t.rows, args.blocks
        if args.more:
            for xi in range(lo, hi):
                v = advance(args.v, xi * t.v_step)
                u = advance(args.u, xi * t.u_step)
                m = advance(args.m, xi * t.m_step)
                for i in range(0, args.count, MR):
                    at = advance(m, i * NR)
                    tile = tile_load(at, NR, MR, NV, W)
                    tile = tile_multiply_more(tile, advance(v, i * W), rows * W, u, blocks, MR, NV, AHEAD)
                    tile_store(at, NR, tile, MR, NV, W)
        else:
            for xi in range(lo, hi):
                v = advance(args.v, xi * t.v_step)
                u = advance(args.u, xi * t.u_step)
                m = advance(args.m, xi * t.m_step)
                for i in range(0, args.count, MR):
                    tile = tile_multiply_blocks(advance(v, i * W), rows * W, u, blocks, MR, NV, W, AHEAD)
                    tile_store(advance(m, i * NR), NR, tile, MR, NV, W)

    return winograd_chunk_products


@helper
def transform_filters(args, block, table, group, panel, c0, there, u):  # type: ignore[no-untyped-def]
    """Filters of `there` vectors of channels from the vector c0 on, of one panel, to u[xi][c][NR].

    `table` has room for a copy of the call's.
    """
    t = record(TABLE, args.geometry)
    copy_record(table, t)
    table.c_blocks = there
    table.x_blocks = there
    table.x_channels = t.x_channels - c0 * t.lanes
    start = group * t.w_group + t.w_start + c0 * t.lanes * t.w_sc
    block.table = block_of(table)
    block.w = address_of(args.second) + start * t.w_size
    block.u = u - panel * t.positions * t.u_step * t.sum_size
    vectors = t.vectors
    call_range(t.weights, block, 0, panel * vectors, (panel + 1) * vectors)
    block.table = block_of(t)


@functools.cache
def make_fused_weights() -> RangeKernel:
    """u[group][panel][chunk of channels][xi][c][NR] into `packed`; tile = (group * panels + panel) * chunks + chunk.

    Each product reads what follows upon the one before: with all channels of a position side by side the pieces of a
    chunk lay on pages of their own, and 512 channels took twice as long.
    """

    @range_kernel("winograd_fused_weights", BYTES, spec=())
    def winograd_fused_weights(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = record(TABLE, args.geometry)
        block = open_call(args, worker)
        table = stack_record(TABLE)
        chunk, c_blocks, panels = t.chunk, t.c_blocks, t.panels
        chunks = (c_blocks + chunk - 1) // chunk
        step = t.positions * t.u_step * t.sum_size
        for tile in range(lo, hi):
            place, index = divmod(tile, chunks)
            group, panel = divmod(place, panels)
            there = min(chunk, c_blocks - index * chunk)
            u = address_of(args.packed) + tile * step
            transform_filters(args, block, table, group, panel, index * chunk, there, u)

    return winograd_fused_weights


@functools.cache
def make_fused() -> RangeKernel:
    """Tile = (group * blocks of panels + block of panels) * blocks of tiles + block of tiles.

    Without what a plan has transformed, one panel and one chunk of channels of the filters are for each block.
    """

    @range_kernel("winograd_fused", BYTES, spec=())
    def winograd_fused(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = record(TABLE, args.geometry)
        block = open_call(args, worker)
        table = stack_record(TABLE)
        v, m, own = address_of(args.v[worker]), address_of(args.m[worker]), address_of(args.u[worker])
        packed = address_of(args.packed)
        size, positions, panels = t.sum_size, t.positions, t.panels
        some, c_blocks, blocks = t.some_panels, t.c_blocks, t.blocks
        chunk = t.chunk
        v_block = t.rows * t.lanes * size
        m_panel = t.m_panel * size
        step = positions * t.u_step * size
        parts, chunks = (panels + some - 1) // some, (c_blocks + chunk - 1) // chunk
        for tile in range(lo, hi):
            place, index = divmod(tile, blocks)
            group, part = divmod(place, parts)
            open_tiles(args, block, group * blocks + index)
            first = part * some
            last = min(first + some, panels)
            for c in range(chunks):
                c0 = c * chunk
                there = min(chunk, c_blocks - c0)
                # the kernel counts from the first channel
                block.v = v - c0 * v_block
                call_range(t.input, block, 0, c0, c0 + there)
                block.v = v
                block.blocks = there
                block.more = c
                for panel in range(first, last):
                    if packed == 0:
                        transform_filters(args, block, table, group, panel, c0, there, own)
                        block.u = own
                    else:
                        block.u = packed + ((group * panels + panel) * chunks + c) * step
                    block.m = m + (panel - first) * m_panel
                    call_range(t.products, block, 0, 0, positions)
            for panel in range(first, last):
                block.m = m + (panel - first) * m_panel
                block.panel = panel
                call_range(t.output, block, 0, 0, t.vectors)

    return winograd_fused
