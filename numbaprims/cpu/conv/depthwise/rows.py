"""Depthwise convolution of planes whose rows are contiguous: tiles of RT rows x W columns in registers.

An output row of W columns costs R S multiply-adds of vectors and S loads of each input row, which the rows of a tile
share: for 3x3 with stride 1 and 7 rows, 27 loads for 63 multiply-adds.  Bound: those multiply-adds while a plane is in
the first-level cache, else the bytes of x and y.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.conv.arguments import itemsize
from numbaprims.cpu.gemm.finish import activate_in_place
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    advance,
    load,
    load_first,
    load_wide_scalar,
    pointer_from_address,
    prefetch,
    prefetch_write,
    reduce_add,
    scalar,
    splat,
    stack_tile,
    store_narrow_first,
    store_narrow_scalar,
    tile_add,
    tile_load,
    tile_store,
    tile_zeros,
)
from numbaprims.cpu.simd.arguments import Arguments
from numbaprims.cpu.simd.tiles.window import window_end, window_gradient, window_rows, window_spread

# Forward and for the weights "in" is x and "out" is y, for the data "in" is dy and "out" is dx.  The result's channel
# k reads channel k // multiplier of "in".  row, column: where the first window begins in x (forward and weights), or
# what is added to an element of dx before it is divided by the stride.  first_row, first_column: where tiles begin, at
# or before the first element.  zeros: address of a row of zeros.  far: whether the arrays lie beyond the caches.
# waiting: a plane of sums.
ARGS = Arguments(
    arrays=("out", "first", "second", "c", "bias", "packed", "extra"),
    floats=("alpha", "beta", "p0", "p1", "p2"),
    ints=(
        "images", "channels", "multiplier", "in_h", "in_w", "out_h", "out_w",
        "row", "column", "first_row", "first_column",
        "in_n", "in_c", "in_row", "out_n", "out_c", "out_row", "c_n", "c_c", "c_row", "c_column",
        "w_k", "w_row", "w_column", "has_c", "has_bias", "bias_step", "activation", "zeros", "far",
    ),
    own=("waiting",),
)  # fmt: skip


@helper
def end_plane(args, total, step, out, out_row, rows, columns, SPLIT, W):  # type: ignore[no-untyped-def]
    """The activation of a plane of sums, and their way into the result where they waited elsewhere."""
    if args.activation != 0:
        if step == columns:
            activate_in_place(args, total, rows * columns)
        else:
            for p in range(rows):
                activate_in_place(args, advance(total, p * step), columns)
    if SPLIT:
        for p in range(rows):
            for q in range(0, columns, W):
                left = min(columns - q, W)
                store_narrow_first(out, p * out_row + q, left, load_first(total, p * step + q, left, W))


@helper
def prefetch_lines(x, out, x_at, out_at, x_lines, out_lines, LINE):  # type: ignore[no-untyped-def]
    """Prefetch lines of x that will be read and of out that will be written, one tile's share of each.

    Tiles walk over several rows at once, which no hardware prefetcher follows: 16x64x112x112 ran at 3 GB/s without.
    """
    for i in range(x_lines):
        prefetch(x, x_at + i * LINE, 3)
    for i in range(out_lines):
        prefetch_write(out, out_at + i * LINE, 3)


@functools.cache
def make_rows(
    dtype: str, acc: str, RT: int, R: int, S: int, SH: int, SW: int, W: int, C: int, SPLIT: int, SPREAD: int
) -> RangeKernel:
    """Kernel over planes of the result.

    C: whether beta c is added.  SPLIT: sums wait in the workspace for the activation, because the result's type is
    narrower than theirs.  SPREAD: the data gradient, whose windows are spread over the result.
    """
    types = ARGS.types(out=dtype, first=dtype, second=dtype, c=dtype, bias=dtype, waiting=acc)
    HIGH, NV = (RT * SH, SW) if SPREAD else (RT, 1)
    LINE = 64 // itemsize(dtype)
    X_LINES, OUT_LINES = (RT, RT * SH * SW) if SPREAD else (RT * SH * SW, RT)
    X_LINES, OUT_LINES = -(-X_LINES * W // LINE), -(-OUT_LINES * W // LINE)
    AHEAD = 64 * LINE

    @range_kernel("conv_depthwise_rows", types, spec=(dtype, acc, RT, R, S, SH, SW, W, C, SPLIT, SPREAD))
    def depthwise_rows(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        none = pointer_from_address(args.zeros, dtype)
        alpha = splat(scalar(args.alpha, acc), W)
        beta = splat(scalar(args.beta, acc), W)
        in_h, in_w, out_h, out_w = args.in_h, args.in_w, args.out_h, args.out_w
        for plane in range(lo, hi):
            n, k = divmod(plane, args.channels)
            x = advance(args.first, n * args.in_n + k // args.multiplier * args.in_c)
            w = advance(args.second, k * args.w_k)
            c = advance(args.c, n * args.c_n + k * args.c_c)
            out = advance(args.out, n * args.out_n + k * args.out_c)
            if SPLIT:
                total = args.waiting[worker]
                step = out_w
            else:
                total = out
                step = args.out_row
            shift = splat(scalar(0, acc), W)
            if args.has_bias:
                shift = splat(load_wide_scalar(args.bias, k * args.bias_step), W)
            for p in range(args.first_row, out_h, HIGH):
                for q in range(args.first_column, out_w, NV * W):
                    if SPREAD:
                        row = (p + args.row) // SH
                        column = (q + args.column) // SW
                    else:
                        row = p * SH + args.row
                        column = q * SW + args.column
                    if args.far:
                        tiles = q // (NV * W)
                        prefetch_lines(
                            x, out, AHEAD + max(row, 0) * args.in_row + tiles * (X_LINES * LINE),
                            AHEAD + max(p, 0) * args.out_row + tiles * (OUT_LINES * LINE), X_LINES, OUT_LINES, LINE,
                        )  # fmt: skip
                    if SPREAD:
                        sums = window_spread(
                            x, none, args.in_row, row, in_h, column, in_w, w, args.w_row, args.w_column,
                            RT, R, S, SH, SW, W,
                        )  # fmt: skip
                    else:
                        sums = window_rows(
                            x, none, args.in_row, row, in_h, column, in_w, w, args.w_row, args.w_column, 0,
                            RT, R, S, SH, SW, W,
                        )  # fmt: skip
                    window_end(
                        total, step, p, out_h, q, out_w, sums, alpha, c, args.c_row, beta, shift, C, NV
                    )  # fmt: skip
            end_plane(args, total, step, out, args.out_row, out_h, out_w, SPLIT, W)

    return depthwise_rows


@functools.cache
def make_gradient(dtype: str, acc: str, RT: int, R: int, S: int, SH: int, SW: int, W: int) -> RangeKernel:
    """Kernel over filters: the gradient of each by its weights, image by image.

    Lanes are added to totals after every image: sums of as many terms as there are pixels lose half of their digits.
    """
    types = ARGS.types(out=dtype, first=dtype, second=dtype, c=dtype)
    TAPS = R * S
    LINE = 64 // itemsize(dtype)
    X_LINES, Y_LINES, AHEAD = -(-RT * SH * SW * W // LINE), -(-RT * W // LINE), 64 * LINE

    @range_kernel("conv_depthwise_gradient", types, spec=(dtype, acc, RT, R, S, SH, SW, W))
    def depthwise_gradient(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        none = pointer_from_address(args.zeros, dtype)
        room = stack_tile(acc, TAPS, 1, W)
        in_h, in_w, out_h, out_w = args.in_h, args.in_w, args.out_h, args.out_w
        whole = out_h - out_h % RT
        for k in range(lo, hi):
            tile_store(room, W, tile_zeros(acc, TAPS, 1, W), TAPS, 1, W)
            for n in range(args.images):
                x = advance(args.second, n * args.in_n + k // args.multiplier * args.in_c)
                y = advance(args.first, n * args.out_n + k * args.out_c)
                sums = tile_zeros(acc, TAPS, 1, W)
                for p in range(0, whole, RT):
                    row = p * SH + args.row
                    for q in range(0, out_w, W):
                        if args.far:
                            at = AHEAD + max(row, 0) * args.in_row + q // W * (X_LINES * LINE)
                            prefetch_lines(x, y, at, 0, X_LINES, 0, LINE)
                            at = AHEAD + p * args.out_row + q // W * (Y_LINES * LINE)
                            prefetch_lines(y, x, at, 0, Y_LINES, 0, LINE)
                        sums = window_gradient(
                            sums, x, none, args.in_row, row, in_h, q * SW + args.column, in_w,
                            advance(y, p * args.out_row + q), args.out_row, out_w - q, RT, R, S, SH, SW,
                        )  # fmt: skip
                for p in range(whole, out_h):
                    for q in range(0, out_w, W):
                        sums = window_gradient(
                            sums, x, none, args.in_row, p * SH + args.row, in_h, q * SW + args.column, in_w,
                            advance(y, p * args.out_row + q), args.out_row, out_w - q, 1, R, S, SH, SW,
                        )  # fmt: skip
                tile_store(room, W, tile_add(tile_load(room, W, TAPS, 1, W), sums), TAPS, 1, W)
            for r in range(R):
                for s in range(S):
                    total = reduce_add(load(room, (r * S + s) * W, W)) * scalar(args.alpha, acc)
                    if args.has_c:
                        at = k * args.c_n + r * args.c_row + s * args.c_column
                        total = scalar(total + load_wide_scalar(args.c, at) * scalar(args.beta, acc), acc)
                    store_narrow_scalar(args.out, k * args.w_k + r * args.w_row + s * args.w_column, total)

    return depthwise_gradient
