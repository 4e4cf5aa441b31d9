"""What is done with indices: tables of places, single elements, sums by rows, rows that are one at an index.

The bounds: `gather` writes each result once, reads as much of x and each index once; its gradient reads dy once and
writes dx once, and two passes over the indices sort them by counting.
"""

from __future__ import annotations

import functools

from numba.core import types

from numbaprims.cpu.gather.kernels import copy, fill, first_bad
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    Arguments,
    advance,
    load_scalar,
    load_wide,
    load_wide_first,
    pointer_from_address,
    prefetch,
    scalar,
    splat,
    store_narrow,
    store_narrow_first,
    store_scalar,
    zeros,
)
from numbaprims.dtypes import DTYPES

# table: of each index its place; flags: of each of `tiles` tiles of indices the first that is out of range; starts:
# of each row of x the first of its places in `order`.
ARGS = Arguments(
    arrays=("out", "x", "indices", "table", "flags", "status", "starts", "order"),
    ints=(
        "count", "size", "along", "tile", "tiles", "inner", "outer", "band", "bands", "skip", "mean", "out_step",
        "x_outer", "out_outer", "on", "off", "far",
    ),
)  # fmt: skip


@functools.cache
def make_table(index: str, stored: bool) -> RangeKernel:
    """Of each tile of indices the first that is out of range; `stored`: the place of each, in elements."""

    @range_kernel("gather_table", ARGS.types(indices=index, table="i64", flags="i64"), spec=(index, stored))
    def table(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        size, along = args.size, args.along
        for tile in range(lo, hi):
            begin, end = tile * args.tile, min(args.count, (tile + 1) * args.tile)
            wrong, bad = 0, -1
            for j in range(begin, end):
                i = types.int64(load_scalar(args.indices, j))
                i += size & (i >> 63)
                wrong |= i | (size - 1 - i)
                if stored:
                    store_scalar(args.table, j, i * along)
            if wrong < 0:
                for j in range(end - 1, begin - 1, -1):
                    i = load_scalar(args.indices, j)
                    if i < -size or i >= size:
                        bad = j
            store_scalar(args.flags, tile, bad)

    return table


@helper
def place(indices, j, length, along):  # type: ignore[no-untyped-def]
    """Where the elements of an index lie."""
    i = types.int64(load_scalar(indices, j))
    return (i + (length & (i >> 63))) * along


@functools.cache
def make_take(size: int, index: str, vector_bytes: int) -> RangeKernel:
    """Runs of elements of `size` bytes by indices, for each row of x; of one element where `inner` is 1."""
    elem, W, BYTES, LINE, AHEAD = f"u{8 * size}", vector_bytes // size, size, 64 // size, 12
    A, B, C, D = (max(min(4, W), W >> k) for k in range(1, 5))
    kinds = ARGS.types(out=elem, x=elem, indices=index, flags="i64", status="i64")

    @range_kernel("gather_take", kinds, spec=(size, index, vector_bytes))
    def take(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        bad = first_bad(args.flags, args.tiles)
        if lo == 0:
            store_scalar(args.status, 0, bad)
        if bad >= 0:
            hi = lo
        inner, out_step, source, target = args.inner, args.out_step, args.x, args.out
        indices, length, along = args.indices, args.size, args.along
        # of rows in caches a prefetch costs what it saves; the first lines are enough for the hardware to go on
        asked = min(inner, 4 * LINE) if args.far else 0
        for tile in range(lo, hi):
            row = tile // args.bands
            begin = (tile - row * args.bands) * args.band
            end = min(args.count, begin + args.band)
            x, out = advance(source, row * args.x_outer), advance(target, row * args.out_outer)
            j = begin
            if inner == 1:
                while j + 4 <= end:
                    a, b = (
                        load_scalar(x, place(indices, j, length, along)),
                        load_scalar(x, place(indices, j + 1, length, along)),
                    )
                    c, d = (
                        load_scalar(x, place(indices, j + 2, length, along)),
                        load_scalar(x, place(indices, j + 3, length, along)),
                    )
                    store_scalar(out, j * out_step, a)
                    store_scalar(out, (j + 1) * out_step, b)
                    store_scalar(out, (j + 2) * out_step, c)
                    store_scalar(out, (j + 3) * out_step, d)
                    j += 4
                while j < end:
                    store_scalar(out, j * out_step, load_scalar(x, place(indices, j, length, along)))
                    j += 1
            else:
                while j < end:
                    if j + AHEAD < end:
                        next = advance(x, place(indices, j + AHEAD, length, along))
                        for k in range(0, asked, LINE):
                            prefetch(next, k, 3)
                    copy(out, j * out_step, inner, x, place(indices, j, length, along), W, A, B, C, D, BYTES)
                    j += 1

    return take


@functools.cache
def make_sort() -> RangeKernel:
    """The places of each row's indices, in order, by counting them; one tile."""
    kinds = ARGS.types(table="i64", flags="i64", starts="i64", order="i64", status="i64")

    @range_kernel("gather_sort", kinds, spec=())
    def sort(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        bad, starts, size = first_bad(args.flags, args.tiles), args.starts, args.size
        store_scalar(args.status, 0, bad)
        if bad < 0:
            # the count of row r stands at r + 2 and is summed up there, so that in the end its first place is at r
            for r in range(size + 2):
                store_scalar(starts, r, 0)
            for j in range(args.count):
                r = load_scalar(args.table, j)
                if r != args.skip:
                    store_scalar(starts, r + 2, load_scalar(starts, r + 2) + 1)
            total = 0
            for r in range(2, size + 2):
                total += load_scalar(starts, r)
                store_scalar(starts, r, total)
            for j in range(args.count):
                r = load_scalar(args.table, j)
                if r != args.skip:
                    at = load_scalar(starts, r + 1)
                    store_scalar(args.order, at, j)
                    store_scalar(starts, r + 1, at + 1)

    return sort


@functools.cache
def make_sums(dtype: str, W: int) -> RangeKernel:
    """Rows of dx: the sums of the rows of dy that were taken from each, in the order of their places."""
    acc = DTYPES[dtype].accumulate
    kinds = ARGS.types(out=dtype, x=dtype, flags="i64", starts="i64", order="i64")

    @range_kernel("gather_sums", kinds, spec=(dtype, W))
    def sums(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        inner = args.inner
        if first_bad(args.flags, args.tiles) >= 0:
            hi = lo
        for tile in range(lo, hi):
            outer = tile // args.bands
            begin = (tile - outer * args.bands) * args.band
            for r in range(begin, min(args.size, begin + args.band)):
                first, end = load_scalar(args.starts, r), load_scalar(args.starts, r + 1)
                out, dy = (
                    advance(args.out, (outer * args.size + r) * inner),
                    advance(args.x, outer * args.count * inner),
                )
                share = splat(scalar(1.0 / (end - first) if args.mean and end > first else 1.0, acc), W)
                d = 0
                while d + 4 * W <= inner:
                    s0, s1, s2, s3 = zeros(acc, W), zeros(acc, W), zeros(acc, W), zeros(acc, W)
                    for p in range(first, end):
                        at = load_scalar(args.order, p) * inner + d
                        s0 = s0 + load_wide(dy, at, W)
                        s1 = s1 + load_wide(dy, at + W, W)
                        s2 = s2 + load_wide(dy, at + 2 * W, W)
                        s3 = s3 + load_wide(dy, at + 3 * W, W)
                    store_narrow(out, d, share * s0)
                    store_narrow(out, d + W, share * s1)
                    store_narrow(out, d + 2 * W, share * s2)
                    store_narrow(out, d + 3 * W, share * s3)
                    d += 4 * W
                while d < inner:
                    left, s0 = min(W, inner - d), zeros(acc, W)
                    for p in range(first, end):
                        s0 = s0 + load_wide_first(dy, load_scalar(args.order, p) * inner + d, left, W)
                    store_narrow_first(out, d, left, share * s0)
                    d += W

    return sums


@functools.cache
def make_one_hot(size: int, index: str, vector_bytes: int) -> RangeKernel:
    """All off, then what is on: of `outer` arrays of `size` rows of `inner` elements each."""
    elem, W = f"u{8 * size}", vector_bytes // size
    A, B, C, D = (max(min(4, W), W >> k) for k in range(1, 5))

    @range_kernel("gather_one_hot", ARGS.types(out=elem, indices=index), spec=(size, index, vector_bytes))
    def one_hot(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        on = load_scalar(pointer_from_address(args.on, elem), 0)
        off = load_scalar(pointer_from_address(args.off, elem), 0)
        depth, inner = args.size, args.inner
        for tile in range(lo, hi):
            begin, end = tile * args.band, min(args.outer, (tile + 1) * args.band)
            fill(args.out, begin * depth * inner, (end - begin) * depth * inner, off, W, A, B, C, D)
            for o in range(begin, end):
                for i in range(inner):
                    d = load_scalar(args.indices, o * inner + i)
                    if d < 0:
                        d += depth
                    if d >= 0 and d < depth:
                        store_scalar(args.out, (o * depth + d) * inner + i, on)

    return one_hot
