"""Gradients of the weight by AMX's tiles: 32 filters by 32 channels, summed over 32 pixels at a time.

dy and x are packed as for vectors, in float32, which holds bf16 and its pieces as they are.  dy becomes tiles once for
each box of pixels and block of channels; x, which every tap reads at another place, pixel by pixel for each tap.
Bound.  That is two loads and a store of a vector for two pixels of 16 channels, 64 of them beside the 64 cycles that 32
filters take, so it is the products that count from some 100 filters on.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, ClassVar

from numbaprims.cpu.conv.weight_gradient.arguments import MULTIPLY, TURN
from numbaprims.cpu.conv.weight_gradient.solver import Cut, WeightGemm
from numbaprims.cpu.gemm.amx import AmxX3, AmxX6, in_pieces, no_tiles, peak, refusal
from numbaprims.cpu.gemm.cost import ceil_div, round_up
from numbaprims.cpu.gemm.pieces import BLOCK, EDGE, WORDS, store_pairs
from numbaprims.cpu.gemm.tiles import add_product, portable_form
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.simd import (
    advance,
    amx_close,
    amx_feature,
    amx_open,
    lanes,
    load_first,
    load_rows,
    load_scalar,
    pointer_from_address,
    stack_tile,
    store_rows,
    transpose,
)
from numbaprims.cpu.simd.tiles.amx import piece_count
from numbaprims.cpu.solver import Config

#: The part of the second-level cache that the packed dy of a box may take.
ROOM = 0.5


@helper
def _pairs(target, source, first, second, p, pixels, size, W):  # type: ignore[no-untyped-def]
    """Words of pixels p and p + 1, which lie at `first` and `second`, of 32 columns; zeros of pixels there are not."""
    for v in range(0, EDGE, W):
        x = load_first(source, first + v, W if p < pixels else 0, W)
        y = load_first(source, second + v, W if p + 1 < pixels else 0, W)
        store_pairs(target, v, W, x, y, size, W)


@functools.cache
def make_turn(kind: str, W: int) -> RangeKernel:
    """tiles[panel][block of 32 pixels][piece][filter][pair of pixels] of panels [pixel][filter]."""
    size, NV = piece_count(kind), EDGE // W
    ROWS = WORDS * size
    types = TURN.types(tiles="i32", source="f32")

    @range_kernel("conv_weight_turn", types, spec=(size, W), contract=False)
    def conv_weight_turn(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        pixels = args.pixels
        steps = (pixels + EDGE - 1) // EDGE
        room = stack_tile("i32", ROWS, NV, W)
        for at in range(lo * steps, hi * steps):
            q, t = at // steps, at % steps
            for g in range(WORDS):
                p = t * EDGE + 2 * g
                source = advance(args.source, (q * pixels + p) * EDGE)
                _pairs(advance(room, g * EDGE), source, 0, EDGE, p, pixels, size, W)
            for piece in range(size):
                target = advance(args.tiles, (at * size + piece) * BLOCK)
                for g in range(0, WORDS, W):
                    for v in range(0, EDGE, W):
                        square = load_rows(advance(room, piece * BLOCK + g * EDGE + v), EDGE, W, W)
                        store_rows(advance(target, v * WORDS + g), WORDS, transpose(square))

    return conv_weight_turn


@functools.cache
def make_multiply(kind: str, feature: str, W: int) -> RangeKernel:
    """All taps of panels of tiles with a panel of x, of whose pixels tiles are made for each."""
    types = MULTIPLY.types(a="i32", b="f32", total="f32", table="i64", shifts="i64")
    tiles, size, form, NV = feature == "amx", piece_count(kind), portable_form(kind), EDGE // W
    split = size > 1

    @range_kernel("conv_weight_tiles", types, spec=(kind, feature, W), contract=False)
    def conv_weight_tiles(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        pixels = args.pixels
        steps = (pixels + EDGE - 1) // EDGE
        words = pointer_from_address(args.room, "i32")
        room = stack_tile("f32", EDGE, NV, W)
        for tap in range(args.taps):
            b = advance(args.b, load_scalar(args.shifts, tap))
            for g in range(steps * WORDS):
                p = 2 * g
                first = load_scalar(args.table, min(p, pixels - 1))
                second = load_scalar(args.table, min(p + 1, pixels - 1))
                target = advance(words, g // WORDS * size * BLOCK + g % WORDS * EDGE)
                _pairs(target, b, first, second, p, pixels, size, W)
            if tiles:
                amx_open()
            for q in range(lo, hi):
                total = advance(args.total, q * EDGE * args.k_step + tap * args.tap_step)
                rows = min(EDGE, args.rows - q * EDGE)
                a = advance(args.a, q * steps * size * BLOCK)
                add_product(
                    total, args.k_step, room, a, 0, words, steps, args.first, rows, args.columns, q, total, 0,
                    kind, tiles, split, form, W,
                )  # fmt: skip
            if tiles:
                amx_close()

    return conv_weight_tiles


class WeightGemmAmx(WeightGemm):
    """bf16 by tiles."""

    name = "weight_gemm_amx"
    kind: ClassVar[str] = "bf16"
    dtype: ClassVar[str] = "bf16"
    tile_bytes = 4 * BLOCK

    def why_not_asked(self, problem: Any, target: Any) -> str | None:
        if problem.in_dtype != self.dtype:
            return f"it multiplies {self.dtype} only"
        return super().why_not(problem, target) or refusal(self.kind, target)

    def why_not(self, problem: Any, target: Any) -> str | None:
        return self.why_not_asked(problem, target) or no_tiles(self.kind)

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        filters = min(256, round_up(problem.group_k, EDGE))
        pixels = int(ROOM * target.l2) // (4 * filters) // EDGE * EDGE
        yield {"mr": EDGE, "nr": EDGE, "pixels": max(EDGE, min(1024, pixels))}

    def peak(self, problem: Any, target: Any) -> float:
        return peak(self.kind, target)

    def kernels(self, problem: Any, target: Any, cut: Cut) -> dict[str, int]:
        W = lanes("f32", target.vector_bytes)
        multiply = make_multiply(self.kind, amx_feature(self.kind), W)
        return {"multiply": multiply.address, "turn": make_turn(self.kind, W).address}

    def estimate(self, problem: Any, target: Any) -> float:
        p = problem
        blocks = p.n * p.pixels * p.groups * ceil_div(p.group_k, 256)
        # four instructions of each vector of two pixels, and two for each further piece
        words = blocks * round_up(p.group_c * p.taps, EDGE) / (2 * lanes("f32", target.vector_bytes))
        return super().estimate(p, target) + float(target.rates.cycles(words * (2 + 2 * piece_count(self.kind))))


class WeightGemmAmxX4(WeightGemmAmx):
    """float16 as two pieces of bf16, and all four products: exact, as float32 holds them."""

    name, kind, dtype = "weight_gemm_amx_x4", "x4", "f16"
    tile_bytes = 2 * WeightGemmAmx.tile_bytes


class WeightGemmAmxX6(WeightGemmAmx):
    """float32 as three pieces, and the six products that reach its last bit."""

    name, kind, dtype = "weight_gemm_amx_x6", "x6", "f32"
    tile_bytes = 3 * WeightGemmAmx.tile_bytes
    allowed = AmxX6.allowed

    def why_not_asked(self, problem: Any, target: Any) -> str | None:
        return super().why_not_asked(problem, target) or in_pieces(self.allowed)


class WeightGemmAmxX3(WeightGemmAmxX6):
    """float32 as two pieces, and three products: 15 bits of each term at least."""

    name, kind = "weight_gemm_amx_x3", "x3"
    tile_bytes = 2 * WeightGemmAmx.tile_bytes
    amplification = AmxX3.amplification
    allowed = AmxX3.allowed
