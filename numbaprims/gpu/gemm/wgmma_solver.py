"""The solver on wgmma, and the tensor maps of its launches.

A tensor map holds an array's address, so there is one pair of maps for each pair of operands that a launcher meets:
encoded by the driver on the host, 256 bytes, kept, and passed by value at each launch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu import driver, parts, seam
from numbaprims.gpu.gemm import cost
from numbaprims.gpu.gemm.activations import compiled_kind
from numbaprims.gpu.gemm.arguments import batch_of, ceil_div, rows_aligned
from numbaprims.gpu.gemm.launching import Common, Pointers, make_gemm_launcher
from numbaprims.gpu.gemm.mma_solvers import (
    INTEGERS,
    Mma,
    layouts,
    longest,
    rows_first,
    swapped_launcher,
    tensor_core_refusal,
)
from numbaprims.gpu.gemm.wgmma import ROW, TILES, Tile, make_wgmma
from numbaprims.gpu.gemm.wgmma_epilogue import BIASED, PLAIN, RELU
from numbaprims.gpu.launch import Program, program_of, step
from numbaprims.gpu.solver import Solver

# Fitted to an H100 (80 GB HBM3; graphs of 20 products, 512 to 4096 cubed and 4096 x 1024 x 1024): within 16 %.
#: The part of the tensor cores' peak that tiles reach; and of that, narrow ones, which read shared memory more often.
RATE, NARROW = 0.75, {256: 1.0, 128: 0.91, 64: 0.55}
#: Bytes a second that one multiprocessor gets from the second-level cache: 64 a clock.
COPIES = 1.17e11
#: Pairs of tensor maps that one launcher keeps, one for each pair of operands' addresses that it has met.
KEPT_MAPS = 1024
#: The longest stride that a tensor map describes, bytes.
LONGEST_STRIDE = 2**40


class Shape:
    """One operand as a tensor map describes it: (contiguous, other, product of the batch)."""

    def __init__(self, problem: Any, operand: int, tile: str) -> None:
        size = TILES[tile]
        s = problem.strides
        self.dtype: str = (problem.a_dtype, problem.b_dtype)[operand]
        self.size = DTYPES[self.dtype].itemsize
        self.along_k = layouts(problem)[operand] == "k"
        outer, along_k = (s.a, s.b[::-1])[operand]
        extent = (problem.m, problem.n)[operand]
        rows = (size.m, size.n)[operand]
        lengths = (problem.k, extent) if self.along_k else (extent, problem.k)
        stride = (outer if self.along_k else along_k) * self.size
        batch = batch_of(problem).strides[operand] * self.size
        self.batched = int(problem.batch > 1 and batch != 0)
        # a stride that no step is taken by may be any that is allowed
        row = stride if lengths[1] > 1 else ceil_div(max(lengths[0], 1) * self.size, 16) * 16
        self.shape = (*lengths, problem.batch if self.batched else 1)
        self.strides = (row, batch if self.batched else row)
        self.box = (ROW // self.size, rows if self.along_k else ROW // self.size, 1)

    def refusal(self, name: str) -> str | None:
        """Why no tensor map describes it."""
        if any(stride % 16 or not 0 < stride < LONGEST_STRIDE for stride in self.strides):
            return f"tensor copies need strides that are positive multiples of 16 bytes; {name}'s are {self.strides}"
        return None


def resident(tile: Tile, target: Any) -> int:
    """Blocks that the GPU runs at a time."""
    return int(target.multiprocessors) * max(1, target.shared_per_multiprocessor // (tile.shared + 1024))


def way_of(problem: Any, out: int) -> int:
    """Which end of wgmma_epilogue.py the sums take: BIASED, too, if the bias lies at a multiple of 4 bytes; out begins
    at `out`."""
    halves = problem.a_dtype in ("f16", "bf16") and problem.out_dtype in ("f16", "bf16")
    if not halves or problem.has_c or problem.activation.kind not in ("identity", "relu"):
        return 0
    if problem.n % 8 or not rows_aligned(problem, 2, out, 16):
        return 0
    if problem.bias == "none":
        return RELU if problem.activation.kind == "relu" else PLAIN
    return BIASED if problem.bias == "n" and problem.strides.bias == 1 else 0


class Maps:
    """The tensor maps of a launcher's operands, A's and then B's, as a kernel takes them, by device and addresses."""

    def __init__(self, a: Shape, b: Shape) -> None:
        self._shapes = (a, b)
        self._known: dict[tuple[int, int, int], Any] = {}

    def of(self, a: Any, b: Any) -> Any:
        key = (a.origin.index, a.pointer, b.pointer)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= KEPT_MAPS:
                self._known.clear()
            found = self._known[key] = self._make(*key)
        return found

    def _make(self, device: int, *pointers: int) -> Any:
        made = (
            driver.current(device).tensor_map(pointer, x.dtype, x.shape, x.strides, x.box)
            for x, pointer in zip(self._shapes, pointers, strict=True)
        )
        return seam.struct_of(np.concatenate([*made]), pointers)


class Wgmma(Solver):
    """Tensor cores by wgmma, tiles by TMA: float16, bfloat16 and int8 on compute capability 9.0."""

    name = "wgmma"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if target.capability[0] != 9:
            return f"wgmma is an instruction of compute capability 9.0; this GPU has {target.arch[3:]}"
        if problem.a_dtype == "f32":
            return "wgmma would cut float32 to tfloat32 where mma rounds it"
        refusal = tensor_core_refusal(problem, target)
        if refusal is not None:
            return refusal
        if problem.a_dtype != problem.b_dtype:
            return "it takes operands of one type"
        problem, _ = rows_first(problem)
        if "" in layouts(problem):
            if problem.a_dtype in INTEGERS:
                return "int8 is read along k, which must be contiguous in both A and B"
            return "neither rows nor columns of an operand are contiguous"
        if batch_of(problem).offsets is not None:
            return "the batch's products do not follow one another evenly"
        tile = TILES["64x64"]
        if problem.batch * ceil_div(problem.m, tile.m) * ceil_div(problem.n, tile.n) >= 2**31:
            return "there are more tiles than one launch may have blocks"
        for operand, name in enumerate("AB"):
            refusal = Shape(problem, operand, "64x128").refusal(name)
            if refusal is not None:
                return refusal
        return parts.too_long(problem.k, longest(problem))

    def _seconds(self, problem: Any, target: Any, name: str) -> float:
        """Blocks take tile after tile; a stage takes as long as its products, or as its bytes from the cache.

        What the last round writes comes after all products.
        """
        tile = TILES[name]
        size = DTYPES[problem.a_dtype].itemsize
        tiles = problem.batch * ceil_div(problem.m, tile.m) * ceil_div(problem.n, tile.n)
        rate = RATE * NARROW[tile.n] * target.peak(problem.a_dtype) / target.multiprocessors
        products = 2.0 * tile.m * tile.n * ROW / size / rate
        copies = (min(tile.m, problem.m) + min(tile.n, problem.n)) * ROW / COPIES
        stages = ceil_div(problem.k * size, ROW)
        rounds = ceil_div(tiles, target.multiprocessors)
        out = problem.batch * problem.m * problem.n * DTYPES[problem.out_dtype].itemsize * (2 if problem.has_c else 1)
        operands = problem.batch * problem.k * (problem.m + problem.n) * size
        memory = (operands + out) / (cost.MEMORY * target.bandwidth)
        last = out / rounds / (cost.MEMORY * target.bandwidth)
        return cost.LAUNCH + max(rounds * stages * max(products, copies) + last, memory)

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        problem, _ = rows_first(problem)
        ranked = sorted(TILES, key=lambda name: (self._seconds(problem, target, name), TILES[name].m * TILES[name].n))
        return tuple({"tile": name} for name in ranked)

    def estimate(self, problem: Any, target: Any) -> float:
        problem, _ = rows_first(problem)
        return min(self._seconds(problem, target, name) for name in TILES)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        given, (problem, swapped) = problem, rows_first(problem)
        tile = str(config["tile"])
        size = TILES[tile]
        shapes = Shape(problem, 0, tile), Shape(problem, 1, tile)
        maps = Maps(*shapes)
        kernel = make_wgmma(
            problem.a_dtype, problem.b_dtype, problem.out_dtype, *layouts(problem), tile,
            compiled_kind(problem.activation.kind),
        )  # fmt: skip
        tiles_m, tiles_n = ceil_div(problem.m, size.m), ceil_div(problem.n, size.n)
        tiles = problem.batch * tiles_m * tiles_n
        blocks = min(tiles, resident(size, target))

        def make_form(pointers: Pointers, common: Common) -> Program:
            own = (tiles_m, tiles_n, tiles, shapes[0].batched, shapes[1].batched)
            way = way_of(problem, pointers.out)

            def values(arrays: tuple[Any, ...], floats: tuple[float, ...], _: Any) -> tuple[Any, ...]:
                return (*common(arrays, floats), maps.of(arrays[1], arrays[2]), *own, way)

            def values_biased(arrays: tuple[Any, ...], floats: tuple[float, ...], at: Any) -> tuple[Any, ...]:
                given = values(arrays, floats, at)
                return (*given[:-1], 0) if arrays[4].pointer & 3 else given

            return Program([step(kernel, blocks, values_biased if way == BIASED else values)])

        launch = make_gemm_launcher(problem, make_form)
        by_tma = swapped_launcher(launch) if swapped else launch
        others: list[Launcher] = []

        def choose(out, a=None, b=None, *rest, **floats):  # type: ignore[no-untyped-def]
            # a tensor map begins at a multiple of 16 bytes; views that do not are mma's
            if (a.pointer | b.pointer) & 15:
                if not others:
                    mma = Mma()
                    others.append(mma.bind(given, target, next(iter(mma.configs(given, target)))))
                others[0](out, a, b, *rest, **floats)
            else:
                by_tma(out, a, b, *rest, **floats)

        choose.program = lambda: program_of(by_tma)  # type: ignore[attr-defined]
        return choose
