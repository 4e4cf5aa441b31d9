"""Gradients over contiguous planes: what the windows of a row of x give, down the columns of dy, then along the row."""

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
    narrow,
    pointer_from_address,
    select,
    store,
    store_first,
    store_narrow,
    store_narrow_first,
    store_stream,
    stream_fence,
    zeros,
)
from numbaprims.cpu.simd.loops import keep_rolled
from numbaprims.cpu.windows.arguments import ARGS, FIRST, NUMBER, THIRD
from numbaprims.cpu.windows.combine import end_of, fold_lanes, give, take
from numbaprims.cpu.windows.phases import give_places, give_sums, margins
from numbaprims.cpu.windows.planes import fill
from numbaprims.cpu.windows.walks import walk_sums
from numbaprims.dtypes import DTYPES


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


@helper
def copy_row(out, source, at, width, W):  # type: ignore[no-untyped-def]
    """A row of x once more."""
    i = 0
    while i + W <= width:
        keep_rolled()
        store(out, at + i, load(out, source + i, W))
        i += W
    left = width - i
    if left > 0:
        store_first(out, at + i, left, load_first(out, source + i, left, W))


@functools.cache
def make_sums(kind: str, dtype: str, W: int, SHORT: bool, KW: int, S: int, D: int, BEFORE: int) -> RangeKernel:
    """Kernel over bands of rows of dx of an average or an lp norm.

    Rows of an average that the same windows hold are alike.
    """
    acc, MEAN = DTYPES[dtype].accumulate, kind == "avg"
    FRONT = margins(KW, S, D, BEFORE)[0]
    types = ARGS.types(out=dtype, x=dtype, dy=dtype, y=dtype, values=acc)

    @range_kernel("windows_sums", types, spec=(kind, dtype, W, SHORT, KW, S, D, BEFORE))
    def windows_sums(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        power = pointer_from_address(args.power, "f64")[0]
        shares = pointer_from_address(args.shares, acc)
        nothing = zeros(acc, W)
        values = args.values[worker]
        width, outs, high = args.size_w, args.outs_w, args.size_h
        around_d, around_h = args.around_d, args.around_h
        if not SHORT:
            fill(values, args.pitch, nothing, W)
        inside = first_lanes(outs, W)
        for tile in range(lo, hi):
            plane, band = divmod(tile, args.bands)
            n, c = divmod(plane, args.c)
            dy = advance(args.dy, n * args.dy_n + c * args.dy_c)
            y = advance(args.y, n * args.y_n + c * args.y_c)
            first = band * args.band
            out = advance(args.out, n * args.out_n + c * args.out_c)
            x = advance(args.x, n * args.x_n + c * args.x_c)
            z, h = divmod(first, high)
            for row in range(first, min(first + args.band, args.size_d * high)):
                deep, tall = around_d + 24 * z, around_h + 24 * h
                at = row * width
                if (
                    MEAN and row > first and h > 0
                    and load_word(tall, FIRST) == load_word(tall - 24, FIRST)
                    and load_word(tall, NUMBER) == load_word(tall - 24, NUMBER)
                ):  # fmt: skip
                    copy_row(out, at - width, at, width, W)
                elif SHORT:
                    total = up(args, dy, y, shares, deep, tall, 0, outs, kind, acc, MEAN, power, W, False)
                    total = fold_lanes("avg", select(inside, total, nothing), nothing, KW, S, D, BEFORE, True)
                    if not MEAN:
                        total = end_of(kind, total, take(x, at, width, W, False), power)
                    give(out, at, width, total, False)
                else:
                    j = 0
                    while j + W <= outs:
                        keep_rolled()
                        total = up(args, dy, y, shares, deep, tall, j, W, kind, acc, MEAN, power, W, True)
                        store(values, FRONT + j, total)
                        j += W
                    left = outs - j
                    if left > 0:
                        total = up(args, dy, y, shares, deep, tall, j, left, kind, acc, MEAN, power, W, False)
                        store_first(values, FRONT + j, left, total)
                    if KW:
                        give_sums(kind, out, at, width, x, values, FRONT, nothing, power, KW, S, D, BEFORE)
                    else:
                        for i in range(width):
                            wide = args.around_w + 24 * i
                            one = zeros(acc, 1)
                            for t in range(load_word(wide, NUMBER)):
                                one = one + load(values, load_word(wide, FIRST) + t * load_word(wide, THIRD), 1)
                            if not MEAN:
                                one = end_of(kind, one, take(x, at + i, 1, 1, True), power)
                            give(out, at + i, 1, one, True)
                h += 1
                if h == high:
                    z, h = z + 1, 0

    return windows_sums


@functools.cache
def make_around(dtype: str, W: int, KH: int, KW: int, BEFORE_H: int, BEFORE_W: int) -> RangeKernel:
    """Kernel over planes of dx of a maximum whose windows lie around each element.

    Where windows overlap, adding at the places one by one waits for the sum before: 3 cycles an element.
    """
    acc = DTYPES[dtype].accumulate
    types = ARGS.types(out=dtype, dy=dtype, indices="i64", values=acc)

    @range_kernel("windows_around", types, spec=(dtype, W, KH, KW, BEFORE_H, BEFORE_W))
    def windows_around(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        rows = args.values[worker]
        nothing = zeros(acc, W)
        fill(rows, args.cells, nothing, W)
        width, apart, front = args.size_w, args.pitch, args.front
        size = args.size_h * width
        for plane in range(lo, hi):
            n, c = divmod(plane, args.c)
            out = advance(args.out, n * args.out_n + c * args.out_c)
            dy = advance(args.dy, n * args.dy_n + c * args.dy_c)
            indices = advance(args.indices, n * args.indices_n + c * args.indices_c)
            give_places(
                out, size, width, indices, dy, rows, apart, front, nothing, KH, KW, BEFORE_H, BEFORE_W,
            )  # fmt: skip

    return windows_around


@helper
def leave(out, sums, size, dtype, itemsize, acc, W):  # type: ignore[no-untyped-def]
    """Write a plane of sums past the caches, whole lines at a time, and zeros in its place."""
    nothing = zeros(acc, W)
    i, part = 0, min((-(address_of(out) // itemsize)) % (64 // itemsize), size)
    while i < size:
        while part > 0:
            few = min(part, W)
            store_narrow_first(out, i, few, load_first(sums, i, few, W))
            store_first(sums, i, few, nothing)
            i += few
            part -= few
        while i + W <= size:
            keep_rolled()
            store_stream(out, i, narrow(load(sums, i, W), dtype))
            store(sums, i, nothing)
            i += W
        part = size - i


@functools.cache
def make_places(dtype: str, W: int, streaming: bool) -> RangeKernel:
    """Kernel over planes of dx of a maximum: dy is added at the places; places outside of the plane are left out.

    Streaming, sums stay in the caches: a plane that is added up where it lies is read first.
    """
    acc, itemsize = DTYPES[dtype].accumulate, DTYPES[dtype].itemsize
    DIRECT = acc == dtype and not streaming
    types = ARGS.types(out=dtype, dy=dtype, indices="i64", values=acc)

    @range_kernel("windows_places", types, spec=(dtype, W, streaming))
    def windows_places(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        size = args.size_d * args.size_h * args.size_w
        outputs = args.outs_d * args.outs_h * args.outs_w
        buffer = args.values[worker]
        nothing = zeros(acc, W)
        whole = size - size % W
        if streaming:
            fill(buffer, size, nothing, W)
        for plane in range(lo, hi):
            n, c = divmod(plane, args.c)
            out = advance(args.out, n * args.out_n + c * args.out_c)
            dy = advance(args.dy, n * args.dy_n + c * args.dy_c)
            indices = advance(args.indices, n * args.indices_n + c * args.indices_c)
            sums = pointer_from_address(address_of(out), acc) if DIRECT else buffer
            if not streaming:
                fill(sums, whole, nothing, W)
                store_first(sums, whole, size - whole, nothing)
            for i in range(outputs):
                place = indices[i]
                if 0 <= place and place < size:
                    sums[place] = sums[place] + load_wide_scalar(dy, i)
            if streaming:
                leave(out, sums, size, dtype, itemsize, acc, W)
            elif not DIRECT:
                for i in range(0, whole, W):
                    store_narrow(out, i, load(sums, i, W))
                store_narrow_first(out, whole, size - whole, load_first(sums, whole, size - whole, W))
        if streaming:
            stream_fence()

    return windows_places
