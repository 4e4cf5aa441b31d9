"""`implicit_gemm`: every direction as an implicit product (products.py) on the multipliers of ordinary arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu import parts
from numbaprims.gpu.conv.arguments import LARGEST, common_values, operand_dtypes
from numbaprims.gpu.conv.ending import REDUCE_THREADS, make_reduce
from numbaprims.gpu.conv.implicit_kernel import make_implicit, shared_bytes
from numbaprims.gpu.conv.products import Digits, Product, Steps, products, spans
from numbaprims.gpu.gemm import cost
from numbaprims.gpu.gemm.activations import compiled_kind
from numbaprims.gpu.gemm.arguments import C_VECTORS, OUT_VECTORS, ceil_div, round_up, vector_length
from numbaprims.gpu.gemm.loads import words_of
from numbaprims.gpu.gemm.sizes import TILES, efficiency
from numbaprims.gpu.launch import Addresses, Step, make_launcher, program_of, step
from numbaprims.gpu.solver import Solver

#: Copies of single words with their tables, beside gemm's vectors: 220 instructions for 2304.
GATHERED = 0.9
MOST_PHASES = 64
"""Products of one data gradient; each is a launch of its own."""
#: Blocks that fill a large GPU; a constant, because chunks must not depend on the GPU: results would.
WANTED_BLOCKS = 264
LEAST_CHUNK = 256


def rows_are_u(problem: Any, product: Product) -> bool:
    """Whether a tile's rows are u: its columns are neighbours in the result, and so what has step 1 there."""
    return problem.direction == "weight" or product.out.u != 1 or problem.group_k == 1


def orders(problem: Any) -> tuple[str, str]:
    """The orders of v's and of k's digits: "fast" where c is the last one, because the source has its channels last."""
    last = (problem.y_order if problem.direction == "data" else problem.x_order) == "channels_last"
    fast = "fast" if last else "slow"
    return ("slow", fast) if problem.direction != "weight" else (fast, "slow")


def ways(problem: Any, product: Product) -> tuple[str, str]:
    """Whether lanes are neighbours in u (v) or in k, for the plain matrix and for the source."""
    v_order, k_order = orders(problem)
    if problem.direction == "weight":
        gathered = "k" if v_order == "slow" and product.source_steps[2] == 1 else "o"
    else:
        gathered = "k" if k_order == "fast" else "o"
    return ("o" if product.plain.u == 1 else "k"), gathered


def chunks_of(problem: Any, product: Product, at_once: int = 1) -> tuple[int, int]:
    """How many chunks k is cut into, and how long one is: by the problem only.

    None of a weight's gradient, a sum over all pixels, is longer than one sum may be where instructions add `at_once`
    terms; the others are sums over the channels and taps of a group.
    """
    k = product.k.length
    if problem.direction == "data" and max(problem.stride) > 1:
        return 1, round_up(max(1, k), 64)
    tiles = problem.groups * ceil_div(product.u, 64) * ceil_div(product.v.length, 64)
    wanted = min(ceil_div(WANTED_BLOCKS, tiles), k // LEAST_CHUNK)
    most = parts.longest(problem, at_once) if problem.direction == "weight" else max(1, k)
    return parts.chunks_of(k, wanted, workspace_bytes(problem, product, 1), most)


def sums_bytes(problem: Any) -> int:
    """Of the first product, the largest."""
    product = products(problem)[0]
    chunks, _ = chunks_of(problem, product)
    return workspace_bytes(problem, product, chunks) if chunks > 1 else 0


def workspace_bytes(problem: Any, product: Product, chunks: int) -> int:
    """The sums of all chunks, rows rounded up to whole vectors."""
    vector = vector_length(problem.accumulate)
    rows, columns = product.u, product.v.length
    if not rows_are_u(problem, product):
        rows, columns = columns, rows
    return int(problem.groups * chunks * rows * round_up(columns, vector) * DTYPES[problem.accumulate].itemsize)


def refusal(problem: Any) -> str | None:
    """What no implicit product takes, whatever multiplies."""
    if problem.direction == "bias":
        return "it multiplies, and this is a sum"
    if problem.accumulate == "i32":
        return "it computes in floating point"
    if spans(problem) >= LARGEST:
        return "an array is too large for 32-bit offsets"
    made = products(problem) if problem.direction != "data" or phases(problem) <= MOST_PHASES else []
    if not made:
        return f"a stride of {problem.stride} makes {phases(problem)} products of it"
    if max(max(p.v.length, p.k.length, p.u) for p in made) >= LARGEST:
        return "there are more pixels than 32-bit indices"
    return None


def phases(problem: Any) -> int:
    """The products of a data gradient."""
    d, h, w = map(min, problem.stride, problem.x_size)
    return int(d * h * w)


def as_gemm(problem: Any, product: Product) -> Any:
    """The sizes of a product as gemm's cost model takes them."""
    m, n = product.u, product.v.length
    if not rows_are_u(problem, product):
        m, n = n, m
    return SimpleNamespace(
        batch=problem.groups, m=m, n=n, k=product.k.length, out_dtype=problem.out_dtype, has_c=problem.has_c
    )


def integers(product: Product, bias_axis: int) -> tuple[int, ...]:
    """The parameters of a kernel from u_count to c_group."""
    v, k = product.v, product.k

    def radices(digits: Digits) -> tuple[int, ...]:
        return tuple(max(1, count) for count in digits.counts)

    def steps(of: Steps) -> tuple[int, ...]:
        return (of.u, *of.other, of.base, of.group)

    return (
        product.u, v.length, k.length, *radices(v), *v.gain, *v.base, *radices(k), *k.gain, v.step, k.step,
        *product.source_steps, *product.source_size, bias_axis, *steps(product.plain), product.source_group,
        *steps(product.out), *steps(product.c),
    )  # fmt: skip


def vector_flags(problem: Any, product: Product, out: int, c: int) -> int:
    """Whether vectors of the result and of c may begin at their arrays' multiples of a vector."""
    size = DTYPES[problem.out_dtype].itemsize
    V = vector_length(problem.accumulate)
    bits = 0
    for bit, address, of in ((OUT_VECTORS, out, product.out), (C_VECTORS, c, product.c)):
        if rows_are_u(problem, product):
            # where v's neighbours begin is looked at one by one
            whole = all(value % V == 0 for value in (of.u, of.group))
        else:
            whole = of.u == 1 and all(value % V == 0 for value in (*of.other, of.base, of.group))
        bits |= bit if whole and address % (V * size) == 0 else 0
    return bits


def swapped(values: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Common values with the operands in each other's place."""

    def other(arrays: tuple[Any, ...], floats: tuple[float, ...]) -> tuple[Any, ...]:
        out, first, second, *rest = values(arrays, floats)
        return (out, second, first, *rest)

    return other


def by_alignment(make: Callable[[int, int], Launcher]) -> Launcher:
    """A launcher that makes the steps for each alignment of the result and of c that it meets."""
    known: dict[tuple[int, int], Launcher] = {}

    def launch(  # type: ignore[no-untyped-def]
        a0, a1=None, a2=None, a3=None, a4=None, a5=None, a6=None, f0=0.0, f1=0.0, f2=0.0, f3=0.0, f4=0.0, f5=0.0
    ):
        key = (a0.pointer & 15, 0 if a3 is None else a3.pointer & 15)
        found = known.get(key)
        if found is None:
            found = known.setdefault(key, make(*key))
        found(a0, a1, a2, a3, a4, a5, a6, f0, f1, f2, f3, f4, f5)

    launch.program = lambda: program_of(make(0, 0))  # type: ignore[attr-defined]
    return launch


class ImplicitGemm(Solver):
    """Tiles of an implicit matrix product: what the windows see is gathered on the way into shared memory."""

    name = "implicit_gemm"

    def why_not(self, problem: Any, target: Any) -> str | None:
        found = refusal(problem)
        if found is not None:
            return found
        if DTYPES[problem.in_dtype].itemsize == 2:
            return "half precisions are multiplied on tensor cores"
        if self._blocks(problem, "16x128") >= 2**31:
            return "there are more tiles than one launch may have blocks"
        return parts.too_many(sums_bytes(problem), problem)

    def _blocks(self, problem: Any, tile: str) -> int:
        size, product = TILES[tile], products(problem)[0]
        g = as_gemm(problem, product)
        return int(g.batch * chunks_of(problem, product)[0] * ceil_div(g.m, size.bm) * ceil_div(g.n, size.bn))

    def _tiles(self, problem: Any) -> list[str]:
        # 64 sums of 8 bytes a thread do not fit beside their operands
        most = 32 if problem.in_dtype == "f64" else 64
        return [name for name, size in TILES.items() if size.tm * size.tn <= most and not size.mma]

    def _seconds(self, problem: Any, target: Any, tile: str, made: list[Product]) -> float:
        size, word = TILES[tile], words_of(problem.in_dtype).size
        product = made[0]
        chunks, _ = chunks_of(problem, product)
        shared = shared_bytes(problem.in_dtype, tile)[1]
        blocks = target.blocks_per_multiprocessor(size.threads, size.registers(word), shared)
        work = cost.Work(
            bm=size.bm, bn=size.bn, threads=size.threads, blocks_per_multiprocessor=max(1, blocks),
            bytes_in_flight=(size.stages - 1) * size.bk * (size.bm + size.bn) * word,
            rate=target.peak(problem.in_dtype) * efficiency(tile) * GATHERED, element=word,
        )  # fmt: skip
        one = cost.tile_seconds(as_gemm(problem, product), target, work, chunks=chunks, round_k=4)
        if chunks > 1:
            one += 1.5 * cost.sweep_seconds(workspace_bytes(problem, product, chunks), target)
        return len(made) * one

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        made = products(problem)
        ranked = sorted(self._tiles(problem), key=lambda tile: self._seconds(problem, target, tile, made))
        return tuple({"tile": tile} for tile in ranked)

    def estimate(self, problem: Any, target: Any) -> float:
        made = products(problem)
        return min(self._seconds(problem, target, tile, made) for tile in self._tiles(problem))

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        return None

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        made, tile = products(problem), str(config["tile"])

        def make(out: int, c: int) -> Launcher:
            steps: list[Step] = []
            needed = 0
            for product in made:
                more, sums = self._steps(problem, product, tile, out, c)
                steps += more
                needed = max(needed, sums)
            return make_launcher(steps, {"sums": needed} if needed else None)

        make(0, 0)
        return by_alignment(make)

    def _steps(self, problem: Any, product: Product, tile: str, out: int, c: int) -> tuple[list[Step], int]:
        """The step of a product (with chunks: the two steps), and the bytes of its sums."""
        p, size = problem, TILES[tile]
        chunks, chunk = chunks_of(p, product)
        by_u = rows_are_u(p, product)
        activation = compiled_kind(p.activation.kind)
        v_order, k_order = orders(p)
        kernel = make_implicit(
            p.in_dtype, p.out_dtype, tile, *ways(p, product), v_order, k_order, by_u, p.planar,
            "switch" if chunks > 1 else activation, chunks > 1,
        )  # fmt: skip
        bu, bv = (size.bm, size.bn) if by_u else (size.bn, size.bm)
        tiles_u, tiles_v = ceil_div(product.u, bu), ceil_div(product.v.length, bv)
        columns = product.v.length if by_u else product.u
        room = round_up(columns, vector_length(p.accumulate))
        numbers = integers(product, (2 if by_u else 1) if p.bias else 0)
        tiling = (tiles_u, tiles_v, chunks, chunk, room, vector_flags(p, product, out, c))
        common = common_values(p)
        operands = swapped(common) if p.direction == "weight" else common
        blocks = p.groups * chunks * tiles_u * tiles_v

        def values(arrays: Any, floats: Any, at: Addresses) -> tuple[Any, ...]:
            return (*operands(arrays, floats), *numbers, at.get("sums", 0), *tiling)

        steps = [step(kernel, blocks, values)]
        if chunks == 1:
            return steps, 0
        steps.append(reduce_step(p, product, by_u, v_order, chunks, room, common))
        return steps, workspace_bytes(p, product, chunks)


def reduce_step(
    problem: Any, product: Product, by_u: bool, v_order: str, chunks: int, room: int, common: Any
) -> Step:  # fmt: skip
    """The step that adds up the chunks in the region "sums"."""
    p = problem
    reduce = make_reduce(operand_dtypes(p)[0], p.out_dtype, compiled_kind(p.activation.kind), v_order, by_u)
    v = product.v
    tail = (
        chunks, p.groups, product.u, v.length, *v.counts, room, product.out.u, *product.out.other, product.out.group,
        product.c.u, *product.c.other, product.c.group,
    )  # fmt: skip
    grid = ceil_div(p.groups * product.u * v.length, REDUCE_THREADS)
    return step(reduce, grid, lambda arrays, floats, at: (*common(arrays, floats), at["sums"], *tail))
