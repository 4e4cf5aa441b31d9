"""The register tile: MR x NR sums kept in registers over the whole of a k block.

An MR x NR tile reads MR + NR elements for MR * NR multiply-adds.  The panel of B (kc x NR) stays in the first-level
cache while the panels of A stream past it from the second.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.gemm.arguments import MULTIPLY, MULTIPLY_ENDED
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    load,
    load_first,
    load_scalar,
    scalar,
    select,
    splat,
    stack_tile,
    store_first,
    store_scalar,
    tile_add,
    tile_end,
    tile_load,
    tile_multiply,
    tile_multiply_ahead,
    tile_prefetch,
    tile_store,
)


@helper
def keep_part(room, total, step, rows, columns, first, NR, W):  # type: ignore[no-untyped-def]
    """total (+)= the rows and columns of a stored tile that are there."""
    for r in range(rows):
        for v in range(0, columns, W):
            left = min(columns - v, W)
            x = load(room, r * NR + v, W)
            if not first:
                x = x + load_first(total, r * step + v, left, W)
            store_first(total, r * step + v, left, x)


@helper
def end_part(total, step, rows, columns, shifts, low, high, W):  # type: ignore[no-untyped-def]
    """What `tile_end` does, to rows and columns of stored sums."""
    for r in range(rows):
        shift = splat(load_scalar(shifts, r), W)
        for v in range(0, columns, W):
            left = min(columns - v, W)
            x = load_first(total, r * step + v, left, W) + shift
            x = select(x < low, low, x)
            x = select(x > high, high, x)
            store_first(total, r * step + v, left, x)


@helper
def multiply_panel(args, q, columns, room, MR, NV, NR, W):  # type: ignore[no-untyped-def]
    """All panels of A with the first NV vectors of panel q of B."""
    k = args.k
    step = args.total_step
    first = args.first
    b = advance(args.b, q * NR * k)
    for i in range(0, args.rows, MR):
        rows = min(MR, args.rows - i)
        total = advance(args.total, i * step + q * NR)
        if rows == MR:
            # The sums' lines are prefetched a tile ahead of their use: without it 1024^3 ran at 169 GFLOP/s, not 208.
            tile_prefetch(total, step, MR, NV, W)
        tile = tile_multiply(advance(args.a, i * k), 1, MR, MR, b, NR, NV * W, k, MR, NV, W)
        if rows == MR and columns == NV * W:
            if not first:
                tile = tile_add(tile_load(total, step, MR, NV, W), tile)
            tile_store(total, step, tile, MR, NV, W)
        else:
            tile_store(room, NV * W, tile, MR, NV, W)
            keep_part(room, total, step, rows, columns, first, NV * W, W)


@functools.cache
def make_multiply(acc: str, MR: int, NV: int, W: int) -> RangeKernel:
    """Multiply packed panels: tiles lo ... hi - 1 are the panels of B, each with all panels of A.

    Of a last panel with no more columns than a vector only that vector is multiplied.
    """
    types = MULTIPLY.types(a=acc, b=acc, total=acc)
    NR = NV * W

    @range_kernel("gemm_multiply", types, spec=(acc, MR, NV, W))
    def gemm_multiply(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        room = stack_tile(acc, MR, NV, W)
        for q in range(lo, hi):
            columns = min(NR, args.columns - q * NR)
            if columns > W:
                multiply_panel(args, q, columns, room, MR, NV, NR, W)
            else:
                multiply_panel(args, q, columns, room, MR, 1, NR, W)

    return gemm_multiply


def rows_ahead(rows: int, MR: int) -> int:
    """Rows that each tile prefetches for four of k, so that the tiles of `rows` rows prefetch all of the next ones."""
    return (4, 4, 2, 2, 1)[min(-(-rows // MR), 4)]


@functools.cache
def make_direct(
    dtype: str, b_dtype: str, acc: str, MR: int, NV: int, W: int, packed_a: bool, ahead: int, ended: bool = False
) -> RangeKernel:
    """Multiply matrices where they lie, B with unit stride along its rows; all row tiles of one group of columns
    follow one another, so that the k x NR piece of B they share stays in the first-level cache.

    With `packed_a` the rows of A come as panels: a tile of more than 8 rows then needs no register for each row's
    address (12 x 2 without it ran at 53 GFLOP/s instead of 85).

    `ahead`: rows of the next group of columns that a tile prefetches for each four of k (`rows_ahead`), between its
    multiply-adds: no hardware prefetcher follows from row to row.  35x8457x2560 took 25.3 ms with all of a tile's
    before it, 15.3 so (Zen 4).  0: none.

    `ended`: the last product of a block adds the bias and cuts (relu) in registers, of MULTIPLY_ENDED: 96 x 3136 x 16
    takes 130 us with a pass for each, 100 so (Zen 4).
    """
    types = MULTIPLY.types(a=acc if packed_a else dtype, b=b_dtype, total=acc)
    if ended:
        types = MULTIPLY_ENDED.types(a=acc if packed_a else dtype, b=b_dtype, total=acc, bias=acc)
    END = int(ended)
    NR = NV * W
    LONG = 32  # of shorter tiles the prefetches would be most of the work

    @range_kernel("gemm_direct", types, spec=(dtype, b_dtype, acc, MR, NV, W, packed_a, ahead, END))
    def gemm_direct(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        k = args.k
        step = args.total_step
        first = args.first
        a_step = 1 if packed_a else args.a_step
        a_k_step = MR if packed_a else args.a_k_step
        b_step = args.b_step
        room = stack_tile(acc, MR, NV, W)
        ends = 0
        if END:
            low, high = splat(scalar(args.low, acc), W), splat(scalar(args.high, acc), W)
            none = stack_tile(acc, MR, 1, 1)
            for r in range(MR):
                store_scalar(none, r, scalar(0, acc))
            biased = address_of(args.bias) != 0
            ends = args.last
        whole = args.columns - args.columns % NR
        share = k // 4 * ahead
        for j in range(0, whole, NR):
            next_row = 0
            for i in range(0, args.rows, MR):
                rows = min(MR, args.rows - i)
                total = advance(args.total, i * step + j)
                a = advance(args.a, i * (k if packed_a else a_step))
                if rows == MR and k >= LONG:
                    tile_prefetch(total, step, MR, NV, W)
                here = MR if packed_a else rows
                b = advance(args.b, j)
                if ahead:
                    at = min(next_row, k - share) * b_step + NR
                    tile = tile_multiply_ahead(a, a_step, a_k_step, here, b, b_step, NR, k, at, ahead, MR, NV, W)
                    next_row += share
                else:
                    tile = tile_multiply(a, a_step, a_k_step, here, b, b_step, NR, k, MR, NV, W)
                if rows == MR:
                    if not first:
                        tile = tile_add(tile_load(total, step, MR, NV, W), tile)
                    if END and ends:
                        tile = tile_end(tile, advance(args.bias, i) if biased else none, low, high, MR)
                    tile_store(total, step, tile, MR, NV, W)
                else:
                    tile_store(room, NR, tile, MR, NV, W)
                    keep_part(room, total, step, rows, NR, first, NR, W)
                    if END and ends:
                        end_part(total, step, rows, NR, advance(args.bias, i) if biased else none, low, high, W)
        for j in range(whole, args.columns, W):
            columns = min(W, args.columns - j)
            for i in range(0, args.rows, MR):
                rows = min(MR, args.rows - i)
                a = advance(args.a, i * (k if packed_a else a_step))
                tile = tile_multiply(
                    a,
                    a_step,
                    a_k_step,
                    MR if packed_a else rows,
                    advance(args.b, j),
                    b_step,
                    columns,
                    k,
                    MR,
                    1,
                    W,
                )
                tile_store(room, W, tile, MR, 1, W)
                total = advance(args.total, i * step + j)
                keep_part(room, total, step, rows, columns, first, W, W)
                if END and ends:
                    end_part(total, step, rows, columns, advance(args.bias, i) if biased else none, low, high, W)

    return gemm_direct
