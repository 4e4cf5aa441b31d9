"""Products by AMX's tiles: bf16, f16 and bytes, 32 x 32 sums in four of eight tile registers.

Bound.  A step of 32 (bf16) or 64 (bytes) of k takes four tiles of 1 KiB, from the first level 2.5 ns each, and four
products of 16 cycles: 3,165 GFLOP/s of bf16 at 3.1 GHz, 2,550 out of the first-level cache.  Where a CPU has no tiles,
vectors do the same work with the same roundings, much slower: tests and edges are the same everywhere.

A sum of bf16 adds, for each 32 of k, one chain of fused multiply-adds over the even and one over the odd ones, both
from zero; subnormal numbers are zeros (Intel, Architecture Instruction Set Extensions, TDPBF16PS).  TDPFP16PS does the
same of f16, whose subnormal numbers are normal float32.  Pieces of f16 and float32: `pieces.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, ClassVar

from numbaprims import settings
from numbaprims.cpu.gemm import cost
from numbaprims.cpu.gemm.arguments import MULTIPLY, PACK
from numbaprims.cpu.gemm.cost import ceil_div, round_up
from numbaprims.cpu.gemm.multiply import keep_part
from numbaprims.cpu.gemm.pieces import BLOCK, EDGE, WORDS, by_values, make_pack_pieces, not_finite, of_f16
from numbaprims.cpu.gemm.solvers import SIGN_BITS, Blocked, Prepacked
from numbaprims.cpu.gemm.variants import variants
from numbaprims.cpu.gemm.vnni import make_pack_groups
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    advance,
    amx_close,
    amx_feature,
    amx_multiply,
    amx_open,
    bitcast,
    cast_pointer,
    dot_feature,
    dot_u8s8,
    fma,
    lanes,
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
    store_rows,
    store_scalar,
    transpose,
    zeros,
)
from numbaprims.cpu.simd.loops import keep_rolled
from numbaprims.cpu.simd.tiles.amx import PRODUCTS, piece_count, pieces
from numbaprims.cpu.solver import Config

BYTE_KINDS = ("s8s8", "u8s8")
#: Operations a cycle, and the part of them that whole products reached: 1,162 of 3,165 GFLOP/s at 2048^3, packing and
#: all (a Granite Rapids).
OPERATIONS, REACHED = {"bf16": 1024.0, "f16": 1024.0, "s8s8": 2048.0, "u8s8": 2048.0}, 0.45
#: The same of the portable form, of a vector's multiply-adds.
PORTABLE = 0.05


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
def by_tiles(total, step, a, b, steps, first, rows, columns, turn, kind):  # type: ignore[no-untyped-def]
    """`rows` x `columns` sums by as many tiles as they need."""
    if rows > WORDS:
        if columns > WORDS:
            amx_multiply(total, step, a, b, steps, first, turn, 2, 2, kind)
        else:
            amx_multiply(total, step, a, b, steps, first, turn, 2, 1, kind)
    elif columns > WORDS:
        amx_multiply(total, step, a, b, steps, first, turn, 1, 2, kind)
    else:
        amx_multiply(total, step, a, b, steps, first, turn, 1, 1, kind)


@helper
def by_vectors_floats(total, step, a, b, steps, first, rows, columns, form, W):  # type: ignore[no-untyped-def]
    """The same in portable form; `form`: as `portable_form` says."""
    half, size, count, pairs = form
    for r in range(rows):
        for v in range(0, columns, W):
            c = zeros("f32", W) if first else load(total, r * step + v, W)
            for t in range(0, steps * size, size):
                for i in range(count):
                    pair = pairs >> (4 * i)
                    left = advance(a, (t + (pair & 3)) * BLOCK + r * WORDS)
                    c = _block(c, left, advance(b, (t + (pair >> 2 & 3)) * BLOCK + v), half, W)
            store(total, r * step + v, c)


def portable_form(kind: str) -> tuple[int, int, int, int]:
    """Whether numbers are f16, the pieces of one, the products of a step, and their pieces in digits of four bits."""
    digits = sum((a + 4 * b) << (4 * i) for i, (a, b) in enumerate(pieces(kind)))
    return int(kind == "f16"), piece_count(kind), len(pieces(kind)), digits


@helper
def by_vectors_bytes(total, step, a, b, steps, first, rows, columns, W, flip, dot):  # type: ignore[no-untyped-def]
    """The same; of signed bytes 128 more is multiplied, and 128 times the column's sum taken off: exact modulo 2^32."""
    signs = bitcast(splat(scalar(flip, "i32"), W), "u8")
    for r in range(rows):
        for v in range(0, columns, W):
            c = zeros("i32", W) if first else load(total, r * step + v, W)
            for t in range(steps):
                left = advance(a, t * BLOCK + r * WORDS)
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
def add_floats(total, step, a, b, steps, first, rows, columns, turn, kind, tiles, form, W):  # type: ignore[no-untyped-def]
    """`rows` x `columns` float32 sums (+)= A B, by either form; there is room for 32 x 32."""
    if tiles:
        by_tiles(total, step, a, b, steps, first, rows, columns, turn, kind)
    else:
        by_vectors_floats(total, step, a, b, steps, first, rows, columns, form, W)


@helper
def add_product(place, step, room, a, b, steps, first, rows, columns, turn, kind, tiles, split, form, W):  # type: ignore[no-untyped-def]
    """`rows` x `columns` float32 sums (+)= A B.

    Of numbers in pieces (`split`) the sums of a block of k are made apart: where they hold infinity or NaN, which have
    no pieces, they are made again from the numbers themselves.
    """
    whole = rows == EDGE and columns == EDGE and not split
    begin = 1 if split else first
    total = place if whole else room
    total_step = step if whole else EDGE
    if not whole and not begin:
        fetch_part(room, place, step, rows, columns, W)
    add_floats(total, total_step, a, b, steps, begin, rows, columns, turn, kind, tiles, form, W)
    if split:
        if not_finite(room, rows, columns, W):
            by_values(room, a, b, steps, rows, columns, form[1], W)
    if not whole:
        keep_part(room, place, step, rows, columns, first if split else 1, EDGE, W)


@functools.cache
def make_multiply_tiles(kind: str, feature: str, W: int) -> RangeKernel:
    """Multiply panels of 32 rows and 32 columns: the counterpart of `make_multiply`."""
    # what is false is not compiled
    tiles, floats = feature == "amx", kind not in BYTE_KINDS
    acc = "f32" if floats else "i32"
    NV = EDGE // W
    dot, flip = dot_feature("u8s8", W), SIGN_BITS if kind == "s8s8" else 0
    per = (2 if floats else 4) * WORDS
    size, form = piece_count(kind), portable_form(kind)
    split = size > 1
    spec = (kind, feature, W, dot)

    @range_kernel("gemm_multiply_tiles", MULTIPLY.types(a="i32", b="i32", total=acc), spec=spec, contract=False)
    def gemm_multiply_tiles(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        steps = (args.k + per - 1) // per
        room = stack_tile(acc, EDGE, NV, W)
        if tiles:
            amx_open()
        for q in range(lo, hi):
            b = advance(args.b, q * (steps * size * BLOCK + (0 if floats else EDGE)))
            columns = min(EDGE, args.columns - q * EDGE)
            for i in range(0, args.rows, EDGE):
                a = advance(args.a, i // EDGE * steps * size * BLOCK)
                rows = min(EDGE, args.rows - i)
                place = advance(args.total, i * args.total_step + q * EDGE)
                if floats:
                    add_product(
                        place, args.total_step, room, a, b, steps, args.first, rows, columns, i // EDGE,
                        kind, tiles, split, form, W,
                    )  # fmt: skip
                else:
                    whole = rows == EDGE and columns == EDGE
                    total = place if whole else room
                    step = args.total_step if whole else EDGE
                    if not whole and not args.first:
                        fetch_part(room, place, args.total_step, rows, columns, W)
                    if tiles:
                        by_tiles(total, step, a, b, steps, args.first, rows, columns, i // EDGE, kind)
                    else:
                        by_vectors_bytes(total, step, a, b, steps, args.first, rows, columns, W, flip, dot)
                    if args.shift != 0:
                        add_sums(total, step, cast_pointer(advance(b, steps * BLOCK), acc), args.shift, rows, W)
                    if not whole:
                        keep_part(room, place, args.total_step, rows, columns, 1, EDGE, W)
        if tiles:
            amx_close()

    return gemm_multiply_tiles


def kind_of(problem: Any) -> str | None:
    """What tiles multiply of a problem, or None."""
    if problem.a_dtype == problem.b_dtype and problem.a_dtype in ("bf16", "f16"):
        return str(problem.a_dtype)
    return {"i8": "s8s8", "u8": "u8s8"}.get(problem.a_dtype) if problem.accumulate == "i32" else None


def refusal(kind: str | None, target: Any) -> str | None:
    """Why there is no product of tiles, of whatever form."""
    if kind is None:
        return "tiles multiply bf16 and bytes"
    return None if target.has_fma else "without fused multiply-adds its sums would round in another way"


def no_tiles(kind: str | None) -> str | None:
    """Why tiles are not used that nobody asks for by name."""
    if kind is None or amx_feature(kind) == "amx":
        return None
    return (
        f"this CPU has no tiles (AMX) with {PRODUCTS[kind][0]}, or the system does not grant them: by vectors, asked "
        "for by name, it is slow"
    )


def peak(kind: str, target: Any) -> float:
    """Operations a second that products reach, of numbers in pieces those of whole numbers."""
    if amx_feature(kind) == "amx":
        whole = REACHED * OPERATIONS.get(kind, OPERATIONS["bf16"]) * target.rates.clock
    else:
        whole = PORTABLE * target.rates.flops(lanes("f32", target.vector_bytes))
    return float(whole / len(pieces(kind)))


def in_pieces(allowed: tuple[str, ...]) -> str | None:
    """Why float32 is not cut into pieces: what `config(accuracy=)` would have to be."""
    if settings.current().accuracy in allowed:
        return None
    return f"it cuts float32 into pieces of bf16; config(accuracy={allowed[-1]!r}) allows that"


def plan_kind(problem: Any) -> str | None:
    """What plans pack for, or None: it does not change while a process runs."""
    kinds = ("f16", "x4") if problem.a_dtype == "f16" else (kind_of(problem),)
    return next((kind for kind in kinds if kind and amx_feature(kind) == "amx"), None)


def _panels(kind: str) -> tuple[int, int, int]:
    """As `Panels.panels`."""
    return (1, 4 * WORDS, 4) if kind in BYTE_KINDS else (2 * piece_count(kind), 2 * WORDS, 0)


def _kernels(problem: Any, kind: str, W: int) -> dict[str, int]:
    """As `Panels.kernels`."""
    count, whole = piece_count(kind), kind in BYTE_KINDS
    if count > 1:
        pack_a, pack_b = (make_pack_pieces(problem.a_dtype, side, count, W) for side in "ab")
    else:
        pack_a, feature = make_pack_rows(problem.a_dtype, W), dot_feature("u8s8", W)
        pack_b = make_pack_groups(problem.b_dtype, EDGE, W, 4 if whole else 2, 0, whole, feature, WORDS)
    multiply = make_multiply_tiles(kind, amx_feature(kind), W)
    return {"pack_a": pack_a.address, "pack_b": pack_b.address, "multiply": multiply.address}


def _config(target: Any, kind: str, nc: int) -> Config:
    # kc counts steps: a panel of B is then 32 KiB
    kc = 16 // piece_count(kind)
    return {"mr": EDGE, "nv": EDGE // lanes("f32", target.vector_bytes), "kc": kc, "mc": 256, "nc": nc}


class Amx(Blocked):
    """Tiles of Intel's AMX: B packed once and shared, blocks of rows to the workers."""

    name = "amx"

    def kind(self, problem: Any) -> str | None:
        """What it multiplies of a problem, or None."""
        return kind_of(problem)

    def why_not_asked(self, problem: Any, target: Any) -> str | None:
        return refusal(self.kind(problem), target) or super().why_not(problem, target)

    def why_not(self, problem: Any, target: Any) -> str | None:
        return self.why_not_asked(problem, target) or no_tiles(self.kind(problem))

    def panels(self, problem: Any, target: Any) -> tuple[int, int, int]:
        return _panels(str(self.kind(problem)))

    def kernels(self, problem: Any, target: Any, MR: int, NV: int, W: int) -> dict[str, int]:
        return _kernels(problem, str(self.kind(problem)), W)

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        default = _config(target, str(self.kind(problem)), 1024)
        kc = int(default["kc"])
        yield from variants(problem, default, {"kc": (kc // 2, kc, 2 * kc), "mc": (128, 256), "nc": (512, 1024, 2048)})

    def estimate(self, problem: Any, target: Any) -> float:
        kind = str(self.kind(problem))
        b = piece_count(kind) * problem.batch * problem.k * problem.n
        packing = cost.pack_time(target, problem.b_order, b, "row") + cost.far_time(problem, target, "packed")
        return packing + _packed_time(problem, target, kind, next(iter(self.configs(problem, target))))


def _packed_time(problem: Any, target: Any, kind: str, config: Config) -> float:
    """A product by tiles whose B is packed."""
    per, count = _panels(kind)[1], piece_count(kind)
    steps = problem.batch * ceil_div(problem.k, int(config["kc"]) * per) * ceil_div(problem.n, int(config["nc"]))
    sizes = round_up(problem.m, WORDS), round_up(problem.n, WORDS), round_up(problem.k, per)
    padded = 2.0 * problem.batch * sizes[0] * sizes[1] * sizes[2]
    return float(
        cost.launch_time(target, "blocked")
        + 2 * steps * target.rates.phase
        + padded / peak(kind, target)
        + cost.pack_time(target, problem.a_order, count * problem.batch * problem.k * problem.m, "row")
    )


class AmxX4(Amx):
    """float16 as two pieces of bf16, and all four products: exact, as float32 holds them."""

    name = "amx_x4"

    def kind(self, problem: Any) -> str | None:
        return "x4" if problem.a_dtype == problem.b_dtype == "f16" else None

    def why_not_asked(self, problem: Any, target: Any) -> str | None:
        if self.kind(problem) is None:
            return "it multiplies float16 only"
        return super().why_not_asked(problem, target)


class AmxX6(Amx):
    """float32 as three pieces of bf16, and the six products that reach its last bit."""

    name = "amx_x6"
    allowed: ClassVar[tuple[str, ...]] = ("fast", "close")
    """The settings of accuracy under which it may run."""

    def kind(self, problem: Any) -> str | None:
        return self.name[-2:] if problem.a_dtype == problem.b_dtype == "f32" else None

    def why_not_asked(self, problem: Any, target: Any) -> str | None:
        if self.kind(problem) is None:
            return "it multiplies float32 only"
        return in_pieces(self.allowed) or super().why_not_asked(problem, target)


class AmxX3(AmxX6):
    """float32 as two pieces, and three products: 15 bits of each term at least."""

    name = "amx_x3"
    # a term is off by 2^-15 of itself: 2^8 eps
    amplification = 256
    allowed = ("fast",)


class Planned(Prepacked):
    """`Prepacked` for plans: by tiles where the CPU has them."""

    def panels(self, problem: Any, target: Any) -> tuple[int, int, int]:
        kind = plan_kind(problem)
        return _panels(kind) if kind else super().panels(problem, target)

    def kernels(self, problem: Any, target: Any, MR: int, NV: int, W: int) -> dict[str, int]:
        kind = plan_kind(problem)
        return _kernels(problem, kind, W) if kind else super().kernels(problem, target, MR, NV, W)

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        kind = plan_kind(problem)
        if not kind:
            return super().configs(problem, target)
        # as there, the panels do not depend on m
        return (_config(target, kind, max(EDGE, min(512, round_up(ceil_div(problem.n, 4), EDGE)))),)

    def packed_time(self, problem: Any, target: Any) -> float:
        kind = plan_kind(problem)
        if not kind:
            return super().packed_time(problem, target)
        return _packed_time(problem, target, kind, next(iter(self.configs(problem, target))))
