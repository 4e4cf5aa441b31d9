"""Windows over contiguous planes: first down the columns, a vector being a part of a row, then along the row.

What lies between the two is in one register where a row fits into it, else in a row in the first-level cache whose
margins are the identity, so that no tap has a case of its own.  A sum's gradient goes the same way: what the windows of
a row of x give, down the columns of dy, spread by the stride, then summed along the row.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    advance,
    first_lanes,
    load,
    load_word,
    pointer_from_address,
    prefetch,
    scalar,
    select,
    splat,
    store,
    store_first,
)
from numbaprims.cpu.simd.loops import keep_rolled
from numbaprims.cpu.windows.arguments import ARGS, FIRST, NOWHERE, NUMBER, line_of, lowest
from numbaprims.cpu.windows.combine import (
    as_places,
    finish_of,
    first_of,
    fold_lanes,
    fold_lanes_first,
    fold_row,
    fold_row_first,
    fold_tiles,
    give,
    join_of,
    take,
)
from numbaprims.cpu.windows.walks import walk_window
from numbaprims.dtypes import DTYPES


@helper
def fill(p, n, value, W):  # type: ignore[no-untyped-def]
    """A value in n elements, and up to W more."""
    for i in range(0, n, W):
        store(p, i, value)


@helper
def ask(x, at, rows, line, width, LINE):  # type: ignore[no-untyped-def]
    """Ask for `width` elements of rows, `line` apart, in the order of memory.

    The core follows one line of addresses by itself: two rows of 896 bytes, read side by side from memory, came at 14
    GB/s, and so at 27 (16 x 64 x 224 x 224, Zen 4).
    """
    for r in range(rows):
        for j in range(0, width, LINE):
            prefetch(x, at + r * line + j, 3)


@helper
def down(x, at, deep, tall, step, line, left, kind, acc, LOW, INDEXED, power, W, FULL):  # type: ignore[no-untyped-def]
    """Columns from `at` on of `deep` times `tall` rows, `step` and `line` apart: (joined, their places)."""
    return walk_window(
        kind, x, at, at, left, deep, tall, 1, step, line, 0, step, line, 0, splat(scalar(LOW, acc), W),
        splat(scalar(NOWHERE, "i32"), W), power, FULL, INDEXED,
    )  # fmt: skip


@helper
def down_row(x, at, deep, tall, step, line, width, values, places, kind, acc, LOW, INDEXED, power, W):  # type: ignore[no-untyped-def]
    """The same of `width` columns, into the buffers."""
    i = 0
    while i + W <= width:
        keep_rolled()
        best, place = down(x, at + i, deep, tall, step, line, W, kind, acc, LOW, INDEXED, power, W, True)
        store(values, i, best)
        if INDEXED:
            store(places, i, place)
        i += W
    left = width - i
    if left > 0:
        best, place = down(x, at + i, deep, tall, step, line, left, kind, acc, LOW, INDEXED, power, W, False)
        store_first(values, i, left, best)
        if INDEXED:
            store_first(places, i, left, place)


@helper
def put(out, indices, j, left, best, place, columns, area, kind, acc, INDEXED, VALUES, power, W, FULL):  # type: ignore[no-untyped-def]
    """Write the results of outputs j, j + 1, ... of a row."""
    if INDEXED:
        store_first(indices, j, left, as_places(place))
    if VALUES:
        share = take(columns, j, left, W, FULL) * area
        give(out, j, left, finish_of(kind, best, share, power), FULL)


@functools.cache
def make_forward(
    kind: str, dtype: str, W: int, SHORT: bool, KD: int, KH: int, KW: int, S: int, D: int, BEFORE: int,
    INDEXED: int = 0, VALUES: bool = True,
) -> RangeKernel:  # fmt: skip
    """Kernel over bands of rows of the results' planes.

    KD x KH rows are the usual; KW taps along a row, every D, from step to step S further, 0 for windows of
    the tables.  INDEXED is 2 where places are wanted, else 0.  Windows that lie side by side need no buffer: W of them
    are S vectors.
    """
    acc, LINE = DTYPES[dtype].accumulate, line_of(dtype)
    SHARE, LOW = "f64" if acc == "f64" else "f32", lowest(kind, acc)
    types = ARGS.types(out=dtype, x=dtype, indices="i64", values=acc, places="i32")
    TILES, WIDE = not (SHORT or INDEXED) and S in (2, 4) and (KW, D, BEFORE) == (S, 1, 0), W * S
    spec = (kind, dtype, W, SHORT, KD, KH, KW, S, D, BEFORE, INDEXED, VALUES)

    @range_kernel("windows_planes", types, spec=spec)
    def windows_planes(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        power = pointer_from_address(args.power, "f64")[0]
        shares = pointer_from_address(args.shares, SHARE)
        columns = advance(shares, args.outs_d + args.outs_h)
        empty, nowhere = splat(scalar(LOW, acc), W), splat(scalar(NOWHERE, "i32"), W)
        values, places = args.values[worker], args.places[worker]
        if not SHORT and not TILES:
            fill(values, args.pitch, empty, W)
            if INDEXED:
                fill(places, args.pitch, nowhere, W)
        width, outs, high = args.size_w, args.outs_w, args.outs_h
        above = args.windows_h
        line = args.step_h * width
        area_of_plane = args.size_h * width
        step = args.step_d * area_of_plane
        inside, empties = first_lanes(width, W), splat(scalar(LOW, acc), WIDE)
        plane, band = divmod(lo, args.bands)
        n, c = divmod(plane, args.c)
        for _ in range(lo, hi):
            x = advance(args.x, n * args.x_n + c * args.x_c)
            first = band * args.band
            out = advance(args.out, n * args.out_n + c * args.out_c + first * outs)
            indices = advance(args.indices, n * args.indices_n + c * args.indices_c + first * outs)
            o, p = 0, 0
            if first > 0:
                o, p = divmod(first, high)
            deep = args.windows_d + 24 * o
            z, a, depth = load_word(deep, FIRST), load_word(deep, NUMBER), shares[o]
            for _ in range(first, min(first + args.band, args.outs_d * high)):
                tall = above + 24 * p
                b, area = load_word(tall, NUMBER), depth * shares[args.outs_d + p]
                at = z * area_of_plane + load_word(tall, FIRST) * width
                if args.asks:
                    ask(x, at, b, line, width, LINE)
                if TILES:
                    j = 0
                    while j < outs:
                        keep_rolled()
                        i, left = j * S, outs - j
                        if left >= W and width - i >= WIDE and a == KD and b == KH:
                            best, place = down(
                                x, at + i, KD, KH, step, line, WIDE, kind, acc, LOW, 0, power, WIDE, True
                            )  # fmt: skip
                            best = fold_tiles(kind, best, S)
                            put(
                                out, indices, j, W, best, place, columns, area, kind, acc, 0, VALUES, power, W, True
                            )  # fmt: skip
                        else:
                            few = width - i
                            if a == KD and b == KH:
                                best, place = down(
                                    x, at + i, KD, KH, step, line, few, kind, acc, LOW, 0, power, WIDE, False
                                )  # fmt: skip
                            else:
                                best, place = down(
                                    x, at + i, a, b, step, line, few, kind, acc, LOW, 0, power, WIDE, False
                                )  # fmt: skip
                            best = fold_tiles(kind, select(first_lanes(few, WIDE), best, empties), S)
                            put(
                                out, indices, j, left, best, place, columns, area, kind, acc, 0, VALUES, power, W,
                                False,
                            )  # fmt: skip
                        j += W
                elif SHORT:
                    if a == KD and b == KH:
                        best, place = down(
                            x, at, KD, KH, step, line, width, kind, acc, LOW, INDEXED, power, W, False
                        )  # fmt: skip
                    else:
                        best, place = down(x, at, a, b, step, line, width, kind, acc, LOW, INDEXED, power, W, False)
                    best = select(inside, best, empty)
                    if INDEXED:
                        place = select(inside, place, nowhere)
                        best, place = fold_lanes_first(best, empty, place, nowhere, KW, S, D, BEFORE)
                    else:
                        best = fold_lanes(kind, best, empty, KW, S, D, BEFORE, False)
                    put(
                        out, indices, 0, outs, best, place, columns, area, kind, acc, INDEXED, VALUES, power, W, False
                    )  # fmt: skip
                else:
                    row, of = advance(values, BEFORE), advance(places, BEFORE)
                    if a == KD and b == KH:
                        down_row(x, at, KD, KH, step, line, width, row, of, kind, acc, LOW, INDEXED, power, W)
                    else:
                        down_row(x, at, a, b, step, line, width, row, of, kind, acc, LOW, INDEXED, power, W)
                    j = 0
                    while KW and j < outs:
                        keep_rolled()
                        if INDEXED:
                            best, place = fold_row_first(values, places, j * S, KW, S, D, W)
                        else:
                            best, place = fold_row(kind, values, j * S, KW, S, D, W), nowhere
                        left = outs - j
                        if left >= W:
                            put(
                                out, indices, j, W, best, place, columns, area, kind, acc, INDEXED, VALUES, power, W,
                                True,
                            )  # fmt: skip
                        else:
                            put(
                                out, indices, j, left, best, place, columns, area, kind, acc, INDEXED, VALUES, power,
                                W, False,
                            )  # fmt: skip
                        j += W
                    while j < outs:
                        wide = args.windows_w + 24 * j
                        one, spot = splat(scalar(LOW, acc), 1), splat(scalar(NOWHERE, "i32"), 1)
                        for t in range(load_word(wide, NUMBER)):
                            i = BEFORE + load_word(wide, FIRST) + t * args.step_w
                            if INDEXED:
                                one, spot = first_of(one, spot, load(values, i, 1), load(places, i, 1), False)
                            else:
                                one = join_of(kind, one, load(values, i, 1))
                        put(out, indices, j, 1, one, spot, columns, area, kind, acc, INDEXED, VALUES, power, 1, True)
                        j += 1
                out, indices = advance(out, outs), advance(indices, outs)
                p += 1
                if p == high and o + 1 < args.outs_d:
                    o, p = o + 1, 0
                    deep = args.windows_d + 24 * o
                    z, a, depth = load_word(deep, FIRST), load_word(deep, NUMBER), shares[o]
            band += 1
            if band == args.bands:
                band, c = 0, c + 1
                if c == args.c:
                    n, c = n + 1, 0

    return windows_planes
