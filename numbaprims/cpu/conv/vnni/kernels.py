"""What convolutions by dot instructions compute with: copies in groups of 32 bits, their register tile, the end.

A group holds 4 bytes (or 2 bf16) of neighbouring channels of one pixel.  vpdpbusd takes unsigned times signed bytes:
signed inputs are copied with 128 added, and the tile takes that and the input's zero point off again by the sums of
the weights, (128 + zero) * sum(w) for each filter.  The padding of the copy holds the zero point.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.gemm.finish import load_steps, requantized
from numbaprims.cpu.gemm.pieces import BLOCK, WORDS, of_f16, store_pairs
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    Arguments,
    advance,
    bitcast,
    cast_pointer,
    dot_u8s8,
    load,
    load_first,
    load_group_columns,
    load_rows,
    load_scalar,
    load_words,
    maximum,
    scalar,
    splat,
    stack_tile,
    store,
    store_first,
    store_narrow_first,
    store_narrow_scalar,
    store_rows,
    store_scalar,
    tile_add,
    tile_load,
    tile_scale,
    tile_store,
    tile_zeros,
    transpose,
    zeros,
)
from numbaprims.cpu.simd.arguments import load_word
from numbaprims.cpu.simd.tiles.dot_rows import tile_dot_rows

# One row of pixels: out[column * words + group].
STAGE = Arguments(arrays=("out", "source"), ints=("columns", "channels", "words", "c_step", "w_step"))

# One panel of NR filters: panels[(tap * words + group) * NR + filter], then (for bytes) the sums of the filters.
# places: address of int64, where taps lie; plain: 1 where these are 0, 1, 2, ..., and -1 where they are 0, -1, -2, ...
WEIGHTS = Arguments(
    arrays=("panels", "source"),
    ints=("filters", "channels", "words", "taps", "places", "plain", "k_step", "c_step"),
)

# total[pixel * NR + filter] of one panel.  places: address of int64, where each pixel's window begins in a, in words;
# shifts: where runs of taps do from there; run: words of a run; shift: what the filters' sums are multiplied with.
# segments: 0, or how many rows of tiles the pixels are, `segment` pixels each of which the first has a place: `rows` of
# them `row_step` words apart, whose sums begin `pitch` pixels apart; total_step: from pixel to pixel of tiles' sums.
MULTIPLY = Arguments(
    arrays=("a", "b", "total"),
    ints=(
        "pixels", "places", "shifts", "runs", "run", "shift", "segments", "segment", "rows", "row_step", "pitch",
        "total_step",
    ),
)  # fmt: skip

# Rows lo ... hi - 1 of a block of int32 sums: out = saturate(round((total + bias) * factor) + zero).  axis: 1 where
# columns are filters, 2 where rows are.
REQUANTIZE = Arguments(
    arrays=("out", "total", "bias", "factor", "zero"),
    ints=("columns", "total_step", "out_rs", "out_cs", "bias_step", "has_bias", "axis", "first", "relu"),
)

# transposed[j * transposed_step + i] = source[i * source_step + j] for i < rows, j < columns; both are read and written
# in whole squares of W.
TRANSPOSE = Arguments(arrays=("transposed", "source"), ints=("rows", "columns", "transposed_step", "source_step"))


@helper
def group_of(p, at, step, count, BITS, flip):  # type: ignore[no-untyped-def]
    """`count` elements, `step` apart, as one word."""
    word = 0
    for t in range(count):
        word |= (load_scalar(p, at + t * step) & ((1 << BITS) - 1)) << (t * BITS)
    return word ^ flip


@functools.cache
def make_stage(dtype: str, GROUP: int, flip: int, W: int) -> RangeKernel:
    """Copy a row of pixels; every layout of the input."""
    BITS = 32 // GROUP

    @range_kernel("conv_vnni_stage", STAGE.types(out="i32", source=dtype), spec=(dtype, GROUP, flip, W))
    def conv_vnni_stage(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        columns, channels, words = args.columns, args.channels, args.words
        c_step, w_step = args.c_step, args.w_step
        signs = splat(scalar(flip, "i32"), W)
        room = stack_tile("i32", W, 1, W)
        if c_step == 1 or channels == 1:
            whole = channels // GROUP
            pixels, length = columns, whole
            if channels == whole * GROUP and w_step == channels:
                pixels, length = 1, columns * whole
            for j in range(pixels):
                source = cast_pointer(advance(args.source, j * w_step), "i32")
                out = advance(args.out, j * words)
                for i in range(0, length, W):
                    left = min(W, length - i)
                    store_first(out, i, left, load_first(source, i, left, W) ^ signs)
                if whole < words:
                    rest = group_of(args.source, j * w_step + whole * GROUP, 1, channels - whole * GROUP, BITS, flip)
                    store_scalar(out, whole, rest)
        elif w_step == 1:
            for first in range(0, words, W):
                there = min(W, words - first)
                for j in range(0, columns, W):
                    count = min(W, columns - j)
                    for g in range(there):
                        at = (first + g) * GROUP
                        source = advance(args.source, at * c_step + j)
                        value = load_group_columns(source, c_step, min(channels - at, GROUP), count, W) ^ signs
                        if words == 1:
                            store_first(args.out, j, count, value)
                        else:
                            store(room, g * W, value)
                    if words > 1:
                        store_rows(room, W, transpose(load_rows(room, W, W, W)))
                        for i in range(count):
                            store_first(args.out, (j + i) * words + first, there, load(room, i * W, W))
        else:
            for j in range(columns):
                for g in range(words):
                    at = j * w_step + g * GROUP * c_step
                    word = group_of(args.source, at, c_step, min(channels - g * GROUP, GROUP), BITS, flip)
                    store_scalar(args.out, j * words + g, word)

    return conv_vnni_stage


@functools.cache
def make_pack_weights(
    dtype: str, NR: int, GROUP: int, feature: str, W: int, whole: int = 1, pieces: int = 1
) -> RangeKernel:
    """Pack one panel; where the taps of a channel are neighbours, a square of filters and taps at a time.

    Zeros follow until its groups are a multiple of `whole`.  More `pieces`: of each `whole` groups of float16 or
    float32 a block of words of two first pieces, then of second ones and so on.
    """
    BITS, HALVES = 32 // GROUP, dtype == "f16"
    rows, VECTORS = (whole, NR // W) if pieces > 1 else (1, 1)
    spec = (dtype, NR, GROUP, feature, W, whole, pieces)

    @range_kernel("conv_vnni_weights", WEIGHTS.types(panels="i32", source=dtype), spec=spec)
    def conv_vnni_weights(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        channels, words, taps = args.channels, args.words, args.taps
        room, square = stack_tile("i32", W, 1, W), stack_tile("i32", W, 1, W)
        # lanes of filters there are not hold zeros: sums of pieces are looked at, whether they are finite
        for j in range(W):
            store(room, j * W, zeros("i32", W))
        for v in range(0, NR, W):
            filters = min(W, args.filters - v)
            for g in range(words):
                valid = min(channels - g * GROUP, GROUP)
                if filters <= 0:
                    for t in range(taps):
                        store(args.panels, (t * words + g) * NR + v, zeros("i32", W))
                elif args.k_step == 1:
                    for t in range(taps):
                        place = load_word(args.places, t) + g * GROUP * args.c_step + v
                        value = load_group_columns(advance(args.source, place), args.c_step, valid, filters, W)
                        store(args.panels, (t * words + g) * NR + v, value)
                elif args.plain and taps > 1:
                    for t0 in range(0, taps, W):
                        count = min(W, taps - t0)
                        first = t0 if args.plain > 0 else 1 - t0 - count
                        for j in range(filters):
                            at = (v + j) * args.k_step + g * GROUP * args.c_step + first
                            value = load_group_columns(advance(args.source, at), args.c_step, valid, count, W)
                            store(room, j * W, value)
                        store_rows(square, W, transpose(load_rows(room, W, W, W)))
                        for t in range(count):
                            row = t if args.plain > 0 else count - 1 - t
                            store(args.panels, ((t0 + t) * words + g) * NR + v, load(square, row * W, W))
                else:
                    for t in range(taps):
                        place = load_word(args.places, t) + g * GROUP * args.c_step
                        target = (t * words + g) * NR + v
                        store(args.panels, target, zeros("i32", W))
                        for j in range(filters):
                            word = group_of(args.source, (v + j) * args.k_step + place, args.c_step, valid, BITS, 0)
                            store_scalar(args.panels, target + j, word)
            behind = (taps * words + whole - 1) // whole * whole
            for i in range(taps * words, behind):
                store(args.panels, i * NR + v, zeros("i32", W))
            if GROUP == 4:
                total = zeros("i32", W)
                one = bitcast(splat(scalar(0x01010101, "i32"), W), "u8")
                for i in range(taps * words):
                    total = dot_u8s8(total, one, bitcast(load_words(args.panels, i * NR + v, W), "i8"), feature)
                store(args.panels, behind * NR + v, total)
        if pieces > 1:
            block = stack_tile("i32", rows, VECTORS, W)
            for t in range((taps * words + whole - 1) // whole - 1, -1, -1):
                for i in range(0, whole * NR, W):
                    store(block, i, load(args.panels, t * whole * NR + i, W))
                target = advance(args.panels, t * pieces * BLOCK)
                for i in range(0, WORDS * NR, W):
                    if HALVES:
                        both = load(block, i, W)
                        x, y = of_f16(both, W), of_f16(both >> 16, W)
                    else:
                        # rows 2 g and 2 g + 1
                        at = i + i // NR * NR
                        x, y = bitcast(load(block, at, W), "f32"), bitcast(load(block, at + NR, W), "f32")
                    store_pairs(target, i, W, x, y, pieces, W)

    return conv_vnni_weights


@functools.cache
def make_multiply(kind: str, MR: int, NV: int, W: int) -> RangeKernel:
    """All pixels with one panel of weights, which stays in the second-level cache."""
    acc = "f32" if kind == "bf16" else "i32"
    types = MULTIPLY.types(a="i32", b="i32", total=acc)
    NR = NV * W
    bytes_ = kind == "u8s8"

    @range_kernel("conv_vnni_multiply", types, spec=(kind, MR, NV, W))
    def conv_vnni_multiply(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        run = args.run
        for i in range(0, args.pixels, MR):
            rows = min(MR, args.pixels - i)
            tile = tile_zeros(acc, MR, NV, W)
            b = args.b
            for t in range(args.runs):
                a = advance(args.a, load_word(args.shifts, t))
                tile = tile_dot_rows(tile, a, args.places + 8 * i, rows, b, run, MR, NV, W, kind)
                b = advance(b, run * NR)
            if bytes_:
                # row step 0: the same NR corrections for every row
                sums = tile_load(cast_pointer(b, acc), 0, MR, NV, W)
                tile = tile_add(tile, tile_scale(sums, splat(scalar(args.shift, acc), W)))
            # the room has place for whole tiles
            tile_store(advance(args.total, i * NR), NR, tile, MR, NV, W)

    return conv_vnni_multiply


@functools.cache
def make_transpose(acc: str, W: int) -> RangeKernel:
    """Transpose a block of sums, for results whose pixels are neighbours."""

    @range_kernel("conv_vnni_transpose", TRANSPOSE.types(transposed=acc, source=acc), spec=(acc, W))
    def conv_vnni_transpose(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        for i in range(0, args.rows, W):
            for j in range(0, args.columns, W):
                block = transpose(load_rows(advance(args.source, i * args.source_step + j), args.source_step, W, W))
                store_rows(advance(args.transposed, j * args.transposed_step + i), args.transposed_step, block)

    return conv_vnni_transpose


@functools.cache
def make_requantize(out: str, W: int) -> RangeKernel:
    """Scale int32 sums to 8 bits: to the nearest, halves to even."""
    types = REQUANTIZE.types(out=out, total="i32", bias="i32", factor="f32", zero="f32")
    LOW, HIGH = (0, 255) if out == "u8" else (-128, 127)

    @range_kernel("conv_vnni_requantize", types, spec=(out, W))
    def conv_vnni_requantize(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        room = stack_tile("i32", 1, 1, W)
        low, high = splat(scalar(LOW, "f32"), W), splat(scalar(HIGH, "f32"), W)
        none = zeros("i32", W)
        for r in range(lo, hi):
            row = args.first + r
            for v in range(0, args.columns, W):
                left = min(W, args.columns - v)
                x = load_first(args.total, r * args.total_step + v, left, W)
                if args.axis == 1:
                    at = args.first + v
                    factor = load_first(args.factor, at, left, W)
                    zero = load_first(args.zero, at, left, W)
                    if args.has_bias:
                        x = x + load_steps(args.bias, at * args.bias_step, args.bias_step, left, W, "i32")
                else:
                    factor = splat(load_scalar(args.factor, row), W)
                    zero = splat(load_scalar(args.zero, row), W)
                    if args.has_bias:
                        x = x + splat(load_scalar(args.bias, row * args.bias_step), W)
                if args.relu:
                    x = maximum(x, none)
                whole = requantized(x, factor, zero, low, high)
                if args.out_cs == 1:
                    store_narrow_first(args.out, r * args.out_rs + v, left, whole)
                else:
                    store(room, 0, whole)
                    for i in range(left):
                        store_narrow_scalar(args.out, r * args.out_rs + (v + i) * args.out_cs, load_scalar(room, i))

    return conv_vnni_requantize
