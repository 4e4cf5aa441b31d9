"""The kernels of topk: elements stand as integers ("keys") of which smaller ones come first.

A float's bits are in the order of its values but for the sign, NaN is made the largest, -0 is 0.  Few of many: a vector
of keys is compared with the k-th one found so far, and what is before that goes into a sorted list.  Many: a histogram
of the first 11 bits says what may be among the first k; that is sorted, 8 bits at a time, equals keeping their order.
Few of short rows: rows lie side by side in the lanes of vectors, a sorted list in each lane, into which an element of
each row goes by a minimum and a maximum a step.  Bound: x is read once, some 6 operations a vector.
"""

from __future__ import annotations

import functools

import numpy as np

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    Arguments,
    address_of,
    advance,
    any_lane,
    bitcast,
    cast_pointer,
    concat,
    interleave_high,
    interleave_low,
    is_nan,
    load,
    load_scalar,
    load_wide,
    load_wide_first,
    load_wide_rows,
    load_wide_strided,
    load_word,
    select,
    splat,
    stack_array,
    store,
    store_rows,
    store_scalar,
    store_word,
    transpose,
)
from numbaprims.dtypes import DTYPES

TOP = 11
"""Bits of the histogram that chooses: 16 KiB of counts."""

# A tile is `block` of `rows` rows; those of a block begin where `starts` (the address of int64[outer][3]) says, `_row`
# elements apart; `_col`: from one element to the next.  Of rising rows the last `sample` elements are looked at
# first, where that is not 0; of rows side by side the first ones go into the lists unasked.  A worker's own: the list
# of k + 1 keys and that of their places; n keys and places twice, and the histogram; k + 3 vectors of keys with places.
ARGS = Arguments(
    arrays=("values", "indices", "x"),
    ints=(
        "n", "k", "rows", "block", "blocks", "starts", *(f"{name}_{way}" for way in ("row", "col") for name in "vix"),
        "sample",
    ),
    own=("keys", "places", "other_keys", "other_places", "counts"),
)  # fmt: skip


@helper
def keys_of(v, KEY, REAL, LARGEST, SIGN, MOST):  # type: ignore[no-untyped-def]
    """The keys of a vector."""
    if REAL:
        v = v + 0.0
        bits = bitcast(v, KEY)
        bits = select(is_nan(v), MOST, bits ^ ((bits >> SIGN) & MOST))
    else:
        bits = v
    return bits ^ -1 if LARGEST else bits


@helper
def read(x, at, step, W, STRIDED):  # type: ignore[no-untyped-def]
    """A vector of a row."""
    return load_wide_strided(x, at * step, step, W) if STRIDED else load_wide(x, at, W)


@helper
def insert(keys, places, count, k, key, place):  # type: ignore[no-untyped-def]
    """Put an element into the sorted list of `count`, behind its equals; gives how many there are then."""
    at = count
    while at > 0 and load_scalar(keys, at - 1) > key:
        store_scalar(keys, at, load_scalar(keys, at - 1))
        store_word(places, at, load_word(places, at - 1))
        at -= 1
    store_scalar(keys, at, key)
    store_word(places, at, place)
    return min(count + 1, k)


@helper
def rising(x, n, x_col, lane, KEY, REAL, LARGEST, SIGN, MOST):  # type: ignore[no-untyped-def]
    """Whether a row as a whole is in the order in which each element goes in front of all before it: 7 of 8 steps are,
    which one drawn row of 700 has."""
    count, last = 0, 0
    for j in range(9):
        store(lane, 0, keys_of(load_wide_strided(x, (n - 1) * j // 8 * x_col, 1, 1), KEY, REAL, LARGEST, SIGN, MOST))
        own = int(load_scalar(lane, 0))
        if j > 0 and own < last:
            count += 1
        last = own
    return count >= 7


@helper
def before_last(keys, count, k, limit, key):  # type: ignore[no-untyped-def]
    """Whether a key may go into the list."""
    if count == k:
        return any_lane(key < load_scalar(keys, k - 1))
    return any_lane(key <= limit)


@functools.cache
def make_insert(dtype: str, word: str, largest: bool, strided: bool, W: int) -> RangeKernel:
    """Tiles of rows, by a sorted list."""
    KEY, REAL, LARGEST, STRIDED = word, dtype[0] != "i", largest, strided
    SIGN, MOST = DTYPES[word].itemsize * 8 - 1, (1 << (DTYPES[word].itemsize * 8 - 1)) - 1
    types = ARGS.types(values=dtype, indices="i64", x=dtype, keys=word)

    @range_kernel("topk_insert", types, spec=(dtype, word, largest, strided, W))
    def topk_insert(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        n, k, x_col, x_row = args.n, args.k, args.x_col, args.x_row
        keys, places = args.keys[worker], address_of(args.places[worker])
        lane = stack_array(KEY, W)
        for tile in range(lo, hi):
            outer = tile // args.blocks
            first = (tile - outer * args.blocks) * args.block
            start = args.starts + 24 * outer
            for r in range(first, min(first + args.block, args.rows)):
                values = advance(args.values, load_word(start, 0) + r * args.v_row)
                indices = advance(args.indices, load_word(start, 1) + r * args.i_row)
                x = advance(args.x, load_word(start, 2) + r * x_row)
                count = 0
                limit = MOST
                if args.sample and rising(x, n, x_col, lane, KEY, REAL, LARGEST, SIGN, MOST):
                    for i in range(n - W, n - args.sample - 1, -W):
                        key = keys_of(read(x, i, x_col, W, STRIDED), KEY, REAL, LARGEST, SIGN, MOST)
                        if before_last(keys, count, k, limit, key):
                            store(lane, 0, key)
                            for j in range(W - 1, -1, -1):
                                own = load_scalar(lane, j)
                                if count < k or own < load_scalar(keys, k - 1):
                                    count = insert(keys, places, min(count, k - 1), k, own, i + j)
                    limit, count = int(load_scalar(keys, k - 1)), 0
                for i in range(0, n, W):
                    left = min(W, n - i)
                    if STRIDED:
                        if left == W:
                            key = keys_of(read(x, i, x_col, W, STRIDED), KEY, REAL, LARGEST, SIGN, MOST)
                            store(lane, 0, key)
                            hit = before_last(keys, count, k, limit, key)
                        else:
                            hit = True
                            for j in range(left):
                                one = keys_of(
                                    load_wide_strided(x, (i + j) * x_col, 1, 1), KEY, REAL, LARGEST, SIGN, MOST
                                )
                                store(lane, j, one)
                    else:
                        v = load_wide(x, i, W) if left == W else load_wide_first(x, i, left, W)
                        key = keys_of(v, KEY, REAL, LARGEST, SIGN, MOST)
                        hit = before_last(keys, count, k, limit, key)
                        if hit:
                            store(lane, 0, key)
                    if hit:
                        for j in range(left):
                            own = load_scalar(lane, j)
                            if own < load_scalar(keys, k - 1) if count == k else own <= limit:
                                # the last one drops out
                                count = insert(keys, places, min(count, k - 1), k, own, i + j)
                for j in range(k):
                    place = load_word(places, j)
                    store_scalar(indices, j * args.i_col, place)
                    store_scalar(values, j * args.v_col, load_scalar(x, place * x_col))

    return topk_insert


@helper
def keys_and_places(v, i, W, REAL, LARGEST, SIGN, MOST):  # type: ignore[no-untyped-def]
    """Keys with the place behind them, of which no two are alike."""
    key, place = keys_of(v, "i32", REAL, LARGEST, SIGN, MOST), splat(np.int32(i), W)
    return bitcast(concat(interleave_low(place, key), interleave_high(place, key)), "i64")


@helper
def column(x, i, x_col, x_row, SIDE, W, REAL, LARGEST, SIGN, MOST):  # type: ignore[no-untyped-def]
    """The same of element i of each row."""
    v = load_wide(x, i * x_col, W) if SIDE else load_wide_strided(x, i * x_col, x_row, W)
    return keys_and_places(v, i, W, REAL, LARGEST, SIGN, MOST)


@helper
def sink(lists, k, a, b, always, W):  # type: ignore[no-untyped-def]
    """Let two elements of each row sink into its sorted list, of which those behind the k-th do not matter."""
    if always or any_lane(select(a < b, a, b) < load(lists, (k - 1) * W, W)):
        for j in range(0, k, 4):
            for q in range(j, j + 4):
                other = load(lists, q * W, W)
                first = a < other
                other, a = select(first, a, other), select(first, other, a)
                first = b < other
                store(lists, q * W, select(first, b, other))
                b = select(first, other, b)


@functools.cache
def make_across(dtype: str, largest: bool, layout: str, W: int) -> RangeKernel:
    """Tiles of rows, as many side by side as a vector has lanes; the last ones overlap where they are fewer."""
    REAL, LARGEST, ROWS, SIDE = dtype[0] != "i", largest, layout == "rows", layout == "side"
    SIGN, MOST, LAST = 31, (1 << 31) - 1, (1 << 63) - 1
    COMPUTE, SQUARE = DTYPES[dtype].accumulate, W * W
    types = ARGS.types(values=dtype, indices="i64", x=dtype, keys="i64")

    @range_kernel("topk_across", types, spec=(dtype, largest, layout, W))
    def topk_across(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        n, k, x_col, x_row = args.n, args.k, args.x_col, args.x_row
        lists, turned = args.keys[worker], stack_array(COMPUTE, SQUARE)
        halves = cast_pointer(lists, "i32")
        for tile in range(lo, hi):
            outer = tile // args.blocks
            first = (tile - outer * args.blocks) * args.block
            start = args.starts + 24 * outer
            for r in range(first, min(first + args.block, args.rows), W):
                row = min(r, args.rows - W)
                values = advance(args.values, load_word(start, 0) + row * args.v_row)
                indices = advance(args.indices, load_word(start, 1) + row * args.i_row)
                x = advance(args.x, load_word(start, 2) + row * x_row)
                for j in range(k + 3):
                    store(lists, j * W, splat(LAST, W))
                whole = n - n % W if ROWS else 0
                for i in range(0, whole, W):
                    store_rows(turned, W, transpose(load_wide_rows(advance(x, i), x_row, W, W, W)))
                    for j in range(0, W, 2):
                        one = keys_and_places(load(turned, j * W, W), i + j, W, REAL, LARGEST, SIGN, MOST)
                        two = keys_and_places(load(turned, (j + 1) * W, W), i + j + 1, W, REAL, LARGEST, SIGN, MOST)
                        sink(lists, k, one, two, i < args.sample, W)
                for i in range(whole, n, 2):
                    one, two = column(x, i, x_col, x_row, SIDE, W, REAL, LARGEST, SIGN, MOST), splat(LAST, W)
                    if i + 1 < n:
                        two = column(x, i + 1, x_col, x_row, SIDE, W, REAL, LARGEST, SIGN, MOST)
                    sink(lists, k, one, two, i < args.sample, W)
                for lane in range(W):
                    for j in range(k):
                        place = int(load_scalar(halves, 2 * (j * W + lane)))
                        store_scalar(indices, lane * args.i_row + j * args.i_col, place)
                        value = load_scalar(x, lane * x_row + place * x_col)
                        store_scalar(values, lane * args.v_row + j * args.v_col, value)

    return topk_across


@functools.cache
def make_radix(dtype: str, word: str, largest: bool, strided: bool, W: int) -> RangeKernel:
    """Tiles of rows, by digits."""
    KEY, REAL, LARGEST, STRIDED = word, dtype[0] != "i", largest, strided
    SIGN, MOST = DTYPES[word].itemsize * 8 - 1, (1 << (DTYPES[word].itemsize * 8 - 1)) - 1
    BITS = SIGN + 1
    types = ARGS.types(values=dtype, indices="i64", x=dtype, keys=word, other_keys=word)

    @range_kernel("topk_radix", types, spec=(dtype, word, largest, strided, W))
    def topk_radix(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        n, k, x_col, x_row = args.n, args.k, args.x_col, args.x_row
        counts = address_of(args.counts[worker])
        for tile in range(lo, hi):
            outer = tile // args.blocks
            first = (tile - outer * args.blocks) * args.block
            start = args.starts + 24 * outer
            for r in range(first, min(first + args.block, args.rows)):
                values = advance(args.values, load_word(start, 0) + r * args.v_row)
                indices = advance(args.indices, load_word(start, 1) + r * args.i_row)
                x = advance(args.x, load_word(start, 2) + r * x_row)
                keys, places = args.keys[worker], address_of(args.places[worker])
                other, others = args.other_keys[worker], address_of(args.other_places[worker])
                for i in range(0, n - W + 1, W):
                    store(other, i, keys_of(read(x, i, x_col, W, STRIDED), KEY, REAL, LARGEST, SIGN, MOST))
                for i in range(n - n % W, n):
                    store(other, i, keys_of(load_wide(x, i * x_col, 1), KEY, REAL, LARGEST, SIGN, MOST))
                # signed keys in the order of unsigned digits: half of the range is added to the first one
                half = 1 << (TOP - 1)
                for b in range(1 << TOP):
                    store_word(counts, b, 0)
                for i in range(n):
                    b = (int(load_scalar(other, i)) >> (BITS - TOP)) + half
                    store_word(counts, b, load_word(counts, b) + 1)
                last, seen = 0, load_word(counts, 0)
                while seen < k:
                    last += 1
                    seen += load_word(counts, last)
                m = 0
                for i in range(n):
                    key = load_scalar(other, i)
                    # one too many is written over by the next
                    store_scalar(keys, m, key)
                    store_word(places, m, i)
                    m += 1 if (int(key) >> (BITS - TOP)) + half <= last else 0
                for digit in range(BITS // 8):
                    flip = 128 if digit == BITS // 8 - 1 else 0
                    for b in range(256):
                        store_word(counts, b, 0)
                    for i in range(m):
                        b = ((int(load_scalar(keys, i)) >> (8 * digit)) & 255) ^ flip
                        store_word(counts, b, load_word(counts, b) + 1)
                    at = 0
                    for b in range(256):
                        own = load_word(counts, b)
                        store_word(counts, b, at)
                        at += own
                    for i in range(m):
                        key = load_scalar(keys, i)
                        b = ((int(key) >> (8 * digit)) & 255) ^ flip
                        to = load_word(counts, b)
                        store_word(counts, b, to + 1)
                        store_scalar(other, to, key)
                        store_word(others, to, load_word(places, i))
                    keys, other, places, others = other, keys, others, places
                for j in range(k):
                    place = load_word(places, j)
                    store_scalar(indices, j * args.i_col, place)
                    store_scalar(values, j * args.v_col, load_scalar(x, place * x_col))

    return topk_radix
