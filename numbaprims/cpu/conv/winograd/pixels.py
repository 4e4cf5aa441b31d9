"""What of the transforms depends on types and layouts: pixels and filters into a buffer, outputs out of it.

The transforms call these by pointer, a line of tiles at a time, so that one serves float32 and both 16-bit types in
every layout: the tests of convolutions compiled 200 transforms of the input before.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.winograd.table import BLOCK, TABLE
from numbaprims.cpu.gemm.finish import activate_in_place, load_steps
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    advance,
    load,
    load_rows,
    load_scalar,
    load_wide,
    load_wide_first,
    load_wide_rows,
    multiply_add,
    pointer_from_address,
    prefetch_write,
    record,
    scalar,
    splat,
    store,
    store_narrow,
    store_narrow_first,
    store_narrow_rows,
    store_narrow_scalar,
    store_rows,
    transpose,
    zeros,
)

PLANES, CHANNELS_LAST, STRIDED = 0, 1, 2  # how channels lie: in planes, behind the pixels, or in any other way
# How filters lie: the taps of a channel, and the channels of a filter, side by side; the taps do, reversed; neither.
DENSE, REVERSED, ANY_ORDER = 0, 1, 2
SHIFT, AHEAD, WRITE_ROWS = 0, 1, 2  # steps of a write


@functools.cache
def make_read(dtype: str, acc: str, FORM: int, W: int) -> RangeKernel:
    """buffer[row][pixel][W] = x for `rows` rows, `down` apart from row `at_h` on, of pixels left ... right - 1 of
    `columns`; zeros outside of x.  Column 0 of row 0 of x is element `at`."""

    @range_kernel("winograd_read", BLOCK.types(x=dtype), spec=(dtype, acc, FORM, W))
    def winograd_read(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = record(TABLE, args.table)
        zero = zeros(acc, W)
        step_c, step_w = t.x_sc, t.x_sw
        left, right, channels = args.left, args.right, args.channels
        for i in range(args.rows):
            row = advance(pointer_from_address(args.buffer, acc), i * args.row_step)
            h = args.at_h + i * args.down
            if h < 0 or h >= t.x_h:
                for j in range(args.columns):
                    store(row, j * W, zero)
            else:
                x = advance(args.x, args.at + h * t.x_sh)
                for j in range(left):
                    store(row, j * W, zero)
                if FORM == PLANES:
                    j = left
                    while j + W <= right:
                        block = load_wide_rows(advance(x, j), step_c, channels, W, W)
                        store_rows(advance(row, j * W), W, transpose(block))
                        j += W
                    if j < right:
                        block = load_wide_rows(advance(x, j), step_c, channels, right - j, W)
                        store_rows(advance(row, j * W), W, transpose(block))
                elif FORM == CHANNELS_LAST:
                    if channels == W:
                        for j in range(left, right):
                            store(row, j * W, load_wide(x, j * step_w, W))
                    else:
                        for j in range(left, right):
                            store(row, j * W, load_wide_first(x, j * step_w, channels, W))
                else:
                    for j in range(left, right):
                        store(row, j * W, load_steps(x, j * step_w, step_c, channels, W, acc))
                for j in range(right, args.columns):
                    store(row, j * W, zero)

    return winograd_read


@helper
def store_row(out, step_k, step_w, row, width, channels, FORM, W):  # type: ignore[no-untyped-def]
    """row[pixel][W] to `width` pixels of a row of the result."""
    if FORM == PLANES:
        for j in range(0, width, W):
            # a rest is stored again together with pixels before it
            start = j if j + W <= width else max(0, width - W)
            block = transpose(load_rows(advance(row, start * W), W, W, W))
            store_narrow_rows(advance(out, start), step_k, channels, width - start, block)
    elif FORM == CHANNELS_LAST:
        if channels == W:
            for j in range(width):
                store_narrow(out, j * step_w, load(row, j * W, W))
        else:
            for j in range(width):
                store_narrow_first(out, j * step_w, channels, load(row, j * W, W))
    else:
        for j in range(width):
            for k in range(channels):
                store_narrow_scalar(out, j * step_w + k * step_k, load_scalar(row, j * W + k))


@functools.cache
def make_write(acc: str, out: str, bias: str, FORM: int, W: int) -> RangeKernel:
    """Steps of a line of tiles.  SHIFT: what the transform adds to each output, then what is added behind alpha: the
    bias is one of them, the other is 0.  AHEAD: the lines of the result that will be written.  ROWS: alpha, c, the
    activation, and `rows` rows of the buffer of `columns` pixels to the element `at` of the result."""
    types = BLOCK.types(out=out, c=out, bias=bias)

    @range_kernel("winograd_write", types, spec=(acc, out, bias, FORM, W))
    def winograd_write(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = record(TABLE, args.table)
        shifts = pointer_from_address(args.shifts, acc)
        channels, width = args.channels, args.columns
        combined = t.combined
        if lo == SHIFT:
            shift = zeros(acc, W)
            if args.has_bias:
                shift = load_steps(args.bias, args.at * args.bias_step, args.bias_step, channels, W, acc)
            store(shifts, 0, zeros(acc, W))
            store(shifts, combined * W, shift)
        elif lo == AHEAD:
            if FORM == PLANES:
                for k in range(channels):
                    for i in range(args.rows):
                        for j in range(0, width, W):
                            prefetch_write(args.out, args.at + k * t.o_sk + i * t.o_sh + j, 3)
        else:
            for i in range(args.rows):
                row = advance(pointer_from_address(args.buffer, acc), i * args.row_step)
                if combined:
                    alpha, beta = splat(scalar(args.alpha, acc), W), splat(scalar(args.beta, acc), W)
                    shift = load(shifts, W, W)
                    for j in range(width):
                        x = multiply_add(load(row, j * W, W), alpha, shift)
                        if args.has_c:
                            at = args.at_c + i * t.c_sh + j * t.c_sw
                            x = multiply_add(load_steps(args.c, at, t.c_sk, channels, W, acc), beta, x)
                        store(row, j * W, x)
                if args.activation != 0:
                    activate_in_place(args, row, width * W)
                target = advance(args.out, args.at + i * t.o_sh)
                store_row(target, t.o_sk, t.o_sw, row, width, channels, FORM, W)

    return winograd_write


@functools.cache
def make_read_weights(dtype: str, acc: str, ORDER: int, W: int) -> RangeKernel:
    """buffer[channel][tap][W filters] = w from the element `at` on, for `rows` filters."""

    @range_kernel("winograd_read_weights", BLOCK.types(w=dtype), spec=(dtype, acc, ORDER, W))
    def winograd_read_weights(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        t = record(TABLE, args.table)
        given, w = pointer_from_address(args.buffer, acc), advance(args.w, args.at)
        filters, channels = args.rows, args.channels
        R, S = t.taps_h, t.taps_w
        taps = R * S
        if ORDER == DENSE:
            for e in range(0, channels * taps, W):
                block = load_wide_rows(advance(w, e), t.w_sk, filters, min(W, channels * taps - e), W)
                store_rows(advance(given, e * W), W, transpose(block))
        elif ORDER == REVERSED:
            for c in range(channels - 1, -1, -1):
                last = advance(w, c * t.w_sc - (taps - 1))
                for e in range(0, taps, W):
                    block = load_wide_rows(advance(last, e), t.w_sk, filters, min(W, taps - e), W)
                    store_rows(advance(given, ((c + 1) * taps - 1 - e) * W), -W, transpose(block))
        else:
            for c in range(channels):
                for r in range(R):
                    for s in range(S):
                        at = c * t.w_sc + r * t.w_sr + s * t.w_ss
                        value = load_steps(w, at, t.w_sk, filters, W, acc)
                        store(given, ((c * R + r) * S + s) * W, value)

    return winograd_read_weights
