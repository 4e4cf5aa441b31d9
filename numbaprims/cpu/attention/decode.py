"""Attention of a few queries: keys and values are read once, where they lie, for all query heads of their group.

Bound: the bytes of k and v.  Parts of the keys are tiles, so that one head has work for several workers; a second phase
joins what they give, by the maxima and sums of the online softmax.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.attention.arguments import DECODE
from numbaprims.cpu.attention.kernels import NEVER, exp_below
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    advance,
    first_lanes,
    fma,
    load,
    load_first,
    load_scalar,
    load_wide_scalar,
    load_word,
    reduce_add,
    reduce_max,
    scalar,
    select,
    splat,
    stack_tile,
    store,
    store_first,
    store_narrow_first,
    store_scalar,
    tile_inner,
    tile_multiply,
    tile_reduce_store,
    tile_store,
    zeros,
)

#: Keys whose scores are kept at a time.
BLOCK = 256


@helper
def add_values(o, step, factors, s, have, v, v_row, columns, count, room, R, NV, C, W):  # type: ignore[no-untyped-def]
    """Rows of o = themselves times their factor + exponentials times `columns` columns of v."""
    product = tile_multiply(s, BLOCK, 1, have, v, v_row, columns, count, R, NV, W)
    tile_store(room, NV * W, product, R, NV, W)
    for r in range(have):
        factor = splat(load_scalar(factors, r), W)
        for e in range(0, columns, W):
            left = min(W, columns - e)
            before = load_first(o, r * step + e, left, W)
            store_first(o, r * step + e, left, fma(before, factor, load(room, r * NV * W + e, W)))


@functools.cache
def make_decode(dtype: str, C: str, mask: str, R: int, W: int) -> RangeKernel:
    """Parts lo ... hi - 1 of the keys of all heads of k and v; scores come as R queries by COLUMNS keys."""
    MASK, COLUMNS, NV = mask, 8 if R == 1 else 4, 4
    types = DECODE.types(
        out=dtype, parts=C, q=dtype, k=dtype, v=dtype, mask=dtype if mask == "float" else "u8", scaled_q=C, scores=C
    )

    @range_kernel("attention_decode", types, spec=(dtype, C, MASK, R, W))
    def attention_decode(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        width, values, count = args.width, args.values, args.queries
        queries, scores = args.scaled_q[worker], args.scores[worker]
        turn, factors = stack_tile(C, R, NV, W), stack_tile(C, 1, R, W)
        for tile in range(lo, hi):
            group = tile // args.splits
            k0 = (tile - group * args.splits) * args.split
            end = min(args.keys, k0 + args.split)
            places = args.places + 48 * group * args.share
            k, v = advance(args.k, load_word(places, 3)), advance(args.v, load_word(places, 4))
            parts = advance(args.parts, tile * count * args.part_row)
            for r in range(count):
                head = r // args.rows
                q = advance(args.q, load_word(places, 6 * head + 2) + (r - head * args.rows) * args.q_row)
                for e in range(width):
                    x = load_wide_scalar(q, e * args.q_col) * scalar(args.scale, C)
                    store_scalar(queries, r * width + e, x)
                for e in range(0, values, W):
                    store_first(parts, r * args.part_row + e, min(W, values - e), zeros(C, W))
                store_scalar(parts, r * args.part_row + values, scalar(NEVER, C))
                store_scalar(parts, r * args.part_row + values + 1, scalar(0.0, C))
            for b0 in range(k0, end, BLOCK):
                have = min(BLOCK, end - b0)
                for r in range(0, count, R):
                    some = min(R, count - r)
                    x, s = advance(queries, r * width), scores
                    for j in range(0, have, COLUMNS):
                        there = min(COLUMNS, have - j)
                        y = advance(k, (b0 + j) * args.k_row)
                        sums = tile_inner(x, width, some, y, args.k_row, there, width, R, COLUMNS, W)
                        tile_reduce_store(advance(s, j), BLOCK, some, 1, there, sums, R, COLUMNS)
                    for i in range(some):
                        row, part = advance(s, i * BLOCK), advance(parts, (r + i) * args.part_row + values)
                        if MASK != "":
                            head = (r + i) // args.rows
                            at = load_word(places, 6 * head + 5) + (r + i - head * args.rows) * args.mask_row
                            for j in range(have):
                                here = at + (b0 + j) * args.mask_col
                                if MASK == "bool":
                                    if load_scalar(args.mask, here) == 0:
                                        store_scalar(row, j, scalar(NEVER, C))
                                else:
                                    store_scalar(row, j, load_scalar(row, j) + load_wide_scalar(args.mask, here))
                        before = load_scalar(part, 0)
                        best = splat(before, W)
                        for j in range(0, have, W):
                            z = select(first_lanes(have - j, W), load(row, j, W), NEVER)
                            store(row, j, z)
                            best = select(z > best, z, best)
                        most = reduce_max(best)
                        base = scalar(0.0, C) if most == NEVER else most
                        total = zeros(C, W)
                        for j in range(0, have, W):
                            e = exp_below(load(row, j, W) - base)
                            store(row, j, e)
                            total = total + e
                        less = load_scalar(exp_stored(factors, i * W, splat(before - base, W)), i * W)
                        store_scalar(factors, i, less)
                        store_scalar(part, 0, most)
                        store_scalar(part, 1, load_scalar(part, 1) * less + reduce_add(total))
                    o = advance(parts, r * args.part_row)
                    first = advance(v, b0 * args.v_row)
                    whole = values - values % (NV * W)
                    for e in range(0, whole, NV * W):
                        add_values(
                            advance(o, e), args.part_row, factors, s, some, advance(first, e), args.v_row, NV * W, have,
                            turn, R, NV, C, W,
                        )  # fmt: skip
                    for e in range(whole, values, W):
                        add_values(
                            advance(o, e), args.part_row, factors, s, some, advance(first, e), args.v_row,
                            min(W, values - e), have, turn, R, 1, C, W,
                        )  # fmt: skip

    return attention_decode


@helper
def exp_stored(room, at, x):  # type: ignore[no-untyped-def]
    """room, with e**x at `at`."""
    store(room, at, exp_below(x))
    return room


@functools.cache
def make_join(dtype: str, C: str, W: int) -> RangeKernel:
    """Query rows lo ... hi - 1 of all heads of k and v, from the parts of their keys."""

    @range_kernel("attention_join", DECODE.types(out=dtype, parts=C), spec=(dtype, C, W))
    def attention_join(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        values = args.values
        for row in range(lo, hi):
            group = row // args.queries
            r = row - group * args.queries
            head = r // args.rows
            parts = advance(args.parts, (group * args.splits * args.queries + r) * args.part_row)
            step = args.queries * args.part_row
            most = load_scalar(parts, values)
            for n in range(1, args.splits):
                other = load_scalar(parts, n * step + values)
                most = other if other > most else most
            base = splat(scalar(0.0, C) if most == NEVER else most, W)
            total = zeros(C, W)
            for n in range(args.splits):
                factor = exp_below(splat(load_scalar(parts, n * step + values), W) - base)
                total = fma(factor, splat(load_scalar(parts, n * step + values + 1), W), total)
            inverse = select(total == 0.0, 0.0, 1.0 / total)
            out = advance(args.out, load_word(args.places + 48 * (group * args.share + head), 0))
            for e in range(0, values, W):
                left = min(W, values - e)
                x = zeros(C, W)
                for n in range(args.splits):
                    factor = exp_below(splat(load_scalar(parts, n * step + values), W) - base)
                    x = fma(load_first(parts, n * step + e, left, W), factor, x)
                store_narrow_first(out, (r - head * args.rows) * args.out_row + e, left, x * inverse)

    return attention_join
