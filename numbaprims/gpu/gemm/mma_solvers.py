"""The solvers on mma.sync: `mma`, and `mma_split_k` where tiles are few and k is long."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from numbaprims import settings
from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu import parts
from numbaprims.gpu.gemm import cost
from numbaprims.gpu.gemm.activations import compiled_kind
from numbaprims.gpu.gemm.arguments import batch_steps, ceil_div, fits_int32, round_up, vector_length
from numbaprims.gpu.gemm.launching import Common, Pointers, make_gemm_launcher
from numbaprims.gpu.gemm.mma import TILES, make_mma
from numbaprims.gpu.gemm.reduce_kernel import REDUCE_THREADS, make_reduce
from numbaprims.gpu.gemm.tiles import TILE_BYTES, copies, tile_k
from numbaprims.gpu.launch import Program, program_of, step
from numbaprims.gpu.solver import Solver

INTEGERS = ("i8", "u8")
# The part of the tensor cores' peak that a tile's inner loop leaves (mma.py counts it), where mma.sync reaches that
# peak: up to 8.x. From 9.0 on only wgmma does, and mma.sync about 0.62 of it.
EFFICIENCY = {"128x256": 0.82, "128x128": 0.78, "64x64": 0.45}
HOPPER = 0.62
# Copies of fewer bytes take so many instructions more; single elements go through registers, and nothing overlaps.
COPY_EFFICIENCY = {16: 1.0, 8: 0.9, 4: 0.75, 0: 0.3}
#: Blocks that fill a large GPU; a constant, because chunks must not depend on the GPU: results would.
WANTED_BLOCKS = 132
#: No chunk is shorter: the sums of one are written and read again, 8 bytes for each output.
LEAST_CHUNK = 256


def layout_of(dtype: str, outer: int, along_k: int, extent: int, k: int) -> str:
    """How tiles of an operand lie: "k" (k contiguous), "x" (the other dimension), or "" where the kernel has no way."""
    if along_k == 1 or k <= 1:
        return "k"
    if dtype not in INTEGERS and (outer == 1 or extent <= 1):
        return "x"
    return ""


def layouts(problem: Any) -> tuple[str, str]:
    """Of A and of B."""
    s = problem.strides
    return (
        layout_of(problem.a_dtype, s.a[0], s.a[1], problem.m, problem.k),
        layout_of(problem.b_dtype, s.b[1], s.b[0], problem.n, problem.k),
    )


def width_of(problem: Any, operand: int, pointer: int) -> int:
    """Bytes of each copy of A (0) or B (1) that begins at `pointer`: 16, 8, 4, or 0 for single elements."""
    s, along_k = problem.strides, layouts(problem)[operand] == "k"
    steps = (s.a, s.b[::-1])[operand]
    lengths = ((problem.m, problem.k), (problem.n, problem.k))[operand]
    dimension = 0 if along_k else 1  # the one that is not contiguous
    size = DTYPES[(problem.a_dtype, problem.b_dtype)[operand]].itemsize
    elements = [*batch_steps(problem, operand), steps[dimension] if lengths[dimension] > 1 else 0]
    return copies(size, math.gcd(16, pointer, *(step * size for step in elements)))


def transposed(problem: Any) -> Any:
    """The same product as out^T = B^T A^T: for an out whose columns are contiguous."""
    s = problem.strides
    flip = {"row": "column", "column": "row", "strided": "strided"}
    return dataclasses.replace(
        problem, m=problem.n, n=problem.m, a_dtype=problem.b_dtype, b_dtype=problem.a_dtype,
        a_order=flip[problem.b_order], b_order=flip[problem.a_order], out_order=flip[problem.out_order],
        bias={"n": "m", "m": "n", "none": "none"}[problem.bias],
        strides=s._replace(
            a=s.b[::-1], b=s.a[::-1], out=s.out[::-1], c=s.c[::-1], batch=(s.batch[1], s.batch[0], *s.batch[2:])
        ),
    )  # fmt: skip


def rows_first(problem: Any) -> tuple[Any, bool]:
    """The problem, transposed where out's columns are contiguous and its rows are not; and whether it was."""
    columns_first = problem.strides.out[1] != 1 and problem.strides.out[0] == 1
    return (transposed(problem), True) if columns_first else (problem, False)


def tensor_core_refusal(problem: Any, target: Any) -> str | None:
    """What keeps a problem from tensor cores, whatever the instruction."""
    if problem.accumulate == "f64":
        return "float64 is computed without tensor cores"
    if problem.a_dtype == "f32" and not settings.current().allow_tf32:
        return "it would round float32 to the 10 bits of tfloat32; config(allow_tf32=True) allows that"
    if problem.k == 0:
        return "k is 0: there is nothing to multiply"
    if not fits_int32(problem):
        return "m, n or k is too large for 32-bit indices"
    return None


def longest(problem: Any) -> int:
    """Terms of one sum: an instruction adds those of 32 bytes (16 of halves) at once."""
    return parts.longest(problem, tile_k(problem.a_dtype) // 2)


def workspace_bytes(problem: Any, chunks: int) -> int:
    """The sums of all chunks, 4 bytes each, rows rounded up to whole vectors."""
    return int(problem.batch * chunks * problem.m * round_up(problem.n, vector_length(problem.accumulate)) * 4)


class Mma(Solver):
    """Tensor cores by mma.sync: float16, bfloat16, int8, and float32 as tfloat32 where it is allowed."""

    name = "mma"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if target.capability < (8, 0):
            return f"it needs compute capability 8.0; this GPU has {'.'.join(map(str, target.capability))}"
        refusal = tensor_core_refusal(problem, target)
        if refusal is not None:
            return refusal
        swapped, _ = rows_first(problem)
        for name, layout, dtype in zip("AB", layouts(swapped), (swapped.a_dtype, swapped.b_dtype), strict=True):
            if not layout and dtype in INTEGERS:
                return "int8 fragments are read along k, which must be contiguous in both A and B"
            if not layout:
                return f"neither rows nor columns of {name if swapped is problem else 'BA'[name == 'B']} are contiguous"
        tile = TILES["64x64"]
        if problem.batch * ceil_div(problem.m, tile.m) * ceil_div(problem.n, tile.n) >= 2**31:
            return "there are more tiles than one launch may have blocks"
        return parts.too_long(min(problem.k, self._chunks(swapped)[1]), longest(problem))

    def _chunks(self, problem: Any) -> tuple[int, int]:
        """How many chunks k is cut into, and how long one is."""
        return 1, round_up(max(1, problem.k), 64)

    def _tiles(self, target: Any) -> list[str]:
        return [name for name, tile in TILES.items() if tile.shared <= target.shared_per_block]

    def _work(self, problem: Any, target: Any, name: str) -> cost.Work:
        tile = TILES[name]
        rate = (
            target.peak(problem.a_dtype, tf32=True) * EFFICIENCY[name] * (HOPPER if target.capability >= (9, 0) else 1)
        )
        rate *= min(COPY_EFFICIENCY[width_of(problem, operand, 0)] for operand in (0, 1))
        size = DTYPES[problem.a_dtype].itemsize
        return cost.Work(
            bm=tile.m, bn=tile.n,
            threads=tile.threads,
            blocks_per_multiprocessor=tile.blocks,
            bytes_in_flight=(tile.stages - 1) * (min(tile.m, problem.m) + min(tile.n, problem.n)) * TILE_BYTES,
            rate=rate, element=size,
        )  # fmt: skip

    def _seconds(self, problem: Any, target: Any, name: str) -> float:
        chunks, _ = self._chunks(problem)
        work = self._work(problem, target, name)
        first = cost.tile_seconds(problem, target, work, chunks=chunks, round_k=tile_k(problem.a_dtype))
        if chunks == 1:
            return first
        sums = workspace_bytes(problem, chunks)
        # the sums are written behind the arithmetic, and read by the second kernel
        return first + 0.5 * (cost.sweep_seconds(sums, target) - cost.LAUNCH) + cost.sweep_seconds(sums, target)

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        problem, _ = rows_first(problem)
        # where memory decides all tiles are equal: the smallest then
        ranked = sorted(self._tiles(target), key=lambda name: (self._seconds(problem, target, name), TILES[name].m))
        return tuple({"tile": name} for name in ranked)

    def estimate(self, problem: Any, target: Any) -> float:
        problem, _ = rows_first(problem)
        return min(self._seconds(problem, target, name) for name in self._tiles(target))

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        problem, swapped = rows_first(problem)
        tile = str(config["tile"])
        chunks, chunk = self._chunks(problem)

        def make_form(pointers: Pointers, common: Common) -> Program:
            return mma_form(problem, tile, pointers, common, chunks, chunk)

        launch = make_gemm_launcher(problem, make_form)
        return swapped_launcher(launch) if swapped else launch


def swapped_launcher(launch: Launcher) -> Launcher:
    """The launcher of a transposed problem: A and B change places."""

    def swapped(out, a=None, b=None, *rest, **floats):  # type: ignore[no-untyped-def]
        launch(out, b, a, *rest, **floats)

    swapped.program = lambda: program_of(launch)  # type: ignore[attr-defined]
    return swapped


def mma_form(problem: Any, tile: str, pointers: Pointers, common: Common, chunks: int, chunk: int) -> Program:
    """The step (with chunks: the two steps) of one alignment of the arrays."""
    size, acc = TILES[tile], problem.accumulate
    activation = compiled_kind(problem.activation.kind)
    partial = chunks > 1
    kernel = make_mma(
        problem.a_dtype, problem.b_dtype, problem.out_dtype, *layouts(problem), width_of(problem, 0, pointers.a),
        width_of(problem, 1, pointers.b), tile, "switch" if partial else activation, partial,
    )  # fmt: skip
    tiles_m, tiles_n = ceil_div(problem.m, size.m), ceil_div(problem.n, size.n)
    room = round_up(problem.n, vector_length(acc))
    own = (tiles_m, tiles_n, chunks, chunk, room)
    blocks = problem.batch * chunks * tiles_m * tiles_n
    steps = [step(kernel, blocks, lambda arrays, floats, at: (*common(arrays, floats), at.get("sums", 0), *own))]
    if not partial:
        return Program(steps)
    reduce = make_reduce(problem.a_dtype, problem.out_dtype, activation)
    vectors, rows = room // vector_length(acc), problem.batch * problem.m
    tail = (chunks, room, vectors, rows)
    grid = ceil_div(rows * vectors, REDUCE_THREADS)
    steps.append(step(reduce, grid, lambda arrays, floats, at: (*common(arrays, floats), at["sums"], *tail)))
    return Program(steps, {"sums": workspace_bytes(problem, chunks)})


class MmaSplitK(Mma):
    """`mma` with k in chunks side by side, whose sums a second kernel adds in a fixed order."""

    name = "mma_split_k"

    def _chunks(self, problem: Any) -> tuple[int, int]:
        tiles = problem.batch * ceil_div(problem.m, 128) * ceil_div(problem.n, 128)
        wanted = min(ceil_div(WANTED_BLOCKS, tiles), problem.k // LEAST_CHUNK)
        return parts.chunks_of(problem.k, wanted, workspace_bytes(problem, 1), longest(problem))

    def why_not(self, problem: Any, target: Any) -> str | None:
        refusal = super().why_not(problem, target)
        if refusal is not None:
            return refusal
        chunks, _ = self._chunks(rows_first(problem)[0])
        if chunks < 2:
            return "k is too short, the tiles too many or their sums too large to compute chunks of k side by side"
        if problem.batch * problem.m * chunks >= 2**31 or problem.batch * problem.m * problem.n >= 2**36:
            return "there are too many sums to keep"
        return parts.too_many(workspace_bytes(rows_first(problem)[0], chunks), problem)
