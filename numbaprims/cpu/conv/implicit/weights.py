"""Weights as panels of a product: for each group and block of channels, panels of `width` rows over (channel, tap)."""

from __future__ import annotations

import functools

from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    Arguments,
    advance,
    load,
    load_wide_first,
    load_wide_rows,
    load_wide_scalar,
    load_wide_strided,
    load_word,
    prefetch,
    stack_tile,
    store,
    store_first,
    store_rows,
    store_scalar,
    transpose,
)

# One panel of all channels: `rows` rows there are, `depth` channels in blocks of `block`; `taps` is the address of
# window offsets; `plain` where these are 0, 1, 2, ...; panel_step: elements of all panels for one (channel, tap);
# width: rows of a panel; taps_first: 1 where a panel holds all channels of a tap, then those of the next, 0 for all
# taps of a channel.
WEIGHTS = Arguments(
    arrays=("panels", "source"),
    ints=(
        "rows", "depth", "block", "window", "taps", "plain", "row_step", "c_step", "q", "panel_step", "taps_first",
        "width",
    ),
)  # fmt: skip


@functools.cache
def make_pack_weights(dtype: str, acc: str, W: int) -> RangeKernel:
    """Pack panel q: block b of channels begins at b * block * window * panel_step, its panel q * width * k further.

    Rows past the last repeat others or hold anything: their sums are not kept.
    """
    types = WEIGHTS.types(panels=acc, source=dtype)
    FAR = 64  # elements between rows up to which all rows of a channel are a few lines
    LINE = 16
    NEXT = 12  # channels between an element that is read and one that is asked for

    @range_kernel("conv_pack_weights", types, spec=(dtype, acc, W))
    def conv_pack_weights(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        window, height = args.window, args.width
        row_step = args.row_step
        room = stack_tile(acc, W, 1, W)
        source = advance(args.source, args.q * height * row_step)
        rows = min(height, args.rows - args.q * height)
        # channels follow one another without gaps: one run of neighbours instead of one a channel
        run = window
        if args.plain and args.c_step == window:
            run = window * args.block
        low = 0
        high = 0
        for t in range(window):
            low = min(low, load_word(args.taps, t))
            high = max(high, load_word(args.taps, t) + 1)
        for c0 in range(0, args.depth, args.block):
            channels = min(args.block, args.depth - c0)
            k = channels * window
            k_c = 1 if args.taps_first else window
            k_t = channels if args.taps_first else 1
            panel = advance(args.panels, c0 * window * args.panel_step + args.q * height * k)
            block = advance(source, c0 * args.c_step)
            if args.plain and row_step != 1:
                for start in range(0, k, run):
                    length = min(run, k - start)
                    here = advance(block, start // window * args.c_step)
                    if run == window and row_step <= FAR:
                        # the next channel's weights for these rows: no prefetcher follows jumps of pages
                        for i in range(0, rows * row_step, LINE):
                            prefetch(here, args.c_step + i, 3)
                    for v in range(0, rows, W):
                        count = min(rows - v, W)
                        width = min(height - v, W)
                        target = advance(panel, v)
                        corner = advance(here, v * row_step)
                        for p in range(0, length, W):
                            valid = min(length - p, W)
                            lines = transpose(load_wide_rows(advance(corner, p), row_step, count, valid, W))
                            store_rows(room, W, lines)
                            c, t = divmod(start + p, window)
                            for i in range(valid):
                                place = (c * k_c + t * k_t) * height
                                if width == W:
                                    store(target, place, load(room, i * W, W))
                                else:
                                    store_first(target, place, width, load(room, i * W, W))
                                t += 1
                                if t == window:
                                    t = 0
                                    c += 1
            elif row_step > 1 and low >= 0 and high <= min(row_step, W):
                # some taps of each channel, a few elements from row to row: the taps of W rows are transposed in
                # registers, 4 cycles for each vector; one by one they cost 30
                for c in range(channels):
                    for v in range(0, rows, W):
                        count = min(rows - v, W)
                        width = min(height - v, W)
                        corner = advance(block, c * args.c_step + v * row_step)
                        for i in range(0, count * row_step, LINE):
                            prefetch(corner, 2 * args.c_step + i, 3)
                        store_rows(room, W, transpose(load_wide_rows(corner, row_step, count, high, W)))
                        for t in range(window):
                            place = (c * k_c + t * k_t) * height + v
                            store_first(panel, place, width, load(room, load_word(args.taps, t) * W, W))
            else:
                for c in range(channels):
                    for t in range(window):
                        at = c * args.c_step + load_word(args.taps, t)
                        place = (c * k_c + t * k_t) * height
                        for v in range(0, rows, W):
                            count = min(rows - v, W)
                            width = min(height - v, W)
                            first = at + v * row_step
                            if row_step == 1:
                                # rows of a matrix, a page or more apart
                                prefetch(block, first + NEXT * args.c_step, 3)
                                value = load_wide_first(block, first, count, W)
                                store_first(panel, place + v, width, value)
                            elif count == W:
                                value = load_wide_strided(block, first, row_step, W)
                                store_first(panel, place + v, width, value)
                            else:
                                for i in range(count):
                                    value = load_wide_scalar(block, first + i * row_step)
                                    store_scalar(panel, place + v + i, value)

    return conv_pack_weights
