"""All three stages for a block of tiles at once, in 128 kB of the worker that computes it.

A block has few tiles and 256 bytes of channels of the result, whose sums at all positions stay in the cache while the
channels of x pass by, one or two vectors at a time: their transform, the products, and at the end the way back.  What
other blocks of channels of the result need of x is transformed again for each of them.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.arguments import ARGS
from numbaprims.cpu.conv.winograd.driver import (
    C_BLOCKS,
    FILTERS,
    INPUT,
    M_AT,
    OUTPUT,
    PANEL,
    PANELS,
    POSITIONS,
    PRODUCTS,
    SUM_SIZE,
    TABLE_AT,
    U_STEP,
    V_AT,
    VECTORS,
    W_GROUP,
    W_SIZE,
    W_START,
    WEIGHTS,
    X_CHANNELS,
    M,
    U,
    V,
    open_call,
    open_tiles,
    own_part,
)
from numbaprims.cpu.conv.winograd.table import BLOCK, TABLE, WORD
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    call_range,
    load_word,
    stack_words,
    store_word,
    tile_load,
    tile_multiply_blocks,
    tile_multiply_more,
    tile_store,
)

BYTES = ARGS.types()
MORE, THERE = BLOCK.slot("more"), BLOCK.slot("blocks")
ROWS, BLOCKS, X_BLOCKS, V_STEP, M_STEP, U_AT = (
    WORD[name] for name in ("rows", "blocks", "x_blocks", "v_step", "m_step", "u_at")
)
CHUNK, SOME_PANELS, M_PANEL, W_LANES, W_SC = (
    WORD[name] for name in ("chunk", "some_panels", "m_panel", "lanes", "w_sc")
)
WORDS = len(TABLE)


@functools.cache
def make_chunk_products(acc: str, MR: int, NV: int, W: int, AHEAD: int) -> RangeKernel:
    """m[xi][tile][j] = or += sum over the c of `blocks` vectors of v[xi][c // W][tile][c % W] * u[xi][c][j].

    One sum over all channels, whatever the chunks: a plan's are larger than a call's.
    """
    types = BLOCK.types(v=acc, u=acc, m=acc)
    NR = NV * W

    @range_kernel("winograd_chunk_products", types, spec=(acc, MR, NV, W, AHEAD))
    def winograd_chunk_products(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = args.table
        rows, blocks = load_word(t, ROWS), args.blocks
        if args.more:
            for xi in range(lo, hi):
                v = advance(args.v, xi * load_word(t, V_STEP))
                u = advance(args.u, xi * load_word(t, U_STEP))
                m = advance(args.m, xi * load_word(t, M_STEP))
                for i in range(0, args.count, MR):
                    at = advance(m, i * NR)
                    tile = tile_load(at, NR, MR, NV, W)
                    tile = tile_multiply_more(tile, advance(v, i * W), rows * W, u, blocks, MR, NV, AHEAD)
                    tile_store(at, NR, tile, MR, NV, W)
        else:
            for xi in range(lo, hi):
                v = advance(args.v, xi * load_word(t, V_STEP))
                u = advance(args.u, xi * load_word(t, U_STEP))
                m = advance(args.m, xi * load_word(t, M_STEP))
                for i in range(0, args.count, MR):
                    tile = tile_multiply_blocks(advance(v, i * W), rows * W, u, blocks, MR, NV, W, AHEAD)
                    tile_store(advance(m, i * NR), NR, tile, MR, NV, W)

    return winograd_chunk_products


@helper
def transform_filters(args, block, table, group, panel, c0, there, u):  # type: ignore[no-untyped-def]
    """Filters of `there` vectors of channels from the vector c0 on, of one panel, to u[xi][c][NR].

    `table` has room for a copy of the call's.
    """
    t = args.geometry
    for word in range(WORDS):
        store_word(table, word, load_word(t, word))
    store_word(table, C_BLOCKS, there)
    store_word(table, X_BLOCKS, there)
    store_word(table, X_CHANNELS, load_word(t, X_CHANNELS) - c0 * load_word(t, W_LANES))
    start = group * load_word(t, W_GROUP) + load_word(t, W_START) + c0 * load_word(t, W_LANES) * load_word(t, W_SC)
    store_word(block, TABLE_AT, table)
    store_word(block, FILTERS, address_of(args.second) + start * load_word(t, W_SIZE))
    store_word(block, U, u - panel * load_word(t, POSITIONS) * load_word(t, U_STEP) * load_word(t, SUM_SIZE))
    vectors = load_word(t, VECTORS)
    call_range(load_word(t, WEIGHTS), block, 0, panel * vectors, (panel + 1) * vectors)
    store_word(block, TABLE_AT, t)


@functools.cache
def make_fused_weights() -> RangeKernel:
    """u[group][panel][chunk of channels][xi][c][NR] into `packed`; tile = (group * panels + panel) * chunks + chunk.

    Each product reads what follows upon the one before: with all channels of a position side by side the pieces of a
    chunk lay on pages of their own, and 512 channels took twice as long.
    """

    @range_kernel("winograd_fused_weights", BYTES, spec=())
    def winograd_fused_weights(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = args.geometry
        block = open_call(args, worker)
        table = stack_words(WORDS)
        chunk, c_blocks, panels = load_word(t, CHUNK), load_word(t, C_BLOCKS), load_word(t, PANELS)
        chunks = (c_blocks + chunk - 1) // chunk
        step = load_word(t, POSITIONS) * load_word(t, U_STEP) * load_word(t, SUM_SIZE)
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
        t = args.geometry
        block = open_call(args, worker)
        table = stack_words(WORDS)
        mine = own_part(args, worker)
        v, m, own = mine + load_word(t, V_AT), mine + load_word(t, M_AT), mine + load_word(t, U_AT)
        packed = address_of(args.packed)
        size, positions, panels = load_word(t, SUM_SIZE), load_word(t, POSITIONS), load_word(t, PANELS)
        some, c_blocks, blocks = load_word(t, SOME_PANELS), load_word(t, C_BLOCKS), load_word(t, BLOCKS)
        chunk = load_word(t, CHUNK)
        v_block = load_word(t, ROWS) * load_word(t, W_LANES) * size
        m_panel = load_word(t, M_PANEL) * size
        step = positions * load_word(t, U_STEP) * size
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
                store_word(block, V, v - c0 * v_block)
                call_range(load_word(t, INPUT), block, 0, c0, c0 + there)
                store_word(block, V, v)
                store_word(block, THERE, there)
                store_word(block, MORE, c)
                for panel in range(first, last):
                    if packed == 0:
                        transform_filters(args, block, table, group, panel, c0, there, own)
                        store_word(block, U, own)
                    else:
                        store_word(block, U, packed + ((group * panels + panel) * chunks + c) * step)
                    store_word(block, M, m + (panel - first) * m_panel)
                    call_range(load_word(t, PRODUCTS), block, 0, 0, positions)
            for panel in range(first, last):
                store_word(block, M, m + (panel - first) * m_panel)
                store_word(block, PANEL, panel)
                call_range(load_word(t, OUTPUT), block, 0, 0, load_word(t, VECTORS))

    return winograd_fused
