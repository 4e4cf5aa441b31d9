"""Convolutions by AMX's tiles: the copy in groups of `solver.py`, gathered into blocks of 32 pixels.

A tile's rows lie a constant step apart, which windows do not: the groups under the windows of 32 pixels are written
one behind the other, once for all filters.  Bound.  That is 64 bytes read and written for 32 x 32 products, of which
two panels of filters make 32 cycles; the copy of 3x3 windows is 9 times the input, of 1x1 once.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, ClassVar

from numbaprims.cpu.conv.implicit.passes import too_many
from numbaprims.cpu.conv.vnni.gradient import forward_phases
from numbaprims.cpu.conv.vnni.kernels import MULTIPLY
from numbaprims.cpu.conv.vnni.solver import ImplicitGemmVnni, strides_of
from numbaprims.cpu.gemm.amx import AmxX3, in_pieces, no_tiles, peak, refusal
from numbaprims.cpu.gemm.cost import ceil_div, round_up
from numbaprims.cpu.gemm.pieces import (
    BLOCK,
    EDGE,
    WORDS,
    by_values,
    not_finite,
    of_f16,
    store_pairs,
    store_pieces,
)
from numbaprims.cpu.gemm.solvers import SIGN_BITS
from numbaprims.cpu.gemm.tiles import (
    BYTE_KINDS,
    add_bytes,
    add_floats,
    add_sums,
    portable_form,
)
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    advance,
    amx_close,
    amx_feature,
    amx_open,
    bitcast,
    cast_pointer,
    dot_feature,
    lanes,
    load_first,
    load_word,
    store_first,
    zeros,
)
from numbaprims.cpu.simd.tiles.amx import piece_count
from numbaprims.cpu.solver import Config

#: The part of the second-level cache that gathered groups may take.
ROOM = 0.5
#: Steps of k of a panel, 2 KiB each, that pass all pixels before the next ones: the first-level cache keeps them.
STEPS = 24
#: Times as many pixels, those between lines too, up to which tiles take rows of the copy instead of gathered ones.
WASTE = 1.5


def whole_of(kind: str) -> int:
    """Words of the copy that a step of 32 or 64 of k takes."""
    return 2 * WORDS if kind in ("x3", "x6") else WORDS


@helper
def _put(blocks, place, count, words, pieces, halves, W):  # type: ignore[no-untyped-def]
    """`count` words of the copy as groups, from `place` of a step on."""
    if pieces == 1:
        store_first(blocks, place, count, words)
    elif halves:
        store_pairs(blocks, place, count, of_f16(words, W), of_f16(words >> 16, W), pieces, W)
    else:
        store_pieces(blocks, place, count, bitcast(words, "f32"), pieces, W)


@functools.cache
def make_gather(kind: str, W: int) -> RangeKernel:
    """total = blocks of 32 pixels' groups: word (g / 16) * 512 + pixel * 16 + g % 16, zeros behind the last g.

    Of numbers in pieces a block for each; of float32 the copy holds one number a word, of the others a group.
    """
    pieces, whole, halves = piece_count(kind), whole_of(kind), kind == "x4"
    block_words, split = pieces * BLOCK, pieces > 1
    spec = (kind if split else "", W)

    @range_kernel("conv_tiles_gather", MULTIPLY.types(a="i32", b="i32", total="i32"), spec=spec, contract=False)
    def conv_tiles_gather(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        run = args.run
        steps = (args.runs * run + whole - 1) // whole
        for i in range(args.pixels):
            block = advance(args.total, i // EDGE * steps * block_words + i % EDGE * WORDS)
            source = advance(args.a, load_word(args.places, i))
            at = 0
            for t in range(args.runs):
                window = advance(source, load_word(args.shifts, t))
                j = 0
                while j < run:
                    place = at % whole
                    count = min(min(whole - place, W), run - j)
                    words = load_first(window, j, count, W)
                    _put(advance(block, at // whole * block_words), place, count, words, pieces, halves, W)
                    j += count
                    at += count
            while at < steps * whole:
                count = min(steps * whole - at, W)
                _put(advance(block, at // whole * block_words), at % whole, count, zeros("i32", W), pieces, halves, W)
                at += count

    return conv_tiles_gather


@functools.cache
def make_multiply(kind: str, feature: str, W: int) -> RangeKernel:
    """All pixels with one panel of 32 filters: gathered, or where they lie in segments of constant steps."""
    tiles, floats = feature == "amx", kind not in BYTE_KINDS
    acc, form = "f32" if floats else "i32", portable_form(kind)
    dot, flip = dot_feature("u8s8", W), SIGN_BITS if kind == "s8s8" else 0
    size, whole = piece_count(kind), whole_of(kind)
    split = size > 1
    spec = (kind, feature, W, dot)

    @range_kernel("conv_tiles_multiply", MULTIPLY.types(a="i32", b="i32", total=acc), spec=spec, contract=False)
    def conv_tiles_multiply(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        steps = (args.runs * args.run + whole - 1) // whole
        if tiles:
            amx_open()
        step = args.total_step if not split else EDGE
        if args.segments:
            pixels = args.segments * args.pitch
            each = args.run // WORDS
            for t in range(args.runs):
                for part in range(0, each, STEPS):
                    few, first = min(STEPS, each - part), 1 if t + part == 0 else 0
                    b = advance(args.b, (t * each + part) * BLOCK)
                    for s in range(args.segments):
                        place = load_word(args.places, s * args.segment) + load_word(args.shifts, t) + part * WORDS
                        for i in range(0, args.rows, EDGE):
                            a = advance(args.a, place + i * args.row_step)
                            total = advance(args.total, (s * args.pitch + i) * step)
                            rows = min(EDGE, args.rows - i)
                            if floats:
                                add_floats(
                                    total, step, a, args.row_step, b, few, first, rows, EDGE, i // EDGE, kind, tiles,
                                    form, W,
                                )  # fmt: skip
                            else:
                                add_bytes(
                                    total, step, a, args.row_step, b, few, first, rows, EDGE, i // EDGE, kind, tiles,
                                    flip, dot, W,
                                )  # fmt: skip
        else:
            pixels = args.pixels
            for i in range(0, pixels, EDGE):
                a = advance(args.a, i // EDGE * steps * size * BLOCK)
                total = advance(args.total, i * step)
                rows = min(EDGE, pixels - i)
                if floats:
                    add_floats(
                        total, step, a, 0, args.b, steps, 1, rows, EDGE, i // EDGE, kind, tiles, form, W
                    )  # fmt: skip
                else:
                    add_bytes(
                        total, step, a, 0, args.b, steps, 1, rows, EDGE, i // EDGE, kind, tiles, flip, dot, W
                    )  # fmt: skip
                if split:
                    if not_finite(total, rows, EDGE, W):
                        by_values(total, a, args.b, steps, rows, EDGE, size, W)
        if tiles:
            amx_close()
        if not floats and args.shift != 0:
            sums = cast_pointer(advance(args.b, steps * BLOCK), acc)
            add_sums(args.total, step, sums, args.shift, pixels, W)

    return conv_tiles_multiply


class ImplicitGemmAmx(ImplicitGemmVnni):
    """Windows gathered for tiles."""

    name = "implicit_gemm_amx"
    whole = block = WORDS
    # results of 64 bytes a pixel wait for lines from afar
    wide = 4

    def why_not_asked(self, problem: Any, target: Any) -> str | None:
        if problem.direction not in ("forward", "data"):
            return f"it computes results and gradients by data, not direction {problem.direction}"
        refused = refusal(self._tiles(problem), target) or too_many(problem)
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
        p = problem if problem.direction == "forward" else forward_phases(problem)[0].problem
        each = 4 * self.block * max(1, ceil_div(ceil_div(p.group_c, group) * p.taps, self.whole))
        pixels = 400 if self.there(p) else max(EDGE, min(400, int(ROOM * target.l2) // each // EDGE * EDGE))
        yield {"mr": EDGE, "nv": EDGE // lanes("i32", target.vector_bytes), "pixels": pixels}

    def there(self, problem: Any) -> int:
        words = ceil_div(problem.group_c, self._kind(problem)[1])
        if self.pieces > 1 or words == 0 or words % WORDS:
            return 0
        columns, steps = problem.y_size[2], strides_of(problem)
        if steps[1:] == [1, 1]:
            width = columns + (problem.kernel[2] - 1) * problem.dilation[2]
            return int(width <= WASTE * columns)
        return 2 * int(round_up(columns, WORDS) <= WASTE * columns)

    def peak(self, problem: Any, target: Any) -> float:
        return peak(str(self._tiles(problem)), target)

    def offset(self, problem: Any) -> int:
        return 0

    def kernels(self, problem: Any, target: Any, config: Config) -> dict[str, int]:
        W = lanes("i32", target.vector_bytes)
        kind = str(self._tiles(problem))
        return {
            "gather": make_gather(kind, W).address,
            "multiply": make_multiply(kind, amx_feature(kind), W).address,
        }


class ImplicitGemmAmxX4(ImplicitGemmAmx):
    """float16 as two pieces of bf16, and all four products: exact, as float32 holds them."""

    name = "implicit_gemm_amx_x4"
    block = 2 * WORDS
    wide = 1

    def why_not_asked(self, problem: Any, target: Any) -> str | None:
        if self._tiles(problem) is None:
            return "it multiplies float16 only"
        return super().why_not_asked(problem, target)

    def _tiles(self, problem: Any) -> str | None:
        return "x4" if problem.in_dtype == "f16" else None


class ImplicitGemmAmxX6(ImplicitGemmAmx):
    """float32 as three pieces of bf16, and the six products that reach its last bit."""

    name = "implicit_gemm_amx_x6"
    whole, block = 2 * WORDS, 3 * WORDS
    wide = 1
    allowed: ClassVar[tuple[str, ...]] = ("fast", "close")
    """The settings of accuracy under which it may run."""

    def why_not_asked(self, problem: Any, target: Any) -> str | None:
        if self._tiles(problem) is None:
            return "it multiplies float32 only"
        return super().why_not_asked(problem, target) or in_pieces(self.allowed)

    def _tiles(self, problem: Any) -> str | None:
        return self.name[-2:] if problem.in_dtype == "f32" else None

    def _kind(self, problem: Any) -> tuple[str, int]:
        return "", 1


class ImplicitGemmAmxX3(ImplicitGemmAmxX6):
    """float32 as two pieces, and three products: 15 bits of each term at least."""

    name = "implicit_gemm_amx_x3"
    block = 2 * WORDS
    amplification = AmxX3.amplification
    allowed = ("fast",)
