"""`implicit_mma`: every direction as an implicit product (products.py) on tensor cores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numbaprims import settings
from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu import parts
from numbaprims.gpu.conv import implicit
from numbaprims.gpu.conv.arguments import common_values
from numbaprims.gpu.conv.mma_kernel import make_implicit_mma, shared_bytes
from numbaprims.gpu.conv.pack import PACK_THREADS, make_pack
from numbaprims.gpu.conv.products import Product, Steps, products
from numbaprims.gpu.gemm import cost
from numbaprims.gpu.gemm.activations import compiled_kind
from numbaprims.gpu.gemm.arguments import ceil_div, round_up, vector_length
from numbaprims.gpu.gemm.mma import TILES
from numbaprims.gpu.gemm.mma_solvers import EFFICIENCY, HOPPER
from numbaprims.gpu.gemm.tiles import PIECE, TILE_BYTES, tile_k
from numbaprims.gpu.launch import Addresses, Step, make_launcher, program_of, step
from numbaprims.gpu.solver import Solver

# Beside gemm's copies: tables for each piece, or 200 instructions for 16 mma that a thread issues.
FORMS = {"pieces": 0.9, "rows": 0.9, "elements": 0.35}
PACK_BLOCKS = 1024


def gather_form(problem: Any, product: Product, pointer: int) -> str:
    """ "pieces" ("rows") where 16 bytes of k (of v) are neighbours in the source and aligned, else "elements"."""
    per_piece = PIECE // DTYPES[problem.in_dtype].itemsize
    v_order, k_order = implicit.orders(problem)
    # of what has its channels last those are the neighbours, the other index steps over whole pixels
    form, channels, images = ("rows", product.v, product.k) if problem.direction == "weight" else (
        "pieces", product.k, product.v
    )  # fmt: skip
    if (v_order if form == "rows" else k_order) != "fast" or channels.step != 1:
        return "elements"
    steps = (images.step, *product.source_steps, product.source_group, channels.counts[0])
    whole = pointer % PIECE == 0 and all(value % per_piece == 0 for value in steps)
    return form if whole else "elements"


def plain_form(problem: Any, product: Product, pointer: int) -> str:
    """ "matrix" (packed if need be) of weights; of dy "rows" where 16 bytes of channels are neighbours and aligned."""
    if problem.direction != "weight":
        return "matrix"
    per_piece = PIECE // DTYPES[problem.in_dtype].itemsize
    of = product.plain
    steps = (*of.other, of.group, product.u)
    whole = of.u == 1 and pointer % PIECE == 0 and all(value % per_piece == 0 for value in steps)
    return "rows" if whole else "elements"


def staged(problem: Any, *forms: str) -> bool:
    """Whether elements pass through registers, which leaves no room beside more sums than those of a small tile."""
    return "elements" in forms and DTYPES[problem.in_dtype].itemsize == 2


def is_matrix(problem: Any, product: Product, pointer: int) -> bool:
    """Whether the rows of the plain matrix lie as they are multiplied, every 16 bytes aligned."""
    per_piece = PIECE // DTYPES[problem.in_dtype].itemsize
    c, d, h, w = product.k.counts
    fast = implicit.orders(problem)[1] == "fast"
    wanted = (1, h * w * c, w * c, c) if fast else (d * h * w, h * w, w, 1)
    lies = all(
        count <= 1 or have == want
        for count, have, want in zip(product.k.counts, product.plain.other, wanted, strict=True)
    )
    starts = (product.plain.u if product.u > 1 else 0, product.plain.base, product.plain.group, product.k.length)
    return lies and pointer % PIECE == 0 and all(value % per_piece == 0 for value in starts)


def chunks_of(problem: Any, product: Product) -> tuple[int, int]:
    """How many chunks k is cut into, and how long one is; an instruction adds the terms of 32 bytes at once."""
    return implicit.chunks_of(problem, product, tile_k(problem.in_dtype) // 2)


class ImplicitMma(Solver):
    """Tensor cores by mma.sync: float16, bfloat16, and float32 as tfloat32 where it is allowed."""

    name = "implicit_mma"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if target.capability < (8, 0):
            return f"it needs compute capability 8.0; this GPU has {'.'.join(map(str, target.capability))}"
        found = implicit.refusal(problem)
        if found is not None:
            return found
        if problem.accumulate == "f64":
            return "float64 is computed without tensor cores"
        if problem.in_dtype == "f32" and not settings.current().allow_tf32:
            return "it would round float32 to the 10 bits of tfloat32; config(allow_tf32=True) allows that"
        if min(product.u for product in products(problem)) == 0:
            return "there is nothing to multiply"
        return parts.too_many(implicit.sums_bytes(problem) if problem.direction == "weight" else 0, problem)

    def _tiles(self, problem: Any, target: Any, product: Product) -> list[str]:
        if staged(problem, gather_form(problem, product, 0), plain_form(problem, product, 0)):
            return ["64x64"]
        return [name for name in TILES if shared_bytes(name) <= target.shared_per_block]

    def _seconds(self, problem: Any, target: Any, tile: str, made: list[Product]) -> float:
        shape, product = TILES[tile], made[0]
        chunks, _ = chunks_of(problem, product)
        rate = target.peak(problem.in_dtype, tf32=True) * EFFICIENCY[tile]
        forms = gather_form(problem, product, 0), plain_form(problem, product, 0)
        rate *= (HOPPER if target.capability >= (9, 0) else 1) * min(FORMS.get(form, 1.0) for form in forms)
        work = cost.Work(
            bm=shape.m, bn=shape.n, threads=shape.threads, blocks_per_multiprocessor=shape.blocks,
            bytes_in_flight=(shape.stages - 1) * (shape.m + shape.n) * TILE_BYTES, rate=rate,
            element=DTYPES[problem.in_dtype].itemsize,
        )  # fmt: skip
        g = implicit.as_gemm(problem, product)
        one = cost.tile_seconds(g, target, work, chunks=chunks, round_k=tile_k(problem.in_dtype))
        if chunks > 1:
            one += 1.5 * cost.sweep_seconds(implicit.workspace_bytes(problem, product, chunks), target)
        if problem.direction != "weight" and not is_matrix(problem, product, 0):
            one += cost.sweep_seconds(2 * packed_bytes(problem, product), target)
        return len(made) * one

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        made = products(problem)
        tiles = self._tiles(problem, target, made[0])
        ranked = sorted(tiles, key=lambda tile: (self._seconds(problem, target, tile, made), TILES[tile].m))
        return tuple({"tile": tile} for tile in ranked)

    def estimate(self, problem: Any, target: Any) -> float:
        made = products(problem)
        return min(self._seconds(problem, target, tile, made) for tile in self._tiles(problem, target, made[0]))

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        return None

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        made, tile = products(problem), str(config["tile"])
        known: dict[tuple[int, ...], Launcher] = {}

        def make(key: tuple[int, ...]) -> Launcher:
            found = [self._steps(problem, product, tile, *key) for product in made]
            steps = [one for more, _ in found for one in more]
            regions: dict[str, int] = {}
            for _, needed in found:
                regions |= {name: max(nbytes, regions.get(name, 0)) for name, nbytes in needed.items()}
            return known.setdefault(key, make_launcher(steps, regions))

        make((0, 0, 0, 0))

        def launch(  # type: ignore[no-untyped-def]
            a0, a1=None, a2=None, a3=None, a4=None, a5=None, a6=None, f0=0.0, f1=0.0, f2=0.0, f3=0.0, f4=0.0, f5=0.0
        ):
            key = (a0.pointer & 15, a1.pointer & 15, a2.pointer & 15, 0 if a3 is None else a3.pointer & 15)
            found = known.get(key) or make(key)
            found(a0, a1, a2, a3, a4, a5, a6, f0, f1, f2, f3, f4, f5)

        launch.program = lambda: program_of(make((0, 0, 0, 0)))  # type: ignore[attr-defined]
        return launch

    def _steps(
        self, problem: Any, product: Product, tile: str, out: int, first: int, second: int, c: int
    ) -> tuple[list[Step], dict[str, int]]:  # fmt: skip
        """The steps of one product (the plain matrix is packed, tiles are multiplied, chunks added up) and regions."""
        p, shape = problem, TILES[tile]
        chunks, chunk = chunks_of(p, product)
        by_u = implicit.rows_are_u(p, product)
        activation = compiled_kind(p.activation.kind)
        v_order, k_order = implicit.orders(p)
        weight = p.direction == "weight"
        form = gather_form(p, product, second if weight else first)
        packs = not weight and not is_matrix(p, product, second)
        plain = plain_form(p, product, first if weight else second)
        if staged(p, form, plain) and tile != "64x64":
            # of an array that begins elsewhere than the tile was chosen for
            tile, shape = "64x64", TILES["64x64"]
        kernel = make_implicit_mma(
            p.in_dtype, p.out_dtype, tile, plain, form, v_order, k_order, by_u, p.planar,
            "switch" if chunks > 1 else activation, chunks > 1,
        )  # fmt: skip
        steps: list[Step] = []
        common = common_values(p)
        regions: dict[str, int] = {}
        multiplied = product
        if packs:
            regions["packed"] = packed_bytes(p, product)
            pitch = pitch_of(p, product)
            steps.append(pack_step(p, product, k_order))
            multiplied = product._replace(plain=Steps(pitch, (0, 0, 0, 0), 0, product.u * pitch))
        bu, bv = (shape.m, shape.n) if by_u else (shape.n, shape.m)
        tiles_u, tiles_v = ceil_div(product.u, bu), ceil_div(product.v.length, bv)
        columns = product.v.length if by_u else product.u
        room = round_up(columns, vector_length(p.accumulate))
        numbers = implicit.integers(multiplied, (2 if by_u else 1) if p.bias else 0)
        tiling = (tiles_u, tiles_v, chunks, chunk, room, implicit.vector_flags(p, product, out, c))

        def values(arrays: Any, floats: Any, at: Addresses) -> tuple[Any, ...]:
            out, first, second, *rest = common(arrays, floats)
            operands = (second, first) if weight else (first, at["packed"] if packs else second)
            return (out, *operands, *rest, *numbers, at["sums"] if chunks > 1 else 0, *tiling)

        steps.append(step(kernel, p.groups * chunks * tiles_u * tiles_v, values))
        if chunks > 1:
            steps.append(implicit.reduce_step(p, product, by_u, v_order, chunks, room, common))
            regions["sums"] = implicit.workspace_bytes(p, product, chunks)
        return steps, regions


def pitch_of(problem: Any, product: Product) -> int:
    """Elements from row to row of a packed matrix."""
    return round_up(max(1, product.k.length), PIECE // DTYPES[problem.in_dtype].itemsize)


def packed_bytes(problem: Any, product: Product) -> int:
    """Of a packed matrix."""
    return int(problem.groups * product.u * pitch_of(problem, product) * DTYPES[problem.in_dtype].itemsize)


def pack_step(problem: Any, product: Product, order: str) -> Step:
    """The step that packs the plain matrix into the region "packed"."""
    pitch, of = pitch_of(problem, product), product.plain
    elements = problem.groups * product.u * pitch
    tail = (
        elements, product.u, product.k.length, pitch, *(max(1, count) for count in product.k.counts), of.u, *of.other,
        of.base, of.group,
    )  # fmt: skip
    blocks = min(PACK_BLOCKS, ceil_div(elements, PACK_THREADS))
    return step(
        make_pack(problem.in_dtype, order), blocks, lambda arrays, _, at: (at["packed"], arrays[2].pointer, *tail)
    )
