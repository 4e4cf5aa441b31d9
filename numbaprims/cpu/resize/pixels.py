"""The kernels of resizing with channels innermost: a pixel of the result is a mix of pixels."""

from __future__ import annotations

import functools

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.resize.kernels import ARGS, mix
from numbaprims.cpu.simd import (
    advance,
    as_computed,
    as_floats,
    fma,
    load,
    load_first,
    load_scalar,
    load_wide,
    load_wide_first,
    splat,
    store,
    store_first,
    store_narrow,
    store_narrow_first,
    store_scalar,
    zeros,
)


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
def make_walk(dtype: str, rows: int, W: int) -> RangeKernel:
    """As `make_pixels`, of linear taps: pixels of one, two or four rows are mixed as the walk along them comes to them.

    Four vectors of channels are led along a row of the result.  A pixel that two results read, or more, is mixed once:
    with twice as many pixels that is a load of each row for two results.
    """
    acc = "f64" if dtype == "f64" else "f32"
    types = ARGS.types(
        out=dtype, x=dtype, index="i64", weight=acc, rows="i64", row_weights=acc, slots="i64", factors=acc,
        places="i64", pixels="i64", pixel_factors=acc,
    )  # fmt: skip
    COUNT = rows

    @range_kernel("resize_walk", types, spec=(dtype, rows, W))
    def walk(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        factors, places = args.factors[worker], args.places[worker]
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


@functools.cache
def make_pixels(dtype: str, W: int) -> RangeKernel:
    """Tiles of rows whose pixels are runs of channels; with W = 1 channels may lie any step apart."""
    acc = "f64" if dtype == "f64" else "f32"
    types = ARGS.types(
        out=dtype, x=dtype, index="i64", weight=acc, rows="i64", row_weights=acc, slots="i64", factors=acc,
        places="i64", pixels="i64", pixel_factors=acc,
    )  # fmt: skip
    ANY = W == 1

    @range_kernel("resize_pixels", types, spec=(dtype, W))
    def pixels(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        factors, places = args.factors[worker], args.places[worker]
        pixels, pixel_factors = args.pixels[worker], args.pixel_factors[worker]
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
