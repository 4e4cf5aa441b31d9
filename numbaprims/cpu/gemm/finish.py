"""The end of a product: alpha, beta and C, bias, activation, and the way into out's type.

The activation is not compiled into each gemm kernel (28 kinds x 4 types x 3 widths would be 336 kernels): its range
kernel is called by pointer, a row of a block at a time, while the row is in the caches.
"""

from __future__ import annotations

from numbaprims.cpu.jit import helper
from numbaprims.cpu.simd import (
    FLOAT_SLOT,
    INT_SLOT,
    address_of,
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
def load_step(p, start, step, count, W, acc):  # type: ignore[no-untyped-def]
    """`count` <= W elements, `step` apart, in their compute type; zeros behind them."""
    room = stack_array(acc, W)
    for r in range(count):
        store_scalar(room, r, load_wide_scalar(p, start + r * step))
    return load_first(room, 0, count, W)


@helper
def add_row(args, sums, total, c, n, first, W, acc):  # type: ignore[no-untyped-def]
    """total[0:n] = alpha sums + (beta c at the first block of k, total after it)."""
    alpha = splat(scalar(args.alpha, acc), W)
    beta = splat(scalar(args.beta, acc), W)
    for v in range(0, n, W):
        left = min(n - v, W)
        x = load_first(sums, v, left, W) * alpha
        if not first:
            x = x + load_first(total, v, left, W)
        elif args.has_c:
            if args.c_cs == 1:
                x = multiply_add(load_wide_first(c, v, left, W), beta, x)
            else:
                x = multiply_add(load_step(c, v * args.c_cs, args.c_cs, left, W, acc), beta, x)
        store_first(total, v, left, x)


@helper
def finish_row(args, total, out, i, j, n, W, acc):  # type: ignore[no-untyped-def]
    """out[0:n] = act(total + bias); element (i, j) of out is its first, total may be out itself."""
    if args.bias_axis == 1:
        for v in range(0, n, W):
            left = min(n - v, W)
            x = load_first(total, v, left, W)
            if args.bias_step == 1:
                x = x + load_wide_first(args.bias, j + v, left, W)
            else:
                x = x + load_step(args.bias, (j + v) * args.bias_step, args.bias_step, left, W, acc)
            store_first(total, v, left, x)
    elif args.bias_axis == 2:
        shift = splat(load_wide_scalar(args.bias, i * args.bias_step), W)
        for v in range(0, n, W):
            left = min(n - v, W)
            store_first(total, v, left, load_first(total, v, left, W) + shift)
    if args.activation != 0:
        activate_in_place(args, total, n)
    if args.sums_in_out == 0:
        if args.out_cs == 1:
            for v in range(0, n, W):
                left = min(n - v, W)
                store_narrow_first(out, v, left, load_first(total, v, left, W))
        else:
            for v in range(n):
                store_narrow_scalar(out, v * args.out_cs, load_scalar(total, v))
