"""Planes transposed to channels last and back: the copy of the input that a tile meets, and a tile's sums."""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.implicit.gather import STAGE, stage_row
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    Arguments,
    advance,
    first_lanes,
    load,
    load_masked,
    load_scalar,
    load_wide,
    load_wide_first,
    load_wide_rows,
    load_wide_scalar,
    prefetch,
    shuffle,
    stack_tile,
    store,
    store_first,
    store_rows,
    store_scalar,
    transpose,
    widen,
    zeros,
)
from numbaprims.dtypes import DTYPES


@helper
def zero_pixels(target, first, last, pitch, channels, acc, W):  # type: ignore[no-untyped-def]
    """Pixels first ... last - 1 of a copy's row; the next one's begin may be overwritten."""
    for i in range(first, last):
        for c in range(0, channels, W):
            store(target, i * pitch + c, zeros(acc, W))


@functools.cache
def make_stage_channels_last(dtype: str, acc: str, W: int) -> RangeKernel:
    """The copy with channels last: staged[image][plane][row][column][channel]; up to W - 1 elements past its end."""
    types = STAGE.types(staged=acc, source=dtype)
    LINE = 64 // DTYPES[dtype].itemsize
    # of elements 0 ... W - 1 and W - 1 ... 2 W - 2: nothing behind the last is read
    EVENS = " ".join(str(lane + lane // W) for lane in range(0, 2 * W, 2))

    @range_kernel("conv_stage_channels_last", types, spec=(dtype, acc, W))
    def conv_stage_channels_last(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        columns = args.columns
        channels = args.channels
        pitch = args.pitch
        c_step = args.c_step
        w_step = args.w_step
        room = stack_tile(acc, W, 1, W)
        low = max(0, -args.first_w)
        high = min(columns, args.size_w - args.first_w)
        near = 0 < w_step <= 2
        run = pitch == channels and c_step == 1 and w_step == channels
        staged = args.staged
        for n in range(args.images_there):
            for plane in range(args.planes):
                d = args.first_d + plane
                for row in range(args.rows):
                    h = args.first_h + row
                    start = n * args.n_step + d * args.d_step + h * args.h_step + args.first_w * w_step
                    end = high
                    if d < 0 or d >= args.size_d or h < 0 or h >= args.size_h or high <= low:
                        end = low
                    if run:
                        stage_row(
                            staged, 0, args.source, start, 1, low * channels, end * channels, columns * channels,
                            W, "", acc,
                        )  # fmt: skip
                    elif c_step != 1:
                        # planes: blocks of W channels times W columns are transposed in registers; from the last
                        # channels to the first, whose vectors may reach into the next column's
                        zero_pixels(staged, 0, low, pitch, channels, acc, W)
                        for c in range((channels - 1) // W * W, -1, -W):
                            count = min(channels - c, W)
                            for j in range(low, end, W):
                                # a last block repeats columns of the one before, so that it is whole
                                i = max(min(j, end - W), low)
                                valid = min(end - i, W)
                                corner = advance(args.source, start + i * w_step + c * c_step)
                                target = advance(staged, i * pitch + c)
                                if c >= W and near:
                                    # the next block's rows: no prefetcher follows jumps from channel to channel
                                    for r in range(W):
                                        for v in range(0, w_step * W, LINE):
                                            prefetch(corner, v + (r - W) * c_step, 3)
                                if w_step == 2:
                                    one = first_lanes(2 * valid - 1, W)
                                    two = first_lanes(2 * valid - W, W)
                                    for r in range(count):
                                        left = load_masked(corner, r * c_step, one)
                                        right = load_masked(corner, r * c_step + W - 1, two)
                                        store(room, r * W, widen(shuffle(left, right, EVENS)))
                                    block = transpose(load_wide_rows(room, W, count, W, W))
                                elif w_step != 1:
                                    for r in range(count):
                                        for lane in range(valid):
                                            value = load_wide_scalar(corner, r * c_step + lane * w_step)
                                            store_scalar(room, r * W + lane, value)
                                    block = transpose(load_wide_rows(room, W, count, W, W))
                                elif valid == W:
                                    block = transpose(load_wide_rows(corner, c_step, count, W, W))
                                else:
                                    block = transpose(load_wide_rows(corner, c_step, count, valid, W))
                                if valid == W:
                                    store_rows(target, pitch, block)
                                else:
                                    store_rows(room, W, block)
                                    for r in range(valid):
                                        store(target, r * pitch, load(room, r * W, W))
                        zero_pixels(staged, end, columns, pitch, channels, acc, W)
                    else:
                        zero_pixels(staged, 0, low, pitch, channels, acc, W)
                        whole = channels - channels % W
                        for i in range(low, end):
                            target = advance(staged, i * pitch)
                            source = advance(args.source, start + i * w_step)
                            for c in range(0, whole, W):
                                store(target, c, load_wide(source, c, W))
                            if whole < channels:
                                store(target, whole, load_wide_first(source, whole, channels - whole, W))
                        zero_pixels(staged, end, columns, pitch, channels, acc, W)
                    staged = advance(staged, columns * pitch)

    return conv_stage_channels_last


# transposed[column][row] = sums[row][column].
TRANSPOSE = Arguments(arrays=("transposed", "sums"), ints=("rows", "columns", "transposed_step", "sums_step"))


@functools.cache
def make_transpose(acc: str, W: int) -> RangeKernel:
    """Transpose a tile's sums, W x W at a time in registers; a last few rows one by one."""
    FEW = 4

    @range_kernel("conv_sums_transpose", TRANSPOSE.types(transposed=acc, sums=acc), spec=(acc, W))
    def conv_sums_transpose(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        room = stack_tile(acc, W, 1, W)
        step = args.transposed_step
        for j in range(0, args.columns, W):
            valid = min(args.columns - j, W)
            for first in range(0, args.rows, W):
                i = first
                if first > 0 and args.rows - first > FEW:
                    # a last block repeats rows of the one before, so that it is whole
                    i = min(first, args.rows - W)
                count = min(args.rows - i, W)
                source = advance(args.sums, i * args.sums_step + j)
                target = advance(args.transposed, j * step + i)
                if count == W and valid == W:
                    store_rows(target, step, transpose(load_wide_rows(source, args.sums_step, W, W, W)))
                elif count <= FEW:
                    for c in range(valid):
                        for r in range(count):
                            store_scalar(target, c * step + r, load_scalar(source, r * args.sums_step + c))
                else:
                    store_rows(room, W, transpose(load_wide_rows(source, args.sums_step, count, valid, W)))
                    for c in range(valid):
                        store_first(target, c * step, count, load(room, c * W, W))

    return conv_sums_transpose
