"""The solvers on the multipliers of ordinary arithmetic: `tiled`, `split_k`, `dp4a`, and the last resort, `naive`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu import parts
from numbaprims.gpu.gemm import cost
from numbaprims.gpu.gemm.activations import compiled_kind
from numbaprims.gpu.gemm.arguments import INT32_MAX, ceil_div, fits_int32, round_up, vector_length
from numbaprims.gpu.gemm.launching import Common, Pointers, make_gemm_launcher, operand_steps, waste
from numbaprims.gpu.gemm.loads import way_of, words_of
from numbaprims.gpu.gemm.naive import COLUMNS, ROWS, make_naive
from numbaprims.gpu.gemm.reduce_kernel import REDUCE_THREADS, make_reduce
from numbaprims.gpu.gemm.sizes import TILES, efficiency
from numbaprims.gpu.gemm.tiled_kernel import make_tiled
from numbaprims.gpu.launch import Program, step
from numbaprims.gpu.solver import Solver

# Half precisions are widened by single loads through registers: two instructions an element more.
WIDENED = 0.7
INTEGERS = ("i8", "u8")
TOO_LARGE = "m, n or k is too large for 32-bit indices"


def aligned_ways(problem: Any) -> tuple[str, str]:
    """How A and B come in where the arrays begin at multiples of 16 bytes."""
    return tuple(way_of(dtype, 0, *steps) for dtype, *steps in operand_steps(problem))  # type: ignore[return-value]


def tiles_of(problem: Any) -> list[str]:
    """The tiles of a problem.  64 sums of 8 bytes a thread do not fit beside their operands, nor 64 of 4 bytes beside
    the elements of A or B that pass through registers."""
    staged = problem.a_dtype in ("f16", "bf16") or not {"t", "g"}.isdisjoint(aligned_ways(problem))
    most = 32 if problem.a_dtype == "f64" or staged else 64
    return [name for name, size in TILES.items() if size.tm * size.tn <= most and not size.mma]


def work_of(problem: Any, target: Any, tile: str) -> cost.Work:
    """A tile's kernel in the terms of the cost model."""
    size, words = TILES[tile], words_of(problem.a_dtype)
    a_way, b_way = aligned_ways(problem)
    if problem.a_dtype in INTEGERS:
        # dp4a: four multiply-adds an instruction, at the rate of FFMA up to 8.x, half of it from 9.0 on
        rate = target.peak("f32") * (2.0 if target.capability >= (9, 0) else 4.0) * efficiency(tile)
    else:
        # tensor cores of float64 do twice as much
        rate = target.peak("f64" if problem.a_dtype == "f64" else "f32") * efficiency(tile) * (2 if size.mma else 1)
        rate *= WIDENED if DTYPES[problem.a_dtype].itemsize == 2 else 1.0
    blocks = target.blocks_per_multiprocessor(size.threads, size.registers(words.size), size.shared(words.size))
    return cost.Work(
        bm=size.bm, bn=size.bn, threads=size.threads, blocks_per_multiprocessor=max(1, blocks),
        bytes_in_flight=(size.stages - 1) * size.bk * (size.bm + size.bn) * words.size,
        rate=rate, element=DTYPES[problem.a_dtype].itemsize,
        a_waste=waste(problem.a_dtype, a_way), b_waste=waste(problem.b_dtype, b_way),
    )  # fmt: skip


def tile_form(problem: Any, tile: str, pointers: Pointers, common: Common, chunks: int, chunk: int) -> Program:
    """The step (with chunks: the two steps) of one alignment of the arrays."""
    size, acc = TILES[tile], problem.accumulate
    a, b = operand_steps(problem)
    a_way, b_way = way_of(a[0], pointers.a, *a[1:]), way_of(b[0], pointers.b, *b[1:])
    if a_way == b_way == "q" and size.tm * size.tn == 64:
        b_way = "k"  # no registers for both
    activation = compiled_kind(problem.activation.kind)
    partial = chunks > 1
    kernel = make_tiled(
        problem.a_dtype, problem.b_dtype, problem.out_dtype, tile, a_way, b_way, "switch" if partial else activation,
        partial,
    )  # fmt: skip
    tiles_m, tiles_n = ceil_div(problem.m, size.bm), ceil_div(problem.n, size.bn)
    room = round_up(problem.n, vector_length(acc))
    own = (tiles_m, tiles_n, chunks, chunk, room)
    blocks = problem.batch * chunks * tiles_m * tiles_n
    steps = [step(kernel, blocks, lambda arrays, floats, at: (*common(arrays, floats), at.get("sums", 0), *own))]
    if not partial:
        return Program(steps)
    reduce = make_reduce(problem.a_dtype, problem.out_dtype, activation)
    vectors = room // vector_length(acc)
    rows = problem.batch * problem.m
    grid = ceil_div(rows * vectors, REDUCE_THREADS)
    tail = (chunks, room, vectors, rows)
    steps.append(step(reduce, grid, lambda arrays, floats, at: (*common(arrays, floats), at["sums"], *tail)))
    return Program(steps, {"sums": workspace_bytes(problem, chunks)})


def workspace_bytes(problem: Any, chunks: int) -> int:
    """The sums of all chunks, rows rounded up to whole vectors."""
    room = round_up(problem.n, vector_length(problem.accumulate))
    return problem.batch * chunks * problem.m * room * DTYPES[problem.accumulate].itemsize


class _Tiles(Solver):
    """What the solvers on tiles share."""

    def _chunks(self, problem: Any) -> tuple[int, int]:
        """How many chunks k is cut into, and how long one is."""
        return 1, round_up(max(1, problem.k), 16)

    def _seconds(self, problem: Any, target: Any, tile: str) -> float:
        span = 4 * words_of(problem.a_dtype).elements
        return cost.tile_seconds(problem, target, work_of(problem, target, tile), round_k=span)

    def _tiles(self, problem: Any, target: Any) -> list[str]:
        return tiles_of(problem)

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        def rank(tile: str) -> tuple[float, int]:
            # where memory decides, tiles are equal: the one that computes least beyond the ends then
            size = TILES[tile]
            return self._seconds(problem, target, tile), round_up(problem.m, size.bm) * round_up(problem.n, size.bn)

        return tuple({"tile": tile} for tile in sorted(self._tiles(problem, target), key=rank))

    def estimate(self, problem: Any, target: Any) -> float:
        return min(self._seconds(problem, target, tile) for tile in self._tiles(problem, target))

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        tile = str(config["tile"])
        chunks, chunk = self._chunks(problem)

        def make_form(pointers: Pointers, common: Common) -> Program:
            return tile_form(problem, tile, pointers, common, chunks, chunk)

        return make_gemm_launcher(problem, make_form)


def _too_large(problem: Any, chunks: int = 1) -> str | None:
    if not fits_int32(problem):
        return TOO_LARGE
    blocks = problem.batch * chunks * ceil_div(problem.m, 16) * ceil_div(problem.n, 16)
    return "there are more tiles than one launch may have blocks" if blocks >= 2**31 else None


class Tiled(_Tiles):
    """Sums in registers, tiles of A and B in shared memory, copied while others are multiplied."""

    name = "tiled"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.a_dtype in INTEGERS:
            return "it computes in floating point; integer products are dp4a's"
        return parts.too_long(problem.k, parts.longest(problem)) or _too_large(problem)


class Dmma(_Tiles):
    """float64 on tensor cores: `tiled` with other fragments."""

    name = "dmma"

    def _tiles(self, problem: Any, target: Any) -> list[str]:
        depth = 8 if target.capability >= (9, 0) else 4
        return [name for name, size in TILES.items() if size.mma == depth]

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.a_dtype != "f64":
            return "it computes in float64"
        if target.capability < (8, 0) or target.capability in ((8, 6), (8, 9)):
            return "this GPU has no tensor cores for float64"
        return parts.too_long(problem.k, parts.longest(problem)) or _too_large(problem)


class Dp4a(_Tiles):
    """`tiled` over words of four bytes: int8 x int8 and uint8 x int8 by dp4a, exact in int32."""

    name = "dp4a"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.a_dtype not in INTEGERS:
            return "it computes with bytes only"
        return _too_large(problem)


#: Blocks that fill a large GPU twice; a constant, because chunks must not depend on the GPU: results would.
WANTED_BLOCKS = 264
#: No chunk is shorter: the sums of one are written and read again, 8 bytes for each output.
LEAST_CHUNK = 128


class SplitK(_Tiles):
    """Few tiles, or a k of any length: k in chunks side by side, whose sums a second kernel adds in a fixed order."""

    name = "split_k"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.k < 2 * LEAST_CHUNK:
            return f"k is {problem.k}, too short to cut into chunks of {LEAST_CHUNK}"
        chunks, _ = self._chunks(problem)
        if chunks < 2:
            return "there are tiles enough to fill a GPU, or their sums are too large to keep for several chunks"
        if problem.batch * problem.m * chunks >= 2**31 or problem.batch * problem.m * problem.n >= 2**36:
            return "there are too many sums to keep"
        return parts.too_many(workspace_bytes(problem, chunks), problem) or _too_large(problem, chunks)

    def _chunks(self, problem: Any) -> tuple[int, int]:
        tiles = problem.batch * ceil_div(problem.m, 64) * ceil_div(problem.n, 64)
        wanted = min(ceil_div(WANTED_BLOCKS, tiles), problem.k // LEAST_CHUNK)
        return parts.chunks_of(problem.k, wanted, workspace_bytes(problem, 1), parts.longest(problem))

    def _seconds(self, problem: Any, target: Any, tile: str) -> float:
        chunks, _ = self._chunks(problem)
        span = 4 * words_of(problem.a_dtype).elements
        sums = workspace_bytes(problem, chunks)
        first = cost.tile_seconds(problem, target, work_of(problem, target, tile), chunks=chunks, round_k=span)
        # the sums are written behind the arithmetic, and read by the second kernel, which starts when all blocks of the
        # first have ended
        writing = 0.5 * (cost.sweep_seconds(sums, target) - cost.LAUNCH)
        return first + writing + cost.LAUNCH + cost.FILL + cost.sweep_seconds(sums, target)


class Naive(Solver):
    """One thread for each element of out, any strides."""

    name = "naive"

    def estimate(self, problem: Any, target: Any) -> float:
        # two loads for each multiply-add, of which a multiprocessor issues a quarter a clock, with their addresses;
        # and a chain of k loads, four under way at a time
        work = problem.flops() / (target.peak("f64" if problem.accumulate == "f64" else "f32") / 24)
        chain = 0.15e-6 * max(8, problem.k)
        return cost.LAUNCH + cost.FILL + max(work, chain, problem.bytes_moved() / (cost.MEMORY * target.bandwidth))

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        kernel = make_naive(problem.a_dtype, problem.b_dtype, problem.out_dtype, compiled_kind(problem.activation.kind))
        row_blocks, column_blocks = ceil_div(problem.m, ROWS), ceil_div(problem.n, COLUMNS)
        blocks = problem.batch * row_blocks * column_blocks
        grid = min(blocks, INT32_MAX)

        def make_form(pointers: Pointers, common: Common) -> Program:
            own = (row_blocks, column_blocks, blocks, parts.TERMS)
            return Program([step(kernel, grid, lambda arrays, floats, _: (*common(arrays, floats), *own))])

        return make_gemm_launcher(problem, make_form)
