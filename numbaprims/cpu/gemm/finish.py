"""The end of a product: alpha, beta and C, bias, activation, and the way into out's type.

The activation is not compiled into each gemm kernel (28 kinds x 4 types x 3 widths would be 336 kernels): its range
kernel is called by pointer, a row of a block at a time, while the row is in the caches.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.cpu.gemm.arguments import FINISH
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    FLOAT_SLOT,
    INT_SLOT,
    address_of,
    advance,
    call_range,
    float_bits,
    load_first,
    load_scalar,
    load_wide_first,
    load_wide_scalar,
    multiply_add,
    scalar,
    splat,
    stack_array,
    stack_words,
    store_first,
    store_narrow_first,
    store_narrow_scalar,
    store_scalar,
    store_word,
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
    block = stack_words(80)
    store_word(block, 0, address_of(row))
    store_word(block, 1, address_of(row))
    store_word(block, FLOAT_SLOT, float_bits(args.p0))
    store_word(block, FLOAT_SLOT + 1, float_bits(args.p1))
    store_word(block, FLOAT_SLOT + 2, float_bits(args.p2))
    store_word(block, INT_SLOT, n)
    store_word(block, INT_SLOT + 1, n)
    call_range(args.activation, block, 0, 0, 1)


@helper
def load_steps(p, start, step, count, W, acc):  # type: ignore[no-untyped-def]
    """`count` <= W elements, `step` apart, in their compute type; zeros behind them."""
    room = stack_array(acc, W)
    for r in range(count):
        store_scalar(room, r, load_wide_scalar(p, start + r * step))
    return load_first(room, 0, count, W)


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
        for r in range(lo, hi):
            total = advance(args.total, r * args.total_step)
            out = advance(args.out, r * args.out_rs)
            shift = zero
            if args.bias_axis == 2:
                shift = splat(load_wide_scalar(args.bias, (args.i + r) * args.bias_step), W)
            for v in range(0, n, W):
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
