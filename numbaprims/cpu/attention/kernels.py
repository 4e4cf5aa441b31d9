"""Attention forward: blocks of keys times blocks of queries, whose scores stay in the first-level cache.

Everything is kept transposed, queries along the lanes: the scores S^T of a block of keys (k x queries) are the product
of packed keys and a panel of queries, and as they lie a panel of the product O^T = V^T S^T.  So maxima, exponentials,
sums and the rescaling of the online softmax (Milakov and Gimelshein 2018) are plain vector operations from row to row,
and lanes behind the last query need no mask: nothing passes from lane to lane before the results are turned.

Bound: 2 (width + values) operations a pair of query and key at the peak of multiply-adds.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.attention.arguments import FORWARD
from numbaprims.cpu.gemm.blocked import pack
from numbaprims.cpu.gemm.pieces import BLOCK, EDGE, WORDS, store_pairs
from numbaprims.cpu.gemm.tiles import add_floats, portable_form
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    amx_close,
    amx_open,
    cast_pointer,
    first_lanes,
    load,
    load_rows,
    load_scalar,
    load_word,
    log,
    scalar,
    select,
    splat,
    stack_tile,
    store,
    store_narrow_first,
    store_narrow_rows,
    store_narrow_scalar,
    store_rows,
    tile_add,
    tile_load,
    tile_multiply,
    tile_scale,
    tile_store,
    transpose,
    zeros,
)
from numbaprims.cpu.simd.math.emit import vector_function
from numbaprims.cpu.simd.math.exponential import exp_of_negative

NEVER = float("-inf")


@vector_function(exp_of_negative)
def exp_below(x):  # type: ignore[no-untyped-def]
    """e**x of every lane, where x is about 0 at most."""


@helper
def masked_scores(s, at, mask, bools, keys, NR, W, MASK):  # type: ignore[no-untyped-def]
    """Apply a packed mask to a vector of queries of every key."""
    for p in range(keys):
        x = load(s, p * NR + at, W)
        if MASK == "bool":
            x = select(load(bools, p * NR + at, W) != 0, x, NEVER)
        else:
            x = x + load(mask, p * NR + at, W)
        store(s, p * NR + at, x)


@helper
def causal_scores(s, at, first, keys, NR, W):  # type: ignore[no-untyped-def]
    """Take the keys out that come after a query: key p is query `first` + p of the vector's lanes."""
    for p in range(max(0, -first), keys):
        store(s, p * NR + at, select(first_lanes(first + p, W), NEVER, load(s, p * NR + at, W)))


@helper
def softmax_step(s, at, keys, most, total, C, NR, W):  # type: ignore[no-untyped-def]
    """Make scores exponentials of what they are above the new maximum; gives (maximum, sum, factor of what was before).

    Maxima lose NaN, which its exponential brings back; a row that nothing takes part in subtracts 0.
    """
    best, other = most, most
    for p in range(0, keys - 1, 2):
        x, y = load(s, p * NR + at, W), load(s, (p + 1) * NR + at, W)
        best = select(x > best, x, best)
        other = select(y > other, y, other)
    if keys % 2 == 1:
        x = load(s, (keys - 1) * NR + at, W)
        best = select(x > best, x, best)
    best = select(other > best, other, best)
    base = select(best == NEVER, 0.0, best)
    factor = exp_below(most - base)
    total = total * factor
    for p in range(keys):
        e = exp_below(load(s, p * NR + at, W) - base)
        store(s, p * NR + at, e)
        total = total + e
    return best, total, factor


@helper
def turned_rows(out, row, col, o, inverse, rows, values, room, C, NR, W):  # type: ignore[no-untyped-def]
    """W queries of a panel O^T, each lane times its factor, as rows of out."""
    for e in range(0, values, W):
        tile = tile_scale(load_rows(advance(o, e * NR), NR, W, W), inverse)
        turned = transpose(tile)
        columns = min(W, values - e)
        if col == 1:
            store_narrow_rows(advance(out, e), row, rows, columns, turned)
        else:
            store_rows(room, W, turned)
            for r in range(rows):
                for c in range(columns):
                    store_narrow_scalar(out, r * row + (e + c) * col, load_scalar(room, r * W + c))


@helper
def pair_keys(s, at, keys, W):  # type: ignore[no-untyped-def]
    """Rows of words of two keys in the place of those of numbers, zeros behind the last: what tiles multiply."""
    words = cast_pointer(s, "i32")
    for g in range((keys + EDGE - 1) // EDGE * WORDS):
        x, y = zeros("f32", W), zeros("f32", W)
        if 2 * g < keys:
            x = load(s, 2 * g * EDGE + at, W)
        if 2 * g + 1 < keys:
            y = load(s, (2 * g + 1) * EDGE + at, W)
        store_pairs(words, g * EDGE + at, W, x, y, 1, W)


@functools.cache
def make_forward(
    dtype: str, C: str, mask: str, MR: int, MV: int, NV: int, W: int, kind: str = "", feature: str = ""
) -> RangeKernel:
    """Blocks lo ... hi - 1 of the query rows of all heads; tiles are MR keys, or MV values, by NV vectors.

    Of a `kind` the products are those of AMX's tiles, of 32 keys or values by 32 queries: scores are scaled as float32,
    and exponentials rounded to bf16 for the second product, not for their sum.
    """
    NR, MASK = NV * W, mask
    tiles, amx, form = kind != "", feature == "amx", portable_form(kind)
    spec = (dtype, C, MASK, MR, MV, NV, W, kind, feature)
    types = FORWARD.types(
        out=dtype, lse=C, q=dtype, k=dtype, v=dtype, mask=dtype if mask == "float" else "u8",
        **dict.fromkeys(FORWARD.own, C),
    )  # fmt: skip

    @range_kernel("attention_forward", types, spec=spec, contract=not tiles)
    def attention_forward(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        width, values, keys = args.width, args.values, args.keys
        queries, sums, s = args.queries[worker], args.sums[worker], args.scores[worker]
        most_of, total_of, masked = args.most[worker], args.total[worker], args.masked[worker]
        k_panels, v_panels = args.k_panels[worker], args.v_panels[worker]
        bools = cast_pointer(masked, "i32")
        turn = stack_tile(C, W, 1, W)
        high = (values + MV - 1) // MV * MV
        steps = (width + EDGE - 1) // EDGE
        q_tiles, k_tiles, v_tiles, s_tiles = (
            cast_pointer(queries, "i32"), cast_pointer(k_panels, "i32"), cast_pointer(v_panels, "i32"),
            cast_pointer(s, "i32"),
        )  # fmt: skip
        never, none = splat(scalar(NEVER, C), W), zeros(C, W)
        factor = splat(scalar(args.scale, C), W)
        for tile in range(lo, hi):
            head = tile // args.blocks
            # of a causal call the last blocks are the longest: they go first
            q0 = (args.blocks - 1 - (tile - head * args.blocks)) * args.block
            rows = min(args.block, args.rows - q0)
            panels = (rows + NR - 1) // NR
            place = args.places + 48 * head
            q = advance(args.q, load_word(place, 2) + q0 * args.q_row)
            k, v = advance(args.k, load_word(place, 3)), advance(args.v, load_word(place, 4))
            mask_at = address_of(args.mask) + (load_word(place, 5) + q0 * args.mask_row) * args.mask_size
            pack(args.pack_q, address_of(queries), address_of(q), width, rows, args.q_row, args.q_col, 0, panels)
            if not tiles:
                for p in range(0, panels * width * NR, W):
                    store(queries, p, load(queries, p, W) * factor)
            for p in range(0, panels * high * NR, W):
                store(sums, p, none)
            for p in range(0, panels * NR, W):
                store(most_of, p, never)
                store(total_of, p, none)
            limit = keys
            if args.causal != 0:
                limit = min(keys, q0 + rows)
            for k0 in range(0, limit, args.key_block):
                block = min(args.key_block, limit - k0)
                pack(
                    args.pack_k, address_of(k_panels), address_of(advance(k, k0 * args.k_row)), width, block,
                    args.k_row, args.k_col, 0, (block + MR - 1) // MR,
                )  # fmt: skip
                pack(
                    args.pack_v, address_of(v_panels), address_of(advance(v, k0 * args.v_row)), block, values,
                    args.v_col, args.v_row, 0, (values + MV - 1) // MV,
                )  # fmt: skip
                for j in range(panels):
                    ahead = q0 + j * NR - k0  # the key of this block that is the panel's first query
                    have = block
                    if args.causal != 0:
                        have = min(block, ahead + NR)
                    if have > 0:
                        o = advance(sums, j * NR * high)
                        if MASK != "":
                            source = mask_at + (j * NR * args.mask_row + k0 * args.mask_col) * args.mask_size
                            pack(
                                args.pack_mask, address_of(masked), source, have, min(NR, rows - j * NR),
                                args.mask_row, args.mask_col, 0, 1,
                            )  # fmt: skip
                        if amx:
                            amx_open()
                        for i in range(0, have, MR):
                            scores = advance(s, i * NR)
                            if tiles:
                                add_floats(
                                    scores, NR, advance(k_tiles, i // EDGE * steps * BLOCK), 0,
                                    advance(q_tiles, j * steps * BLOCK), steps, 1, min(EDGE, have - i), NR, i // EDGE,
                                    kind, amx, form, W,
                                )  # fmt: skip
                                for p in range(0, min(EDGE, have - i) * NR, W):
                                    store(scores, p, load(scores, p, W) * factor)
                            else:
                                product = tile_multiply(
                                    advance(k_panels, i * width), 1, MR, MR, advance(queries, j * NR * width), NR, NR,
                                    width, MR, NV, W,
                                )  # fmt: skip
                                tile_store(scores, NR, product, MR, NV, W)
                        for at in range(0, NR, W):
                            if MASK != "":
                                masked_scores(s, at, masked, bools, have, NR, W, MASK)
                            if args.causal != 0:
                                causal_scores(s, at, -ahead - at, have, NR, W)
                            most, total = load(most_of, j * NR + at, W), load(total_of, j * NR + at, W)
                            best, total, less = softmax_step(s, at, have, most, total, C, NR, W)
                            store(most_of, j * NR + at, best)
                            store(total_of, j * NR + at, total)
                            for e in range(values):
                                store(o, e * NR + at, load(o, e * NR + at, W) * less)
                            if tiles:
                                pair_keys(s, at, have, W)
                        for i in range(0, values, MV):
                            there = advance(o, i * NR)
                            if tiles:
                                add_floats(
                                    there, NR, advance(v_tiles, i // EDGE * ((block + EDGE - 1) // EDGE) * BLOCK),
                                    0, s_tiles, (have + EDGE - 1) // EDGE, 0, min(EDGE, values - i), NR, i // EDGE,
                                    kind, amx, form, W,
                                )  # fmt: skip
                            else:
                                product = tile_multiply(
                                    advance(v_panels, i * block), 1, MV, MV, s, NR, NR, have, MV, NV, W
                                )
                                tile_store(there, NR, tile_add(tile_load(there, NR, MV, NV, W), product), MV, NV, W)
                        if amx:
                            amx_close()
            out = advance(args.out, load_word(place, 0) + q0 * args.out_row)
            for at in range(0, rows, W):
                total, most = load(total_of, at, W), load(most_of, at, W)
                left = min(W, rows - at)
                inverse = select(total == 0.0, 0.0, 1.0 / total)
                o = advance(sums, at // NR * NR * high + at % NR)
                turned_rows(
                    advance(out, at * args.out_row), args.out_row, args.out_col, o, inverse, left, values, turn, C, NR,
                    W,
                )  # fmt: skip
                if address_of(args.lse) != 0:
                    lse = advance(args.lse, load_word(place, 1) + (q0 + at) * args.lse_row)
                    store_narrow_first(lse, 0, left, most + log(total))

    return attention_forward
