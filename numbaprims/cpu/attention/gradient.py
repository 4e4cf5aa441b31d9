"""The gradient of attention: five products a block of queries and keys, probabilities computed again (Dao 2023).

As on the way forward S^T and dP^T have queries along the lanes; their rows are then the left operands of the products
for dv and dk, their columns those for dq, whose lanes are features.  A tile is a head of k and v: nothing is added by
two workers, and its sums have one order.

Bound: 2 (3 width + 2 values) operations a pair of query and key at the peak of multiply-adds.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.attention.arguments import BACKWARD, NARROW
from numbaprims.cpu.attention.kernels import NEVER, causal_scores, exp_below, masked_scores
from numbaprims.cpu.gemm.blocked import pack
from numbaprims.cpu.gemm.multiply import keep_part
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    cast_pointer,
    fma,
    load,
    load_scalar,
    load_wide_first,
    load_word,
    scalar,
    splat,
    stack_tile,
    store,
    store_first,
    store_narrow_first,
    store_scalar,
    tile_add,
    tile_load,
    tile_multiply,
    tile_store,
    zeros,
)


@helper
def set_zero(x, count, C, W):  # type: ignore[no-untyped-def]
    """count elements from x on."""
    for p in range(0, count, W):
        store_first(x, p, min(W, count - p), zeros(C, W))


@helper
def scores(s, panels, k, have, panel, MR, NV, NR, W):  # type: ignore[no-untyped-def]
    """s (have keys x NR queries) = packed rows of keys times a panel of queries."""
    for i in range(0, have, MR):
        product = tile_multiply(advance(panels, i * k), 1, MR, MR, panel, NR, NR, k, MR, NV, W)
        tile_store(advance(s, i * NR), NR, product, MR, NV, W)


@helper
def add_product(total, wide, rows, a, a_row, a_k, b, b_rows, k, room, M, NV, W):  # type: ignore[no-untyped-def]
    """total (rows x wide, as they lie in memory) += A times packed panels of rows of b, k of `b_rows`."""
    WB = NV * W
    for e in range(0, wide, WB):
        columns = min(WB, wide - e)
        for i in range(0, rows, M):
            product = tile_multiply(advance(a, i * a_row), a_row, a_k, M, advance(b, e * b_rows), WB, WB, k, M, NV, W)
            there = advance(total, i * wide + e)
            if rows - i >= M and columns == WB:
                tile_store(there, wide, tile_add(tile_load(there, wide, M, NV, W), product), M, NV, W)
            else:
                tile_store(room, WB, product, M, NV, W)
                keep_part(room, there, wide, min(M, rows - i), columns, False, WB, W)


@functools.cache
def make_backward(dtype: str, C: str, mask: str, MR: int, MQ: int, NV: int, W: int) -> RangeKernel:
    """Heads lo ... hi - 1 of k and v; register tiles are MR keys, or MQ queries, by NV vectors."""
    NR, MASK, M = NV * W, mask, max(MR, MQ)
    inputs = dict.fromkeys(("dout", "q", "k", "v", "out"), dtype)
    types = BACKWARD.types(
        dq=C, dk=C, dv=C, lse=C, mask=dtype if mask == "float" else "u8", **inputs, **dict.fromkeys(BACKWARD.own, C)
    )  # fmt: skip

    @range_kernel("attention_backward", types, spec=(dtype, C, MASK, MR, MQ, NV, W))
    def attention_backward(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        width, values, length = args.width, args.values, args.rows
        queries, douts, outs = args.queries[worker], args.douts[worker], args.outs[worker]
        q_rows, do_rows, k_rows = args.q_rows[worker], args.do_rows[worker], args.k_rows[worker]
        lse_of, delta_of = args.lse_of[worker], args.delta_of[worker]
        k_panels, v_panels = args.k_panels[worker], args.v_panels[worker]
        s, t, masked = args.scores[worker], args.slopes[worker], args.masked[worker]
        bools = cast_pointer(masked, "i32")
        part = stack_tile(C, M, NV, W)
        factor = splat(scalar(args.scale, C), W)
        for head in range(lo * args.share, hi * args.share):
            group = head // args.share
            place = args.places + 80 * head
            dout, q = advance(args.dout, load_word(place, 3)), advance(args.q, load_word(place, 4))
            k, v = advance(args.k, load_word(place, 5)), advance(args.v, load_word(place, 6))
            out, lse = advance(args.out, load_word(place, 7)), advance(args.lse, load_word(place, 8))
            mask_at = address_of(args.mask) + load_word(place, 9) * args.mask_size
            dq = advance(args.dq, head * length * width)
            dk, dv = advance(args.dk, group * args.keys * width), advance(args.dv, group * args.keys * values)
            set_zero(dq, length * width, C, W)
            if head == group * args.share:
                set_zero(dk, args.keys * width, C, W)
                set_zero(dv, args.keys * values, C, W)
            for q0 in range(0, length, args.block):
                rows = min(args.block, length - q0)
                panels = (rows + NR - 1) // NR
                q_at = address_of(advance(q, q0 * args.q_row))
                do_at = address_of(advance(dout, q0 * args.dout_row))
                pack(args.pack_q, address_of(queries), q_at, width, rows, args.q_row, args.q_col, 0, panels)
                pack(args.pack_q, address_of(douts), do_at, values, rows, args.dout_row, args.dout_col, 0, panels)
                pack(
                    args.pack_q, address_of(outs), address_of(advance(out, q0 * args.out_row)), values, rows,
                    args.out_row, args.out_col, 0, panels,
                )  # fmt: skip
                pack(
                    args.pack_rows, address_of(q_rows), q_at, rows, width, args.q_col, args.q_row, 0,
                    (width + NR - 1) // NR,
                )  # fmt: skip
                pack(
                    args.pack_rows, address_of(do_rows), do_at, rows, values, args.dout_col, args.dout_row, 0,
                    (values + NR - 1) // NR,
                )  # fmt: skip
                for p in range(0, panels * width * NR, W):
                    store(queries, p, load(queries, p, W) * factor)
                for r in range(rows):
                    x = load_scalar(lse, (q0 + r) * args.lse_row)
                    store_scalar(lse_of, r, scalar(0.0, C) if x == NEVER else x)
                for j in range(0, panels * NR, W):
                    first = j // NR * NR * values + j % NR
                    delta = zeros(C, W)
                    for e in range(values):
                        x = load(douts, first + e * NR, W) * factor
                        delta = fma(x, load(outs, first + e * NR, W), delta)
                        store(douts, first + e * NR, x)
                    store(delta_of, j, delta)
                limit = args.keys
                if args.causal != 0:
                    limit = min(limit, q0 + rows)
                for k0 in range(0, limit, args.key_block):
                    block = min(args.key_block, limit - k0)
                    tiles = (block + MR - 1) // MR
                    k_at = address_of(advance(k, k0 * args.k_row))
                    v_at = address_of(advance(v, k0 * args.v_row))
                    pack(args.pack_k, address_of(k_panels), k_at, width, block, args.k_row, args.k_col, 0, tiles)
                    pack(args.pack_k, address_of(v_panels), v_at, values, block, args.v_row, args.v_col, 0, tiles)
                    pack(
                        args.pack_rows, address_of(k_rows), k_at, block, width, args.k_col, args.k_row, 0,
                        (width + NR - 1) // NR,
                    )  # fmt: skip
                    for j in range(panels):
                        ahead = q0 + j * NR - k0
                        there = min(NR, rows - j * NR)
                        have = block
                        if args.causal != 0:
                            have = min(block, ahead + NR)
                        if have > 0:
                            scores(s, k_panels, width, have, advance(queries, j * NR * width), MR, NV, NR, W)
                            scores(t, v_panels, values, have, advance(douts, j * NR * values), MR, NV, NR, W)
                            if MASK != "":
                                source = (q0 + j * NR) * args.mask_row + k0 * args.mask_col
                                pack(
                                    args.pack_mask, address_of(masked), mask_at + source * args.mask_size, have, there,
                                    args.mask_row, args.mask_col, 0, 1,
                                )  # fmt: skip
                            for at in range(0, NR, W):
                                if MASK != "":
                                    masked_scores(s, at, masked, bools, have, NR, W, MASK)
                                if args.causal != 0:
                                    causal_scores(s, at, -ahead - at, have, NR, W)
                                base, delta = load(lse_of, j * NR + at, W), load(delta_of, j * NR + at, W)
                                for p in range(have):
                                    e = exp_below(load(s, p * NR + at, W) - base)
                                    store(s, p * NR + at, e)
                                    store(t, p * NR + at, e * (load(t, p * NR + at, W) - delta))
                            first = j * NR * NR
                            add_product(
                                advance(dv, k0 * values), values, have, s, NR, 1, advance(do_rows, first), rows, there,
                                part, MR, NV, W,
                            )  # fmt: skip
                            add_product(
                                advance(dk, k0 * width), width, have, t, NR, 1, advance(q_rows, first), rows, there,
                                part, MR, NV, W,
                            )  # fmt: skip
                            add_product(
                                advance(dq, (q0 + j * NR) * width), width, there, t, 1, NR, k_rows, block, have,
                                part, MQ, NV, W,
                            )  # fmt: skip

    return attention_backward


@functools.cache
def make_narrow(dtype: str, C: str, W: int) -> RangeKernel:
    """Parts lo ... hi - 1 of an array in the type of another."""

    @range_kernel("attention_narrow", NARROW.types(out=dtype, x=C), spec=(dtype, C, W))
    def attention_narrow(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        end = min(args.count, hi * args.part)
        for p in range(lo * args.part, end, W):
            left = min(W, end - p)
            store_narrow_first(args.out, p, left, load_wide_first(args.x, p, left, W))

    return attention_narrow
