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
    arrays=("out", "x", "scratch", "index", "weight", "base", "rows", "row_weights"),
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
def mix_along(to, of, args, taps, W, acc, dtype, how, padded):  # type: ignore[no-untyped-def]
    """to = along a row of `of` the sum of the elements that the table says, in its order."""
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
        if left >= W:
            store_narrow(to, b * W, as_computed(total, dtype))
        else:
            store_narrow_first(to, b * W, left, as_computed(total, dtype))


@functools.cache
def make_lines(order: str, dtype: str, taps: int, how: str, padded: bool, W: int) -> RangeKernel:
    """Tiles of rows whose elements lie side by side.

    `order`: "ring" mixes along rows of the source first, "line" mixes rows first, "row" along a row only.  `taps` along
    a row, 0 for as many as the arguments say.  `how` as of `take`; `padded`: tables hold places without an element.
    """
    acc = "f64" if dtype == "f64" else "f32"
    RING, ROW = order == "ring", order == "row"
    whole = "i64" if dtype == "f64" else "i32"
    types = ARGS.types(
        out=dtype, x=dtype, scratch="u8", index=whole, weight=acc, base="i64", rows="i64", row_weights=acc
    )

    @range_kernel("resize_lines", types, spec=(order, dtype, taps, how, padded, W))
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
            for row in range(first, min(first + args.band, args.depth * args.height)):
                d = row // args.height
                h = row - d * args.height
                to = advance(out, d * args.out_d + h * args.out_h)
                if ROW:
                    i, j = load_scalar(args.rows, d), load_scalar(args.rows, args.heights + h)
                    mix_along(to, advance(x, i * args.x_d + j * args.x_h), args, along, W, acc, dtype, how, padded)
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
                                        slot = i % args.rings * args.ring + j % args.ring
                                        key = i * args.x_height + j
                                        if load_scalar(tags, slot) != key:
                                            store_scalar(tags, slot, key)
                                            mixed = advance(line, slot * args.line)
                                            source = advance(x, place)
                                            mix_along(mixed, source, args, along, W, acc, acc, how, padded)
                                        place = slot * args.line
                                    store_scalar(places, count, place)
                                    count += 1
                    if RING:
                        mix(to, 1, line, 1, places, factors, count, args.width, W, acc, dtype)
                    else:
                        mix(line, 1, x, 1, places, factors, count, args.source, W, acc, acc)
                        mix_along(to, line, args, along, W, acc, dtype, how, padded)

    return lines


@functools.cache
def make_copied_lines(bits: int, how: str, W: int) -> RangeKernel:
    """Tiles of rows of nearest elements, whatever they stand for; a row that is that before is copied."""
    elem, whole = f"u{bits}", "i64" if bits == 64 else "i32"
    types = ARGS.types(out=elem, x=elem, index=whole, base="i64", rows="i64")

    @range_kernel("resize_copied_lines", types, spec=(bits, how, W))
    def copied(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        for tile in range(lo, hi):
            plane = tile // args.bands
            first = (tile - plane * args.bands) * args.band
            n = plane // args.channels
            c = plane - n * args.channels
            x = advance(args.x, n * args.x_n + c * args.x_c)
            out = advance(args.out, n * args.out_n + c * args.out_c)
            before, last = out, -1
            for row in range(first, min(first + args.band, args.depth * args.height)):
                d = row // args.height
                h = row - d * args.height
                to = advance(out, d * args.out_d + h * args.out_h)
                i, j = load_scalar(args.rows, d), load_scalar(args.rows, args.heights + h)
                key = i * args.x_height + j
                if key == last:
                    copy_run(to, 1, before, 1, args.width, W)
                else:
                    of = advance(x, i * args.x_d + j * args.x_h)
                    for b in range(args.blocks):
                        index = load(args.index, b * W, W)
                        value = take(of, load_scalar(args.base, b), index, args.source, how)
                        left = args.width - b * W
                        if left >= W:
                            store_narrow(to, b * W, value)
                        else:
                            store_narrow_first(to, b * W, left, value)
                before, last = to, key

    return copied


@helper
def copy_run(to, to_step, of, step, count, W):  # type: ignore[no-untyped-def]
    """Elements as they are."""
    v = 0
    while v + W <= count:
        store(to, v * to_step, load(of, v * step, W))
        v += W
    if v < count:
        store_first(to, v, count - v, load_first(of, v, count - v, W))


@functools.cache
def make_pixels(dtype: str, W: int) -> RangeKernel:
    """Tiles of rows whose pixels are runs of channels; with W = 1 channels may lie any step apart."""
    acc = "f64" if dtype == "f64" else "f32"
    types = ARGS.types(
        out=dtype, x=dtype, scratch="u8", index="i64", weight=acc, rows="i64", row_weights=acc
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
