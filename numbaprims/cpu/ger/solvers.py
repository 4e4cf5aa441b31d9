"""The solvers of ger.

The bound. An update reads A once and writes it once, 2 m n elements, and computes 2 m n operations: a quarter of an
operation a byte in float32, a hundredth of what a core could do with it. x and y are m + n elements beside. So the
kernels read y from the first-level cache (tiles are as wide as fits there), a row of x is one scalar, and nothing else
is touched. Without A only the writing is left: in the caches plain stores are fastest, beyond them a store first
fetches the line that it overwrites, and stores past the caches avoid that.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.cpu.ger.arguments import ARGS, walk
from numbaprims.cpu.ger.rows import make_pack, make_rows
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.program import Part, Program, array, join
from numbaprims.cpu.simd import advance, lanes, load_wide_scalar, scalar, store_narrow_scalar
from numbaprims.cpu.solver import Config, Regions, Solver
from numbaprims.dtypes import DTYPES

Y_BYTES = 8192
"""A tile's part of y at most. Two rows of it, and four pages at a time, pass through the first-level cache: 128 x 8192
runs at 200 GB/s, whole rows at 146.
"""
ROW_CACHES = 2
"""First-level caches that a row may take from memory, where each comes to its end: 4096 x 4096 5.7 ms by 8 KiB and 3.4
by rows of 16; 1024 x 16384 5.0 and, by rows of 64, 3.8 (Zen 4).
"""
TILE_BYTES = 262144
"""What a worker moves at a time, in about 2 us."""
PARALLEL_BYTES = 1 << 20
NAIVE_BLOCK = 16
START = 5 / 6
"""Calls of a program that beginning takes as long as."""
WIDTH_MULTIPLE = 128
"""Elements: tiles but the last are eight vectors times a whole number wide, and begin alike within a cache line."""


def bytes_a_second(problem: Any, target: Any) -> float:
    """How fast one core reads and writes: its second-level cache, the third-level cache or memory."""
    size = problem.m * problem.n * DTYPES[problem.dtype].itemsize
    if size <= target.l2:
        return float(0.55 * target.rates.l2)
    return float(0.952 * target.rates.l3 if size <= target.l3 else 0.729 * target.rates.memory)


class _Rows(Solver):
    """What the two solvers of contiguous rows share."""

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.order == "strided":
            return "neither the rows nor the columns of out are contiguous"
        if not problem.a_along:
            return "a and out are not contiguous along the same dimension, in the same direction"
        return None

    def _program(self, problem: Any, form: int, stream: bool, ints: dict[str, int], target: Any) -> Program:
        dtype = DTYPES[problem.dtype]
        W = lanes(dtype.accumulate, target.vector_bytes)
        down = -(-ints["m"] // ints["height"])
        kernel = make_rows(problem.dtype, W, form, problem.has_a, stream)
        phases = [(kernel, down * ints["across"], 1)]
        regions = self.regions(problem, target, {})
        if regions.nbytes:
            ints["packs"] = 1
            phases.insert(0, (make_pack(problem.dtype), 1, 1))
        parallel = problem.bytes_moved() >= PARALLEL_BYTES
        program = Program.of(ARGS, ints, phases, parallel=parallel, regions=regions)
        return _swap(program) if problem.order == "column" else program

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        ints, _ = walk(problem)
        packs = ints["y_step"] != 1 and ints["n"] > 1
        return Regions({"packed_y": ints["n"] * DTYPES[problem.dtype].itemsize if packs else 0})


def _swap(program: Program) -> Program:
    """The program of the transposed problem, whose x is our y."""
    return join([Part(program, [array(0), array(2), array(1), array(3)], [0])])


class RegisterBlock(_Rows):
    """Eight vectors of two rows at a time, from memory of one, against a piece of y in the first-level cache."""

    name = "register_block"

    def estimate(self, problem: Any, target: Any) -> float:
        return float(START * target.rates.call + problem.bytes_moved() / bytes_a_second(problem, target))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        ints, _ = walk(problem)
        size = DTYPES[problem.dtype].itemsize
        pairs = problem.m * problem.n * size <= target.l3 / 4
        across = -(-ints["n"] * size // (Y_BYTES if pairs else ROW_CACHES * target.l1d))
        width = -(-ints["n"] // (across * WIDTH_MULTIPLE)) * WIDTH_MULTIPLE
        across = -(-ints["n"] // width)
        moved = width * size * (2 if problem.has_a else 1)
        ints |= {"across": across, "width": width, "height": max(1, TILE_BYTES // moved)}
        stream = not problem.has_a and problem.bytes_moved() > max(target.l2, target.l3)
        return self._program(problem, 2 if pairs else 1, stream, ints, target)


class RowBlock(_Rows):
    """The CPU counterpart of algorithm 2 of Zhang and Zhang (2013).

    Their block j keeps y[j] in a register (`buff_y`), and its threads update row j, each an element of every N x M.
    Here the block is the loop over row j, the scalar is x[j] (BLAS names the vectors the other way round), and the
    threads are the lanes of a vector. Every element of A is read and written once.
    """

    name = "row_block"

    def estimate(self, problem: Any, target: Any) -> float:
        return float(START * target.rates.call + problem.bytes_moved() / (0.8 * bytes_a_second(problem, target)))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        ints, _ = walk(problem)
        row = ints["n"] * DTYPES[problem.dtype].itemsize
        ints |= {"across": 1, "width": ints["n"], "height": max(1, TILE_BYTES // row)}
        return self._program(problem, 0, False, ints, target)


@functools.cache
def make_naive(dtype: str) -> RangeKernel:
    """Element by element, in blocks that keep both the lines of A and those of out in the first-level cache."""
    acc = DTYPES[dtype].accumulate
    types = ARGS.types(out=dtype, x=dtype, y=dtype, a=dtype)

    @range_kernel("ger_naive", types, spec=(dtype,))
    def naive(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        alpha = scalar(args.alpha, acc)
        x, y = advance(args.x, args.x_start), advance(args.y, args.y_start)
        whole_a = args.a
        if args.in_place:
            whole_a = args.out
        a, out = advance(whole_a, args.a_start), advance(args.out, args.out_start)
        for tile in range(lo, hi):
            down = tile // args.across
            first = (tile - down * args.across) * NAIVE_BLOCK
            last = min(first + NAIVE_BLOCK, args.n)
            for i in range(down * NAIVE_BLOCK, min((down + 1) * NAIVE_BLOCK, args.m)):
                v = alpha * load_wide_scalar(x, i * args.x_step)
                for j in range(first, last):
                    value = v * load_wide_scalar(y, j * args.y_step)
                    if args.has_a:
                        value += load_wide_scalar(a, i * args.a_rs + j * args.a_cs)
                    store_narrow_scalar(out, i * args.out_rs + j * args.out_cs, value)

    return naive


class Naive(Solver):
    """The definition; refuses nothing."""

    name = "naive"

    def estimate(self, problem: Any, target: Any) -> float:
        moving = problem.bytes_moved() / bytes_a_second(problem, target)
        return float(START * target.rates.call + moving + target.rates.cycles(4.1 * problem.m * problem.n))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        ints, swapped = walk(problem)
        ints["across"] = -(-ints["n"] // NAIVE_BLOCK)
        tiles = -(-ints["m"] // NAIVE_BLOCK) * ints["across"]
        parallel = problem.m * problem.n >= 1 << 15
        program = Program.of(ARGS, ints, [(make_naive(problem.dtype), tiles, 64)], parallel=parallel)
        return _swap(program) if swapped else program
