"""Rows that are copied from places that tables hold, and the sums that are their gradient.

A row is the innermost axis: segments of x (on, back, or one element again and again) and of the constant.  The bound:
each result is written once and each element of x read once; a row costs some 20 cycles beside.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    Arguments,
    address_of,
    advance,
    load,
    load_first,
    load_scalar,
    load_word,
    pointer_from_address,
    splat,
    store,
    store_first,
    store_scalar,
    store_stream,
    stream_fence,
)
from numbaprims.ops._gather_problem import NONE

# Words of a plan, whose arguments say where they lie.  Of each loop around a row, the outermost first: its length, the
# steps of what is written and of what is read, and where the table of the latter lies, 0 for none.  Of each segment:
# its place in the row, elements, where they lie in x or NONE, and their step.
LOOP, SEGMENT = 4, 4
GIVEN = 1
"""In the place of a table: the one that is made of the call's indices, where none of them is out of range."""
ARGS = Arguments(
    arrays=("out", "x", "flags", "status"),
    ints=(
        "loops", "segments", "pieces", "plan_loops", "plan_segments", "plan_pieces", "rows", "band", "out_step",
        "x_step", "value", "width", "before", "first", "kept", "size", "tiles",
    ),
    shared=("table",),
    own=("line",),
)  # fmt: skip


@helper
def first_bad(flags, tiles):  # type: ignore[no-untyped-def]
    """The place of the first index that is out of range, as each tile of `make_index` left it; -1 for none."""
    found = -1
    for t in range(tiles):
        if found < 0:
            found = load_scalar(flags, t)
    return found


@helper
def fill(out, start, count, value, W, A, B, C, D):  # type: ignore[no-untyped-def]
    """count neighbours that are all alike; ends overlap, which takes no masks (pads of 28 x 28 pixels are 11 % faster
    on Zen 4)."""
    if count >= W:
        vector, end = splat(value, W), start + count
        for v in range(start, end - W + 1, W):
            store(out, v, vector)
        store(out, end - W, vector)
    elif count >= A:
        fill_ends(out, start, count, value, A)
    elif count >= B:
        fill_ends(out, start, count, value, B)
    elif count >= C:
        fill_ends(out, start, count, value, C)
    elif count >= D:
        fill_ends(out, start, count, value, D)
    elif count > 0:
        few(out, start, count, value, value, value)


@helper
def few(out, start, count, a, b, c):  # type: ignore[no-untyped-def]
    """One to three elements; loops over so few begin with what LLVM needs for many."""
    store_scalar(out, start, a)
    if count > 1:
        store_scalar(out, start + 1, b)
        if count > 2:
            store_scalar(out, start + 2, c)


@helper
def few_of(out, start, count, x, source, step):  # type: ignore[no-untyped-def]
    """One to three elements of x."""
    store_scalar(out, start, load_scalar(x, source))
    if count > 1:
        store_scalar(out, start + 1, load_scalar(x, source + step))
        if count > 2:
            store_scalar(out, start + 2, load_scalar(x, source + 2 * step))


@helper
def fill_ends(out, start, count, value, L):  # type: ignore[no-untyped-def]
    """L to 2 L of them."""
    store(out, start, splat(value, L))
    store(out, start + count - L, splat(value, L))


@helper
def copy(out, start, count, x, source, W, A, B, C, D, BYTES):  # type: ignore[no-untyped-def]
    """count neighbours of x."""
    if count >= W:
        v = 0
        if count >= 8 * W:
            # long runs are stored by whole lines
            store(out, start, load(x, source, W))
            v = W - address_of(advance(out, start)) // BYTES % W
        while v + 4 * W <= count:
            a, b = load(x, source + v, W), load(x, source + v + W, W)
            c, d = load(x, source + v + 2 * W, W), load(x, source + v + 3 * W, W)
            store(out, start + v, a)
            store(out, start + v + W, b)
            store(out, start + v + 2 * W, c)
            store(out, start + v + 3 * W, d)
            v += 4 * W
        while v + W <= count:
            store(out, start + v, load(x, source + v, W))
            v += W
        v = count - W
        store(out, start + v, load(x, source + v, W))
    elif count >= A:
        copy_ends(out, start, count, x, source, A)
    elif count >= B:
        copy_ends(out, start, count, x, source, B)
    elif count >= C:
        copy_ends(out, start, count, x, source, C)
    elif count >= D:
        copy_ends(out, start, count, x, source, D)
    elif count > 0:
        few_of(out, start, count, x, source, 1)


@helper
def copy_past(out, start, count, x, source, W, A, B, C, D, BYTES):  # type: ignore[no-untyped-def]
    """As `copy`, past the caches; no other store reaches into a line that was written so."""
    head = min((W - address_of(advance(out, start)) // BYTES % W) % W, count)
    copy(out, start, head, x, source, W, A, B, C, D, BYTES)
    v = head
    while v + W <= count:
        store_stream(out, start + v, load(x, source + v, W))
        v += W
    copy(out, start + v, count - v, x, source + v, W, A, B, C, D, BYTES)


@helper
def copy_ends(out, start, count, x, source, L):  # type: ignore[no-untyped-def]
    """L to 2 L of them."""
    first, last = load(x, source, L), load(x, source + count - L, L)
    store(out, start, first)
    store(out, start + count - L, last)


@helper
def places_of(plan, loops, index, given):  # type: ignore[no-untyped-def]
    """Where a row begins in the result and in x, by all loops but the innermost; whether it is of nothing."""
    to, of, none = 0, 0, False
    for d in range(loops - 2, -1, -1):
        loop = plan + 8 * LOOP * d
        above = index // load_word(loop, 0)
        digit = index - above * load_word(loop, 0)
        index = above
        to += digit * load_word(loop, 1)
        table = load_word(loop, 3)
        if table == GIVEN:
            table = given
        if table:
            place = load_word(table, digit)
            none = none or place == NONE
            of += place
        else:
            of += digit * load_word(loop, 2)
    return to, of, none


@functools.cache
def make_rows(size: int, vector_bytes: int, single: bool) -> RangeKernel:
    """Rows of elements of `size` bytes; `single`: an element at a time, wherever they lie."""
    elem, W = f"u{8 * size}", vector_bytes // size
    BYTES = size
    A, B, C, D = (max(min(4, W), W >> k) for k in range(1, 5))

    @range_kernel(
        "gather_rows",
        ARGS.types(out=elem, x=elem, table="i64", flags="i64", status="i64"),
        spec=(size, vector_bytes, single),
    )
    def rows(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        value = load_scalar(pointer_from_address(args.value, elem), 0)
        loops, last_loop = args.loops, args.plan_loops + 8 * LOOP * (args.loops - 1)
        last, last_out = load_word(last_loop, 0), load_word(last_loop, 1)
        last_x, last_table = load_word(last_loop, 2), load_word(last_loop, 3)
        if last_table == GIVEN:
            last_table = address_of(args.table)
        if args.tiles:
            bad = first_bad(args.flags, args.tiles)
            if lo == 0:
                store_scalar(args.status, 0, bad)
            if bad >= 0:
                hi = lo
        out_step, x_step = args.out_step, args.x_step
        for tile in range(lo, hi):
            band = tile // args.pieces
            piece = tile - band * args.pieces
            begin, end = load_word(args.plan_pieces, piece), load_word(args.plan_pieces, piece + 1)
            row = band * args.band
            stop_row = min(args.rows, row + args.band)
            while row < stop_row:
                index = row // last
                i = row - index * last
                stop = min(last, i + stop_row - row)
                row += stop - i
                to, of, none = places_of(args.plan_loops, loops, index, address_of(args.table))
                while i < stop:
                    out = advance(args.out, to + i * last_out)
                    place = i * last_x
                    if last_table:
                        place = load_word(last_table, i)
                    nothing = none or place == NONE
                    x = advance(args.x, of + place)
                    for s in range(begin, end):
                        segment = args.plan_segments + 8 * SEGMENT * s
                        start, count = load_word(segment, 0), load_word(segment, 1)
                        source, step = load_word(segment, 2), load_word(segment, 3)
                        if nothing or source == NONE:
                            if single or out_step != 1:
                                for k in range(start, start + count):
                                    store_scalar(out, k * out_step, value)
                            else:
                                fill(out, start, count, value, W, A, B, C, D)
                        elif single or out_step != 1 or step * x_step != 1:
                            for k in range(count):
                                there = load_scalar(x, (source + k * step) * x_step)
                                store_scalar(out, (start + k) * out_step, there)
                        else:
                            copy(out, start, count, x, source, W, A, B, C, D, BYTES)
                    i += 1

    return rows


@helper
def side(out, start, count, x, source, step, value, none, W, A, B, C, D, BYTES):  # type: ignore[no-untyped-def]
    """What stands beside a row."""
    if none:
        fill(out, start, count, value, W, A, B, C, D)
    elif count < 4:
        few_of(out, start, count, x, source, step)
    elif step == 0:
        fill(out, start, count, load_scalar(x, source), W, A, B, C, D)
    elif step == 1:
        copy(out, start, count, x, source, W, A, B, C, D, BYTES)
    else:
        for k in range(count):
            store_scalar(out, start + k, load_scalar(x, source + k * step))


@functools.cache
def make_framed(size: int, vector_bytes: int, past: bool, whole: int = -1) -> RangeKernel:
    """Contiguous rows of three segments, what stands before x, x, and what stands behind: most pads are such.

    `past`: what is of x leaves past the caches.  `whole`: so many vectors of x, and lanes of one more by a mask; -1 for
    any number of elements.
    """
    elem, W, BYTES = f"u{8 * size}", vector_bytes // size, size
    A, B, C, D = (max(min(4, W), W >> k) for k in range(1, 5))

    @range_kernel(
        "gather_framed",
        ARGS.types(out=elem, x=elem, table="i64", flags="i64", status="i64"),
        spec=(size, vector_bytes, past, whole),
    )
    def framed(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        value = load_scalar(pointer_from_address(args.value, elem), 0)
        loops, last_loop = args.loops, args.plan_loops + 8 * LOOP * (args.loops - 1)
        last, last_out = load_word(last_loop, 0), load_word(last_loop, 1)
        last_x, last_table = load_word(last_loop, 2), load_word(last_loop, 3)
        if last_table == GIVEN:
            last_table = address_of(args.table)
        if args.tiles:
            bad = first_bad(args.flags, args.tiles)
            if lo == 0:
                store_scalar(args.status, 0, bad)
            if bad >= 0:
                hi = lo
        left, left_from, left_step = (
            load_word(args.plan_segments, 1), load_word(args.plan_segments, 2), load_word(args.plan_segments, 3)
        )  # fmt: skip
        middle, middle_from = load_word(args.plan_segments, 5), load_word(args.plan_segments, 6)
        right, right_from, right_step = (
            load_word(args.plan_segments, 9), load_word(args.plan_segments, 10), load_word(args.plan_segments, 11)
        )  # fmt: skip
        left_none, right_none, width = left_from == NONE, right_from == NONE, left + middle + right
        plan_loops, rows, base, source = args.plan_loops, args.rows, args.out, args.x
        for tile in range(lo, hi):
            row = tile * args.band
            stop_row = min(rows, row + args.band)
            while row < stop_row:
                index = row // last
                i = row - index * last
                stop = min(last, i + stop_row - row)
                row += stop - i
                to, of, none = places_of(plan_loops, loops, index, address_of(args.table))
                while i < stop:
                    out = advance(base, to + i * last_out)
                    place = i * last_x
                    if last_table:
                        place = load_word(last_table, i)
                    if none or place == NONE:
                        fill(out, 0, width, value, W, A, B, C, D)
                    else:
                        x = advance(source, of + place)
                        if left:
                            side(out, 0, left, x, left_from, left_step, value, left_none, W, A, B, C, D, BYTES)
                        if whole >= 0:
                            for v in range(whole):
                                store(out, left + v * W, load(x, middle_from + v * W, W))
                            rest = middle - whole * W
                            store_first(out, left + whole * W, rest, load_first(x, middle_from + whole * W, rest, W))
                        elif past:
                            copy_past(out, left, middle, x, middle_from, W, A, B, C, D, BYTES)
                        else:
                            copy(out, left, middle, x, middle_from, W, A, B, C, D, BYTES)
                        if right:
                            side(
                                out, left + middle, right, x, right_from, right_step, value, right_none,
                                W, A, B, C, D, BYTES,
                            )  # fmt: skip
                    i += 1
        if past:
            stream_fence()

    return framed
