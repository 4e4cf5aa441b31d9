"""Depthwise convolution of planes whose rows are contiguous: RT rows x W columns of the result in registers.

An output row of W columns costs R S multiply-adds of vectors and S loads of each input row, which SH rows in R of the
tile share: for 3x3 with stride 1 and 7 rows, 27 loads for 63 multiply-adds.  Bound: those multiply-adds while a plane
is in the first-level cache, else the bytes of x and y.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.gemm.finish import activate_in_place
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    load_first,
    load_wide_scalar,
    pointer_from_address,
    scalar,
    splat,
    store_narrow_first,
)
from numbaprims.cpu.simd.arguments import Arguments
from numbaprims.cpu.simd.window import window_end, window_rows

# The result's channel k reads channel k // multiplier of the input and the weights from w_start + k * w_k on, whose
# steps are negative where the window is flipped.  row, column: where the first window begins in the input.
# zeros: address of a row of zeros.  worker_bytes: a plane of sums, where the result cannot hold them.
ARGS = Arguments(
    arrays=("out", "first", "second", "c", "bias", "packed", "extra", "workspace"),
    floats=("alpha", "beta", "p0", "p1", "p2"),
    ints=(
        "channels", "multiplier", "in_h", "in_w", "out_h", "out_w", "row", "column",
        "in_n", "in_c", "in_row", "out_n", "out_c", "out_row", "c_n", "c_c", "c_row",
        "w_start", "w_k", "w_row", "w_column", "has_bias", "bias_step", "activation", "zeros", "worker_bytes",
    ),
)  # fmt: skip


@functools.cache
def make_rows(
    dtype: str, acc: str, RT: int, R: int, S: int, SH: int, SW: int, W: int, C: int, SPLIT: int
) -> RangeKernel:
    """Kernel over planes of the result.  C: whether beta c is added.  SPLIT: sums wait in the workspace for the
    activation, because the result's type is narrower than theirs.
    """
    types = ARGS.types(out=dtype, first=dtype, second=dtype, c=dtype, bias=dtype)

    @range_kernel("conv_depthwise_rows", types, spec=(dtype, acc, RT, R, S, SH, SW, W, C, SPLIT))
    def depthwise_rows(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        none = pointer_from_address(args.zeros, dtype)
        alpha = splat(scalar(args.alpha, acc), W)
        beta = splat(scalar(args.beta, acc), W)
        in_h, in_w, out_h, out_w = args.in_h, args.in_w, args.out_h, args.out_w
        for plane in range(lo, hi):
            n, k = divmod(plane, args.channels)
            x = advance(args.first, n * args.in_n + k // args.multiplier * args.in_c)
            w = advance(args.second, k * args.w_k + args.w_start)
            c = advance(args.c, n * args.c_n + k * args.c_c)
            out = advance(args.out, n * args.out_n + k * args.out_c)
            if SPLIT:
                total = pointer_from_address(address_of(args.workspace) + worker * args.worker_bytes, acc)
                step = out_w
            else:
                total = out
                step = args.out_row
            shift = splat(scalar(0, acc), W)
            if args.has_bias:
                shift = splat(load_wide_scalar(args.bias, k * args.bias_step), W)
            for p in range(0, out_h, RT):
                for q in range(0, out_w, W):
                    row = p * SH + args.row
                    column = q * SW + args.column
                    sums = window_rows(
                        x, none, args.in_row, row, in_h, column, in_w, w, args.w_row, args.w_column, 0,
                        RT, R, S, SH, SW, W,
                    )  # fmt: skip
                    window_end(
                        advance(total, p * step + q), step, out_h - p, out_w - q, sums, alpha,
                        advance(c, p * args.c_row + q), args.c_row, beta, shift, C,
                    )  # fmt: skip
            if args.activation != 0:
                if step == out_w:
                    activate_in_place(args, total, out_h * out_w)
                else:
                    for p in range(out_h):
                        activate_in_place(args, advance(total, p * step), out_w)
            if SPLIT:
                for p in range(out_h):
                    for q in range(0, out_w, W):
                        left = min(out_w - q, W)
                        value = load_first(total, p * step + q, left, W)
                        store_narrow_first(out, p * args.out_row + q, left, value)

    return depthwise_rows
