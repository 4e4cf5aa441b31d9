"""From a call's arrays to the kernels of each block of tiles.  Compiled once: it computes addresses only."""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.arguments import ARGS
from numbaprims.cpu.conv.winograd.table import BLOCK, WORD
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    call_range,
    float_bits,
    load_word,
    stack_words,
    store_word,
)

BYTES = ARGS.types()
X, V, U, M, OUT, BIAS, C, FILTERS = (BLOCK.slot(name) for name in BLOCK.arrays)
FLOATS, TABLE_AT = BLOCK.slot("alpha"), BLOCK.slot("table")
FIRST, COUNT, X_CHANNEL, OUT_CHANNEL, PANEL = (
    BLOCK.slot(name) for name in ("first", "count", "x_channel", "out_channel", "panel")
)
GROUPS, X_CHANNELS, OUT_CHANNELS = WORD["groups"], WORD["x_channels"], WORD["out_channels"]
TILES, TILE_BLOCK, PANELS, VECTORS, POSITIONS = (
    WORD[name] for name in ("tiles", "block", "panels", "vectors", "positions")
)
C_BLOCKS, U_STEP, U_GROUP, SUM_SIZE = (WORD[name] for name in ("c_blocks", "u_step", "u_group", "sum_size"))
INPUT, PRODUCTS, OUTPUT, WEIGHTS = (WORD[name] for name in ("input", "products", "output", "weights"))
V_AT, WORKER_AT, WORKER_BYTES, M_AT = (WORD[name] for name in ("v_at", "worker_at", "worker_bytes", "m_at"))
W_GROUP, W_START, W_SIZE = WORD["w_group"], WORD["w_start"], WORD["w_size"]


@helper
def open_call(args):  # type: ignore[no-untyped-def]
    """A block of arguments with what does not depend on the tiles."""
    block = stack_words(80)
    store_word(block, X, address_of(args.first))
    store_word(block, OUT, address_of(args.out))
    store_word(block, BIAS, address_of(args.bias))
    store_word(block, C, address_of(args.c))
    store_word(block, FLOATS, float_bits(args.alpha))
    store_word(block, FLOATS + 1, float_bits(args.beta))
    store_word(block, FLOATS + 2, float_bits(args.p0))
    store_word(block, FLOATS + 3, float_bits(args.p1))
    store_word(block, FLOATS + 4, float_bits(args.p2))
    store_word(block, TABLE_AT, args.geometry)
    store_word(block, PANEL + 1, args.activation)
    store_word(block, PANEL + 2, args.has_c)
    store_word(block, PANEL + 3, args.has_bias)
    store_word(block, PANEL + 4, args.bias_step)
    return block


@helper
def filters_at(args, group):  # type: ignore[no-untyped-def]
    """Where a group's transformed filters lie: in what a plan prepared, else at the workspace's beginning."""
    t = args.geometry
    u = address_of(args.packed)
    if u == 0:
        u = address_of(args.workspace)
    return u + group * load_word(t, U_GROUP) * load_word(t, SUM_SIZE)


@helper
def open_tiles(args, block, tile):  # type: ignore[no-untyped-def]
    """Tile = group and block of tiles -> its words in the block of arguments; gives the group."""
    t = args.geometry
    size = load_word(t, TILE_BLOCK)
    blocks = (load_word(t, TILES) + size - 1) // size
    group, index = divmod(tile, blocks)
    store_word(block, FIRST, index * size)
    store_word(block, COUNT, min(size, load_word(t, TILES) - index * size))
    store_word(block, X_CHANNEL, group * load_word(t, X_CHANNELS))
    store_word(block, OUT_CHANNEL, group * load_word(t, OUT_CHANNELS))
    return group


@helper
def run_panels(args, block, group, lo, hi):  # type: ignore[no-untyped-def]
    """Products and inverse transforms of panels lo ... hi - 1."""
    t = args.geometry
    size = load_word(t, POSITIONS) * load_word(t, U_STEP) * load_word(t, SUM_SIZE)
    u = filters_at(args, group)
    for panel in range(lo, hi):
        store_word(block, PANEL, panel)
        store_word(block, U, u + panel * size)
        call_range(load_word(t, PRODUCTS), block, 0, 0, load_word(t, POSITIONS))
        call_range(load_word(t, OUTPUT), block, 0, 0, load_word(t, VECTORS))


@functools.cache
def make_blocks() -> RangeKernel:
    """Whole blocks of tiles, every worker with a transform of its own; tile = group * blocks + block."""

    @range_kernel("winograd_blocks", BYTES, spec=())
    def winograd_blocks(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = args.geometry
        block = open_call(args)
        own = address_of(args.workspace) + load_word(t, WORKER_AT) + worker * load_word(t, WORKER_BYTES)
        store_word(block, V, own)
        store_word(block, M, own + load_word(t, M_AT))
        for tile in range(lo, hi):
            group = open_tiles(args, block, tile)
            call_range(load_word(t, INPUT), block, 0, 0, load_word(t, C_BLOCKS))
            run_panels(args, block, group, 0, load_word(t, PANELS))

    return winograd_blocks


@functools.cache
def make_input_phase() -> RangeKernel:
    """The transform of the step's block of tiles, which all workers share; tile = W channels."""

    @range_kernel("winograd_input_phase", BYTES, spec=())
    def winograd_input_phase(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = args.geometry
        block = open_call(args)
        store_word(block, V, address_of(args.workspace) + load_word(t, V_AT))
        open_tiles(args, block, args.step)
        call_range(load_word(t, INPUT), block, 0, lo, hi)

    return winograd_input_phase


@functools.cache
def make_panel_phase() -> RangeKernel:
    """Panels of the result of the step's block of tiles."""

    @range_kernel("winograd_panel_phase", BYTES, spec=())
    def winograd_panel_phase(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = args.geometry
        block = open_call(args)
        own = address_of(args.workspace) + load_word(t, WORKER_AT) + worker * load_word(t, WORKER_BYTES)
        store_word(block, V, address_of(args.workspace) + load_word(t, V_AT))
        store_word(block, M, own)
        group = open_tiles(args, block, args.step)
        run_panels(args, block, group, lo, hi)

    return winograd_panel_phase


@functools.cache
def make_weight_phase() -> RangeKernel:
    """The filters, before the first step; tile = group * panels + panel.  `first` is not read."""

    @range_kernel("winograd_weight_phase", BYTES, spec=())
    def winograd_weight_phase(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = args.geometry
        if args.step == 0:
            block = open_call(args)
            vectors = load_word(t, VECTORS)
            for tile in range(lo, hi):
                group, panel = divmod(tile, load_word(t, PANELS))
                start = group * load_word(t, W_GROUP) + load_word(t, W_START)
                store_word(block, FILTERS, address_of(args.second) + start * load_word(t, W_SIZE))
                store_word(block, U, filters_at(args, group))
                call_range(load_word(t, WEIGHTS), block, 0, panel * vectors, (panel + 1) * vectors)

    return winograd_weight_phase
