"""`direct`: few channels a group, without tensor cores and without unfolding: first layers, grouped layers.

A tile of an implicit product is 16 or more channels deep and wide; three channels of an image or four of a group are
padded to it.  Here a thread keeps 4 pixels of 16, 8 or 4 channels, whatever the depth, so that nothing is padded but
the edges.  Forward, and the data gradient, with a stride one product for each phase (products.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.conv import implicit
from numbaprims.gpu.conv.arguments import common_values
from numbaprims.gpu.conv.depthwise import row_flags
from numbaprims.gpu.conv.direct_kernel import (
    PACK_THREADS,
    THREADS,
    TILES,
    WARPS,
    Room,
    Tile,
    Window,
    make_direct,
    make_direct_pack,
    room_of,
)
from numbaprims.gpu.conv.products import Product, products
from numbaprims.gpu.gemm import cost
from numbaprims.gpu.gemm.activations import compiled_kind
from numbaprims.gpu.gemm.arguments import C_VECTORS, OUT_VECTORS, ceil_div, round_up, vector_length
from numbaprims.gpu.launch import Addresses, Step, make_launcher, program_of, step
from numbaprims.gpu.solver import Solver

MOST_CHANNELS = 64
"""Channels of a group that are multiplied; with more, tiles of a product reuse what they copy better."""
MOST_TAPS = 16
WIDEST = 16
"""Neighbours in a row, of those with one remainder by the stride, that the taps may lie apart."""
MOST_SHARED = 96 * 1024
PACK_BLOCKS = 1 << 16
#: The part of the clocks that issue something, with warps enough: barriers, and copies that are waited for.
EFFICIENCY = 0.9


def rightwards(product: Product) -> Product:
    """The same product with the taps in the order in which they lie in the source."""
    gain, base, other, begin = list(product.k.gain), list(product.v.base), list(product.plain.other), product.plain.base
    for axis in range(3):
        last = product.k.counts[1 + axis] - 1
        if gain[axis] < 0:
            base[axis] += last * gain[axis]
            begin += last * other[1 + axis]
            gain[axis], other[1 + axis] = -gain[axis], -other[1 + axis]
    return product._replace(
        v=product.v._replace(base=(base[0], base[1], base[2])), k=product.k._replace(gain=(gain[0], gain[1], gain[2])),
        plain=product.plain._replace(other=(other[0], other[1], other[2], other[3]), base=begin),
    )  # fmt: skip


def window_of(product: Product) -> Window:
    """What the kernel has in its code; steps that nobody takes are 1."""
    v, k = product.v, product.k
    # counts begin with the channels (images)
    gain = [v.gain[i] if v.counts[1 + i] > 1 else 1 for i in (1, 2)]
    gap = [k.gain[i] if k.counts[1 + i] > 1 else 1 for i in (1, 2)]
    return Window(max(1, k.counts[2]), max(1, k.counts[3]), *gain, *gap)


def planes_of(product: Product) -> int:
    """Channels times taps of the depth; 0 where the pixels of a phase meet no tap."""
    c, z, r, s = product.k.counts
    return c * z if r * s else 0


def is_channels_last(product: Product) -> bool:
    """Whether channels of the result are neighbours."""
    return product.out.u == 1 and product.u > 1


def packed_room(product: Product, tile: Tile) -> int:
    """Channels from tap to tap of packed weights."""
    return round_up(product.u, tile.bk)


def packed_elements(problem: Any, product: Product, tile: Tile) -> int:
    """Of one product."""
    return int(problem.groups * product.k.length * packed_room(product, tile))


def pack_step(problem: Any, product: Product, tile: Tile, to: str | None) -> Step:
    """launch(packed, _, weights): packs the weights, into a region where one is named."""
    room, of = packed_room(product, tile), product.plain
    elements = packed_elements(problem, product, tile)
    numbers = (elements, room, product.u, *(max(1, n) for n in product.k.counts), of.u, *of.other, of.base, of.group)
    blocks = max(1, min(PACK_BLOCKS, ceil_div(elements, PACK_THREADS)))
    return step(
        make_direct_pack(problem.w_dtype), blocks,
        lambda arrays, _, at: (at[to] if to else arrays[0].pointer, arrays[2].pointer, *numbers),
    )  # fmt: skip


def vector_flags(problem: Any, product: Product, out: int, c: int) -> int:
    """Whether vectors of the result and of c may begin at multiples of four."""
    if not is_channels_last(product):
        return row_flags(problem, product, out, c)
    size, V = DTYPES[problem.out_dtype].itemsize, vector_length(problem.accumulate)
    bits = 0
    for bit, address, of in ((OUT_VECTORS, out, product.out), (C_VECTORS, c, product.c)):
        starts = (*of.other, of.base, of.group)
        if of.u == 1 and address % (V * size) == 0 and all(value % V == 0 for value in starts):
            bits |= bit
    return bits


class Direct(Solver):
    """Channels times neighbouring pixels in registers, rows of the input and weights in shared memory."""

    name = "direct"

    def why_not(self, problem: Any, target: Any) -> str | None:
        p = problem
        if p.direction not in ("forward", "data"):
            return f"direction {p.direction} is not one of forward and data"
        found = implicit.refusal(p)
        if found is not None:
            return found
        if p.accumulate != "f32":
            return "it keeps its sums in float32"
        depth = p.group_c if p.direction == "forward" else p.group_k
        if depth > MOST_CHANNELS:
            return f"a group has {depth} channels to add up, more than {MOST_CHANNELS}"
        if max(p.kernel) > MOST_TAPS:
            return f"a kernel of {max(p.kernel)} elements is wider than {MOST_TAPS}"
        if not self._tiles(p):
            return "the rows that one window sees do not fit into shared memory"
        if max(self._blocks(p, q, tile) for q in made(p) for tile in TILES.values()) >= 2**31:
            return "there are more tiles than one launch may have blocks"
        return None

    def _tiles(self, problem: Any) -> list[str]:
        """Those whose rows are short enough and fit, for all products."""
        windows = {(window_of(q), is_channels_last(q)) for q in made(problem)}
        if any((w.taps_w - 1) * w.gap_w // w.gain_w > WIDEST for w, _ in windows):
            return []
        return [
            name for name, tile in TILES.items() if all(4 * room_of(tile, *w).words <= MOST_SHARED for w in windows)
        ]

    def _blocks(self, problem: Any, product: Product, tile: Tile) -> int:
        n, d, h, w = product.v.counts
        return int(problem.groups * n * d * ceil_div(h, tile.bh) * ceil_div(w, tile.bw) * ceil_div(product.u, tile.bk))

    def _seconds(self, problem: Any, target: Any, name: str) -> float:
        tile, p = TILES[name], problem
        total = 0.0
        for product in made(p):
            window = window_of(product)
            room = room_of(tile, window, is_channels_last(product))
            total += self._product_seconds(p, target, product, tile, window, room)
            if not p.prepared:
                total += cost.sweep_seconds(4 * packed_elements(p, product, tile), target)
        return total

    def _product_seconds(
        self, problem: Any, target: Any, product: Product, tile: Tile, window: Window, room: Room
    ) -> float:  # fmt: skip
        """Clocks of a multiprocessor for a tile, by the instructions that its four warps issue, and bytes."""
        p, planes = problem, planes_of(product)
        taps = window.taps_h * window.taps_w
        products = planes * taps * tile.channels * 4 * WARPS
        vectors = sum(
            ceil_div(4 + (window.taps_w - 1) * window.gap_w // window.gain_w, 4) for _ in range(window.gain_w)
        )  # fmt: skip
        weights = window.taps_w * tile.channels // 4
        loads = planes * window.taps_h * (vectors + weights) * WARPS
        accesses = planes * window.taps_h * (4 * vectors + weights) * WARPS
        each = 8 if DTYPES[p.in_dtype].itemsize == 4 else 11
        copies = planes * (room.lines * (20 + each * ceil_div(window.gain_w * room.phase, 32)))
        copies += planes * 10 * ceil_div(room.weights // 4, THREADS) * WARPS
        end = WARPS * (250 + 60 * tile.bk * tile.bh * tile.bw // 4 // THREADS)
        issued = (products + loads + copies + end + 6 * planes * window.taps_h * WARPS) / 4
        rate = target.peak("f32") / (2 * 32 * target.multiprocessors * target.clock)
        clocks = max(products / rate, issued, accesses) / EFFICIENCY
        blocks = self._blocks(p, product, tile)
        busiest = ceil_div(blocks, target.multiprocessors)
        fits = max(1, target.blocks_per_multiprocessor(THREADS, tile.registers, 4 * room.words))
        warps = WARPS * min(busiest, fits)
        arithmetic = busiest * clocks / target.clock / min(1.0, 1.5 * warps / (warps + 4.0))
        n, d, h, w = product.v.counts
        size = DTYPES[p.in_dtype].itemsize
        out = p.groups * product.u * n * d * h * w * DTYPES[p.out_dtype].itemsize * (2 if p.has_c else 1)
        inside = p.groups * product.k.counts[0] * n * product.source_size[0] * product.source_size[1]
        memory = (out + inside * product.source_size[2] * size) / (cost.MEMORY * target.bandwidth)
        reread = blocks * planes * (room.plane * size + room.weights * 4) / (cost.CACHE * target.bandwidth)
        return float(cost.LAUNCH + cost.FILL + max(arithmetic, memory, reread))

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        ranked = sorted(self._tiles(problem), key=lambda name: self._seconds(problem, target, name))
        return tuple({"tile": name} for name in ranked)

    def estimate(self, problem: Any, target: Any) -> float:
        return min(self._seconds(problem, target, name) for name in self._tiles(problem))

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        (product,), tile = made(problem), TILES[str(config["tile"])]
        array, view = weights.origin.empty((packed_elements(problem, product, tile),), problem.accumulate)
        view.owner = array
        make_launcher([pack_step(problem, product, tile, None)])(view, None, weights)
        return view

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        p, tile = problem, str(config["tile"])

        def make(out: int, c: int, kept: bool) -> Launcher:
            packing: list[Step] = []
            steps: list[Step] = []
            regions: dict[str, int] = {}
            for number, product in enumerate(made(p)):
                name = f"packed {number}"
                regions[name] = 4 * packed_elements(p, product, TILES[tile])
                packing.append(pack_step(p, product, TILES[tile], name))
                steps.append(self._step(p, product, tile, out, c, name, kept))
            return make_launcher(steps) if kept else make_launcher([*packing, *steps], regions)

        plain = implicit.by_alignment(lambda out, c: make(out, c, False))
        with_kept = implicit.by_alignment(lambda out, c: make(out, c, True))
        make(0, 0, p.prepared)

        def launch(out, first, second, c=None, bias=None, packed=None, extra=None, **floats):  # type: ignore[no-untyped-def]
            (plain if packed is None else with_kept)(out, first, second, c, bias, packed, extra, **floats)

        launch.program = lambda: program_of(with_kept if p.prepared else plain)  # type: ignore[attr-defined]
        return launch

    def _step(self, problem: Any, product: Product, tile_name: str, out: int, c: int, name: str, kept: bool) -> Step:
        p, tile, v, k = problem, TILES[tile_name], product.v, product.k
        window, last = window_of(product), is_channels_last(product)
        kernel = make_direct(
            p.in_dtype, p.out_dtype, tile_name, window, k.counts[1] <= 1, last, compiled_kind(p.activation.kind)
        )  # fmt: skip
        n, d, h, w = v.counts
        tiles = ceil_div(product.u, tile.bk), ceil_div(h, tile.bh), ceil_div(w, tile.bw)

        def steps(of: Any) -> tuple[int, ...]:
            return (of.u, *of.other, of.base, of.group)

        numbers = (
            product.u, n, d, h, w, v.gain[0], *v.base, max(1, k.counts[1]), k.gain[0], planes_of(product),
            *product.source_size, packed_room(product, tile), *tiles, (1 if last else 2) if p.bias else 0,
            vector_flags(p, product, out, c), k.step, *product.source_steps, v.step, product.source_group,
            *steps(product.out), *steps(product.c),
        )  # fmt: skip
        common = common_values(p)

        def values(arrays: Any, floats: Any, at: Addresses) -> tuple[Any, ...]:
            packed = arrays[5].pointer if kept else at[name]
            return (*common(arrays, floats), packed, *numbers)

        return step(kernel, self._blocks(p, product, tile), values)


def made(problem: Any) -> list[Product]:
    """The products of a problem, taps in order."""
    return [rightwards(product) for product in products(problem)]
