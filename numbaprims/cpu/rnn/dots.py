"""Kernels of layers whose weights are 8-bit integers: rows and weights to integers, and products of both.

A row of numbers becomes 127 / max|row| times itself, rounded; so does a unit's row of weights, once. Products are sums
of int32 by dot instructions, four bytes a lane, and become floats by the two scales.  The instruction takes unsigned
bytes on one side: rows have 128 added, and a panel of weights ends in what that adds, negated.

Rows lie in blocks of MR: their scales, then group by group of four the words of all rows.  A panel of weights is
[group][gate][units], the corrections [gate][units] and the scales.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.rnn.arguments import PACK, PRODUCT, QUANTIZE, STEP
from numbaprims.cpu.rnn.cells import Form, end_rows
from numbaprims.cpu.rnn.kernels import BLOCK
from numbaprims.cpu.simd import (
    abs_,
    address_of,
    advance,
    cast_pointer,
    load,
    load_scalar,
    load_wide_first,
    load_word,
    maximum,
    reduce_max,
    round_even,
    scalar,
    splat,
    stack_tile,
    store,
    store_first,
    store_narrow,
    store_scalar,
    tile_add,
    tile_load,
    tile_multiply_dot,
    tile_store,
    to_float,
    to_int,
    zeros,
)

#: Numbers whose greatest is less than this are zeros: the quotient by it has to be finite.
LEAST = 2.0**-100


@helper
def largest(x, k, W):  # type: ignore[no-untyped-def]
    """The greatest absolute value of a row; NaN if it has one."""
    most = zeros("f32", W)
    for v in range(0, k, W):
        most = maximum(most, abs_(load_wide_first(x, v, min(W, k - v), W)))
    return reduce_max(most)


@helper
def factor_of(most):  # type: ignore[no-untyped-def]
    """What numbers are multiplied by."""
    factor = scalar(0.0, "f32")
    if most > scalar(LEAST, "f32"):
        factor = scalar(127.0, "f32") / most
    return factor


@helper
def quantize_row(x, k, blocks, row, room, MR, W):  # type: ignore[no-untyped-def]
    """A row to bytes, in blocks; one that holds NaN or infinity gets such a scale."""
    groups = (k + 3) // 4
    block = advance(blocks, row // MR * ((groups + 1) * MR))
    most = largest(x, k, W)
    store_scalar(cast_pointer(block, "f32"), row % MR, most * scalar(1.0 / 127.0, "f32"))
    factor, middle = splat(factor_of(most), W), splat(scalar(128, "i32"), W)
    words = advance(block, MR + row % MR)
    for v in range(0, k, W):
        value = load_wide_first(x, v, min(W, k - v), W)
        store_narrow(cast_pointer(room, "u8"), 0, to_int(round_even(value * factor)) + middle)
        for g in range(min(W // 4, groups - v // 4)):
            store_scalar(words, (v // 4 + g) * MR, load_scalar(room, g))


@functools.cache
def make_quantize(dtype: str, MR: int, W: int) -> RangeKernel:
    """Rows lo ... hi - 1 of a matrix to bytes."""

    @range_kernel("rnn_quantize", QUANTIZE.types(q="i32", x=dtype), spec=(dtype, MR, W))
    def rnn_quantize(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        room = stack_tile("i32", 1, 1, W)
        for row in range(lo, hi):
            quantize_row(advance(args.x, row * args.x_row), args.k, args.q, row, room, MR, W)

    return rnn_quantize


@functools.cache
def make_quantize_states(form: Form, second: bool) -> RangeKernel:
    """Rows lo ... hi - 1, of all directions, of what a step multiplies: the states, or what goes on to its `second`
    product."""
    MR, W = form.MR, form.W

    @range_kernel("rnn_quantize_states", _types(form), spec=(form.text, second))
    def rnn_quantize_states(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        room = stack_tile("i32", 1, 1, W)
        for index in range(lo, hi):
            d = index // args.n
            row = index - d * args.n
            if second:
                x = advance(args.m, d * args.m_d + row * args.m_row)
            else:
                x = advance(args.h, args.step % 2 * args.h_flip + d * args.h_d + row * args.h_row)
            quantize_row(x, args.k, advance(args.a, d * args.a_d), row, room, MR, W)

    return rnn_quantize_states


def _types(form: Form) -> Any:
    """Of the arguments of a step."""
    floats = dict.fromkeys(("numbers", "g", "h", "c", "m", "saved", "sums"), "f32")
    return STEP.types(a="i32", r="i32", y=form.dtype, **floats)


@functools.cache
def make_pack_bytes(dtype: str, gates: int, NV: int, W: int) -> RangeKernel:
    """Panels lo ... hi - 1 of a weight; units past the last are zeros."""
    U, WIDTH = NV * W, gates * NV * W

    @range_kernel("rnn_pack_bytes", PACK.types(panels="i32", w=dtype), spec=(dtype, gates, NV, W))
    def rnn_pack_bytes(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        k = args.k
        groups = (k + 3) // 4
        room = stack_tile("i32", 1, 1, W)
        for q in range(lo, hi):
            panel = advance(args.panels, q * (groups + 2) * WIDTH)
            for gate in range(gates):
                for j in range(U):
                    unit, column = q * U + j, gate * U + j
                    most = scalar(0.0, "f32")
                    row = args.w
                    if unit < args.hidden:
                        row = advance(args.w, ((args.first + gate) * args.hidden + unit) * args.w_row)
                        most = largest(row, k, W)
                    factor = splat(factor_of(most), W)
                    total = 0
                    for v in range(0, k, W):
                        value = load_wide_first(row, v, min(W, k - v), W)
                        store(room, 0, to_int(round_even(value * factor)))
                        for g in range(min(W // 4, groups - v // 4)):
                            word = 0
                            for t in range(4):
                                each = load_scalar(room, 4 * g + t)
                                total += each
                                word |= (each & 255) << (8 * t)
                            store_scalar(panel, (v // 4 + g) * WIDTH + column, word)
                    store_scalar(panel, groups * WIDTH + column, -128 * total)
                    scales = cast_pointer(advance(panel, (groups + 1) * WIDTH), "f32")
                    store_scalar(scales, column, most * scalar(1.0 / 127.0, "f32"))

    return rnn_pack_bytes


@helper
def multiply_bytes(sums, room, a, r, first, rows, k, MR, GV, W):  # type: ignore[no-untyped-def]
    """Sums (row, gate, units of a group) of rows from `first` on, in blocks at `a`, by the panel at `r`."""
    groups = (k + 3) // 4
    corrections = advance(r, groups * GV * W)
    scales = cast_pointer(advance(corrections, GV * W), "f32")
    for i in range(0, rows, MR):
        block = advance(a, (first + i) // MR * ((groups + 1) * MR))
        tile = tile_multiply_dot(advance(block, MR), r, groups, MR, GV, W, "u8s8")
        # row step 0: the same corrections for every row
        tile_store(room, GV * W, tile_add(tile_load(corrections, 0, MR, GV, W), tile), MR, GV, W)
        for j in range(min(MR, rows - i)):
            scale = splat(load_scalar(cast_pointer(block, "f32"), j), W)
            for v in range(0, GV * W, W):
                value = to_float(load(room, j * GV * W + v, W)) * load(scales, v, W)
                store(sums, (i + j) * GV * W + v, value * scale)


@functools.cache
def make_step_bytes(form: Form) -> RangeKernel:
    """`make_step` by rows and weights of bytes."""
    text, MR, W = form.text, form.MR, form.W
    U, GV = form.NV * W, form.gates * form.NV
    ROWS_ = BLOCK // MR * MR

    @range_kernel("rnn_step_bytes", _types(form), spec=(text,))
    def rnn_step_bytes(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        parity = args.step % 2
        sums = args.sums[worker]
        room = stack_tile("i32", MR, GV, W)
        for index in range(lo, hi):
            # there and back, as `make_step`
            q = lo + hi - 1 - index if parity == 1 else index
            d = q // args.groups
            u = q - d * args.groups
            t = args.step
            if d + args.reverse > 0:
                t = args.steps - 1 - t
            n, at = args.n, t
            if address_of(args.offsets) != 0:
                at = load_word(address_of(args.offsets), t)
                n = load_word(address_of(args.offsets), t + 1) - at
            r = advance(args.r, d * args.r_d + u * ((args.k + 3) // 4 + 2) * GV * W)
            a = advance(args.a, d * args.a_d)
            for first in range(0, n, ROWS_):
                rows = min(ROWS_, n - first)
                multiply_bytes(sums, room, a, r, first, rows, args.k, MR, GV, W)
                end_rows(text, args, sums, rows, d, at, parity, first, u * U)

    return rnn_step_bytes


@functools.cache
def make_product_bytes(gates: int, MR: int, NV: int, W: int) -> RangeKernel:
    """Tile (group of units, block of rows): the input product of these rows."""
    U, GV = NV * W, gates * NV
    ROWS_ = BLOCK // MR * MR
    types = PRODUCT.types(out="f32", a="i32", r="i32", sums="f32")

    @range_kernel("rnn_product_bytes", types, spec=(gates, MR, NV, W))
    def rnn_product_bytes(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        sums = args.sums[worker]
        room = stack_tile("i32", MR, GV, W)
        blocks = (args.rows + ROWS_ - 1) // ROWS_
        for q in range(lo, hi):
            u = q // blocks
            first = (q - u * blocks) * ROWS_
            rows = min(ROWS_, args.rows - first)
            r = advance(args.r, u * ((args.k + 3) // 4 + 2) * GV * W)
            multiply_bytes(sums, room, args.a, r, first, rows, args.k, MR, GV, W)
            for j in range(rows):
                for gate in range(gates):
                    out = advance(args.out, ((first + j) * gates + gate) * args.hidden + u * U)
                    for v in range(0, U, W):
                        left = max(0, min(W, args.hidden - u * U - v))
                        store_first(out, v, left, load(sums, j * GV * W + gate * U + v, W))

    return rnn_product_bytes
