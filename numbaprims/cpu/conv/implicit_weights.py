"""Weights as panels of a product: for each group and block of channels, panels of WIDTH rows over (channel, tap)."""

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
    load_word,
    stack_array,
    stack_tile,
    store_first,
    store_rows,
    store_scalar,
    transpose,
)

# One panel of all channels: `rows` rows there are, `depth` channels in blocks of `block`; `taps` is the address of
# window offsets; `plain` where these are 0, 1, 2, ...; panel_step: elements of all panels for one (channel, tap);
# taps_first: 1 where a panel holds all channels of a tap, then those of the next, 0 for all taps of a channel.
WEIGHTS = Arguments(
    arrays=("panels", "source"),
    ints=("rows", "depth", "block", "window", "taps", "plain", "row_step", "c_step", "q", "panel_step", "taps_first"),
)


@functools.cache
def make_pack_weights(dtype: str, acc: str, WIDTH: int, W: int) -> RangeKernel:
    """Pack panel q: block b of channels begins at b * block * window * panel_step, its panel q * WIDTH * k further.

    Rows past the last repeat others or hold anything: their sums are not kept.
    """
    types = WEIGHTS.types(panels=acc, source=dtype)

    @range_kernel("conv_pack_weights", types, spec=(dtype, acc, WIDTH, W))
    def conv_pack_weights(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        window = args.window
        row_step = args.row_step
        room = stack_tile(acc, W, 1, W)
        lane_room = stack_array(acc, W)
        source = advance(args.source, args.q * WIDTH * row_step)
        rows = min(WIDTH, args.rows - args.q * WIDTH)
        # channels follow one another without gaps: one run of neighbours instead of one a channel
        run = window
        if args.plain and args.c_step == window:
            run = window * args.block
        for c0 in range(0, args.depth, args.block):
            channels = min(args.block, args.depth - c0)
            k = channels * window
            k_c = 1 if args.taps_first else window
            k_t = channels if args.taps_first else 1
            panel = advance(args.panels, c0 * window * args.panel_step + args.q * WIDTH * k)
            block = advance(source, c0 * args.c_step)
            for v in range(0, rows, W):
                count = min(rows - v, W)
                width = min(WIDTH - v, W)
                corner = advance(block, v * row_step)
                target = advance(panel, v)
                if args.plain and row_step != 1:
                    for start in range(0, k, run):
                        here = advance(corner, start // window * args.c_step)
                        length = min(run, k - start)
                        for p in range(0, length, W):
                            valid = min(length - p, W)
                            lines = transpose(load_wide_rows(advance(here, p), row_step, count, valid, W))
                            store_rows(room, W, lines)
                            c, t = divmod(start + p, window)
                            for i in range(valid):
                                store_first(target, (c * k_c + t * k_t) * WIDTH, width, load(room, i * W, W))
                                t += 1
                                if t == window:
                                    t = 0
                                    c += 1
                else:
                    for p in range(k):
                        c, t = divmod(p, window)
                        at = c * args.c_step + load_word(args.taps, t)
                        place = (c * k_c + t * k_t) * WIDTH
                        if row_step == 1:
                            store_first(target, place, width, load_wide_first(corner, at, count, W))
                        else:
                            for i in range(count):
                                store_scalar(lane_room, i, load_wide_scalar(corner, at + i * row_step))
                            store_first(target, place, width, load(lane_room, 0, W))

    return conv_pack_weights
