"""From a call's arrays to the kernels of each block of tiles.  Compiled once: it computes addresses only."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from numbaprims.cpu.conv.arguments import ARGS
from numbaprims.cpu.conv.winograd.table import BLOCK, WORD
from numbaprims.cpu.gemm.cost import round_up
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.program import PER_WORKER
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
FLOATS, TABLE_AT, ROOM = BLOCK.slot("alpha"), BLOCK.slot("table"), BLOCK.slot("room")
FIRST, COUNT, X_CHANNEL, OUT_CHANNEL, PANEL = (
    BLOCK.slot(name) for name in ("first", "count", "x_channel", "out_channel", "panel")
)
GROUPS, X_CHANNELS, OUT_CHANNELS = WORD["groups"], WORD["x_channels"], WORD["out_channels"]
TILES, TILE_BLOCK, PANELS, VECTORS, POSITIONS = (
    WORD[name] for name in ("tiles", "block", "panels", "vectors", "positions")
)
C_BLOCKS, U_STEP, U_GROUP, SUM_SIZE = (WORD[name] for name in ("c_blocks", "u_step", "u_group", "sum_size"))
INPUT, PRODUCTS, OUTPUT, WEIGHTS = (WORD[name] for name in ("input", "products", "output", "weights"))
WORKER_AT, WORKER_BYTES, V_AT, M_AT, ROOM_AT = (
    WORD[name] for name in ("worker_at", "worker_bytes", "v_at", "m_at", "room_at")
)
# A worker's part of the workspace begins with the number of the block that it holds, in a line of its own.
OWN_WORDS = 8
W_GROUP, W_START, W_SIZE = WORD["w_group"], WORD["w_start"], WORD["w_size"]


def worker_words(shared: int, room: int, **parts: int) -> tuple[dict[str, int], int, int]:
    """Places of parts of so many bytes for each worker (`v=` is at the table's v_at), behind them the kernels' `room`;
    the bytes shared, and a worker's."""
    places, at = {"worker_at": shared}, 8 * OWN_WORDS
    for name, size in (parts | {"room": room}).items():
        places[f"{name}_at"] = at
        at += round_up(size, 64)
    return places | {"worker_bytes": at}, shared, at


def kernel_words(kernels: Mapping[str, RangeKernel], prepared: bool = False) -> dict[str, int]:
    """Addresses; bytes of scratch memory that a worker needs for any of a call's kernels, and for that of the filters,
    which a call does not run where they are prepared."""
    addresses = {name: kernel.address for name, kernel in kernels.items()}
    rooms = {name: kernel.room for name, kernel in kernels.items()}
    used = [size for name, size in rooms.items() if name != "weights" or not prepared]
    return addresses | {"room": max(used), "weights_room": rooms["weights"]}


def tile_phases(words: dict[str, int]) -> list[tuple[RangeKernel, int, int]]:
    """From x to the result, the filters transformed."""
    return [(make_open(), 1, PER_WORKER), (make_tiles(), words["groups"] * words["blocks"] * words["panels"], 1)]


@helper
def own_part(args, worker):  # type: ignore[no-untyped-def]
    """Where a worker's part of the workspace begins."""
    t = args.geometry
    return address_of(args.workspace) + load_word(t, WORKER_AT) + worker * load_word(t, WORKER_BYTES)


@helper
def open_call(args, worker):  # type: ignore[no-untyped-def]
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
    store_word(block, ROOM, own_part(args, worker) + load_word(args.geometry, ROOM_AT))
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


@functools.cache
def make_open() -> RangeKernel:
    """Before a call: no worker holds a transformed block of tiles."""

    @range_kernel("winograd_open", BYTES, spec=())
    def winograd_open(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        for each in range(lo, hi):
            store_word(own_part(args, each), 0, -1)

    return winograd_open


@functools.cache
def make_tiles() -> RangeKernel:
    """Tile = (group * blocks + block of tiles) * panels + panel of the result.

    Each worker transforms the blocks that it meets, for itself: a block at a border is transformed twice, but a
    transform that workers share goes from core to core, which takes longer (64 x 56 x 56 by F(6x6) on two cores 180 us
    instead of 190, 222 instead of 510 where they do not share a cache of the third level).
    """

    @range_kernel("winograd_tiles", BYTES, spec=())
    def winograd_tiles(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = args.geometry
        block = open_call(args, worker)
        own = own_part(args, worker)
        store_word(block, V, own + load_word(t, V_AT))
        store_word(block, M, own + load_word(t, M_AT))
        panels = load_word(t, PANELS)
        panel_bytes = load_word(t, POSITIONS) * load_word(t, U_STEP) * load_word(t, SUM_SIZE)
        for tile in range(lo, hi):
            part, panel = divmod(tile, panels)
            group = open_tiles(args, block, part)
            if load_word(own, 0) != part:
                store_word(own, 0, part)
                call_range(load_word(t, INPUT), block, 0, 0, load_word(t, C_BLOCKS))
            store_word(block, PANEL, panel)
            store_word(block, U, filters_at(args, group) + panel * panel_bytes)
            call_range(load_word(t, PRODUCTS), block, 0, 0, load_word(t, POSITIONS))
            call_range(load_word(t, OUTPUT), block, 0, 0, load_word(t, VECTORS))

    return winograd_tiles


@functools.cache
def make_weight_phase() -> RangeKernel:
    """The filters, before the first step; tile = group * panels + panel.  `first` is not read."""

    @range_kernel("winograd_weight_phase", BYTES, spec=())
    def winograd_weight_phase(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = args.geometry
        if args.step == 0:
            block = open_call(args, worker)
            vectors = load_word(t, VECTORS)
            for tile in range(lo, hi):
                group, panel = divmod(tile, load_word(t, PANELS))
                start = group * load_word(t, W_GROUP) + load_word(t, W_START)
                store_word(block, FILTERS, address_of(args.second) + start * load_word(t, W_SIZE))
                store_word(block, U, filters_at(args, group))
                call_range(load_word(t, WEIGHTS), block, 0, panel * vectors, (panel + 1) * vectors)

    return winograd_weight_phase
