"""The kernels of resizing.

A row of the result is a mix of rows of the source, and along the row a mix of elements by a table.  Where rows become
longer, rows of the source are mixed along first and kept in a ring as long as rows of the result want them; where they
become shorter, rows are mixed first.  Places that some vectors of neighbouring results read lie in one or two vectors
of the source: a permute each tap.  With channels innermost a pixel is a mix of pixels.  The bound: the result is
written and the source read once.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    Arguments,
    advance,
    as_computed,
    as_floats,
    cast_pointer,
    fma,
    load,
    load_first,
    load_scalar,
    load_wide,
    load_wide_first,
    select,
    splat,
    store,
    store_first,
    store_narrow,
    store_narrow_first,
    store_scalar,
    take,
    zeros,
)

# `_n` ... `_w`: elements of each array from one index to the next.  deep, high, along: taps of a result along d, h and
# w; depths, heights, index: tables of them, `rows` and `row_weights` those of d and then from `heights` on those of h.
# Lines: `base` is where a vector of the result begins to read, in `blocks` of them; a worker's lines are `line` elements
# apart, in `ring` * `rings` places, and lists follow in bytes from `factors`, `places` and `tags` on.
ARGS = Arguments(
    arrays=("out", "x", "scratch", "index", "weight", "base", "rows", "row_weights", "slots"),
    ints=(
        *(f"{name}_{d}" for name in ("out", "x") for d in "ncdhw"), "channels", "depth", "height", "width", "source",
        "deep", "high", "along", "heights", "bands", "band", "blocks", "line", "ring", "rings", "each", "factors",
        "places", "tags", "pixels", "pixel_factors", "x_height", "items",
    ),
)  # fmt: skip


@helper
def mix(to, to_step, of, step, places, factors, count, width, W, acc, dtype):  # type: ignore[no-untyped-def]
    """to = the sum of rows of `of` at places, each times a factor, in their order."""
    v = 0
    while v + 4 * W <= width:
        s0, s1, s2, s3 = zeros(acc, W), zeros(acc, W), zeros(acc, W), zeros(acc, W)
        for t in range(count):
            row, a = advance(of, load_scalar(places, t) + v * step), splat(load_scalar(factors, t), W)
            s0 = fma(a, as_floats(load_wide(row, 0, W)), s0)
            s1 = fma(a, as_floats(load_wide(row, W * step, W)), s1)
            s2 = fma(a, as_floats(load_wide(row, 2 * W * step, W)), s2)
            s3 = fma(a, as_floats(load_wide(row, 3 * W * step, W)), s3)
        store_narrow(to, v * to_step, as_computed(s0, dtype))
        store_narrow(to, (v + W) * to_step, as_computed(s1, dtype))
        store_narrow(to, (v + 2 * W) * to_step, as_computed(s2, dtype))
        store_narrow(to, (v + 3 * W) * to_step, as_computed(s3, dtype))
        v += 4 * W
    while v + W <= width:
        s0 = zeros(acc, W)
        for t in range(count):
            row = advance(of, load_scalar(places, t) + v * step)
            s0 = fma(splat(load_scalar(factors, t), W), as_floats(load_wide(row, 0, W)), s0)
        store_narrow(to, v * to_step, as_computed(s0, dtype))
        v += W
    if v < width:
        s0 = zeros(acc, W)
        for t in range(count):
            row = advance(of, load_scalar(places, t) + v)
            s0 = fma(splat(load_scalar(factors, t), W), as_floats(load_wide_first(row, 0, width - v, W)), s0)
        store_narrow_first(to, v, width - v, as_computed(s0, dtype))


@helper
def mix_two(to, of, places, factors, width, W, dtype, long):  # type: ignore[no-untyped-def]
    """As `mix`, of two rows; `long` ones may be read to the end of a vector."""
    r0, r1 = advance(of, load_scalar(places, 0)), advance(of, load_scalar(places, 1))
    a0, a1 = splat(load_scalar(factors, 0), W), splat(load_scalar(factors, 1), W)
    for v in range(0, width - W + 1, W):
        s = fma(a1, as_floats(load_wide(r1, v, W)), a0 * as_floats(load_wide(r0, v, W)))
        store_narrow(to, v, as_computed(s, dtype))
    v = width // W * W
    left = width - v
    if left:
        s = fma(a1, as_floats(row_end(r1, v, left, W, long)), a0 * as_floats(row_end(r0, v, left, W, long)))
        store_narrow_first(to, v, left, as_computed(s, dtype))


@helper
def row_end(row, v, left, W, long):  # type: ignore[no-untyped-def]
    """The last elements of a row."""
    return load_wide(row, v, W) if long else load_wide_first(row, v, left, W)


@helper
def mix_four(to, of, places, factors, width, W, dtype, long):  # type: ignore[no-untyped-def]
    """As `mix`, of four rows."""
    r0, r1 = advance(of, load_scalar(places, 0)), advance(of, load_scalar(places, 1))
    r2, r3 = advance(of, load_scalar(places, 2)), advance(of, load_scalar(places, 3))
    a0, a1 = splat(load_scalar(factors, 0), W), splat(load_scalar(factors, 1), W)
    a2, a3 = splat(load_scalar(factors, 2), W), splat(load_scalar(factors, 3), W)
    for v in range(0, width - W + 1, W):
        s = fma(a1, as_floats(load_wide(r1, v, W)), a0 * as_floats(load_wide(r0, v, W)))
        s = fma(a3, as_floats(load_wide(r3, v, W)), fma(a2, as_floats(load_wide(r2, v, W)), s))
        store_narrow(to, v, as_computed(s, dtype))
    v = width // W * W
    left = width - v
    if left:
        s = fma(a1, as_floats(row_end(r1, v, left, W, long)), a0 * as_floats(row_end(r0, v, left, W, long)))
        s = fma(a2, as_floats(row_end(r2, v, left, W, long)), s)
        s = fma(a3, as_floats(row_end(r3, v, left, W, long)), s)
        store_narrow_first(to, v, left, as_computed(s, dtype))


@helper
def mix_along(to, of, args, taps, W, acc, dtype, how, padded, long):  # type: ignore[no-untyped-def]
    """to = along a row of `of` the sum of the elements that the table says, in its order; a `long` row of results may
    be written to the end of a vector, which can be read again at once, as part of one cannot."""
    for b in range(args.blocks):
        start = load_scalar(args.base, b)
        total = zeros(acc, W)
        for t in range(taps):
            at = (b * taps + t) * W
            index = load(args.index, at, W)
            value = as_floats(take(of, start, index, args.source, how))
            if padded:
                value = select(index >= 0, value, zeros(acc, W))
            total = fma(load(args.weight, at, W), value, total)
        left = args.width - b * W
        if long or left >= W:
            store_narrow(to, b * W, as_computed(total, dtype))
        else:
            store_narrow_first(to, b * W, left, as_computed(total, dtype))


@functools.cache
def make_lines(order: str, dtype: str, rows: int, taps: int, how: str, padded: bool, W: int) -> RangeKernel:
    """Tiles of rows whose elements lie side by side.

    `order`: "ring" mixes along rows of the source first, "line" mixes rows first, "row" along a row only.  `rows`
    that are mixed, 2 or 4, and `taps` along a row, 2 or 4; 0 for as many as the arguments say.  `how` as of `take`; `padded`: tables hold places without an element.
    """
    acc = "f64" if dtype == "f64" else "f32"
    RING, ROW, TWO, FOUR = order == "ring", order == "row", rows == 2, rows == 4
    whole = "i64" if dtype == "f64" else "i32"
    types = ARGS.types(
        out=dtype, x=dtype, scratch="u8", index=whole, weight=acc, base="i64", rows="i64", row_weights=acc, slots="i64"
    )

    @range_kernel("resize_lines", types, spec=(order, dtype, rows, taps, how, padded, W))
    def lines(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        own = advance(args.scratch, worker * args.each)
        line = cast_pointer(own, acc)
        factors = cast_pointer(advance(own, args.factors), acc)
        places = cast_pointer(advance(own, args.places), "i64")
        tags = cast_pointer(advance(own, args.tags), "i64")
        along = taps if taps else args.along
        for tile in range(lo, hi):
            plane = tile // args.bands
            first = (tile - plane * args.bands) * args.band
            n = plane // args.channels
            c = plane - n * args.channels
            x = advance(args.x, n * args.x_n + c * args.x_c)
            out = advance(args.out, n * args.out_n + c * args.out_c)
            if RING:
                for k in range(args.ring * args.rings):
                    store_scalar(tags, k, -1)
            d = first // args.height
            h = first - d * args.height
            for _ in range(first, min(first + args.band, args.depth * args.height)):
                to = advance(out, d * args.out_d + h * args.out_h)
                if ROW:
                    i, j = load_scalar(args.rows, d), load_scalar(args.rows, args.heights + h)
                    mix_along(
                        to, advance(x, i * args.x_d + j * args.x_h), args, along, W, acc, dtype, how, padded, False
                    )
                else:
                    count = 0
                    for s in range(args.deep):
                        i = load_scalar(args.rows, d * args.deep + s)
                        deep = load_scalar(args.row_weights, d * args.deep + s)
                        if i >= 0:
                            for t in range(args.high):
                                at = args.heights + h * args.high + t
                                j = load_scalar(args.rows, at)
                                if j >= 0:
                                    store_scalar(factors, count, deep * load_scalar(args.row_weights, at))
                                    place = i * args.x_d + j * args.x_h
                                    if RING:
                                        slot = load_scalar(args.slots, d * args.deep + s) + load_scalar(args.slots, at)
                                        key = i * args.x_height + j
                                        if load_scalar(tags, slot) != key:
                                            store_scalar(tags, slot, key)
                                            mixed = advance(line, slot * args.line)
                                            source = advance(x, place)
                                            mix_along(mixed, source, args, along, W, acc, acc, how, padded, True)
                                        place = slot * args.line
                                    store_scalar(places, count, place)
                                    count += 1
                    if RING:
                        if TWO:
                            mix_two(to, line, places, factors, args.width, W, dtype, True)
                        elif FOUR:
                            mix_four(to, line, places, factors, args.width, W, dtype, True)
                        else:
                            mix(to, 1, line, 1, places, factors, count, args.width, W, acc, dtype)
                    else:
                        if TWO:
                            mix_two(line, x, places, factors, args.source, W, acc, False)
                        elif FOUR:
                            mix_four(line, x, places, factors, args.source, W, acc, False)
                        else:
                            mix(line, 1, x, 1, places, factors, count, args.source, W, acc, acc)
                        mix_along(to, line, args, along, W, acc, dtype, how, padded, False)
                h += 1
                if h == args.height:
                    h = 0
                    d += 1

    return lines


@helper
def along_two(of, start, first, second, a, b, n, how):  # type: ignore[no-untyped-def]
    """A vector of what `mix_along` gives of two taps, whose table is at hand."""
    return fma(b, as_floats(take(of, start, second, n, how)), a * as_floats(take(of, start, first, n, how)))


@functools.cache
def make_stairs(dtype: str, how: str, W: int) -> RangeKernel:
    """As `make_lines`, of two rows of one plane and two taps along, where rows become more.

    A vector of each row is made from the first row of a tile to the last, so that the table along a row and what the
    row above gave stay in registers; rows that lie between the same two of the source, `slots` says how many follow,
    are made together.  That is a load and two permutes for two vectors where there are twice as many.
    """
    acc = "f64" if dtype == "f64" else "f32"
    whole = "i64" if dtype == "f64" else "i32"
    types = ARGS.types(
        out=dtype, x=dtype, scratch="u8", index=whole, weight=acc, base="i64", rows="i64", row_weights=acc, slots="i64"
    )  # fmt: skip

    @range_kernel("resize_stairs", types, spec=(dtype, how, W))
    def stairs(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        # behind those of d, of which there is one
        rows, weights = advance(args.rows, args.heights), advance(args.row_weights, args.heights)
        for tile in range(lo, hi):
            plane = tile // args.bands
            begin = (tile - plane * args.bands) * args.band
            n = plane // args.channels
            c = plane - n * args.channels
            x = advance(args.x, n * args.x_n + c * args.x_c)
            out = advance(args.out, n * args.out_n + c * args.out_c)
            end = min(begin + args.band, args.height)
            for b in range(args.blocks):
                i0, i1 = load(args.index, 2 * b * W, W), load(args.index, (2 * b + 1) * W, W)
                w0, w1 = load(args.weight, 2 * b * W, W), load(args.weight, (2 * b + 1) * W, W)
                start, size = load_scalar(args.base, b), args.source
                column = advance(out, b * W)
                left = min(args.width - b * W, W)
                h, held, above = begin, -1, zeros(acc, W)
                while h < end:
                    i, j = load_scalar(rows, 2 * h), load_scalar(rows, 2 * h + 1)
                    if i != held:
                        above = along_two(advance(x, i * args.x_h), start, i0, i1, w0, w1, size, how)
                    run = min(load_scalar(args.slots, h), end - h)
                    below = along_two(advance(x, j * args.x_h), start, i0, i1, w0, w1, size, how)
                    to, factors = advance(column, h * args.out_h), advance(weights, 2 * h)
                    if run == 2 and left == W:
                        p = splat(load_scalar(factors, 0), W) * above
                        q = splat(load_scalar(factors, 2), W) * above
                        p = fma(splat(load_scalar(factors, 1), W), below, p)
                        q = fma(splat(load_scalar(factors, 3), W), below, q)
                        store_narrow(to, 0, as_computed(p, dtype))
                        store_narrow(to, args.out_h, as_computed(q, dtype))
                    else:
                        for r in range(run):
                            p = splat(load_scalar(factors, 2 * r), W) * above
                            p = fma(splat(load_scalar(factors, 2 * r + 1), W), below, p)
                            store_narrow_first(to, r * args.out_h, left, as_computed(p, dtype))
                    above, held = below, j
                    h += run

    return stairs


@functools.cache
def make_copied_lines(bits: int, how: str, W: int) -> RangeKernel:
    """Tiles of rows of nearest elements, whatever they stand for; equal rows are written together."""
    elem, whole = f"u{bits}", "i64" if bits == 64 else "i32"
    types = ARGS.types(out=elem, x=elem, index=whole, base="i64", rows="i64", slots="i64")

    @range_kernel("resize_copied_lines", types, spec=(bits, how, W))
    def copied(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        for tile in range(lo, hi):
            plane = tile // args.bands
            first = (tile - plane * args.bands) * args.band
            n = plane // args.channels
            c = plane - n * args.channels
            x = advance(args.x, n * args.x_n + c * args.x_c)
            out = advance(args.out, n * args.out_n + c * args.out_c)
            d = first // args.height
            h = first - d * args.height
            end = min(first + args.band, args.depth * args.height)
            row = first
            while row < end:
                to = advance(out, d * args.out_d + h * args.out_h)
                i, j = load_scalar(args.rows, d), load_scalar(args.rows, args.heights + h)
                run = min(load_scalar(args.slots, h), end - row)
                of = advance(x, i * args.x_d + j * args.x_h)
                for b in range(args.blocks):
                    index = load(args.index, b * W, W)
                    value = take(of, load_scalar(args.base, b), index, args.source, how)
                    left = args.width - b * W
                    if run == 2 and left >= W:
                        store_narrow(to, b * W, value)
                        store_narrow(to, b * W + args.out_h, value)
                    elif left >= W:
                        for r in range(run):
                            store_narrow(to, b * W + r * args.out_h, value)
                    else:
                        for r in range(run):
                            store_narrow_first(to, b * W + r * args.out_h, left, value)
                row += run
                h += run
                if h == args.height:
                    h = 0
                    d += 1

    return copied


@helper
def copy_run(to, to_step, of, step, count, W):  # type: ignore[no-untyped-def]
    """Elements as they are."""
    v = 0
    while v + 4 * W <= count:
        a, b = load(of, v * step, W), load(of, (v + W) * step, W)
        c, d = load(of, (v + 2 * W) * step, W), load(of, (v + 3 * W) * step, W)
        store(to, v * to_step, a)
        store(to, (v + W) * to_step, b)
        store(to, (v + 2 * W) * to_step, c)
        store(to, (v + 3 * W) * to_step, d)
        v += 4 * W
    while v + W <= count:
        store(to, v * to_step, load(of, v * step, W))
        v += W
    if v < count:
        store_first(to, v, count - v, load_first(of, v, count - v, W))


@functools.cache
def make_walk(dtype: str, rows: int, W: int) -> RangeKernel:
    """As `make_pixels`, of linear taps: pixels of one, two or four rows are mixed as the walk along them comes to them.

    Four vectors of channels are led along a row of the result.  A pixel that two results read, or more, is mixed once:
    with twice as many pixels that is a load of each row for two results.
    """
    acc = "f64" if dtype == "f64" else "f32"
    types = ARGS.types(
        out=dtype, x=dtype, scratch="u8", index="i64", weight=acc, rows="i64", row_weights=acc, slots="i64"
    )  # fmt: skip
    COUNT = rows

    @range_kernel("resize_walk", types, spec=(dtype, rows, W))
    def walk(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        own = advance(args.scratch, worker * args.each)
        factors = cast_pointer(advance(own, args.factors), acc)
        places = cast_pointer(advance(own, args.places), "i64")
        for row in range(lo * args.band, min(hi * args.band, args.items * args.depth * args.height)):
            h = row % args.height
            d = row // args.height % args.depth
            n = row // args.height // args.depth
            to = advance(args.out, n * args.out_n + d * args.out_d + h * args.out_h)
            count = 0
            for s in range(args.deep):
                i = load_scalar(args.rows, d * args.deep + s)
                deep = load_scalar(args.row_weights, d * args.deep + s)
                for t in range(args.high):
                    at = args.heights + h * args.high + t
                    store_scalar(factors, count, deep * load_scalar(args.row_weights, at))
                    place = n * args.x_n + i * args.x_d + load_scalar(args.rows, at) * args.x_h
                    store_scalar(places, count, place)
                    count += 1
            for c in range(0, args.channels, 4 * W):
                left = args.channels - c
                seen = -1
                p0, p1, p2, p3 = zeros(acc, W), zeros(acc, W), zeros(acc, W), zeros(acc, W)
                q0, q1, q2, q3 = p0, p1, p2, p3
                for w in range(args.width):
                    k = load_scalar(args.index, 2 * w)
                    if k != seen:
                        # what was behind is in front now; of a first pixel, or behind a leap, both are new
                        p0, p1, p2, p3 = q0, q1, q2, q3
                        if k != seen + 1 or seen < 0:
                            p0, p1, p2, p3 = pixel(args.x, places, factors, k * args.x_w + c, left, COUNT, W, acc)
                        k1 = load_scalar(args.index, 2 * w + 1)
                        q0, q1, q2, q3 = pixel(args.x, places, factors, k1 * args.x_w + c, left, COUNT, W, acc)
                        seen = k
                    a, b = splat(load_scalar(args.weight, 2 * w), W), splat(load_scalar(args.weight, 2 * w + 1), W)
                    at = w * args.out_w + c
                    s0, s1, s2, s3 = fma(b, q0, a * p0), fma(b, q1, a * p1), fma(b, q2, a * p2), fma(b, q3, a * p3)
                    if left >= 4 * W:
                        store_narrow(to, at, as_computed(s0, dtype))
                        store_narrow(to, at + W, as_computed(s1, dtype))
                        store_narrow(to, at + 2 * W, as_computed(s2, dtype))
                        store_narrow(to, at + 3 * W, as_computed(s3, dtype))
                    else:
                        store_narrow_first(to, at, min(left, W), as_computed(s0, dtype))
                        if left > W:
                            store_narrow_first(to, at + W, min(left - W, W), as_computed(s1, dtype))
                        if left > 2 * W:
                            store_narrow_first(to, at + 2 * W, min(left - 2 * W, W), as_computed(s2, dtype))
                        if left > 3 * W:
                            store_narrow_first(to, at + 3 * W, left - 3 * W, as_computed(s3, dtype))

    return walk


@helper
def pixel(x, places, factors, at, left, COUNT, W, acc):  # type: ignore[no-untyped-def]
    """Four vectors of a pixel's channels, mixed of rows."""
    s0, s1, s2, s3 = zeros(acc, W), zeros(acc, W), zeros(acc, W), zeros(acc, W)
    for t in range(COUNT):
        of, a = advance(x, load_scalar(places, t) + at), splat(load_scalar(factors, t), W)
        if left >= 4 * W:
            s0 = fma(a, as_floats(load_wide(of, 0, W)), s0)
            s1 = fma(a, as_floats(load_wide(of, W, W)), s1)
            s2 = fma(a, as_floats(load_wide(of, 2 * W, W)), s2)
            s3 = fma(a, as_floats(load_wide(of, 3 * W, W)), s3)
        else:
            s0 = fma(a, as_floats(load_wide_first(of, 0, left, W)), s0)
            if left > W:
                s1 = fma(a, as_floats(load_wide_first(of, W, left - W, W)), s1)
            if left > 2 * W:
                s2 = fma(a, as_floats(load_wide_first(of, 2 * W, left - 2 * W, W)), s2)
            if left > 3 * W:
                s3 = fma(a, as_floats(load_wide_first(of, 3 * W, left - 3 * W, W)), s3)
    return s0, s1, s2, s3


@functools.cache
def make_pixels(dtype: str, W: int) -> RangeKernel:
    """Tiles of rows whose pixels are runs of channels; with W = 1 channels may lie any step apart."""
    acc = "f64" if dtype == "f64" else "f32"
    types = ARGS.types(
        out=dtype, x=dtype, scratch="u8", index="i64", weight=acc, rows="i64", row_weights=acc, slots="i64"
    )  # fmt: skip
    ANY = W == 1

    @range_kernel("resize_pixels", types, spec=(dtype, W))
    def pixels(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        own = advance(args.scratch, worker * args.each)
        factors = cast_pointer(advance(own, args.factors), acc)
        places = cast_pointer(advance(own, args.places), "i64")
        pixels = cast_pointer(advance(own, args.pixels), "i64")
        pixel_factors = cast_pointer(advance(own, args.pixel_factors), acc)
        step, to_step = args.x_c if ANY else 1, args.out_c if ANY else 1
        for row in range(lo * args.band, min(hi * args.band, args.items * args.depth * args.height)):
            h = row % args.height
            d = row // args.height % args.depth
            n = row // args.height // args.depth
            to = advance(args.out, n * args.out_n + d * args.out_d + h * args.out_h)
            count = 0
            for s in range(args.deep):
                i = load_scalar(args.rows, d * args.deep + s)
                deep = load_scalar(args.row_weights, d * args.deep + s)
                if i >= 0:
                    for t in range(args.high):
                        at = args.heights + h * args.high + t
                        j = load_scalar(args.rows, at)
                        if j >= 0:
                            store_scalar(factors, count, deep * load_scalar(args.row_weights, at))
                            store_scalar(places, count, n * args.x_n + i * args.x_d + j * args.x_h)
                            count += 1
            for w in range(args.width):
                total = 0
                for t in range(args.along):
                    k = load_scalar(args.index, w * args.along + t)
                    if k >= 0:
                        a = load_scalar(args.weight, w * args.along + t)
                        for r in range(count):
                            store_scalar(pixels, total, load_scalar(places, r) + k * args.x_w)
                            store_scalar(pixel_factors, total, load_scalar(factors, r) * a)
                            total += 1
                pixel = advance(to, w * args.out_w)
                mix(pixel, to_step, args.x, step, pixels, pixel_factors, total, args.channels, W, acc, dtype)

    return pixels


@functools.cache
def make_copied_pixels(bits: int, W: int) -> RangeKernel:
    """As `make_pixels`, of nearest pixels."""
    elem = f"u{bits}"
    types = ARGS.types(out=elem, x=elem, index="i64", rows="i64")
    ANY = W == 1

    @range_kernel("resize_copied_pixels", types, spec=(bits, W))
    def copied(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        step, to_step = args.x_c if ANY else 1, args.out_c if ANY else 1
        for row in range(lo * args.band, min(hi * args.band, args.items * args.depth * args.height)):
            h = row % args.height
            d = row // args.height % args.depth
            n = row // args.height // args.depth
            i, j = load_scalar(args.rows, d), load_scalar(args.rows, args.heights + h)
            to = advance(args.out, n * args.out_n + d * args.out_d + h * args.out_h)
            of = advance(args.x, n * args.x_n + i * args.x_d + j * args.x_h)
            for w in range(args.width):
                source = advance(of, load_scalar(args.index, w) * args.x_w)
                copy_run(advance(to, w * args.out_w), to_step, source, step, args.channels, W)

    return copied
