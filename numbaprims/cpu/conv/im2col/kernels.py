"""The column matrix and its way back: im2col and col2im, one channel of one image at a time."""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.implicit.gather import stage_row
from numbaprims.cpu.conv.implicit.tiles import FINISH_AT, IMPLICIT, finish_constants
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    call_range,
    load,
    load_first,
    load_scalar,
    load_word,
    pointer_from_address,
    stack_words,
    store,
    store_first,
    store_scalar,
    store_word,
    zeros,
)

# Words behind `columns`: where the matrix begins in the workspace (bytes), elements from row to row of it, and the
# geometry; x: steps of the input (of its gradient), c: of the array that is added to it.
COLUMN_WORDS = (
    "at", "pitch", "channels", "z", "r", "s", "size_d", "size_h", "size_w", "grid_o", "grid_p", "grid_q",
    "stride_d", "stride_h", "stride_w", "dilation_d", "dilation_h", "dilation_w", "pad_d", "pad_h", "pad_w",
    "x_n", "x_c", "x_d", "x_h", "x_w", "c_n", "c_c", "c_d", "c_h", "c_w",
)  # fmt: skip
KERNEL, SIZE, GRID, STRIDE, DILATION, PAD, X, C = (
    COLUMN_WORDS.index(name) for name in ("z", "size_d", "grid_o", "stride_d", "dilation_d", "pad_d", "x_n", "c_n")
)


@functools.cache
def make_columns(dtype: str, acc: str, W: int) -> RangeKernel:
    """Tiles (image, channel): matrix[image][channel][tap][pixel] = the input under that tap, 0 in the padding.

    A row may be written up to W - 1 elements past its pixels: `pitch` leaves room for them.
    """
    EVENS = " ".join(str(lane) for lane in range(0, 2 * W, 2))

    @range_kernel("conv_columns", IMPLICIT.types(first=dtype), spec=(dtype, acc, W))
    def conv_columns(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        g = args.columns
        pitch = load_word(g, 1)
        columns = load_word(g, GRID + 2)
        matrix = pointer_from_address(address_of(args.workspace) + load_word(g, 0), acc)
        window = load_word(g, KERNEL) * load_word(g, KERNEL + 1) * load_word(g, KERNEL + 2)
        step = load_word(g, STRIDE + 2)
        for tile in range(lo, hi):
            n, c = divmod(tile, load_word(g, 2))
            source = advance(args.first, n * load_word(g, X) + c * load_word(g, X + 1))
            at = tile * window * pitch
            for z in range(load_word(g, KERNEL)):
                for r in range(load_word(g, KERNEL + 1)):
                    for s in range(load_word(g, KERNEL + 2)):
                        first = s * load_word(g, DILATION + 2) - load_word(g, PAD + 2)
                        low = 0
                        if first < 0:
                            low = (step - 1 - first) // step
                        high = min(columns, (load_word(g, SIZE + 2) - 1 - first) // step + 1)
                        place = at
                        for o in range(load_word(g, GRID)):
                            d = o * load_word(g, STRIDE) - load_word(g, PAD) + z * load_word(g, DILATION)
                            for p in range(load_word(g, GRID + 1)):
                                h = p * load_word(g, STRIDE + 1) - load_word(g, PAD + 1)
                                h += r * load_word(g, DILATION + 1)
                                end = high
                                if d < 0 or d >= load_word(g, SIZE) or h < 0 or h >= load_word(g, SIZE + 1):
                                    end = 0
                                start = d * load_word(g, X + 2) + h * load_word(g, X + 3) + first * load_word(g, X + 4)
                                stage_row(
                                    matrix, place, source, start, step * load_word(g, X + 4), low, end, columns,
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

    @range_kernel("conv_fold", IMPLICIT.types(), spec=(acc, W))
    def conv_fold(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        g = args.columns
        pitch = load_word(g, 1)
        matrix = pointer_from_address(address_of(args.workspace) + load_word(g, 0), acc)
        mine = address_of(args.workspace) + args.shared_bytes + worker * args.worker_bytes
        row = pointer_from_address(mine, acc)
        lines = load_word(g, GRID + 1)
        columns = load_word(g, GRID + 2)
        width = load_word(g, SIZE + 2)
        step = load_word(g, STRIDE + 2)
        window = load_word(g, KERNEL) * load_word(g, KERNEL + 1) * load_word(g, KERNEL + 2)
        block = stack_words(80)
        finish_constants(args, block, 2 if args.has_bias else 0)
        store_word(block, FINISH_AT, width)
        store_word(block, FINISH_AT + 1, 0)
        store_word(block, FINISH_AT + 2, 0)
        store_word(block, FINISH_AT + 3, load_word(g, X + 4))
        store_word(block, FINISH_AT + 4, 0)
        store_word(block, FINISH_AT + 5, load_word(g, C + 4))
        store_word(block, FINISH_AT + 10, 0)
        store_word(block, FINISH_AT + 12, 0)
        store_word(block, 1, mine)
        for tile in range(lo, hi):
            n, c = divmod(tile, load_word(g, 2))
            store_word(block, FINISH_AT + 9, c)
            for d in range(load_word(g, SIZE)):
                for h in range(load_word(g, SIZE + 1)):
                    for i in range(0, width, W):
                        store(row, i, zeros(acc, W))
                    t = tile * window
                    for z in range(load_word(g, KERNEL)):
                        o, off = divmod(d + load_word(g, PAD) - z * load_word(g, DILATION), load_word(g, STRIDE))
                        skip = off != 0 or o < 0 or o >= load_word(g, GRID)
                        for r in range(load_word(g, KERNEL + 1)):
                            up = h + load_word(g, PAD + 1) - r * load_word(g, DILATION + 1)
                            p, off = divmod(up, load_word(g, STRIDE + 1))
                            if skip or off != 0 or p < 0 or p >= lines:
                                t += load_word(g, KERNEL + 2)
                                continue
                            for s in range(load_word(g, KERNEL + 2)):
                                source = advance(matrix, t * pitch + (o * lines + p) * columns)
                                t += 1
                                # column q falls on first + q * step
                                first = s * load_word(g, DILATION + 2) - load_word(g, PAD + 2)
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
                    at = n * load_word(g, X) + c * load_word(g, X + 1) + d * load_word(g, X + 2)
                    at += h * load_word(g, X + 3)
                    store_word(block, 0, address_of(args.out) + args.out_size * at)
                    at = n * load_word(g, C) + c * load_word(g, C + 1) + d * load_word(g, C + 2)
                    at += h * load_word(g, C + 3)
                    store_word(block, 2, address_of(args.c) + args.out_size * at)
                    call_range(args.finish, block, 0, 0, 1)

    return conv_fold
