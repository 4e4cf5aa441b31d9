"""`im2col_gemm` and `im2col_gemm_weight`: a column matrix in memory, and a product by gemm's solvers.

Chellapilla, Puri, Simard: High performance convolutional neural networks for document processing (2006).  The matrix
has taps times as many elements as x; the other solvers never write it, and this one is what they are measured by.  Its
rows end at multiples of 16 bytes, so that all that gemm has serves it: wgmma, tensor copies, chunks of k.

Of the data gradient the product makes the matrix, in float32 (float64), and a second kernel adds up what the taps left
for each pixel, from the first tap to the last.  No atomics, and chunks of images by the problem only: the same bits
each time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from numbaprims.dispatch.solver import Config, Launcher, default_config
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.conv import im2col_products as made, implicit
from numbaprims.gpu.conv.arguments import LARGEST, common_values
from numbaprims.gpu.conv.gemm_1x1 import ranked
from numbaprims.gpu.conv.im2col_kernels import THREADS, make_columns, make_fold
from numbaprims.gpu.conv.im2col_products import Columns
from numbaprims.gpu.conv.pack import PACK_THREADS, make_pack
from numbaprims.gpu.conv.products import products, spans
from numbaprims.gpu.gemm import cost
from numbaprims.gpu.gemm.activations import compiled_kind
from numbaprims.gpu.gemm.arguments import ceil_div, round_up
from numbaprims.gpu.launch import Nested, Part, Program, Step, make_launcher, program_of, step
from numbaprims.gpu.solver import Solver
from numbaprims.ops._gemm_problem import GemmProblem

MOST_BLOCKS = 1 << 16
#: Products of their own of one call: images that take turns, times groups whose bias differs.
MOST_PRODUCTS = 64


def refusal(problem: Any, directions: tuple[str, ...]) -> str | None:
    """What neither of the two takes."""
    p = problem
    if p.direction not in directions:
        return f"direction {p.direction} is not one of {' and '.join(directions)}"
    if p.zeros != "none" or p.requantized:
        return "a product knows no zero points and no rescaled integers"
    if spans(p) >= LARGEST or p.n * max(p.c, p.k) * max(p.pixels, p.x_size[0] * p.x_size[1] * p.x_size[2]) >= LARGEST:
        return "there are more elements than 32-bit indices"
    one = made.columns_of(p, 1).nbytes
    if one > made.MOST_MATRIX:
        return f"the column matrix of one image has {one >> 20} MiB, more than {made.MOST_MATRIX >> 20}"
    count = len(made.chunks_of(p)) * (p.groups if made.one_by_one(p) else 1)
    if count > MOST_PRODUCTS:
        return f"it would take {count} products, one after another"
    return None


def columns_launcher(problem: Any, m: Columns) -> Launcher:
    """launch(matrix, x): the column matrix of so many images."""
    p, s = problem, problem.strides.x
    size = DTYPES[p.x_dtype].itemsize
    steps = (s[0], *s[1:])

    @functools.cache
    def make(aligned: bool) -> Launcher:
        lanes = 16 // size
        whole = aligned and m.order == "fast" and all(value % lanes == 0 for value in (p.group_c, s[0], *s[2:]))
        count = lanes if whole else 1
        elements = m.images * p.c * p.pixels // count
        numbers = (
            elements, p.c // count, p.group_c, *p.y_size, *p.kernel, *p.stride, *p.dilation, *p.padding, *p.x_size,
            *steps, m.n, m.group, m.c, m.tap, m.pixel,
        )  # fmt: skip
        return _sweep(make_columns(p.x_dtype, m.order, count), elements, numbers)

    make(True)

    def launch(matrix, x, *rest):  # type: ignore[no-untyped-def]
        make(x.pointer % 16 == 0)(matrix, x)

    launch.program = lambda: program_of(make(True))  # type: ignore[attr-defined]
    return launch


def spread_launcher(problem: Any, images: int) -> Launcher:
    """launch(target, dy): dy with the pixels of all images side by side, a matrix of kernels of one element."""
    p, y = problem, problem.strides.y
    pitch, one = made.dy_pitch(p, images), (1, 1, 1)
    elements = images * p.k * p.pixels
    numbers = (
        elements, p.k, p.group_k, *p.y_size, *one, *one, *one, 0, 0, 0, *p.y_size, *y, p.pixels, p.group_k * pitch,
        pitch, 0, 1,
    )  # fmt: skip
    return _sweep(make_columns(p.y_dtype, "slow", 1), elements, numbers)


def _sweep(kernel: Any, elements: int, numbers: tuple[int, ...]) -> Launcher:
    blocks = min(MOST_BLOCKS, ceil_div(elements, THREADS))
    return make_launcher([step(kernel, blocks, lambda arrays, _, __: (arrays[0].pointer, arrays[1].pointer, *numbers))])


class Weights(NamedTuple):
    """How a product takes the weights."""

    packs: bool
    steps: tuple[int, int, int]
    """Of u, (c, tap), groups."""
    nbytes: int


def weights_of(problem: Any) -> Weights:
    """As they lie, or packed where channels and taps are not evenly spaced in the matrix's order."""
    p = problem
    found = made.weight_steps(p)
    if found is not None:
        return Weights(False, (*found, p.group_k * p.strides.w[0]), 0)
    pitch = made.packed_pitch(p)
    return Weights(
        True, (pitch, 1, p.group_k * pitch), round_up(p.k * pitch * DTYPES[p.w_dtype].itemsize, 256)
    )  # fmt: skip


def pack_launcher(problem: Any) -> Launcher:
    """launch(packed, weights)"""
    p, w = problem, problem.strides.w
    pitch = made.packed_pitch(p)
    order = "fast" if made.is_fast(p) else "slow"
    numbers = (
        p.k * pitch, p.group_k, p.group_c * p.taps, pitch, p.group_c, *p.kernel, *w, 0, p.group_k * w[0]
    )  # fmt: skip
    blocks = min(MOST_BLOCKS, ceil_div(p.k * pitch, PACK_THREADS))
    kernel = make_pack(p.w_dtype, order)
    return make_launcher([step(kernel, blocks, lambda arrays, _, __: (arrays[0].pointer, arrays[1].pointer, *numbers))])


def fold_launcher(problem: Any, m: Columns) -> Callable[..., None]:
    """launch(dx, matrix, c, bias, floats...): what the taps left for each pixel, and the end."""
    p, o, c = problem, problem.strides.x, problem.strides.c
    kernel = make_fold(p.in_dtype, p.out_dtype, m.order, p.stride == (1, 1, 1), compiled_kind(p.activation.kind))
    elements = m.images * p.c * p.x_size[0] * p.x_size[1] * p.x_size[2]
    numbers = (
        elements, p.c, p.group_c, *p.x_size, *p.kernel, *p.stride, *p.dilation, *p.padding, *p.y_size,
        m.n, m.group, m.c, m.tap, m.pixel, *o, *c,
    )  # fmt: skip
    common = common_values(p)
    blocks = min(MOST_BLOCKS, ceil_div(elements, THREADS))
    return make_launcher(
        [step(kernel, blocks, lambda arrays, floats, _: (*common(arrays, floats), arrays[1].pointer, *numbers))]
    )


#: The floats of a product that is neither scaled nor added to anything.
ONE = (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class _Products(Solver):
    """What both share: the product is that of gemm's solver which its own estimate prefers."""

    def _product(self, problem: Any, images: int) -> GemmProblem:
        raise AssertionError("a solver names its product")

    def _first(self, problem: Any) -> GemmProblem:
        return self._product(problem, made.chunks_of(problem)[0])

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        return tuple({"gemm": solver.name} for solver in ranked(self._first(problem), target))

    def _solver(self, inner: GemmProblem, target: Any, name: str) -> Solver:
        """The solver of that name, or the best where it does not take the shorter product of the last chunk."""
        able = ranked(inner, target)
        return {solver.name: solver for solver in able}.get(name, able[0])

    def _bind_product(self, inner: GemmProblem, target: Any, config: Config) -> Launcher:
        solver = self._solver(inner, target, str(config["gemm"]))
        return solver.bind(inner, target, default_config(solver, inner, target))

    def _product_seconds(self, problem: Any, target: Any) -> float:
        inner = self._first(problem)
        return ranked(inner, target)[0].estimate(inner, target)


class Im2col(_Products):
    """Results and data gradients by a column matrix and a product."""

    name = "im2col_gemm"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return refusal(problem, ("forward", "data"))

    def _product(self, problem: Any, images: int) -> GemmProblem:
        make = made.forward_product if problem.direction == "forward" else made.data_product
        return make(problem, made.columns_of(problem, images), weights_of(problem).steps)

    def estimate(self, problem: Any, target: Any) -> float:
        p, w = problem, weights_of(problem)
        chunks = made.chunks_of(p)
        m = made.columns_of(p, chunks[0])
        # the matrix is written (read) once more, beside x; the product's own estimate reads (writes) it
        share = chunks[0] * p.c * p.x_size[0] * p.x_size[1] * p.x_size[2] * DTYPES[p.x_dtype].itemsize
        one = cost.sweep_seconds(m.nbytes + share * (2 if p.has_c and p.direction == "data" else 1), target)
        one += self._product_seconds(p, target) * (p.groups if made.one_by_one(p) else 1)
        pack = cost.sweep_seconds(2 * w.nbytes, target) if w.packs and not p.prepared else 0.0
        return float(len(chunks) * one + pack)

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        if not weights_of(problem).packs:
            return None
        array, view = weights.origin.empty((problem.k * made.packed_pitch(problem),), problem.w_dtype)
        view.owner = array
        pack_launcher(problem)(view, weights)
        return view

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        p, w = problem, weights_of(problem)
        forward = p.direction == "forward"
        chunks = made.chunks_of(p)
        matrix_bytes = round_up(made.columns_of(p, chunks[0]).nbytes, 256)
        pack = pack_launcher(p) if w.packs else None
        bound = {}
        for images in set(chunks):
            m = made.columns_of(p, images)
            other = columns_launcher(p, m) if forward else fold_launcher(p, m)
            bound[images] = (self._bind_product(self._product(p, images), target, config), other, m)
        loops = p.groups if made.one_by_one(p) else 1
        s = p.strides
        given, result = (s.x, s.y) if forward else (s.y, s.x)
        in_size, out_size = DTYPES[p.in_dtype].itemsize, DTYPES[p.out_dtype].itemsize
        w_size, bias_size = DTYPES[p.w_dtype].itemsize, 4 if p.accumulate == "i32" else in_size

        def program(kept: bool) -> Program:
            weights: str | int = 2 if pack is None else 5 if kept else "weights"
            steps: list[Nested] = []
            if weights == "weights":
                assert pack is not None
                steps.append(Nested(pack, (Part("weights"), Part(2))))
            image = 0
            for images in chunks:
                multiply, other, m = bound[images]
                source, out = Part(1, image * given[0] * in_size), Part(0, image * result[0] * out_size)
                c = Part(3, image * s.c[0] * out_size)
                if forward:
                    steps.append(Nested(other, (Part("matrix"), source)))
                    for group in range(loops):
                        columns = Part("matrix", group * m.group * in_size)
                        of = Part(weights, group * w.steps[2] * w_size)
                        first, second = (columns, of) if made.by_pixels(p) else (of, columns)
                        channel = group * p.group_k
                        to = Part(0, out.offset + channel * result[1] * out_size)
                        more = Part(3, c.offset + channel * s.c[1] * out_size)
                        steps.append(Nested(multiply, (to, first, second, more, Part(4, channel * s.bias * bias_size))))
                else:
                    first, second = (source, Part(weights)) if m.order == "fast" else (Part(weights), source)
                    steps.append(Nested(multiply, (Part("matrix"), first, second), ONE))
                    steps.append(Nested(other, (out, Part("matrix"), Part("matrix"), c, Part(4))))
                image += images
            regions = {"matrix": matrix_bytes} | ({"weights": w.nbytes} if weights == "weights" else {})
            return Program(steps, regions)

        ways = {kept: program(kept).launcher() for kept in {False, p.prepared}}

        def launch(  # type: ignore[no-untyped-def]
            a0, a1=None, a2=None, a3=None, a4=None, a5=None, a6=None, f0=0.0, f1=0.0, f2=0.0, f3=0.0, f4=0.0, f5=0.0
        ):
            ways[a5 is not None](a0, a1, a2, a3, a4, a5, a6, f0, f1, f2, f3, f4, f5)

        launch.program = lambda: program_of(ways[p.prepared])  # type: ignore[attr-defined]
        return launch


class Im2colWeight(_Products):
    """Gradients of the weight: dy times the column matrix of all images, whose pixels are the product's depth."""

    name = "im2col_gemm_weight"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return refusal(problem, ("weight",))

    def _product(self, problem: Any, images: int) -> GemmProblem:
        return made.weight_product(problem, made.columns_of(problem, images))

    def _parts(self, problem: Any) -> tuple[int, int, int]:
        """Bytes of the matrix, of dy written out, and of sums that are kept."""
        p, chunks = problem, made.chunks_of(problem)
        matrix = round_up(made.columns_of(p, chunks[0]).nbytes, 256)
        spread, sums = 0, 0
        if made.even_dy(p) is None:
            spread = round_up(p.k * made.dy_pitch(p, chunks[0]) * DTYPES[p.y_dtype].itemsize, 256)
        if made.result_steps(p) is None:
            sums = len(chunks) * p.k * made.sums_room(p) * DTYPES[p.accumulate].itemsize
        return matrix, spread, sums

    def estimate(self, problem: Any, target: Any) -> float:
        p, chunks = problem, made.chunks_of(problem)
        matrix, spread, sums = self._parts(p)
        share = chunks[0] * p.c * p.x_size[0] * p.x_size[1] * p.x_size[2] * DTYPES[p.x_dtype].itemsize
        one = cost.sweep_seconds(matrix + share, target) + self._product_seconds(p, target)
        if spread:
            one += cost.sweep_seconds(2 * spread, target)
        last = cost.sweep_seconds(sums, target) if sums else 0.0
        return float(len(chunks) * one + last)

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        return None

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        p, chunks = problem, made.chunks_of(problem)
        matrix_bytes, spread_bytes, sums_bytes = self._parts(p)
        bound = {}
        for images in set(chunks):
            m = made.columns_of(p, images)
            spread = spread_launcher(p, images) if spread_bytes else None
            bound[images] = (
                columns_launcher(p, m), spread, self._bind_product(made.weight_product(p, m), target, config)
            )  # fmt: skip
        order = "fast" if made.is_fast(p) else "slow"
        room, acc_size = made.sums_room(p), DTYPES[p.accumulate].itemsize
        s, x_size, y_size = p.strides, DTYPES[p.x_dtype].itemsize, DTYPES[p.y_dtype].itemsize
        between = p.group_k * room * acc_size
        steps: list[Step | Nested] = []
        image = 0
        for number, images in enumerate(chunks):
            columns, spread, multiply = bound[images]
            x, dy = (Part(of, image * every[0] * size) for of, every, size in ((2, s.x, x_size), (1, s.y, y_size)))
            steps.append(Nested(columns, (Part("matrix"), x)))
            if spread is not None:
                steps.append(Nested(spread, (Part("dy"), dy)))
                dy = Part("dy")
            if sums_bytes:
                steps.append(Nested(multiply, (Part("sums", number * between), dy, Part("matrix")), ONE))
            else:
                steps.append(Nested(multiply, (Part(0), dy, Part("matrix"), Part(3))))
            image += images
        if sums_bytes:
            steps.append(implicit.reduce_step(p, products(p)[0], True, order, len(chunks), room, common_values(p)))
        regions = {"matrix": matrix_bytes, "dy": spread_bytes, "sums": sums_bytes}
        return make_launcher(steps, {name: nbytes for name, nbytes in regions.items() if nbytes})
