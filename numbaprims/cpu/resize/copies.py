"""The kernels of nearest elements: rows of copies, whatever they stand for."""

from __future__ import annotations

import functools

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.resize.kernels import ARGS, at_plane
from numbaprims.cpu.simd import (
    address_of,
    advance,
    concat,
    interleave_high,
    interleave_low,
    leave,
    load,
    load_scalar,
    splice,
    store_first,
    store_narrow,
    store_narrow_first,
    stream_fence,
    take,
    zeros,
)


@helper
def piece(of, at, b, args, W, HALF, how):  # type: ignore[no-untyped-def]
    """Elements `at` ... of a row of results, which are vector b of the table; "twice": each of the source twice."""
    if how == "twice":
        half = load(of, at // 2, HALF)
        return concat(interleave_low(half, half), interleave_high(half, half))
    return take(of, load_scalar(args.base, b), load(args.index, b * W, W), args.source, how)


@helper
def copy_row(to, step, rows, of, args, whole, rest, W, HALF, how):  # type: ignore[no-untyped-def]
    """`rows` that are equal, `step` elements apart: `whole` vectors and the `rest` of a row."""
    for b in range(whole):
        value = piece(of, b * W, b, args, W, HALF, how)
        for r in range(rows):
            store_narrow(to, b * W + r * step, value)
    if rest:
        begin = args.width - W  # the last vector of a row begins where it ends with the row
        if how == "twice" or whole:
            value = piece(of, begin, whole, args, W, HALF, how)
            for r in range(rows):
                store_narrow(to, begin + r * step, value)
        else:
            value = piece(of, 0, 0, args, W, HALF, how)
            for r in range(rows):
                store_narrow_first(to, r * step, rest, value)


@functools.cache
def make_copied_lines(bits: int, how: str, rows: int, W: int) -> RangeKernel:
    """Tiles of rows of nearest elements.

    `how`: that of `take`, rows one or two at a time, as many as `slots` says are equal; or without any table "twice":
    rows are twice as long as those of the source and `rows` times as many, and hold a vector at least.  Little stands
    around a row: lines of an outer cache are waited for together if their stores are in a core's queues together.
    """
    elem, whole = f"u{bits}", "i64" if bits == 64 else "i32"
    types = ARGS.types(out=elem, x=elem, index=whole, base="i64", rows="i64", slots="i64")
    TWICE, HALF = how == "twice", W // 2

    @range_kernel("resize_copied_lines", types, spec=(bits, how, rows, W))
    def copied(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        x_step, step, high = args.x_h, args.out_h, advance(args.rows, args.heights)
        whole, rest = args.width // W, args.width % W
        for tile in range(lo, hi):
            plane = tile // args.bands
            first = (tile - plane * args.bands) * args.band
            d = first // args.height
            h, left = first - d * args.height, min(args.band, args.depth * args.height - first)
            of_plane = at_plane(args.x, plane, args.channels, args.x_n, args.x_c)
            to_plane = at_plane(args.out, plane, args.channels, args.out_n, args.out_c)
            while left > 0:  # what the tile has of one image of a volume
                x = advance(of_plane, load_scalar(args.rows, d) * args.x_d)
                out = advance(to_plane, d * args.out_d)
                end = min(args.height, h + left)
                left -= end - h
                if TWICE:
                    for row in range(h, end, rows):
                        of, to = advance(x, row // rows * x_step), advance(out, row * step)
                        copy_row(to, step, rows, of, args, whole, rest, W, HALF, how)
                else:
                    while h < end:
                        of, to = advance(x, load_scalar(high, h) * x_step), advance(out, h * step)
                        if load_scalar(args.slots, h) > 1 and h + 1 < end:
                            copy_row(to, step, 2, of, args, whole, rest, W, HALF, how)
                            h += 2
                        else:
                            copy_row(to, step, 1, of, args, whole, rest, W, HALF, how)
                            h += 1
                h = 0
                d += 1

    return copied


@functools.cache
def make_whole_lines(bits: int, how: str, W: int, past: bool) -> RangeKernel:
    """As `make_copied_lines`, of rows that lie one behind the other and are whole vectors.

    Wherever a tile begins, vectors are put together to lines of the result and written at once, `past` the caches too.
    """
    elem = f"u{bits}"
    types = ARGS.types(out=elem, x=elem, index=f"i{bits}", base="i64", rows="i64", slots="i64")

    @range_kernel("resize_whole_lines", types, spec=(bits, how, W, past))
    def whole_lines(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        table, base, source, width = args.index, args.base, args.source, args.width
        rows = advance(args.rows, args.heights)
        for tile in range(lo, hi):
            plane = tile // args.bands
            first = (tile - plane * args.bands) * args.band
            x = at_plane(args.x, plane, args.channels, args.x_n, args.x_c)
            out = at_plane(args.out, plane, args.channels, args.out_n, args.out_c)
            h, end = first, min(first + args.band, args.height)
            # elements before the first line
            head = (W - address_of(advance(out, h * width)) // (bits // 8) % W) % W
            held = zeros(elem, W)
            while h < end:
                of, run = advance(x, load_scalar(rows, h) * args.x_h), min(load_scalar(args.slots, h), end - h)
                begin = take(of, load_scalar(base, 0), load(table, 0, W), source, how)
                to = advance(out, h * width + head - W)
                if h == first:
                    store_first(to, W - head, head, begin)
                else:
                    leave(to, 0, splice(held, begin, head), past)
                held = begin
                if run == 2:
                    for b in range(1, args.blocks):
                        value = take(of, load_scalar(base, b), load(table, b * W, W), source, how)
                        line = splice(held, value, head)
                        leave(to, b * W, line, past)
                        leave(to, b * W + width, line, past)
                        held = value
                    leave(to, width, splice(held, begin, head), past)
                else:
                    for b in range(1, args.blocks):
                        value = take(of, load_scalar(base, b), load(table, b * W, W), source, how)
                        for r in range(run):
                            leave(to, b * W + r * width, splice(held, value, head), past)
                        held = value
                    for r in range(1, run):
                        leave(to, r * width, splice(held, begin, head), past)
                h += run
            store_first(out, end * width + head - W, W - head, splice(held, held, head))
        if past:
            stream_fence()

    return whole_lines
