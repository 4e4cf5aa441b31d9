"""Gradients of the bias: db[k] = the sum of dy over images and pixels.

Bound: the bytes of dy, each read once.  Terms are added in many sums side by side, of runs of a fixed length, whose
sums are added afterwards in order: errors stay near those of pairwise summation, and bits do not depend on threads.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.cpu.conv.arguments import ARGS, WORD, geometry_table
from numbaprims.cpu.conv.long import in_parts
from numbaprims.cpu.gemm.cost import ceil_div, round_up
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import (
    Arguments,
    address_of,
    advance,
    lanes,
    load_first,
    load_scalar,
    load_wide,
    load_wide_first,
    load_wide_scalar,
    load_word,
    pointer_from_address,
    prefetch,
    reduce_add,
    scalar,
    store_first,
    store_narrow_scalar,
    store_scalar,
    zeros,
)
from numbaprims.cpu.solver import Config, Solver
from numbaprims.dtypes import DTYPES

# run: pixels that have one common step; piece: pixels of a run that are summed at a time; pieces: of each run;
# slice_pieces: pieces (of all runs) of a slice, whose sums of all channels lie together: sums[slice][k].
SUMS = Arguments(
    arrays=ARGS.arrays, floats=ARGS.floats,
    ints=("geometry", "run", "piece", "pieces", "all_pieces", "slice_pieces", "slices", "pixel_step"),
)  # fmt: skip
K, Y_SIZE, YS, WS = WORD["k"], WORD["y_d"], WORD["ys_n"], WORD["ws_k"]
PIECE = 16384
"""Elements of a channel that one set of sums takes: 128 a lane, in 8 vectors of 16."""
LONG = PIECE - 4096
AHEAD = 32
"""Vectors (pixels) ahead that are asked for: 205 MB with channels last came at 9.7 GB/s without, 20 to 30 with it."""
PARALLEL_BYTES = 1 << 19


@functools.cache
def make_planes(dtype: str, acc: str, W: int) -> RangeKernel:
    """Tiles (slice, channel): vectors along the pixels of a channel."""

    @range_kernel("conv_bias_planes", SUMS.types(first=dtype, workspace=acc), spec=(dtype, acc, W))
    def conv_bias_planes(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        g = args.geometry
        filters = load_word(g, K)
        planes, lines = load_word(g, Y_SIZE), load_word(g, Y_SIZE + 1)
        columns = load_word(g, Y_SIZE + 2)
        step = args.pixel_step
        run_lines = min(args.run // columns, lines)
        for tile in range(lo, hi):
            part, k = divmod(tile, filters)
            total = scalar(0, acc)
            first = part * args.slice_pieces
            run, piece = divmod(first, args.pieces)
            rest, p = divmod(run * (args.run // columns), lines)
            n, o = divmod(rest, planes)
            held = 0
            s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = zeros(acc, W)
            for index in range(first, min(first + args.slice_pieces, args.all_pieces)):
                start = n * load_word(g, YS) + k * load_word(g, YS + 1) + o * load_word(g, YS + 2)
                start += p * load_word(g, YS + 3) + piece * args.piece * step
                y = advance(args.first, start)
                count = min(args.piece, args.run - piece * args.piece)
                if step == 1:
                    held += count
                    whole = count - count % (8 * W)
                    for i in range(0, whole, 8 * W):
                        for v in range(0, 8 * W, W):
                            prefetch(y, i + AHEAD * W + v, 3)
                        s0 = s0 + load_wide(y, i, W)
                        s1 = s1 + load_wide(y, i + W, W)
                        s2 = s2 + load_wide(y, i + 2 * W, W)
                        s3 = s3 + load_wide(y, i + 3 * W, W)
                        s4 = s4 + load_wide(y, i + 4 * W, W)
                        s5 = s5 + load_wide(y, i + 5 * W, W)
                        s6 = s6 + load_wide(y, i + 6 * W, W)
                        s7 = s7 + load_wide(y, i + 7 * W, W)
                    for i in range(whole, count, 2 * W):
                        s0 = s0 + load_wide_first(y, i, min(W, count - i), W)
                        s1 = s1 + load_wide_first(y, i + W, max(min(W, count - i - W), 0), W)
                    if held >= LONG or index == first + args.slice_pieces - 1 or index == args.all_pieces - 1:
                        total = scalar(total + reduce_add(((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))), acc)
                        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = zeros(acc, W)
                        held = 0
                else:
                    # runs of 64, so that the error does not grow with all of the pixels
                    for i in range(0, count, 64):
                        short = scalar(0, acc)
                        for j in range(i, min(i + 64, count)):
                            short = scalar(short + load_wide_scalar(y, j * step), acc)
                        total = scalar(total + short, acc)
                # the next piece, without divisions: a run may have 49 elements
                piece += 1
                if piece == args.pieces:
                    piece = 0
                    p += run_lines
                    if p >= lines:
                        p = 0
                        o += 1 if args.run <= columns * lines else planes
                        if o >= planes:
                            o = 0
                            n += 1
            store_scalar(args.workspace, part * filters + k, total)

    return conv_bias_planes


@functools.cache
def make_last(dtype: str, acc: str, W: int) -> RangeKernel:
    """Tiles are slices: vectors along the channels, eight pixels at a time, so that the sums, which lie in the
    first-level cache, are read and written once for eight values."""

    @range_kernel("conv_bias_last", SUMS.types(first=dtype, workspace=acc), spec=(dtype, acc, W))
    def conv_bias_last(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        g = args.geometry
        filters = load_word(g, K)
        planes, lines = load_word(g, Y_SIZE), load_word(g, Y_SIZE + 1)
        columns = load_word(g, Y_SIZE + 2)
        step = args.pixel_step
        for part in range(lo, hi):
            sums = advance(args.workspace, part * filters)
            for v in range(0, filters, W):
                store_first(sums, v, min(W, filters - v), zeros(acc, W))
            for index in range(part * args.slice_pieces, min((part + 1) * args.slice_pieces, args.all_pieces)):
                run, piece = divmod(index, args.pieces)
                rest, p = divmod(run * (args.run // columns), lines)
                n, o = divmod(rest, planes)
                start = n * load_word(g, YS) + o * load_word(g, YS + 2) + p * load_word(g, YS + 3)
                y = advance(args.first, start + piece * args.piece * step)
                count = min(args.piece, args.run - piece * args.piece)
                whole = count - count % 8
                for i in range(0, whole, 8):
                    at = i * step
                    for v in range(0, filters, W):
                        left = min(W, filters - v)
                        for row in range(8):
                            prefetch(y, at + (AHEAD + row) * step + v, 3)
                        s0 = load_wide_first(y, at + v, left, W) + load_wide_first(y, at + step + v, left, W)
                        s1 = load_wide_first(y, at + 2 * step + v, left, W)
                        s1 = s1 + load_wide_first(y, at + 3 * step + v, left, W)
                        s2 = load_wide_first(y, at + 4 * step + v, left, W)
                        s2 = s2 + load_wide_first(y, at + 5 * step + v, left, W)
                        s3 = load_wide_first(y, at + 6 * step + v, left, W)
                        s3 = s3 + load_wide_first(y, at + 7 * step + v, left, W)
                        store_first(sums, v, left, load_first(sums, v, left, W) + ((s0 + s1) + (s2 + s3)))
                for i in range(whole, count):
                    for v in range(0, filters, W):
                        left = min(W, filters - v)
                        x = load_wide_first(y, i * step + v, left, W)
                        store_first(sums, v, left, load_first(sums, v, left, W) + x)

    return conv_bias_last


@functools.cache
def make_end(dtype: str, acc: str, W: int) -> RangeKernel:
    """Blocks of W channels: the sum of all slices, from the first to the last."""

    @range_kernel("conv_bias_end", SUMS.types(out=dtype), spec=(dtype, acc, W))
    def conv_bias_end(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        filters = load_word(args.geometry, K)
        sums = pointer_from_address(address_of(args.workspace), acc)
        step = load_word(args.geometry, WS)
        for block in range(lo, hi):
            left = min(W, filters - block * W)
            total = load_first(sums, block * W, left, W)
            for part in range(1, args.slices):
                total = total + load_first(sums, part * filters + block * W, left, W)
            # the first slice's place is no longer needed
            store_first(sums, block * W, left, total)
            for k in range(block * W, block * W + left):
                store_narrow_scalar(args.out, k * step, load_scalar(sums, k))

    return conv_bias_end


@in_parts
class Sums(Solver):
    """Sums by vectors, of pieces of fixed length."""

    name = "sums"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.direction != "bias":
            return "it computes gradients of the bias"
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        step = self._cut(problem)["pixel_step"]
        rate = 30e9 if problem.y_order == "last" or step == 1 else 2e9
        return float(1.5e-6 + problem.bytes_moved() / rate)

    def workspace(self, problem: Any, target: Any, config: Config) -> int:
        return int(self._cut(problem)["slices"] * problem.k * DTYPES[problem.accumulate].itemsize)

    @staticmethod
    def _cut(problem: Any) -> dict[str, int]:
        """How the pixels are cut into runs, pieces and slices."""
        p, s = problem, problem.strides.y
        o, h, w = p.y_size
        step = s[4] if w > 1 else 1
        run = w
        if h == 1 or s[3] == w * step:
            run = h * w
            if o == 1 or s[2] == run * step:
                run *= o
        last = p.y_order == "last"
        piece = max(8, PIECE // (p.k if last else 1))
        # pieces of equal length, but whole vectors
        piece = min(run, round_up(ceil_div(run, ceil_div(run, piece)), 8 if last else 128))
        pieces = ceil_div(run, piece)
        all_pieces = p.n * p.pixels // run * pieces
        # as many tiles as keep all threads of a machine busy; no more than bytes pay for
        want = ceil_div(64, 1 if last else p.k)
        want = max(1, min(want, int(p.bytes_moved()) // (1 << 16), all_pieces))
        slice_pieces = ceil_div(all_pieces, want)
        return {
            "run": run, "piece": piece, "pieces": pieces, "all_pieces": all_pieces, "slice_pieces": slice_pieces,
            "slices": ceil_div(all_pieces, slice_pieces), "pixel_step": step,
        }  # fmt: skip

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        p, acc = problem, problem.accumulate
        W = lanes(acc, target.vector_bytes)
        cut = self._cut(p)
        table = geometry_table(p)
        values = cut | {"geometry": int(table.ctypes.data)}
        if p.y_order == "last":
            phases = [(make_last(p.y_dtype, acc, W), cut["slices"], 1)]
        else:
            tiles = cut["slices"] * p.k
            phases = [(make_planes(p.y_dtype, acc, W), tiles, ceil_div(tiles, 32))]
        blocks = ceil_div(p.k, W)
        phases.append((make_end(p.y_dtype, acc, W), blocks, blocks))
        nbytes = round_up(self.workspace(p, target, config), 64)
        parallel = p.bytes_moved() > PARALLEL_BYTES
        return Program.of(SUMS, values, phases, keep=(table,), parallel=parallel, shared=nbytes)
