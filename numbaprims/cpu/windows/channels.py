"""Windows over any strides: a vector is channels of one place, whose neighbours lie side by side, or is one lane.

Windows are walked where they are: the bytes of x that several read come from the first caches.  A gradient is gathered:
every element adds what the windows around it give.  A maximum's gradient from x is not: each window finds its largest
element again and adds to it.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import advance, load_word, pointer_from_address, scalar, select, splat, store_first, zeros
from numbaprims.cpu.windows.arguments import ARGS, FIRST, NOWHERE, NUMBER, THIRD, lowest
from numbaprims.cpu.windows.combine import as_places, end_of, finish_of, give, take
from numbaprims.cpu.windows.walks import walk_places, walk_sums, walk_window
from numbaprims.dtypes import DTYPES


@helper
def forward(
    args,
    x,
    out,
    indices,
    at,
    deep,
    tall,
    wide,
    here,
    share,
    v,
    left,
    kind,
    acc,
    PLACE,
    LOW,
    INDEXED,
    VALUES,
    power,
    W,
    FULL,
):  # type: ignore[no-untyped-def]
    """W channels of a window of `deep` x `tall` x `wide` elements from `at` on, whose place is `here`."""
    best, place = walk_window(
        kind, x, at + v * args.x_c, here, left, deep, tall, wide, args.step_d * args.x_d, args.step_h * args.x_h,
        args.step_w * args.x_w, args.step_d * args.size_h * args.size_w, args.step_h * args.size_w, args.step_w,
        splat(scalar(LOW, acc), W), splat(scalar(NOWHERE, PLACE), W), power, FULL, INDEXED,
    )  # fmt: skip
    if INDEXED:
        store_first(indices, v * args.indices_c, left, as_places(place))
    if VALUES:
        give(out, v * args.out_c, left, finish_of(kind, best, splat(share, W), power), FULL)


@helper
def backward(args, out, at, of, here, deep, tall, wide, v, left, kind, acc, INDEXED, MEAN, power, W, FULL):  # type: ignore[no-untyped-def]
    """W channels of the gradient, by the tables' entries; images of dy begin at `at`, of places or y at `of`."""
    o, p, q = load_word(deep, FIRST), load_word(tall, FIRST), load_word(wide, FIRST)
    a, b, c = load_word(deep, NUMBER), load_word(tall, NUMBER), load_word(wide, NUMBER)
    s, t, u = load_word(deep, THIRD), load_word(tall, THIRD), load_word(wide, THIRD)
    at += v * args.dy_c + o * args.dy_d + p * args.dy_h + q * args.dy_w
    if INDEXED:
        of += v * args.indices_c + o * args.indices_d + p * args.indices_h + q * args.indices_w
        total = walk_places(
            args.dy, at, args.indices, of, here, left, a, b, c, s * args.dy_d, t * args.dy_h, u * args.dy_w,
            s * args.indices_d, t * args.indices_h, u * args.indices_w, zeros(acc, W), FULL,
        )  # fmt: skip
    else:
        of += v * args.y_c + o * args.y_d + p * args.y_h + q * args.y_w
        total = walk_sums(
            kind, args.dy, at, args.y, of, pointer_from_address(args.shares, acc), o, args.outs_d + p,
            args.outs_d + args.outs_h + q, left, a, b, c, s * args.dy_d, t * args.dy_h, u * args.dy_w,
            s * args.y_d, t * args.y_h, u * args.y_w, s, t, u, zeros(acc, W), power, FULL,
        )  # fmt: skip
        if not MEAN:
            total = end_of(kind, total, take(args.x, here + v * args.x_c, left, W, FULL), power)
    give(args.out, out + v * args.out_c, left, total, FULL)


@functools.cache
def make_forward(
    kind: str, dtype: str, W: int, WIDE: int, KD: int = 0, KH: int = 0, KW: int = 0, PLACE: str = "i32",
    INDEXED: int = 0, VALUES: bool = True,
) -> RangeKernel:  # fmt: skip
    """Kernel over (image, row of outputs, block of channels): WIDE channels at a time, then W.

    Most windows have KD x KH x KW elements.  Places are computed as `PLACE`, and written if INDEXED, results if VALUES.
    """
    acc = DTYPES[dtype].accumulate
    SHARE, LOW = "f64" if acc == "f64" else "f32", lowest(kind, acc)
    types = ARGS.types(out=dtype, x=dtype, indices="i64")

    @range_kernel("windows_forward", types, spec=(kind, dtype, W, WIDE, KD, KH, KW, PLACE, INDEXED, VALUES))
    def windows_forward(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        power = pointer_from_address(args.power, "f64")[0]
        shares = pointer_from_address(args.shares, SHARE)
        columns = advance(shares, args.outs_d + args.outs_h)
        for tile in range(lo, hi):
            row, block = divmod(tile, args.blocks)
            rest, p = divmod(row, args.outs_h)
            n, o = divmod(rest, args.outs_d)
            end = min((block + 1) * args.block, args.c)
            x = advance(args.x, n * args.x_n)
            deep, tall = args.windows_d + 24 * o, args.windows_h + 24 * p
            z, h = load_word(deep, FIRST), load_word(tall, FIRST)
            a, b = load_word(deep, NUMBER), load_word(tall, NUMBER)
            area = shares[o] * shares[args.outs_d + p]
            for q in range(args.outs_w):
                wide = args.windows_w + 24 * q
                w, c, share = load_word(wide, FIRST), load_word(wide, NUMBER), area * columns[q]
                out = advance(args.out, n * args.out_n + o * args.out_d + p * args.out_h + q * args.out_w)
                indices = advance(
                    args.indices, n * args.indices_n + o * args.indices_d + p * args.indices_h + q * args.indices_w
                )
                v = block * args.block
                at = z * args.x_d + h * args.x_h + w * args.x_w
                here = (z * args.size_h + h) * args.size_w + w
                if KW and a == KD and b == KH and c == KW:
                    while v + WIDE <= end:
                        forward(
                            args, x, out, indices, at, KD, KH, KW, here, share, v, WIDE, kind, acc, PLACE, LOW, INDEXED,
                            VALUES, power, WIDE, True,
                        )  # fmt: skip
                        v += WIDE
                while v + WIDE <= end:
                    forward(
                        args, x, out, indices, at, a, b, c, here, share, v, WIDE, kind, acc, PLACE, LOW, INDEXED,
                        VALUES, power, WIDE, True,
                    )  # fmt: skip
                    v += WIDE
                while v < end:
                    forward(
                        args, x, out, indices, at, a, b, c, here, share, v, end - v, kind, acc, PLACE, LOW, INDEXED,
                        VALUES, power, W, False,
                    )  # fmt: skip
                    v += W

    return windows_forward


@functools.cache
def make_backward(kind: str, dtype: str, W: int, WIDE: int) -> RangeKernel:
    """Kernel over (image, row of x, block of channels), in the same way; the maximum's reads places."""
    acc, INDEXED, MEAN = DTYPES[dtype].accumulate, kind == "max", kind == "avg"
    types = ARGS.types(out=dtype, x=dtype, dy=dtype, y=dtype, indices="i64")

    @range_kernel("windows_backward", types, spec=(kind, dtype, W, WIDE))
    def windows_backward(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        power = pointer_from_address(args.power, "f64")[0]
        for tile in range(lo, hi):
            row, block = divmod(tile, args.blocks)
            rest, h = divmod(row, args.size_h)
            n, z = divmod(rest, args.size_d)
            end = min((block + 1) * args.block, args.c)
            deep, tall = args.around_d + 24 * z, args.around_h + 24 * h
            for w in range(args.size_w):
                wide = args.around_w + 24 * w
                out = n * args.out_n + z * args.out_d + h * args.out_h + w * args.out_w
                at = n * args.dy_n
                if INDEXED:
                    of = n * args.indices_n
                    here = (z * args.size_h + h) * args.size_w + w
                else:
                    of = n * args.y_n
                    here = n * args.x_n + z * args.x_d + h * args.x_h + w * args.x_w
                v = block * args.block
                while v + WIDE <= end:
                    backward(
                        args, out, at, of, here, deep, tall, wide, v, WIDE, kind, acc, INDEXED, MEAN, power, WIDE, True
                    )
                    v += WIDE
                while v < end:
                    backward(
                        args, out, at, of, here, deep, tall, wide, v, end - v, kind, acc, INDEXED, MEAN, power, W, False
                    )
                    v += W

    return windows_backward


#: From row to row of a window, in the numbers that stand for its elements.
ROW = 1 << 12


@helper
def to_largest(args, x, dy, out, at, to, of, tall, wide, v, left, acc, LOW, W, FULL):  # type: ignore[no-untyped-def]
    """Add W channels of dy to the first of the largest elements of a window of `tall` x `wide`."""
    _, place = walk_window(
        "max", x, at + v * args.x_c, 0, left, 1, tall, wide, 0, args.step_h * args.x_h, args.step_w * args.x_w,
        0, ROW, 1, splat(scalar(LOW, acc), W), splat(scalar(0, "i32"), W), 0.0, FULL, 1,
    )  # fmt: skip
    given = take(dy, of + v * args.dy_c, left, W, FULL)
    for k in range(tall):
        for t in range(wide):
            here = to + v * args.out_c + k * args.step_h * args.out_h + t * args.step_w * args.out_w
            sums = take(out, here, left, W, FULL)
            give(out, here, left, select(place == splat(scalar(k * ROW + t, "i32"), W), sums + given, sums), FULL)


@functools.cache
def make_maxima(dtype: str, W: int, WIDE: int, KH: int, KW: int) -> RangeKernel:
    """Kernel over (image, block of channels) of dx of a maximum of rows and columns, from x, in the type of its sums.

    Most windows have KH x KW elements.
    """
    LOW = lowest("max", dtype)
    types = ARGS.types(out=dtype, x=dtype, dy=dtype)

    @range_kernel("windows_to_largest", types, spec=(dtype, W, WIDE, KH, KW))
    def windows_to_largest(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        for tile in range(lo, hi):
            n, block = divmod(tile, args.blocks)
            first = block * args.block
            end = min(first + args.block, args.c)
            x, dy = advance(args.x, n * args.x_n), advance(args.dy, n * args.dy_n)
            out = advance(args.out, n * args.out_n)
            begun = 0  # rows of dx
            for p in range(args.outs_h + 1):
                until, h, b = args.size_h, 0, 0
                if p < args.outs_h:
                    tall = args.windows_h + 24 * p
                    h, b = load_word(tall, FIRST), load_word(tall, NUMBER)
                    until = h + (b - 1) * args.step_h + 1
                while begun < until:
                    for w in range(args.size_w):
                        for v in range(first, end, W):
                            here = begun * args.out_h + w * args.out_w + v * args.out_c
                            store_first(out, here, end - v, zeros(dtype, W))
                    begun += 1
                if p == args.outs_h:
                    break
                for q in range(args.outs_w):
                    wide = args.windows_w + 24 * q
                    w, c = load_word(wide, FIRST), load_word(wide, NUMBER)
                    at, to = h * args.x_h + w * args.x_w, h * args.out_h + w * args.out_w
                    of = p * args.dy_h + q * args.dy_w
                    v = first
                    if KW and b == KH and c == KW:
                        while v + WIDE <= end:
                            to_largest(args, x, dy, out, at, to, of, KH, KW, v, WIDE, dtype, LOW, WIDE, True)
                            v += WIDE
                    while v < end:
                        to_largest(args, x, dy, out, at, to, of, b, c, v, end - v, dtype, LOW, W, False)
                        v += W

    return windows_to_largest
