"""The column matrix and its way back: im2col and col2im, one channel of one image at a time."""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.implicit.gather import stage_row
from numbaprims.cpu.conv.implicit.tiles import IMPLICIT, finish_constants
from numbaprims.cpu.gemm.arguments import FINISH
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    Record,
    address_of,
    advance,
    call_range,
    load,
    load_first,
    load_scalar,
    record,
    stack_record,
    store,
    store_first,
    store_scalar,
    zeros,
)

# The table at `columns`: elements from row to row of the matrix, and the geometry; x: steps of the input (of its
# gradient), c: of the array that is added to it.
COLUMNS = Record(
    "pitch", "channels", "z", "r", "s", "size_d", "size_h", "size_w", "grid_o", "grid_p", "grid_q",
    "stride_d", "stride_h", "stride_w", "dilation_d", "dilation_h", "dilation_w", "pad_d", "pad_h", "pad_w",
    "x_n", "x_c", "x_d", "x_h", "x_w", "c_n", "c_c", "c_d", "c_h", "c_w",
)  # fmt: skip


@functools.cache
def make_columns(dtype: str, acc: str, W: int) -> RangeKernel:
    """Tiles (image, channel): matrix[image][channel][tap][pixel] = the input under that tap, 0 in the padding.

    A row may be written up to W - 1 elements past its pixels: `pitch` leaves room for them.
    """
    EVENS = " ".join(str(lane) for lane in range(0, 2 * W, 2))

    @range_kernel("conv_columns", IMPLICIT.types(first=dtype, matrix=acc), spec=(dtype, acc, W))
    def conv_columns(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        g = record(COLUMNS, args.columns)
        pitch = g.pitch
        columns = g.grid_q
        matrix = args.matrix
        window = g.z * g.r * g.s
        step = g.stride_w
        for tile in range(lo, hi):
            n, c = divmod(tile, g.channels)
            source = advance(args.first, n * g.x_n + c * g.x_c)
            at = tile * window * pitch
            for z in range(g.z):
                for r in range(g.r):
                    for s in range(g.s):
                        first = s * g.dilation_w - g.pad_w
                        low = 0
                        if first < 0:
                            low = (step - 1 - first) // step
                        high = min(columns, (g.size_w - 1 - first) // step + 1)
                        place = at
                        for o in range(g.grid_o):
                            d = o * g.stride_d - g.pad_d + z * g.dilation_d
                            for p in range(g.grid_p):
                                h = p * g.stride_h - g.pad_h
                                h += r * g.dilation_h
                                end = high
                                if d < 0 or d >= g.size_d or h < 0 or h >= g.size_h:
                                    end = 0
                                start = d * g.x_d + h * g.x_h + first * g.x_w
                                stage_row(
                                    matrix, place, source, start, step * g.x_w, low, end, columns,
                                    W, EVENS, acc,
                                )  # fmt: skip
                                place += columns
                        at += pitch

    return conv_columns


@functools.cache
def make_fold(acc: str, W: int) -> RangeKernel:
    """Tiles (image, channel): each row of the gradient sums the rows of the matrix that meet it, then ends.

    Terms are added in the order of the taps, whoever computes the tile.
    """

    @range_kernel("conv_fold", IMPLICIT.types(matrix=acc, row=acc), spec=(acc, W))
    def conv_fold(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        g = record(COLUMNS, args.columns)
        pitch = g.pitch
        matrix = args.matrix
        row = args.row[worker]
        lines = g.grid_p
        columns = g.grid_q
        width = g.size_w
        step = g.stride_w
        window = g.z * g.r * g.s
        block = stack_record(FINISH)
        finish_constants(args, block, 2 if args.has_bias else 0)
        block.columns = width
        block.total_step = 0
        block.out_rs = 0
        block.out_cs = g.x_w
        block.c_rs = 0
        block.c_cs = g.c_w
        block.j = 0
        block.in_place = 0
        block.total = address_of(row)
        for tile in range(lo, hi):
            n, c = divmod(tile, g.channels)
            block.i = c
            for d in range(g.size_d):
                for h in range(g.size_h):
                    for i in range(0, width, W):
                        store(row, i, zeros(acc, W))
                    t = tile * window
                    for z in range(g.z):
                        o, off = divmod(d + g.pad_d - z * g.dilation_d, g.stride_d)
                        skip = off != 0 or o < 0 or o >= g.grid_o
                        for r in range(g.r):
                            up = h + g.pad_h - r * g.dilation_h
                            p, off = divmod(up, g.stride_h)
                            if skip or off != 0 or p < 0 or p >= lines:
                                t += g.s
                                continue
                            for s in range(g.s):
                                source = advance(matrix, t * pitch + (o * lines + p) * columns)
                                t += 1
                                # column q falls on first + q * step
                                first = s * g.dilation_w - g.pad_w
                                low = 0
                                if first < 0:
                                    low = (step - 1 - first) // step
                                high = min(columns, (width - 1 - first) // step + 1)
                                if step == 1:
                                    for q in range(low, high, W):
                                        left = min(high - q, W)
                                        if left == W:
                                            x = load(row, first + q, W) + load(source, q, W)
                                            store(row, first + q, x)
                                        else:
                                            x = load_first(row, first + q, left, W) + load_first(source, q, left, W)
                                            store_first(row, first + q, left, x)
                                else:
                                    for q in range(low, high):
                                        x = load_scalar(row, first + q * step) + load_scalar(source, q)
                                        store_scalar(row, first + q * step, x)
                    at = n * g.x_n + c * g.x_c + d * g.x_d
                    at += h * g.x_h
                    block.out = address_of(args.out) + args.out_size * at
                    at = n * g.c_n + c * g.c_c + d * g.c_d
                    at += h * g.c_h
                    block.c = address_of(args.c) + args.out_size * at
                    call_range(args.finish, block, 0, 0, 1)

    return conv_fold
