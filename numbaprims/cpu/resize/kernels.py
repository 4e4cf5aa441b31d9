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
    address_of,
    advance,
    as_computed,
    as_floats,
    fma,
    load,
    load_scalar,
    load_wide,
    load_wide_first,
    prefetch_write,
    select,
    splat,
    splice,
    store_first,
    store_narrow,
    store_narrow_first,
    store_scalar,
    store_stream,
    stream_fence,
    take,
    zeros,
)

# `_n` ... `_w`: elements of each array from one index to the next.  deep, high, along: taps of a result along d, h and
# w; depths, heights, index: tables of them, `rows` and `row_weights` those of d and then from `heights` on those of h.
# Lines: `base` is where each of `blocks` vectors of the result begins to read; a worker's lines are `line` elements
# apart, in `ring` * `rings` places, a row's is in `slots`; lines are asked for `ahead` elements behind what is written.
ARGS = Arguments(
    arrays=("out", "x", "index", "weight", "base", "rows", "row_weights", "slots"),
    ints=(
        *(f"{name}_{d}" for name in ("out", "x") for d in "ncdhw"), "channels", "depth", "height", "width", "source",
        "deep", "high", "along", "heights", "bands", "band", "blocks", "line", "ring", "rings", "x_height",
        "items", "ahead",
    ),
    own=("lines", "factors", "places", "tags", "pixels", "pixel_factors"),
)  # fmt: skip


@helper
def at_plane(base, plane, channels, n_step, c_step):  # type: ignore[no-untyped-def]
    """Where a channel of an image begins: plane n * channels + c."""
    n = plane // channels
    return advance(base, n * n_step + (plane - n * channels) * c_step)


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
def mix_two_past(to, of, places, factors, width, W, head, held, begins):  # type: ignore[no-untyped-def]
    """As `mix_two`, of rows that lie one behind the other and are whole vectors of the type that is computed in.

    Lines of the result, the first of which begins with element `head`, are written past the caches; what is left of
    the row's last vector is given back, and given to the next row, but where a tile `begins`.
    """
    r0, r1 = advance(of, load_scalar(places, 0)), advance(of, load_scalar(places, 1))
    a0, a1 = splat(load_scalar(factors, 0), W), splat(load_scalar(factors, 1), W)
    for v in range(0, width, W):
        s = fma(a1, load(r1, v, W), a0 * load(r0, v, W))
        if v or not begins:
            store_stream(to, v + head - W, splice(held, s, head))
        else:
            store_first(to, 0, head, s)
        held = s
    return held


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
def mix_along(to, of, args, taps, W, acc, dtype, how, each, padded, long):  # type: ignore[no-untyped-def]
    """to = along a row of `of` the sum of the elements that the table says, in its order; a `long` row of results may
    be written to the end of a vector, which can be read again at once, as part of one cannot."""
    for b in range(args.blocks):
        total = zeros(acc, W)
        for t in range(taps):
            at = (b * taps + t) * W
            start = load_scalar(args.base, b * taps + t if each else b)
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
def make_lines(
    order: str, dtype: str, rows: int, taps: int, how: str, padded: bool, W: int, past: bool = False
) -> RangeKernel:
    """Tiles of rows whose elements lie side by side.

    `order`: "ring" mixes along rows of the source first, "line" mixes rows first, "row" mixes along a row only.  `rows`
    that are mixed and `taps` along a row are 2 or 4, or 0 for as many as the arguments say.  `how` is that of `take`,
    with " each" behind it where every tap has a `base` of its own;
    `padded`: tables hold places without an element.  `past`: a ring of two rows is mixed past the caches.
    """
    acc = "f64" if dtype == "f64" else "f32"
    HOW, EACH = how.removesuffix(" each"), how.endswith(" each")
    RING, ROW, TWO, FOUR = order == "ring", order == "row", rows == 2, rows == 4
    item = 8 if dtype == "f64" else 4
    whole = "i64" if dtype == "f64" else "i32"
    types = ARGS.types(
        out=dtype, x=dtype, index=whole, weight=acc, base="i64", rows="i64", row_weights=acc, slots="i64", lines=acc,
        factors=acc, places="i64", tags="i64",
    )  # fmt: skip

    @range_kernel("resize_lines", types, spec=(order, dtype, rows, taps, how, padded, W, past))
    def lines(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        line, factors = args.lines[worker], args.factors[worker]
        places, tags = args.places[worker], args.tags[worker]
        along = taps if taps else args.along
        for tile in range(lo, hi):
            plane = tile // args.bands
            first = (tile - plane * args.bands) * args.band
            x = at_plane(args.x, plane, args.channels, args.x_n, args.x_c)
            out = at_plane(args.out, plane, args.channels, args.out_n, args.out_c)
            if RING:
                for k in range(args.ring * args.rings):
                    store_scalar(tags, k, -1)
            d = first // args.height
            h = first - d * args.height
            end = min(first + args.band, args.depth * args.height)
            head, held = (W - address_of(advance(out, first * args.width)) // item % W) % W, zeros(acc, W)
            for row in range(first, end):
                to = advance(out, d * args.out_d + h * args.out_h)
                if ROW:
                    i, j = load_scalar(args.rows, d), load_scalar(args.rows, args.heights + h)
                    mix_along(
                        to,
                        advance(x, i * args.x_d + j * args.x_h),
                        args,
                        along,
                        W,
                        acc,
                        dtype,
                        HOW,
                        EACH,
                        padded,
                        False,
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
                                            mix_along(mixed, source, args, along, W, acc, acc, HOW, EACH, padded, True)
                                        place = slot * args.line
                                    store_scalar(places, count, place)
                                    count += 1
                    if RING:
                        if past:
                            begins = row == first
                            held = mix_two_past(to, line, places, factors, args.width, W, head, held, begins)
                        elif TWO:
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
                        mix_along(to, line, args, along, W, acc, dtype, HOW, EACH, padded, False)
                h += 1
                if h == args.height:
                    h = 0
                    d += 1
            if past:
                store_first(out, end * args.width + head - W, W - head, splice(held, held, head))
        if past:
            stream_fence()

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
    are made together.  That is a load and two permutes for two vectors where there are twice as many.  What is written
    `ahead` elements later is asked for: columns of 512 planes of 56 x 56 took 500 to 570 us, 416 so (Emerald Rapids).
    """
    acc = "f64" if dtype == "f64" else "f32"
    whole = "i64" if dtype == "f64" else "i32"
    types = ARGS.types(
        out=dtype, x=dtype, index=whole, weight=acc, base="i64", rows="i64", row_weights=acc, slots="i64", lines=acc,
        factors=acc, places="i64", tags="i64",
    )  # fmt: skip  # fmt: skip

    @range_kernel("resize_stairs", types, spec=(dtype, how, W))
    def stairs(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        # behind those of d, of which there is one
        rows, weights = advance(args.rows, args.heights), advance(args.row_weights, args.heights)
        for tile in range(lo, hi):
            plane = tile // args.bands
            begin = (tile - plane * args.bands) * args.band
            x = at_plane(args.x, plane, args.channels, args.x_n, args.x_c)
            out = at_plane(args.out, plane, args.channels, args.out_n, args.out_c)
            end = min(begin + args.band, args.height)
            for b in range(args.blocks):
                i0, i1 = load(args.index, 2 * b * W, W), load(args.index, (2 * b + 1) * W, W)
                w0, w1 = load(args.weight, 2 * b * W, W), load(args.weight, (2 * b + 1) * W, W)
                start, size = load_scalar(args.base, b), args.source
                left, at = min(args.width - b * W, W), b * W
                if left < W and args.width >= W:  # the last vector of a row begins where it ends with the row
                    left, at = W, args.width - W
                column = advance(out, at)
                h, held, above = begin, -1, zeros(acc, W)
                while h < end:
                    i, j = load_scalar(rows, 2 * h), load_scalar(rows, 2 * h + 1)
                    if i != held:
                        above = along_two(advance(x, i * args.x_h), start, i0, i1, w0, w1, size, how)
                    run = min(load_scalar(args.slots, h), end - h)
                    below = along_two(advance(x, j * args.x_h), start, i0, i1, w0, w1, size, how)
                    to, factors = advance(column, h * args.out_h), advance(weights, 2 * h)
                    if args.ahead:
                        for r in range(run):
                            prefetch_write(to, args.ahead + r * args.out_h, 3)
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
def make_sums(dtype: str, rows: int, taps: int, how: str, W: int) -> RangeKernel:
    """Tiles of rows whose elements are sums of `rows` times `taps` neighbours: the gradient of copied elements."""
    acc = "f64" if dtype == "f64" else "f32"
    types = ARGS.types(out=dtype, x=dtype, index="i64" if dtype == "f64" else "i32", base="i64", rows="i64")

    @range_kernel("resize_sums", types, spec=(dtype, rows, taps, how, W))
    def sums(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        table, base, source, width = args.index, args.base, args.source, args.width
        places = advance(args.rows, args.heights)
        for tile in range(lo, hi):
            plane = tile // args.bands
            first = (tile - plane * args.bands) * args.band
            x = at_plane(args.x, plane, args.channels, args.x_n, args.x_c)
            out = at_plane(args.out, plane, args.channels, args.out_n, args.out_c)
            for h in range(first, min(first + args.band, args.height)):
                to, of = advance(out, h * args.out_h), advance(x, load_scalar(places, h * rows) * args.x_h)
                for b in range(args.blocks):
                    start, total = load_scalar(base, b), zeros(acc, W)
                    for t in range(taps):
                        index = load(table, (b * taps + t) * W, W)
                        both = as_floats(take(of, start, index, source, how))
                        for r in range(1, rows):
                            both += as_floats(take(advance(of, r * args.x_h), start, index, source, how))
                        total = total + both if t else both
                    if width < W:
                        store_narrow_first(to, 0, width, as_computed(total, dtype))
                    else:
                        store_narrow(to, min(b * W, width - W), as_computed(total, dtype))

    return sums
