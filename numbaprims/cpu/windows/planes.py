"""Windows over contiguous planes: first down the columns, a vector being a part of a row, then along the row.

What lies between the two is in one register where a row fits into it, else in a row in the first-level cache whose
margins are the identity, so that no tap has a case of its own.  A sum's gradient goes the same way: what the windows of
a row of x give, down the columns of dy, spread by the stride, then summed along the row.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    address_of,
    advance,
    first_lanes,
    load,
    load_first,
    load_wide_scalar,
    load_word,
    pointer_from_address,
    scalar,
    select,
    splat,
    store,
    store_first,
    store_narrow,
    store_narrow_first,
    zeros,
)
from numbaprims.cpu.simd.loops import keep_rolled
from numbaprims.cpu.windows.arguments import ARGS, FIRST, NOWHERE, NUMBER, THIRD, lowest
from numbaprims.cpu.windows.combine import (
    as_places,
    end_of,
    finish_of,
    first_of,
    fold_lanes,
    fold_lanes_first,
    fold_row,
    fold_row_first,
    give,
    join_of,
    store_spread,
    take,
)
from numbaprims.cpu.windows.walks import walk_sums, walk_window
from numbaprims.dtypes import DTYPES


@helper
def fill(p, n, value, W):  # type: ignore[no-untyped-def]
    """A value in n elements, and up to W more."""
    for i in range(0, n, W):
        store(p, i, value)


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
    the tables.  INDEXED is 2 where places are wanted, else 0.
    """
    acc = DTYPES[dtype].accumulate
    SHARE, LOW = "f64" if acc == "f64" else "f32", lowest(kind, acc)
    types = ARGS.types(out=dtype, x=dtype, indices="i64")
    spec = (kind, dtype, W, SHORT, KD, KH, KW, S, D, BEFORE, INDEXED, VALUES)

    @range_kernel("windows_planes", types, spec=spec)
    def windows_planes(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        power = pointer_from_address(args.power, "f64")[0]
        shares = pointer_from_address(args.shares, SHARE)
        columns = advance(shares, args.outs_d + args.outs_h)
        empty, nowhere = splat(scalar(LOW, acc), W), splat(scalar(NOWHERE, "i32"), W)
        room = address_of(args.workspace) + worker * args.each
        values = pointer_from_address(room, acc)
        places = pointer_from_address(room + args.each // 2, "i32")
        if not SHORT:
            fill(values, args.pitch, empty, W)
            if INDEXED:
                fill(places, args.pitch, nowhere, W)
        width, outs, high = args.size_w, args.outs_w, args.outs_h
        above = args.windows_h
        line = args.step_h * width
        area_of_plane = args.size_h * width
        step = args.step_d * area_of_plane
        inside = first_lanes(width, W)
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
                if SHORT:
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


@helper
def up(args, dy, y, shares, deep, tall, j, left, kind, acc, MEAN, power, W, FULL):  # type: ignore[no-untyped-def]
    """What the windows of columns j, j + 1, ... of dy give to a row of x."""
    o, p, s, t = load_word(deep, FIRST), load_word(tall, FIRST), load_word(deep, THIRD), load_word(tall, THIRD)
    at = (o * args.outs_h + p) * args.outs_w + j
    step, line = s * args.outs_h * args.outs_w, t * args.outs_w
    before = args.outs_d + args.outs_h
    total = walk_sums(
        kind, dy, at, y, at, shares, o, args.outs_d + p, before + args.outs_w, left, load_word(deep, NUMBER),
        load_word(tall, NUMBER), 1, step, line, 0, step, line, 0, s, t, 0, zeros(acc, W), power, FULL,
    )  # fmt: skip
    if MEAN:
        total = total * take(shares, before + j, left, W, FULL)
    return total


@functools.cache
def make_sums(kind: str, dtype: str, W: int, SHORT: bool, KW: int, S: int, D: int, BEFORE: int) -> RangeKernel:
    """Kernel over bands of rows of dx of an average or an lp norm."""
    acc, MEAN = DTYPES[dtype].accumulate, kind == "avg"
    # dy of output j lies at MARGIN + j S of the spread row
    SPREAD, MARGIN = (S, (KW - 1) * D - BEFORE) if KW else (1, 0)
    types = ARGS.types(out=dtype, x=dtype, dy=dtype, y=dtype)

    @range_kernel("windows_sums", types, spec=(kind, dtype, W, SHORT, KW, S, D, BEFORE))
    def windows_sums(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        power = pointer_from_address(args.power, "f64")[0]
        shares = pointer_from_address(args.shares, acc)
        nothing = zeros(acc, W)
        values = pointer_from_address(address_of(args.workspace) + worker * args.each, acc)
        if not SHORT:
            fill(values, args.pitch, nothing, W)
        for tile in range(lo, hi):
            plane, band = divmod(tile, args.bands)
            n, c = divmod(plane, args.c)
            dy = advance(args.dy, n * args.dy_n + c * args.dy_c)
            y = advance(args.y, n * args.y_n + c * args.y_c)
            first = band * args.band
            out = advance(args.out, n * args.out_n + c * args.out_c)
            x = advance(args.x, n * args.x_n + c * args.x_c)
            for row in range(first, min(first + args.band, args.size_d * args.size_h)):
                z, h = divmod(row, args.size_h)
                deep, tall = args.around_d + 24 * z, args.around_h + 24 * h
                at = row * args.size_w
                if SHORT:
                    total = up(args, dy, y, shares, deep, tall, 0, args.outs_w, kind, acc, MEAN, power, W, False)
                    total = select(first_lanes(args.outs_w, W), total, nothing)
                    total = fold_lanes("avg", total, nothing, KW, S, D, BEFORE, True)
                    if not MEAN:
                        total = end_of(kind, total, take(x, at, args.size_w, W, False), power)
                    give(out, at, args.size_w, total, False)
                else:
                    j = 0
                    while j + W <= args.outs_w:
                        keep_rolled()
                        total = up(args, dy, y, shares, deep, tall, j, W, kind, acc, MEAN, power, W, True)
                        store_spread(values, MARGIN + j * SPREAD, total, SPREAD)
                        j += W
                    left = args.outs_w - j
                    if left > 0:
                        total = up(args, dy, y, shares, deep, tall, j, left, kind, acc, MEAN, power, W, False)
                        total = select(first_lanes(left, W), total, nothing)
                        store_spread(values, MARGIN + j * SPREAD, total, SPREAD)
                    i = 0
                    while KW and i < args.size_w:
                        keep_rolled()
                        total = fold_row("avg", values, i, KW, 1, D, W)
                        left = min(args.size_w - i, W)
                        if not MEAN:
                            total = end_of(kind, total, take(x, at + i, left, W, False), power)
                        if left == W:
                            give(out, at + i, W, total, True)
                        else:
                            give(out, at + i, left, total, False)
                        i += W
                    while i < args.size_w:
                        wide = args.around_w + 24 * i
                        one = zeros(acc, 1)
                        for t in range(load_word(wide, NUMBER)):
                            one = one + load(values, load_word(wide, FIRST) + t * load_word(wide, THIRD), 1)
                        if not MEAN:
                            one = end_of(kind, one, take(x, at + i, 1, 1, True), power)
                        give(out, at + i, 1, one, True)
                        i += 1

    return windows_sums


@functools.cache
def make_places(dtype: str, W: int) -> RangeKernel:
    """Kernel over planes of dx of a maximum: dy is added at the places; places outside of the plane are left out."""
    acc = DTYPES[dtype].accumulate
    DIRECT = acc == dtype
    types = ARGS.types(out=dtype, dy=dtype, indices="i64")

    @range_kernel("windows_places", types, spec=(dtype, W))
    def windows_places(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        size = args.size_d * args.size_h * args.size_w
        outputs = args.outs_d * args.outs_h * args.outs_w
        buffer = pointer_from_address(address_of(args.workspace) + worker * args.each, acc)
        for plane in range(lo, hi):
            n, c = divmod(plane, args.c)
            out = advance(args.out, n * args.out_n + c * args.out_c)
            dy = advance(args.dy, n * args.dy_n + c * args.dy_c)
            indices = advance(args.indices, n * args.indices_n + c * args.indices_c)
            sums = pointer_from_address(address_of(out), acc) if DIRECT else buffer
            nothing = zeros(acc, W)
            whole = size - size % W
            fill(sums, whole, nothing, W)
            store_first(sums, whole, size - whole, nothing)
            for i in range(outputs):
                place = indices[i]
                if 0 <= place and place < size:
                    sums[place] = sums[place] + load_wide_scalar(dy, i)
            if not DIRECT:
                for i in range(0, whole, W):
                    store_narrow(out, i, load(sums, i, W))
                store_narrow_first(out, whole, size - whole, load_first(sums, whole, size - whole, W))

    return windows_places
