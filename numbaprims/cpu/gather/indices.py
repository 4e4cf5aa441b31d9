"""What is done with indices: tables of places, single elements, sums by rows, rows that are one at an index.

The bounds: `gather` writes each result once, reads as much of x and each index once; its gradient reads dy once and
writes dx once, and two passes over the indices put them band by band of rows that a cache holds.
"""

from __future__ import annotations

import functools

from numba.core import types

from numbaprims.cpu.gather.kernels import copy, fill, first_bad
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    Arguments,
    address_of,
    advance,
    load,
    load_scalar,
    load_wide,
    load_wide_first,
    load_word,
    pointer_from_address,
    prefetch,
    scalar,
    splat,
    store,
    store_narrow,
    store_narrow_first,
    store_scalar,
    store_word,
    zeros,
)
from numbaprims.dtypes import DTYPES

# table: of each index its place; flags: of each of `tiles` tiles of indices the first that is out of range; starts: of
# each tile and each band of 2^shift rows where its indices stand in `order`; sums, terms: of a worker's band.
ARGS = Arguments(
    arrays=("out", "x", "indices", "flags", "status"),
    ints=(
        "count", "size", "along", "tile", "tiles", "inner", "outer", "band", "bands", "skip", "mean", "out_step",
        "x_outer", "out_outer", "on", "off", "far", "shift",
    ),
    shared=("table", "starts", "order"),
    own=("sums", "terms"),
)  # fmt: skip
#: Bits of an index's place, below its row's.
PLACE = 40


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
def make_count(index: str) -> RangeKernel:
    """Of each tile of indices the first that is out of range, and how many of it go into each band of rows."""
    kinds = ARGS.types(indices=index, flags="i64", starts="i64")

    @range_kernel("gather_count", kinds, spec=(index,))
    def count(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        size, skip, shift = args.size, args.skip, args.shift
        for tile in range(lo, hi):
            starts, bad = advance(args.starts, tile * args.bands), -1
            for band in range(args.bands):
                store_scalar(starts, band, 0)
            begin, end, wrong = tile * args.tile, min(args.count, (tile + 1) * args.tile), 0
            for j in range(begin, end):
                r = place(args.indices, j, size, 1)
                wrong |= r | (size - 1 - r)
                if r != skip:
                    band = min(max(r, 0), size - 1) >> shift
                    store_scalar(starts, band, load_scalar(starts, band) + 1)
            if wrong < 0:
                bad = begin
                for j in range(end - 1, begin - 1, -1):
                    r = place(args.indices, j, size, 1)
                    bad = j if r < 0 or r >= size else bad
            store_scalar(args.flags, tile, bad)

    return count


@functools.cache
def make_offsets() -> RangeKernel:
    """Where those of each tile begin in each band; one tile."""
    kinds = ARGS.types(flags="i64", starts="i64", status="i64")

    @range_kernel("gather_offsets", kinds, spec=())
    def offsets(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        store_scalar(args.status, 0, first_bad(args.flags, args.tiles))
        total, bands = 0, args.bands
        for band in range(bands):
            for at in range(band, args.tiles * bands, bands):
                here = load_scalar(args.starts, at)
                store_scalar(args.starts, at, total)
                total += here

    return offsets


@functools.cache
def make_order(index: str) -> RangeKernel:
    """The indices band by band, in their order: the row in the band above `PLACE` bits, the index's place."""
    kinds = ARGS.types(indices=index, flags="i64", starts="i64", order="i64")

    @range_kernel("gather_order", kinds, spec=(index,))
    def order(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        size, skip, shift = args.size, args.skip, args.shift
        inside = (1 << shift) - 1
        if first_bad(args.flags, args.tiles) >= 0:
            hi = lo
        for tile in range(lo, hi):
            starts = advance(args.starts, tile * args.bands)
            for j in range(tile * args.tile, min(args.count, (tile + 1) * args.tile)):
                r = place(args.indices, j, size, 1)
                if r != skip:
                    at = load_scalar(starts, r >> shift)
                    store_scalar(args.order, at, ((r & inside) << PLACE) | j)
                    store_scalar(starts, r >> shift, at + 1)

    return order


@functools.cache
def make_sums(dtype: str, W: int, direct: bool) -> RangeKernel:
    """A band of rows of dx, to which the rows of dy that were taken from them are added in the order of their places.

    `direct`: sums stand in dx, else in lines of whole vectors of the worker.
    """
    acc = DTYPES[dtype].accumulate
    LINE, AHEAD, PLACES = 64 // DTYPES[dtype].itemsize, 16, (1 << PLACE) - 1
    kinds = ARGS.types(out=dtype, x=dtype, flags="i64", starts="i64", order="i64", sums=acc)

    @range_kernel("gather_sums", kinds, spec=(dtype, W, direct))
    def sums(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        inner, bands, shift, entries = args.inner, args.bands, args.shift, args.order
        ends = advance(args.starts, (args.tiles - 1) * bands)
        pitch = inner if direct else (inner + W - 1) // W * W
        own, terms = args.sums[worker], address_of(args.terms[worker])
        if first_bad(args.flags, args.tiles) >= 0:
            hi = lo
        for tile in range(lo, hi):
            outer = tile // bands
            band = tile - outer * bands
            row = band << shift
            rows = min(args.size - row, 1 << shift)
            first, end = load_scalar(ends, band - 1) if band else 0, load_scalar(ends, band)
            out = advance(args.out, (outer * args.size + row) * inner)
            dy = advance(args.x, outer * args.count * inner)
            total = out if direct else own
            for v in range(0, rows * pitch - W + 1, W):
                store(total, v, zeros(acc, W))
            for v in range(rows * pitch // W * W, rows * pitch):
                store_scalar(total, v, scalar(0.0, acc))
            if args.mean:
                for r in range(rows):
                    store_word(terms, r, 0)
            p = first
            while p < end:
                # those of one row that follow one another are summed up in registers, a few at a time
                r, q = load_scalar(entries, p) >> PLACE, min(end, p + AHEAD)
                if shift:
                    q = p + 1
                    while q < end and q < p + AHEAD and load_scalar(entries, q) >> PLACE == r:
                        q += 1
                if args.far:
                    for t in range(p, min(q, end - AHEAD)):
                        next = advance(dy, (load_scalar(entries, t + AHEAD) & PLACES) * inner)
                        for k in range(0, min(inner, 4 * LINE), LINE):
                            prefetch(next, k, 3)
                line, d = advance(total, r * pitch), 0
                while d + 4 * W <= inner:
                    s0, s1 = load(line, d, W), load(line, d + W, W)
                    s2, s3 = load(line, d + 2 * W, W), load(line, d + 3 * W, W)
                    for t in range(p, q):
                        at = (load_scalar(entries, t) & PLACES) * inner + d
                        s0 = s0 + load_wide(dy, at, W)
                        s1 = s1 + load_wide(dy, at + W, W)
                        s2 = s2 + load_wide(dy, at + 2 * W, W)
                        s3 = s3 + load_wide(dy, at + 3 * W, W)
                    store(line, d, s0)
                    store(line, d + W, s1)
                    store(line, d + 2 * W, s2)
                    store(line, d + 3 * W, s3)
                    d += 4 * W
                while d + W <= inner:
                    s0 = load(line, d, W)
                    for t in range(p, q):
                        s0 = s0 + load_wide(dy, (load_scalar(entries, t) & PLACES) * inner + d, W)
                    store(line, d, s0)
                    d += W
                if not direct and d < inner:
                    s0 = load(line, d, W)
                    for t in range(p, q):
                        at = (load_scalar(entries, t) & PLACES) * inner + d
                        s0 = s0 + load_wide_first(dy, at, inner - d, W)
                    store(line, d, s0)
                if args.mean:
                    store_word(terms, r, load_word(terms, r) + q - p)
                p = q
            if args.mean or not direct:
                for r in range(rows):
                    line, to = advance(total, r * pitch), advance(out, r * inner)
                    n = load_word(terms, r) if args.mean else 1
                    share = splat(scalar(1.0 / n if n > 1 else 1.0, acc), W)
                    d = 0
                    while d + W <= inner:
                        store_narrow(to, d, share * load(line, d, W))
                        d += W
                    if not direct and d < inner:
                        store_narrow_first(to, d, inner - d, share * load(line, d, W))

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
