"""`depthwise`: convolutions whose groups have one channel of x, without unfolding and without tiles."""

from __future__ import annotations

from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.conv import implicit
from numbaprims.gpu.conv.arguments import LARGEST, common_values
from numbaprims.gpu.conv.depthwise_kernels import THREADS, make_depthwise, make_depthwise_weight
from numbaprims.gpu.conv.products import Product, products
from numbaprims.gpu.gemm import cost
from numbaprims.gpu.gemm.activations import compiled_kind
from numbaprims.gpu.gemm.arguments import C_VECTORS, OUT_VECTORS, ceil_div, round_up, vector_length
from numbaprims.gpu.launch import Addresses, Step, make_launcher, step
from numbaprims.gpu.solver import Solver

MOST_TAPS = 64
"""Sums of the weight's gradient, or products of a result, that are written out in the code."""
WIDEST = 16
"""Elements of a row of the source that a thread holds."""
MOST_BLOCKS = 1 << 20
CHUNKS = {"slow": 4096, "fast": 512}
"""Pixels of a channel that one block of the weight's gradient adds up: 32 a thread, 128 where channels lie last."""
#: The part of the memory's speed that is reached: addresses and comparisons beside few products.
EFFICIENCY = 0.5


class Depthwise(Solver):
    """One channel of x a group: a thread computes neighbours of a row, bound by the bytes of x and y."""

    name = "depthwise"

    def why_not(self, problem: Any, target: Any) -> str | None:
        p = problem
        if p.direction == "bias" or not p.depthwise:
            return "every group must have one channel of x, and there must be more than one"
        found = implicit.refusal(p)
        if found is not None:
            return found
        if not p.planar:
            return "it walks over rows of one plane"
        if p.kernel[1] * p.kernel[2] > MOST_TAPS:
            return f"the kernel has more than {MOST_TAPS} elements"
        V = vector_length(p.accumulate)
        if p.direction != "weight" and max((V - 1) * q.v.gain[2] + self._reach(q) for q in products(p)) >= WIDEST:
            return f"four results see more than {WIDEST} elements of a row"
        if p.n * p.groups * max(p.group_k, 1) * p.pixels >= LARGEST or p.n * p.c * p.x_size[1] * p.x_size[2] >= LARGEST:
            return "there are more results than 32-bit indices"
        return None

    def _reach(self, product: Product) -> int:
        return abs((product.k.counts[3] - 1) * product.k.gain[2])

    def estimate(self, problem: Any, target: Any) -> float:
        launches = 2 if problem.direction == "weight" else len(products(problem))
        moved = problem.bytes_moved() / (EFFICIENCY * target.bandwidth)
        return float(launches * cost.LAUNCH + cost.FILL + moved)

    def _weight_chunks(self, problem: Any) -> int:
        return ceil_div(max(1, problem.n * problem.pixels), CHUNKS[weight_order(problem)])

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        return None

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        if problem.direction == "weight":
            return self._bind_weight(problem, target, config)
        made = products(problem)

        def make(out: int, c: int) -> Launcher:
            return make_launcher([self._step(problem, product, out, c) for product in made])

        make(0, 0)
        return implicit.by_alignment(make)

    def _step(self, problem: Any, product: Product, out: int, c: int) -> Step:
        p, v, k = problem, product.v, product.k
        last = (p.y_order if p.direction == "data" else p.x_order) == "channels_last"
        kernel = make_depthwise(
            p.in_dtype, p.out_dtype, "fast" if last else "slow", k.counts[2], k.counts[3], v.gain[2], k.gain[2],
            compiled_kind(p.activation.kind),
        )  # fmt: skip
        V = vector_length(p.accumulate)
        runs = ceil_div(v.counts[3], V)
        elements = p.groups * product.u * v.counts[0] * v.counts[2] * runs
        numbers = (
            elements, p.groups, product.u, v.counts[2], v.counts[3], runs, v.gain[1], v.base[1], v.base[2], k.gain[1],
            k.counts[0], v.step, k.step, product.source_steps[1], product.source_steps[2], *product.source_size[1:],
            2 if p.bias else 0, row_flags(p, product, out, c),
        )  # fmt: skip
        strides = implicit.integers(product, 0)[29:]
        common = common_values(p)
        blocks = min(MOST_BLOCKS, ceil_div(elements, THREADS))
        return step(kernel, blocks, lambda arrays, floats, _: (*common(arrays, floats), *numbers, *strides))

    def _bind_weight(self, problem: Any, target: Any, config: Config) -> Launcher:
        p = problem
        product = products(p)[0]
        x, y = p.strides.x, p.strides.y
        chunks = self._weight_chunks(p)
        room = round_up(p.taps, vector_length(p.accumulate))
        order = weight_order(p)
        blocks = (ceil_div(p.k, 32) if order == "fast" else p.k) * chunks
        numbers = (
            chunks, CHUNKS[order], p.n * p.pixels, p.group_k, room, *p.y_size[1:], *p.stride[1:], *p.dilation[1:],
            *p.padding[1:], *p.x_size[1:], blocks, p.k, product.source_group, x[0], x[3], x[4], product.plain.group,
            y[1], y[0], y[3], y[4],
        )  # fmt: skip
        kernel = make_depthwise_weight(p.in_dtype, order, p.kernel[1], p.kernel[2])

        def values(arrays: Any, floats: Any, at: Addresses) -> tuple[Any, ...]:
            return (at["sums"], arrays[2].pointer, arrays[1].pointer, *numbers)

        last = implicit.reduce_step(p, product, True, "slow", chunks, room, common_values(p))
        sums = p.k * chunks * room * DTYPES[p.accumulate].itemsize
        return make_launcher([step(kernel, min(MOST_BLOCKS, blocks), values), last], {"sums": sums})


def weight_order(problem: Any) -> str:
    """Whether the weight gradient's lanes are neighbours among the pixels ("slow") or the channels of y ("fast")."""
    return "fast" if problem.y_order == "channels_last" else "slow"


def row_flags(problem: Any, product: Product, out: int, c: int) -> int:
    """Whether rows of the result and of c begin where vectors may, in the terms of gemm's epilogue."""
    size, V = DTYPES[problem.out_dtype].itemsize, vector_length(problem.accumulate)
    bits = 0
    for bit, address, of in ((OUT_VECTORS, out, product.out), (C_VECTORS, c, product.c)):
        images, _, rows, columns = of.other
        starts = (of.u, images, rows, of.base, of.group)
        if columns == 1 and address % (V * size) == 0 and all(value % V == 0 for value in starts):
            bits |= bit
    return bits
