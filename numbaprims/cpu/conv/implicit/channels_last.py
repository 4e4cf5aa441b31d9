"""Convolution as a product without its column matrix, results along channels: patches (rows of A) times weights (B).

Where channels come last, a row of a window is one run of neighbours: tiles of the product read it where it lies, in
the input itself if no window meets padding, else in a zero-padded copy of what a tile meets.  No patch is ever moved,
so that few channels of the result cost no more than many.  Bound: the operations of the product; a tile of 6 x 4
vectors loads 10 values for 24 multiply-adds.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.implicit.tiles import (
    BYTES,
    HELD,
    c_start,
    finish_tile,
    input_start,
    open_pass,
    open_tile,
    panel_start,
    panels_of,
    stage_block,
    y_start,
)
from numbaprims.cpu.conv.implicit.transpose import TRANSPOSE
from numbaprims.cpu.gemm.multiply import keep_part
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    Arguments,
    address_of,
    advance,
    block_of,
    call_range,
    load_scalar,
    load_word,
    record,
    stack_record,
    stack_tile,
    store_scalar,
    store_word,
    tile_add,
    tile_load,
    tile_multiply_rows,
    tile_prefetch,
    tile_store,
    tile_zeros,
)
from numbaprims.dtypes import DTYPES

# total[pixel, column] = or += the sum over runs of a[unit * (places[pixel] + taps[t]) + p] times panels of b; t steps
# by run_taps through window, each run is `run` long.  next: elements from a panel of b to the one that is read after
# it, 0 where there is none, or none yet.
MULTIPLY_ROWS = Arguments(
    arrays=("a", "b", "total"),
    ints=(
        "pixels", "columns", "k", "first", "total_step", "places", "unit", "taps", "window", "run_taps", "run",
        "next",
    ),
)  # fmt: skip


@functools.cache
def make_multiply_rows(acc: str, MR: int, NV: int, W: int) -> RangeKernel:
    """Panels lo ... hi - 1 of B, each with all pixels: the panel stays in the caches while windows stream past it.

    The first 4 tiles of a panel prefetch a quarter of the next each: from the third cache or memory 49 pixels ran at
    210 GFLOP/s without it, at 245 with it.
    """
    types = MULTIPLY_ROWS.types(a=acc, b=acc, total=acc)
    NR = NV * W
    LINE = 64 // DTYPES[acc].itemsize
    # lines in 4 rows of a panel, for each of the 4 tiles
    LINES = max(1, NR // LINE)

    @range_kernel("conv_multiply_rows", types, spec=(acc, MR, NV, W))
    def conv_multiply_rows(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        step = args.total_step
        first = args.first
        room = stack_tile(acc, MR, NV, W)
        for q in range(lo, hi):
            b = advance(args.b, q * NR * args.k)
            columns = min(NR, args.columns - q * NR)
            for i in range(0, args.pixels, MR):
                rows = min(MR, args.pixels - i)
                total = advance(args.total, i * step + q * NR)
                if rows == MR:
                    tile_prefetch(total, step, MR, NV, W)
                tile = tile_zeros(acc, MR, NV, W)
                at = b
                ahead = b
                far = 0
                if args.next != 0 and i < 4 * MR:
                    far = args.run // 4 * LINES * LINE
                    ahead = advance(b, args.next + i // MR * (args.k // 4) * LINES * LINE)
                for t in range(0, args.window, args.run_taps):
                    a = advance(args.a, load_word(args.taps, t) * args.unit)
                    tile = tile_multiply_rows(
                        tile, a, args.places, i, rows, args.unit, at, args.run, ahead, LINES, MR, NV, W
                    )  # fmt: skip
                    at = advance(at, args.run * NR)
                    ahead = advance(ahead, far)
                if rows == MR and columns == NR:
                    if not first:
                        tile = tile_add(tile_load(total, step, MR, NV, W), tile)
                    tile_store(total, step, tile, MR, NV, W)
                else:
                    tile_store(room, NR, tile, MR, NV, W)
                    keep_part(room, total, step, rows, columns, first, NR, W)

    return conv_multiply_rows


@functools.cache
def make_open() -> RangeKernel:
    """Before a call: how many workers there are; none of them holds a copy."""

    @range_kernel("conv_implicit_open", BYTES, spec=())
    def implicit_open(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        store_scalar(args.workers, 0, hi)
        for each in range(lo, hi):
            record(HELD, address_of(args.held[each])).table = -1

    return implicit_open


@helper
def open_block(args, t, tile, parts):  # type: ignore[no-untyped-def]
    """Tile of a pass -> its block of pixels and group, and its block of rows; `parts` of these go one after another."""
    together = args.m_blocks // parts
    part, copy = divmod(tile, t.tiles // parts)
    copy, mb = divmod(copy, together)
    if parts == 1 and copy // t.groups % 2:
        # neighbours end lines of the result that they share at different times
        mb = together - 1 - mb
    return copy, part * together + mb


@helper
def panels_behind(args, t, tile, parts, group, m0, c0, channels):  # type: ignore[no-untyped-def]
    """Elements from the last panel of a tile (or of its channels) to the one that comes after it, 0 where none does.

    What lies behind in memory may be another worker's copy, whose lines it would have to fetch back.
    """
    depth = t.depth
    here = panel_start(t, group, m0, c0, channels)
    after = c0 + channels
    if after < depth:
        first = m0 // args.mc * args.mc
        return panel_start(t, group, first, after, min(t.channels, depth - after)) - here
    if tile + 1 == t.tiles:
        return 0
    copy, mb = open_block(args, t, tile + 1, parts)
    group = copy % t.groups
    return panel_start(t, group, mb * args.mc, 0, min(t.channels, depth)) - here


@helper
def transpose_runs(args, t, sums, step, channels, out, transposed_step, images, planes, lines, columns):  # type: ignore[no-untyped-def]
    """A tile's sums, transposed: into `out`, rows transposed_step apart, or (0) run by run into the result."""
    block = stack_record(TRANSPOSE)
    pixels = images * planes * lines * columns
    run = pixels
    y_step = transposed_step
    if transposed_step == 0:
        y_step = t.y_k
        merge = t.merge
        run = columns
        if merge >= 2:
            run *= lines
        if merge >= 3:
            run *= planes
        if merge >= 4:
            run *= images
    block.rows = run
    block.columns = channels
    block.transposed_step = y_step
    block.sums_step = step
    for first in range(0, pixels, run):
        rest, p = divmod(first // columns, lines)
        n, o = divmod(rest, planes)
        at = n * t.y_n + o * t.y_o + p * t.y_p
        block.transposed = out + args.acc_size * at
        block.sums = sums + args.acc_size * first * step
        call_range(args.transpose, block, 0, 0, 1)


@functools.cache
def make_channels_last() -> RangeKernel:
    """Tiles (pass, block of pixels, group, block of columns) of the result.

    Each panel of weights is packed, where that is each tile's own business, multiplied, transposed and ended while it
    lies in the caches.  A worker copies what a block of pixels meets once for all its blocks of columns, for itself:
    copies that workers share went from core to core.
    """

    @range_kernel("conv_implicit_channels_last", BYTES, spec=())
    def implicit_channels_last(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        places = address_of(args.panel[worker])
        held = record(HELD, address_of(args.held[worker]))
        product = stack_record(MULTIPLY_ROWS)
        for number in range(lo, hi):
            t, copy = open_pass(args, number)
            parts = 1
            if t.by_rows:
                parts = load_scalar(args.workers, 0)
                while args.m_blocks % parts:
                    parts -= 1
            tile = copy
            copy, mb = open_block(args, t, tile, parts)
            group, n0, o0, p0, q0, images, planes, lines, columns = open_tile(t, copy)
            pixels = images * planes * lines * columns
            m0 = mb * args.mc
            rows = min(args.mc, t.rows - m0)
            row0 = group * t.rows + m0
            out = address_of(args.out) + args.out_size * y_start(t, n0, row0, o0, p0, q0)
            c = address_of(args.c) + args.out_size * c_start(t, n0, row0, o0, p0, q0)
            in_out = t.sums_in_out
            total = address_of(args.sums[worker])
            step = t.sums_step
            if in_out and args.transpose == 0:
                total = out
                step = t.y_q
            # where each pixel's window begins
            at = 0
            for n in range(images):
                for o in range(planes):
                    for p in range(lines):
                        place = n * t.unit_n + o * t.unit_o + p * t.unit_p
                        for q in range(columns):
                            store_word(places, at, place + q * t.unit_q)
                            at += 1
            window = t.window
            depth = t.depth
            block = t.channels
            run_taps = t.run_taps
            unit = t.pitch
            a = address_of(args.staged[worker])
            if t.direct:
                unit = 1
            elif window > 0 and (held.table != block_of(t) or held.copy != copy):
                # blocks of rows of the same pixels follow one another
                held.table = block_of(t)
                held.copy = copy
                stage_block(args, t, a, images, n0, o0, p0, q0, group * depth, depth)
            product.pixels = pixels
            product.total_step = step
            product.places = places
            product.unit = unit
            product.taps = t.taps
            product.window = window
            product.run_taps = max(run_taps, 1)
            once = args.transpose and block == depth
            transposed_step = 0
            if args.transpose and in_out == 0:
                transposed_step = (pixels + 15) // 16 * 16
            for c0 in range(0, depth, block):
                channels = min(block, depth - c0)
                k = channels * window
                if t.direct:
                    a = input_start(args, t, n0, group * depth + c0, o0, p0, q0)
                product.a = a
                product.k = k
                product.first = 1 if c0 == 0 else 0
                product.run = channels * run_taps
                a += args.acc_size * channels
                for first in range(0, rows, args.width):
                    there = min(args.width, rows - first)
                    sums = total if once else total + args.acc_size * first
                    b = panels_of(args, t, worker, group, m0 + first, there, c0, channels)
                    soon = 0
                    if args.private == 0:
                        soon = args.width * k
                        if first + args.width >= rows:
                            soon = panels_behind(args, t, tile, parts, group, m0 + first, c0, channels)
                    product.next = soon
                    product.b = b
                    product.total = sums
                    product.columns = there
                    call_range(args.multiply, product, 0, 0, 1)
                    if c0 + channels < depth:
                        continue
                    out_here = out + args.out_size * first * t.y_k
                    ends_step = step
                    if args.transpose:
                        ends = out_here
                        ends_step = t.y_k
                        if transposed_step > 0:
                            ends = address_of(args.transposed[worker])
                            ends_step = transposed_step
                        transpose_runs(
                            args, t, sums, step, there, ends, transposed_step,
                            images, planes, lines, columns,
                        )  # fmt: skip
                        sums = ends
                    if args.finish and (in_out == 0 or t.merge == 4):
                        finish_tile(
                            args, t, args.transpose != 0, out_here, sums, ends_step,
                            c + args.out_size * first * t.c_k, row0 + first, there,
                            images, planes, lines, columns,
                        )  # fmt: skip

    return implicit_channels_last
