"""The end of a product: alpha, beta and C, bias, activation or requantisation, and the way into out's type.

The activation is not compiled into each gemm kernel (28 kinds x 4 types x 3 widths would be 336 kernels): its range
kernel is called by pointer, a row of a block at a time, while the row is in the caches.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.cpu.gemm.arguments import FINISH
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.pointwise.form import ARGS as RUN
from numbaprims.cpu.simd import (
    address_of,
    advance,
    call_range,
    load,
    load_first,
    load_scalar,
    load_wide,
    load_wide_first,
    load_wide_scalar,
    maximum,
    minimum,
    multiply_add,
    round_even,
    scalar,
    splat,
    stack_array,
    stack_record,
    store,
    store_first,
    store_narrow,
    store_narrow_first,
    store_narrow_scalar,
    store_scalar,
    to_float,
    to_int,
)


def activation_address(problem: Any, target: Any) -> int:
    """The address of the activation's range kernel for computed rows, 0 for the identity."""
    kind = problem.activation.kind
    if kind == "identity":
        return 0
    from numbaprims.cpu.activation import epilogue_kernel
    from numbaprims.cpu.simd import lanes

    acc = problem.accumulate
    return int(epilogue_kernel(kind, acc, lanes(acc, target.vector_bytes)).address)


@helper
def activate_in_place(args, row, n):  # type: ignore[no-untyped-def]
    """Run the activation's range kernel over n consecutive computed elements, in place."""
    block = stack_record(RUN)
    block.a0 = address_of(row)
    block.a1 = address_of(row)
    block.f0 = args.p0
    block.f1 = args.p1
    block.f2 = args.p2
    block.n = n
    block.tile = n
    call_range(args.activation, block, 0, 0, 1)


@helper
def load_steps(p, start, step, count, W, acc):  # type: ignore[no-untyped-def]
    """`count` <= W elements, `step` apart, in their compute type; zeros behind them."""
    room = stack_array(acc, W)
    for r in range(count):
        store_scalar(room, r, load_wide_scalar(p, start + r * step))
    return load_first(room, 0, count, W)


@helper
def requantized(x, factor, zero, low, high):  # type: ignore[no-untyped-def]
    """int32 sums as integers of 8 bits: to the nearest, halves to even."""
    return to_int(minimum(maximum(round_even(to_float(x) * factor) + zero, low), high))


@functools.cache
def make_requantize(out_dtype: str, W: int) -> RangeKernel:
    """Rows of a block of complete int32 sums: out = saturate(round((total + c + bias) factor) + zero point).

    Factors are those of columns, or alpha where there are none; the zero point is beta.
    """
    types = FINISH.types(out=out_dtype, total="i32", c="i32", bias="i32", factors="f32")
    LOW, HIGH = (0, 255) if out_dtype == "u8" else (-128, 127)

    @range_kernel("gemm_requantize", types, spec=(out_dtype, W))
    def gemm_requantize(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        n = args.columns
        low, high = splat(scalar(LOW, "f32"), W), splat(scalar(HIGH, "f32"), W)
        factor = splat(scalar(args.alpha, "f32"), W)
        zero = splat(scalar(args.beta, "f32"), W)
        each = address_of(args.factors) != 0
        for r in range(lo, hi):
            total = advance(args.total, r * args.total_step)
            out = advance(args.out, r * args.out_rs)
            for v in range(0, n, W):
                left = min(n - v, W)
                x = load_first(total, v, left, W)
                if args.has_c:
                    x = x + load_steps(args.c, r * args.c_rs + v * args.c_cs, args.c_cs, left, W, "i32")
                if args.bias_axis == 1:
                    at = (args.j + v) * args.bias_step
                    if args.bias_step == 1:
                        x = x + load_first(args.bias, at, left, W)
                    else:
                        x = x + load_steps(args.bias, at, args.bias_step, left, W, "i32")
                if each:
                    factor = load_first(args.factors, args.j + v, left, W)
                y = requantized(x, factor, zero, low, high)
                if args.out_cs == 1:
                    store_narrow_first(out, v, left, y)
                else:
                    store_first(total, v, left, y)
            if args.out_cs != 1:
                for v in range(n):
                    store_narrow_scalar(out, v * args.out_cs, load_scalar(total, v))

    return gemm_requantize


@helper
def end_row(args, total, out, r, whole, alpha, beta, shift, c_there, along, straight, W):  # type: ignore[no-untyped-def]
    """The first `whole` elements of a row, whole vectors that lie without gaps.

    A loop of its own for each kind of end takes 1 to 2 cycles a vector (Zen 4): with three branches in it 6, with
    masks and the ways to gather besides 10, more than most activations.
    """
    for v in range(0, whole, W):
        x = multiply_add(load(total, v, W), alpha, shift)
        if c_there:
            x = multiply_add(load_wide(args.c, r * args.c_rs + v, W), beta, x)
        if along:
            x = x + load_wide(args.bias, args.j + v, W)
        if straight:
            store_narrow(out, v, x)
        else:
            store(total, v, x)


def finish_kernel(problem: Any, bias: str, W: int) -> RangeKernel:
    """What ends a problem's sums."""
    if problem.requantized:
        return make_requantize(problem.out_dtype, W)
    return make_finish(problem.accumulate, problem.out_dtype, bias, W)


@functools.cache
def make_finish(acc: str, out_dtype: str, bias: str, W: int) -> RangeKernel:
    """Rows of a block whose sums are complete; total may be out itself."""
    types = FINISH.types(out=out_dtype, total=acc, c=out_dtype, bias=bias)

    @range_kernel("gemm_finish", types, spec=(acc, out_dtype, bias, W))
    def gemm_finish(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        n = args.columns
        alpha = splat(scalar(args.alpha, acc), W)
        beta = splat(scalar(args.beta, acc), W)
        zero = splat(scalar(0, acc), W)
        # nothing stands between the sums and out: one pass instead of three
        straight = args.activation == 0 and args.in_place == 0 and args.out_cs == 1
        dense = (args.has_c == 0 or args.c_cs == 1) and (args.bias_axis != 1 or args.bias_step == 1)
        whole = n - n % W if dense else 0
        for r in range(lo, hi):
            total = advance(args.total, r * args.total_step)
            out = advance(args.out, r * args.out_rs)
            shift = zero
            if args.bias_axis == 2:
                shift = splat(load_wide_scalar(args.bias, (args.i + r) * args.bias_step), W)
            if args.has_c:
                end_row(args, total, out, r, whole, alpha, beta, shift, 1, args.bias_axis == 1, straight, W)
            elif args.bias_axis == 1:
                if straight:
                    end_row(args, total, out, r, whole, alpha, beta, shift, 0, 1, 1, W)
                else:
                    end_row(args, total, out, r, whole, alpha, beta, shift, 0, 1, 0, W)
            elif straight:
                end_row(args, total, out, r, whole, alpha, beta, shift, 0, 0, 1, W)
            else:
                end_row(args, total, out, r, whole, alpha, beta, shift, 0, 0, 0, W)
            for v in range(whole, n, W):
                left = min(n - v, W)
                x = multiply_add(load_first(total, v, left, W), alpha, shift)
                if args.has_c:
                    at = r * args.c_rs + v * args.c_cs
                    if args.c_cs == 1:
                        x = multiply_add(load_wide_first(args.c, at, left, W), beta, x)
                    else:
                        x = multiply_add(load_steps(args.c, at, args.c_cs, left, W, acc), beta, x)
                if args.bias_axis == 1:
                    at = (args.j + v) * args.bias_step
                    if args.bias_step == 1:
                        x = x + load_wide_first(args.bias, at, left, W)
                    else:
                        x = x + load_steps(args.bias, at, args.bias_step, left, W, acc)
                if straight:
                    store_narrow_first(out, v, left, x)
                else:
                    store_first(total, v, left, x)
            if args.activation != 0:
                activate_in_place(args, total, n)
            if args.in_place == 0 and not straight:
                if args.out_cs == 1:
                    for v in range(0, n, W):
                        left = min(n - v, W)
                        store_narrow_first(out, v, left, load_first(total, v, left, W))
                else:
                    for v in range(n):
                        store_narrow_scalar(out, v * args.out_cs, load_scalar(total, v))

    return gemm_finish
