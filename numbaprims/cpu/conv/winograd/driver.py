"""From a call's arrays to the kernels of each block of tiles.  Compiled once: it computes addresses only."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from numbaprims.cpu.conv.winograd.table import BLOCK, CALL, TABLE
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.program import PER_WORKER
from numbaprims.cpu.simd import (
    address_of,
    call_range,
    copy_fields,
    load_scalar,
    record,
    stack_record,
    store_scalar,
)

BYTES = CALL.types(held="i64")


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
def open_call(args, worker):  # type: ignore[no-untyped-def]
    """A block of arguments with what does not depend on the tiles."""
    block = stack_record(BLOCK)
    block.x = address_of(args.first)
    block.table = args.geometry
    block.room = address_of(args.room[worker])
    copy_fields(block, args, "out bias c alpha beta p0 p1 p2 activation has_c has_bias bias_step")
    return block


@helper
def filters_at(args, group):  # type: ignore[no-untyped-def]
    """Where a group's transformed filters lie: in what a plan prepared, else at the workspace's beginning."""
    t = record(TABLE, args.geometry)
    u = address_of(args.packed)
    if u == 0:
        u = address_of(args.filters)
    return u + group * t.u_group * t.sum_size


@helper
def open_tiles(args, block, tile):  # type: ignore[no-untyped-def]
    """Tile = group and block of tiles -> its words in the block of arguments; gives the group."""
    t = record(TABLE, args.geometry)
    size = t.block
    blocks = (t.tiles + size - 1) // size
    group, index = divmod(tile, blocks)
    block.first = index * size
    block.count = min(size, t.tiles - index * size)
    block.x_channel = group * t.x_channels
    block.out_channel = group * t.out_channels
    return group


@functools.cache
def make_open() -> RangeKernel:
    """Before a call: no worker holds a transformed block of tiles."""

    @range_kernel("winograd_open", BYTES, spec=())
    def winograd_open(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        for each in range(lo, hi):
            store_scalar(args.held[each], 0, -1)

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
        t = record(TABLE, args.geometry)
        block = open_call(args, worker)
        held = args.held[worker]
        block.v = address_of(args.v[worker])
        block.m = address_of(args.m[worker])
        panels = t.panels
        panel_bytes = t.positions * t.u_step * t.sum_size
        for tile in range(lo, hi):
            part, panel = divmod(tile, panels)
            group = open_tiles(args, block, part)
            if load_scalar(held, 0) != part:
                store_scalar(held, 0, part)
                call_range(t.input, block, 0, 0, t.c_blocks)
            block.panel = panel
            block.u = filters_at(args, group) + panel * panel_bytes
            call_range(t.products, block, 0, 0, t.positions)
            call_range(t.output, block, 0, 0, t.vectors)

    return winograd_tiles


@functools.cache
def make_weight_phase() -> RangeKernel:
    """The filters, before the first step; tile = group * panels + panel.  `first` is not read."""

    @range_kernel("winograd_weight_phase", BYTES, spec=())
    def winograd_weight_phase(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = record(TABLE, args.geometry)
        if args.step == 0:
            block = open_call(args, worker)
            vectors = t.vectors
            for tile in range(lo, hi):
                group, panel = divmod(tile, t.panels)
                start = group * t.w_group + t.w_start
                block.w = address_of(args.second) + start * t.w_size
                block.u = filters_at(args, group)
                call_range(t.weights, block, 0, panel * vectors, (panel + 1) * vectors)

    return winograd_weight_phase
