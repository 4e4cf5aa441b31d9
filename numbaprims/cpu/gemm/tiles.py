"""Tiles of Intel's AMX in products: bf16, f16 and bytes, 32 x 32 sums in four of eight tile registers.

Bound.  A step of 32 (bf16) or 64 (bytes) of k takes four tiles of 1 KiB, 8 cycles each from the first-level cache, and
four products of 16 cycles: 2,680 GFLOP/s of bf16 at 2.62 GHz.  An Emerald Rapids reaches 1,880 in the caches with
zeros, and 1,500 with numbers, which take more power.  Where a CPU has no tiles, vectors do the same work with the same
roundings, much slower: tests and edges are the same everywhere.

A sum of bf16 adds, for each 32 of k, one chain of fused multiply-adds over the even and one over the odd ones, both
from zero; subnormal numbers are zeros (Intel, Architecture Instruction Set Extensions, TDPBF16PS).  TDPFP16PS does the
same of f16, whose subnormal numbers are normal float32.  Pieces of f16 and float32: `pieces.py`.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.gemm.arguments import MULTIPLY, PACK
from numbaprims.cpu.gemm.multiply import keep_part
from numbaprims.cpu.gemm.pieces import BLOCK, EDGE, WORDS, by_values, not_finite, of_f16
from numbaprims.cpu.gemm.solvers import SIGN_BITS
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    advance,
    amx_close,
    amx_multiply,
    amx_open,
    bitcast,
    cast_pointer,
    dot_feature,
    dot_u8s8,
    fma,
    load,
    load_first,
    load_group_columns,
    load_group_rows,
    load_scalar,
    load_words,
    scalar,
    select,
    splat,
    stack_tile,
    store,
    store_narrow_first,
    store_rows,
    store_scalar,
    transpose,
    zeros,
)
from numbaprims.cpu.simd.loops import keep_rolled
from numbaprims.cpu.simd.tiles.amx import piece_count, pieces

BYTE_KINDS = ("s8s8", "u8s8")


@functools.cache
def make_pack_rows(dtype: str, W: int) -> RangeKernel:
    """panels[q][t][i] = 64 bytes of row q * 32 + i from block t of k on, zeros behind its end.

    Rows past the last hold anything: no other row sees them.
    """
    GROUP = 2 if dtype in ("bf16", "f16") else 4
    bits = 32 // GROUP

    @range_kernel("gemm_pack_tiles", PACK.types(panels="i32", source=dtype), spec=(dtype, W))
    def gemm_pack_tiles(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        k = args.k
        width_step = args.width_step
        k_step = args.k_step
        groups = (k + WORDS * GROUP - 1) // (WORDS * GROUP) * WORDS
        room = stack_tile("i32", W, 1, W)
        for q in range(lo, hi):
            panel = advance(args.panels, q * EDGE * groups)
            source = advance(args.source, q * EDGE * width_step)
            width = min(EDGE, args.width - q * EDGE)
            for i in range(0, width, W):
                count = min(width - i, W)
                corner = advance(source, i * width_step)
                for g in range(0, groups, W):
                    target = advance(panel, g // WORDS * BLOCK + i * WORDS + g % WORDS)
                    first = advance(corner, g * GROUP * k_step)
                    valid = k - g * GROUP
                    if k_step == 1:
                        store_rows(target, WORDS, load_group_rows(first, width_step, count, valid, W))
                    elif width_step == 1:
                        for t in range(W):
                            keep_rolled()
                            words = load_group_columns(
                                advance(first, t * GROUP * k_step), k_step, valid - t * GROUP, count, W
                            )
                            store(room, t * W, words)
                        store_rows(target, WORDS, transpose(load_group_rows(room, W, W, W, W)))
                    else:
                        for j in range(count):
                            for t in range(W):
                                keep_rolled()
                                word = 0
                                for s in range(min(valid - t * GROUP, GROUP)):
                                    x = load_scalar(first, j * width_step + (t * GROUP + s) * k_step)
                                    word |= (x & ((1 << bits) - 1)) << (s * bits)
                                store_scalar(target, j * WORDS + t, word)

    return gemm_pack_tiles


@helper
def _normal(x, W):  # type: ignore[no-untyped-def]
    """x, subnormal numbers as zeros of their sign."""
    bits = bitcast(x, "i32")
    zero = bitcast(bits & splat(scalar(-0x80000000, "i32"), W), "f32")
    return select((bits & splat(scalar(0x7F800000, "i32"), W)) == zeros("i32", W), zero, x)


@helper
def _even(words, half, W):  # type: ignore[no-untyped-def]
    return of_f16(words, W) if half else _normal(bitcast(words << 16, "f32"), W)


@helper
def _odd(words, half, W):  # type: ignore[no-untyped-def]
    return of_f16(words >> 16, W) if half else _normal(bitcast(words & splat(scalar(-65536, "i32"), W), "f32"), W)


@helper
def _block(c, a, b, half, W):  # type: ignore[no-untyped-def]
    """c + 16 words of a row times as many groups of W columns: as tdpbf16ps and tdpfp16ps round."""
    even = zeros("f32", W)
    odd = zeros("f32", W)
    for g in range(WORDS):
        keep_rolled()
        x = splat(load_scalar(a, g), W)
        y = load_words(b, g * EDGE, W)
        even = _normal(fma(_even(x, half, W), _even(y, half, W), even), W)
        odd = _normal(fma(_odd(x, half, W), _odd(y, half, W), odd), W)
    return _normal(_normal(c, W) + _normal(even + odd, W), W)


@helper
def by_tiles(total, step, a, row, b, steps, first, rows, columns, turn, kind):  # type: ignore[no-untyped-def]
    """`rows` x `columns` sums by as many tiles as they need; `row`: words between rows of A, 0 where it is packed."""
    if rows > WORDS:
        if columns > WORDS:
            amx_multiply(total, step, a, row, b, steps, first, turn, 2, 2, kind)
        else:
            amx_multiply(total, step, a, row, b, steps, first, turn, 2, 1, kind)
    elif columns > WORDS:
        amx_multiply(total, step, a, row, b, steps, first, turn, 1, 2, kind)
    else:
        amx_multiply(total, step, a, row, b, steps, first, turn, 1, 1, kind)


@helper
def by_vectors_floats(total, step, a, row, b, steps, first, rows, columns, form, W):  # type: ignore[no-untyped-def]
    """The same in portable form; `form`: as `portable_form` says."""
    half, size, count, pairs = form
    block, width = (WORDS, row) if row else (BLOCK, WORDS)
    for r in range(rows):
        for v in range(0, columns, W):
            c = zeros("f32", W) if first else load(total, r * step + v, W)
            for t in range(0, steps * size, size):
                for i in range(count):
                    pair = pairs >> (4 * i)
                    left = advance(a, (t + (pair & 3)) * block + r * width)
                    c = _block(c, left, advance(b, (t + (pair >> 2 & 3)) * BLOCK + v), half, W)
            store(total, r * step + v, c)


def portable_form(kind: str) -> tuple[int, int, int, int]:
    """Whether numbers are f16, the pieces of one, the products of a step, and their pieces in digits of four bits."""
    digits = sum((a + 4 * b) << (4 * i) for i, (a, b) in enumerate(pieces(kind)))
    return int(kind == "f16"), piece_count(kind), len(pieces(kind)), digits


@helper
def by_vectors_bytes(total, step, a, row, b, steps, first, rows, columns, W, flip, dot):  # type: ignore[no-untyped-def]
    """The same; of signed bytes 128 more is multiplied, and 128 times the column's sum taken off: exact modulo 2^32."""
    block, width = (WORDS, row) if row else (BLOCK, WORDS)
    signs = bitcast(splat(scalar(flip, "i32"), W), "u8")
    for r in range(rows):
        for v in range(0, columns, W):
            c = zeros("i32", W) if first else load(total, r * step + v, W)
            for t in range(steps):
                left = advance(a, t * block + r * width)
                right = advance(b, t * BLOCK + v)
                for g in range(WORDS):
                    keep_rolled()
                    y = bitcast(load_words(right, g * EDGE, W), "i8")
                    x = bitcast(splat(scalar(load_scalar(left, g) ^ flip, "i32"), W), "u8")
                    c = dot_u8s8(c, x, y, dot)
                    if flip != 0:
                        c = c - dot_u8s8(zeros("i32", W), signs, y, dot)
            store(total, r * step + v, c)


@helper
def add_sums(total, step, sums, shift, rows, W):  # type: ignore[no-untyped-def]
    """What the zero point of A takes off: `shift` times the sums of B's columns, in 32 columns of each row."""
    factor = splat(scalar(shift, "i32"), W)
    for v in range(0, EDGE, W):
        x = load(sums, v, W) * factor
        for r in range(rows):
            store(total, r * step + v, load(total, r * step + v, W) + x)


@helper
def fetch_part(room, total, step, rows, columns, W):  # type: ignore[no-untyped-def]
    """The rows and columns that there are, into the room of a tile."""
    for r in range(rows):
        for v in range(0, columns, W):
            store(room, r * EDGE + v, load_first(total, r * step + v, min(columns - v, W), W))


@helper
def add_floats(total, step, a, row, b, steps, first, rows, columns, turn, kind, tiles, form, W):  # type: ignore[no-untyped-def]
    """`rows` x `columns` float32 sums (+)= A B, by either form; there is room for 32 x 32."""
    if tiles:
        by_tiles(total, step, a, row, b, steps, first, rows, columns, turn, kind)
    else:
        by_vectors_floats(total, step, a, row, b, steps, first, rows, columns, form, W)


@helper
def add_bytes(total, step, a, row, b, steps, first, rows, columns, turn, kind, tiles, flip, dot, W):  # type: ignore[no-untyped-def]
    """The same of int32 sums of bytes."""
    if tiles:
        by_tiles(total, step, a, row, b, steps, first, rows, columns, turn, kind)
    else:
        by_vectors_bytes(total, step, a, row, b, steps, first, rows, columns, W, flip, dot)


@helper
def narrow_part(out, out_step, room, total, step, rows, columns, first, W):  # type: ignore[no-untyped-def]
    """out = the rows and columns of a stored tile that are there, and, but for the `first`, what was summed before."""
    for r in range(rows):
        for v in range(0, columns, W):
            left = min(columns - v, W)
            x = load(room, r * EDGE + v, W)
            if not first:
                x = x + load_first(total, r * step + v, left, W)
            store_narrow_first(out, r * out_step + v, left, x)


@helper
def add_product(
    place, step, room, a, row, b, steps, first, rows, columns, turn, out, out_step, kind, tiles, split, form, W
):  # type: ignore[no-untyped-def]
    """`rows` x `columns` float32 sums (+)= A B; with an `out_step` they are whole, and stand in `out` alone.

    Of numbers in pieces (`split`) the sums of a block of k are made apart: where they hold infinity or NaN, which have
    no pieces, they are made again from the numbers themselves.
    """
    whole = rows == EDGE and columns == EDGE and not split and not out_step
    begin = 1 if split else first
    total = place if whole else room
    total_step = step if whole else EDGE
    if not whole and not begin:
        fetch_part(room, place, step, rows, columns, W)
    add_floats(total, total_step, a, row, b, steps, begin, rows, columns, turn, kind, tiles, form, W)
    if split:
        if not_finite(room, rows, columns, W):
            by_values(room, a, b, steps, rows, columns, form[1], W)
    if out_step:
        narrow_part(out, out_step, room, place, step, rows, columns, first if split else 1, W)
    elif not whole:
        keep_part(room, place, step, rows, columns, first if split else 1, EDGE, W)


@functools.cache
def make_multiply_tiles(kind: str, feature: str, W: int, out: str = "") -> RangeKernel:
    """Multiply panels of 32 rows and 32 columns: the counterpart of `make_multiply`; `out`: the type of 16 bits in
    which it may write whole sums."""
    # what is false is not compiled
    tiles, floats = feature == "amx", kind not in BYTE_KINDS
    acc = "f32" if floats else "i32"
    NV = EDGE // W
    dot, flip = dot_feature("u8s8", W), SIGN_BITS if kind == "s8s8" else 0
    per = (2 if floats else 4) * WORDS
    size, form = piece_count(kind), portable_form(kind)
    split = size > 1
    spec = (kind, feature, W, dot, out)
    types = MULTIPLY.types(a="i32", b="i32", total=acc, out=out or "f32")

    @range_kernel("gemm_multiply_tiles", types, spec=spec, contract=False)
    def gemm_multiply_tiles(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        steps = (args.k + per - 1) // per
        room = stack_tile(acc, EDGE, NV, W)
        row = args.a_step // (per // WORDS)
        panel = EDGE * row if row else steps * size * BLOCK
        if tiles:
            amx_open()
        for q in range(lo, hi):
            b = advance(args.b, q * (steps * size * BLOCK + (0 if floats else EDGE)))
            columns = min(EDGE, args.columns - q * EDGE)
            for i in range(0, args.rows, EDGE):
                a = advance(args.a, i // EDGE * panel)
                rows = min(EDGE, args.rows - i)
                place = advance(args.total, i * args.total_step + q * EDGE)
                if floats:
                    out_step = args.out_step if out != "" else 0
                    add_product(
                        place, args.total_step, room, a, row, b, steps, args.first, rows, columns, i // EDGE,
                        advance(args.out, i * out_step + q * EDGE), out_step, kind, tiles, split, form, W,
                    )  # fmt: skip
                else:
                    whole = rows == EDGE and columns == EDGE
                    total = place if whole else room
                    step = args.total_step if whole else EDGE
                    if not whole and not args.first:
                        fetch_part(room, place, args.total_step, rows, columns, W)
                    add_bytes(
                        total, step, a, row, b, steps, args.first, rows, columns, i // EDGE, kind, tiles, flip, dot, W
                    )  # fmt: skip
                    if args.shift != 0:
                        add_sums(total, step, cast_pointer(advance(b, steps * BLOCK), acc), args.shift, rows, W)
                    if not whole:
                        keep_part(room, place, args.total_step, rows, columns, 1, EDGE, W)
        if tiles:
            amx_close()

    return gemm_multiply_tiles
