"""Convolutions by AMX's tiles: the copy in groups of `solver.py`, gathered into blocks of 32 pixels.

A tile's rows lie a constant step apart, which windows do not: the groups under the windows of 32 pixels are written
one behind the other, once for all filters.  Bound.  That is 64 bytes read and written for 32 x 32 products, of which
two panels of filters make 32 cycles; the copy of 3x3 windows is 9 times the input, of 1x1 once.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from numbaprims.cpu.conv.vnni.kernels import MULTIPLY
from numbaprims.cpu.conv.vnni.solver import ImplicitGemmVnni
from numbaprims.cpu.gemm.amx import (
    BLOCK,
    BYTE_KINDS,
    EDGE,
    OPERATIONS,
    PORTABLE,
    REACHED,
    WORDS,
    add_sums,
    by_tiles,
    by_vectors_bytes,
    by_vectors_floats,
    no_tiles,
    portable_form,
    refusal,
)
from numbaprims.cpu.gemm.cost import ceil_div, round_up
from numbaprims.cpu.gemm.pieces import by_values, halves_in_pieces, not_finite
from numbaprims.cpu.gemm.solvers import SIGN_BITS
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.simd import (
    advance,
    amx_close,
    amx_feature,
    amx_open,
    cast_pointer,
    dot_feature,
    lanes,
    load_first,
    load_word,
    store_first,
    zeros,
)
from numbaprims.cpu.simd.tiles.amx import piece_count, pieces
from numbaprims.cpu.solver import Config

#: The part of the second-level cache that gathered groups may take.
ROOM = 0.5


@functools.cache
def make_gather(pieces: int, W: int) -> RangeKernel:
    """total = blocks of 32 pixels' groups: word (g / 16) * 512 + pixel * 16 + g % 16, zeros behind the last g.

    Two `pieces`: a block of the first pieces of float16, and one of the second.
    """
    block_words, split = pieces * BLOCK, pieces == 2

    @range_kernel("conv_tiles_gather", MULTIPLY.types(a="i32", b="i32", total="i32"), spec=(pieces, W), contract=False)
    def conv_tiles_gather(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        run = args.run
        steps = (args.runs * run + WORDS - 1) // WORDS
        for i in range(args.pixels):
            block = advance(args.total, i // EDGE * steps * block_words + i % EDGE * WORDS)
            source = advance(args.a, load_word(args.places, i))
            at = 0
            for t in range(args.runs):
                window = advance(source, load_word(args.shifts, t))
                j = 0
                while j < run:
                    place = at % WORDS
                    count = min(min(WORDS - place, W), run - j)
                    words = load_first(window, j, count, W)
                    target = advance(block, at // WORDS * block_words + place)
                    if split:
                        words, second = halves_in_pieces(words, W)
                        store_first(target, BLOCK, count, second)
                    store_first(target, 0, count, words)
                    j += count
                    at += count
            while at < steps * WORDS:
                count = min(steps * WORDS - at, W)
                for p in range(pieces):
                    target = advance(block, at // WORDS * block_words + p * BLOCK)
                    store_first(target, at % WORDS, count, zeros("i32", W))
                at += count

    return conv_tiles_gather


@functools.cache
def make_multiply(kind: str, feature: str, W: int) -> RangeKernel:
    """All gathered pixels with one panel of 32 filters."""
    tiles, floats = feature == "amx", kind not in BYTE_KINDS
    acc, form = "f32" if floats else "i32", portable_form(kind)
    dot, flip = dot_feature("u8s8", W), SIGN_BITS if kind == "s8s8" else 0
    size = piece_count(kind)
    split = size > 1
    spec = (kind, feature, W, dot)

    @range_kernel("conv_tiles_multiply", MULTIPLY.types(a="i32", b="i32", total=acc), spec=spec, contract=False)
    def conv_tiles_multiply(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        steps = (args.runs * args.run + WORDS - 1) // WORDS
        if tiles:
            amx_open()
        for i in range(0, args.pixels, EDGE):
            a = advance(args.a, i // EDGE * steps * size * BLOCK)
            total = advance(args.total, i * EDGE)
            rows = min(EDGE, args.pixels - i)
            if tiles:
                by_tiles(total, EDGE, a, args.b, steps, 1, rows, EDGE, i // EDGE, kind)
            elif floats:
                by_vectors_floats(total, EDGE, a, args.b, steps, 1, rows, EDGE, form, W)
            else:
                by_vectors_bytes(total, EDGE, a, args.b, steps, 1, rows, EDGE, W, flip, dot)
            if split:
                if not_finite(total, rows, EDGE, W):
                    by_values(total, a, args.b, steps, rows, EDGE, size, W)
        if tiles:
            amx_close()
        if not floats and args.shift != 0:
            sums = cast_pointer(advance(args.b, steps * BLOCK), acc)
            add_sums(args.total, EDGE, sums, args.shift, args.pixels, W)

    return conv_tiles_multiply


class ImplicitGemmAmx(ImplicitGemmVnni):
    """Windows gathered for tiles."""

    name = "implicit_gemm_amx"
    whole = WORDS

    def why_not_asked(self, problem: Any, target: Any) -> str | None:
        if problem.direction != "forward":
            return f"it computes results, not direction {problem.direction}"
        refused = refusal(self._tiles(problem), target)
        if refused or problem.accumulate != "i32":
            return refused
        return super().why_not(problem, target)

    def why_not(self, problem: Any, target: Any) -> str | None:
        return self.why_not_asked(problem, target) or no_tiles(self._tiles(problem))

    def _tiles(self, problem: Any) -> str | None:
        if problem.accumulate != "i32":
            return str(problem.in_dtype) if problem.in_dtype in ("bf16", "f16") else None
        return "s8s8" if problem.x_dtype == "i8" else "u8s8"

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        group = self._kind(problem)[1]
        each = 4 * self.pieces * round_up(ceil_div(problem.group_c, group) * problem.taps, WORDS)
        pixels = max(EDGE, min(400, int(ROOM * target.l2) // each // EDGE * EDGE))
        yield {"mr": EDGE, "nv": EDGE // lanes("i32", target.vector_bytes), "pixels": pixels}

    def peak(self, problem: Any, target: Any) -> float:
        kind = str(self._tiles(problem))
        if amx_feature(kind) == "amx":
            whole = REACHED * OPERATIONS.get(kind, OPERATIONS["bf16"]) * target.rates.clock
        else:
            whole = PORTABLE * target.rates.flops(lanes("i32", target.vector_bytes))
        return float(whole / len(pieces(kind)))

    def offset(self, problem: Any) -> int:
        return 0

    def kernels(self, problem: Any, target: Any, config: Config) -> dict[str, int]:
        W = lanes("i32", target.vector_bytes)
        kind = str(self._tiles(problem))
        return {
            "gather": make_gather(self.pieces, W).address,
            "multiply": make_multiply(kind, amx_feature(kind), W).address,
        }


class ImplicitGemmAmxX4(ImplicitGemmAmx):
    """float16 as two pieces of bf16, and all four products: exact, as float32 holds them."""

    name = "implicit_gemm_amx_x4"
    pieces = 2

    def why_not_asked(self, problem: Any, target: Any) -> str | None:
        if self._tiles(problem) is None:
            return "it multiplies float16 only"
        return super().why_not_asked(problem, target)

    def _tiles(self, problem: Any) -> str | None:
        return "x4" if problem.in_dtype == "f16" else None
