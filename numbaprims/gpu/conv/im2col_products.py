"""The column matrix of a chunk of images as numbers, and the products of gemm that it takes part in.

A row of the matrix is a channel and a tap ("slow"; pixels follow one another), or a pixel ("fast"; taps and, within
each, channels follow one another).  The latter is made where x has its channels last and enough of them::

    forward   y[n] (k, pixels) = w (k, c taps) columns[n] (c taps, pixels), or transposed where y has its channels last
    data      columns[n] (c taps, pixels) = w^T dy[n], or transposed for a "fast" matrix
    weight    dw (k, c taps) = dy (k, images pixels) columns^T

Groups are a batch; so are images, and rows of pixels that do not follow one another evenly.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.conv.gemm_1x1 import merged
from numbaprims.gpu.gemm.arguments import ceil_div, round_up
from numbaprims.ops._gemm_problem import GemmProblem, Strides, _order
from numbaprims.ops.epilogue import IDENTITY

#: Bytes of a column matrix; more images than have room take turns.
MOST_MATRIX = 256 << 20
#: Channels of a group from which on rows are pixels: fewer leave a warp's stores scattered.
LEAST_FAST = 16
Pair = tuple[int, int]


class Columns(NamedTuple):
    """Where the elements of a column matrix lie; all steps in elements."""

    dtype: str
    order: str
    images: int
    """Of one chunk."""
    pitch: int
    """From row to row."""
    n: int
    group: int
    c: int
    tap: int
    pixel: int
    nbytes: int

    @property
    def row_steps(self) -> Pair:
        """From one (c, tap) to the next, and from one pixel to the next."""
        return (1, self.pixel) if self.order == "fast" else (self.tap, 1)


def columns_of(problem: Any, images: int) -> Columns:
    """The matrix of so many images."""
    p = problem
    dtype = p.accumulate if p.direction == "data" and p.accumulate != "i32" else p.x_dtype
    size = DTYPES[dtype].itemsize
    vector, depth = 16 // size, p.group_c * p.taps
    if is_fast(p):
        pitch = round_up(depth, vector)
        n, group = p.pixels * pitch, images * p.pixels * pitch
        return Columns(dtype, "fast", images, pitch, n, group, 1, p.group_c, pitch, p.groups * group * size)
    if p.direction == "weight":
        pitch = round_up(images * p.pixels, vector)
        n, group = p.pixels, depth * pitch
        nbytes = p.groups * group * size
    else:
        pitch = round_up(p.pixels, vector)
        n, group = p.groups * depth * pitch, depth * pitch
        nbytes = images * n * size
    return Columns(dtype, "slow", images, pitch, n, group, p.taps * pitch, pitch, 1, nbytes)


def is_fast(problem: Any) -> bool:
    """Whether a row of the matrix is a pixel."""
    return bool(problem.x_order == "channels_last" and problem.group_c >= LEAST_FAST)


def chunks_of(problem: Any) -> list[int]:
    """How many images each chunk has: by the problem only."""
    most = max(1, MOST_MATRIX // max(1, columns_of(problem, 1).nbytes))
    count = ceil_div(problem.n, most)
    each = ceil_div(problem.n, count)
    return [min(each, problem.n - first) for first in range(0, problem.n, each)]


def weight_steps(problem: Any) -> Pair | None:
    """From one channel of y to the next, and from one (c, tap) to the next in the matrix's order; None where those
    are not evenly spaced."""
    p, s = problem, problem.strides.w
    order = ((*p.kernel, p.group_c), (*s[2:], s[1])) if is_fast(p) else ((p.group_c, *p.kernel), s[1:])
    step = merged(order[1], order[0])
    return None if step is None else (s[0], step)


def packed_pitch(problem: Any) -> int:
    """Elements from row to row of packed weights."""
    return round_up(problem.group_c * problem.taps, 16 // DTYPES[problem.w_dtype].itemsize)


class Run(NamedTuple):
    """Pixels that follow one another evenly in several arrays, and the dimensions around them."""

    pixels: int
    steps: tuple[int, ...]
    outer: list[tuple[int, tuple[int, ...]]]
    """(length, steps), the outermost first."""


def run_of(dimensions: list[tuple[int, tuple[int, ...]]]) -> Run:
    """The longest run at the end of nested dimensions."""
    kept = [(length, steps) for length, steps in dimensions if length > 1]
    if not kept:
        return Run(1, (0,) * len(dimensions[0][1]), [])
    *outer, (count, steps) = kept
    while outer and all(have == count * step for have, step in zip(outer[-1][1], steps, strict=True)):
        count *= outer.pop()[0]
    return Run(count, steps, outer)


class Matrix(NamedTuple):
    """An operand or result of a product."""

    rows: int
    columns: int
    batch: tuple[int, ...] = ()


def product(
    p: Any, sizes: tuple[int, int, int], dtypes: tuple[str, str, str], a: Matrix, b: Matrix, out: Matrix,
    shape: tuple[int, ...], c: Matrix | None = None, bias: str = "none",
) -> GemmProblem:  # fmt: skip
    """A product of gemm; with `c` it has the convolution's own end."""
    m, n, k = sizes
    ends = c is not None
    end = c or Matrix(0, 0, (0,) * len(shape))
    return GemmProblem(
        m=m, n=n, k=k, batch=math.prod(shape), a_dtype=dtypes[0], b_dtype=dtypes[1], out_dtype=dtypes[2],
        a_order=_order(a.rows, a.columns, m, k), b_order=_order(b.rows, b.columns, k, n),
        out_order=_order(out.rows, out.columns, m, n), has_c=ends and p.has_c, bias=bias,
        activation=p.activation if ends else IDENTITY, scaled=ends and p.scaled, batch_shape=shape,
        strides=Strides(
            a[:2], b[:2], out[:2], end[:2], p.strides.bias, (a.batch, b.batch, out.batch, end.batch)
        ),
    )  # fmt: skip


def transposed(x: Matrix) -> Matrix:
    """The transpose."""
    return Matrix(x.columns, x.rows, x.batch)


def by_pixels(problem: Any) -> bool:
    """Whether the rows of the forward product are pixels: for channels last, and for bytes, since of a product of
    bytes the first matrix is the unsigned one."""
    return bool(problem.accumulate == "i32" or (problem.strides.y[1] == 1 and problem.group_k > 1))


def one_by_one(problem: Any) -> bool:
    """Whether groups are products of their own: gemm's bias is one for all products of a batch."""
    return bool(problem.direction == "forward" and problem.bias and problem.groups > 1)


def forward_product(problem: Any, m: Columns, w: tuple[int, int, int]) -> GemmProblem:
    """y of a chunk of images; `w` are the steps of the weights: u, (c, tap), group."""
    p, y, c = problem, problem.strides.y, problem.strides.c
    depth, pixel = m.row_steps
    _, rows, lines = p.y_size
    inside = rows * lines * pixel, lines * pixel, pixel
    run = run_of(
        [
            (m.images, (y[0], c[0], m.n)),
            *((p.y_size[i], (y[2 + i], c[2 + i], inside[i])) for i in range(3)),
        ]
    )  # fmt: skip
    outer = list(run.outer)
    shape = [length for length, _ in outer]
    steps = [[s[i] for _, s in outer] for i in range(3)] + [[0] * len(outer)]
    if p.groups > 1 and not one_by_one(p):
        shape.append(p.groups)
        for of, step in zip(steps, (p.group_k * y[1], p.group_k * c[1], m.group, w[2]), strict=True):
            of.append(step)
    of_y, of_c, of_m, of_w = (tuple(of) for of in steps)
    k = p.group_c * p.taps
    out, end = Matrix(run.steps[0], y[1], of_y), Matrix(run.steps[1], c[1], of_c)
    columns, weights = Matrix(run.steps[2], depth, of_m), Matrix(w[1], w[0], of_w)
    if by_pixels(p):
        return product(
            p, (run.pixels, p.group_k, k), (p.x_dtype, p.w_dtype, p.y_dtype), columns, weights, out, tuple(shape), end,
            "n" if p.bias else "none",
        )  # fmt: skip
    return product(
        p, (p.group_k, run.pixels, k), (p.w_dtype, p.x_dtype, p.y_dtype), transposed(weights), transposed(columns),
        transposed(out), tuple(shape), transposed(end), "m" if p.bias else "none",
    )  # fmt: skip


def data_product(problem: Any, m: Columns, w: tuple[int, int, int]) -> GemmProblem:
    """The matrix of a chunk of images."""
    p, y = problem, problem.strides.y
    depth, pixel = m.row_steps
    _, rows, lines = p.y_size
    inside = rows * lines * pixel, lines * pixel, pixel
    run = run_of([(m.images, (y[0], m.n)), *((p.y_size[i], (y[2 + i], inside[i])) for i in range(3))])
    shape = [length for length, _ in run.outer]
    of_y, of_m, of_w = [s[0] for _, s in run.outer], [s[1] for _, s in run.outer], [0] * len(run.outer)
    if p.groups > 1:
        shape.append(p.groups)
        of_y.append(p.group_k * y[1])
        of_m.append(m.group)
        of_w.append(w[2])
    given, weights = Matrix(run.steps[0], y[1], tuple(of_y)), Matrix(w[0], w[1], tuple(of_w))
    out = Matrix(run.steps[1], depth, tuple(of_m))
    sizes = (run.pixels, p.group_c * p.taps, p.group_k)
    if m.order == "fast":
        return product(p, sizes, (p.y_dtype, p.w_dtype, m.dtype), given, weights, out, tuple(shape))
    return product(
        p, (sizes[1], sizes[0], sizes[2]), (p.w_dtype, p.y_dtype, m.dtype), transposed(weights), transposed(given),
        transposed(out), tuple(shape),
    )  # fmt: skip


def even_dy(problem: Any) -> int | None:
    """The step between the pixels of all images of dy, None where there is none."""
    p, y = problem, problem.strides.y
    return merged((y[0], *y[2:]), (p.n, *p.y_size))


def dy_pitch(problem: Any, images: int) -> int:
    """Elements from channel to channel of dy written out, pixels of all images side by side."""
    return round_up(images * problem.pixels, 16 // DTYPES[problem.y_dtype].itemsize)


def result_steps(problem: Any) -> Pair | None:
    """The steps of dw where one product makes it as it lies; None where sums are kept and added up, or put in place, by
    a second kernel."""
    p = problem
    found = weight_steps(p)
    if len(chunks_of(p)) > 1 or found is None or (p.has_c and _c_step(p) is None):
        return None
    return found


def _c_step(problem: Any) -> int | None:
    p, s = problem, problem.strides.c
    order = ((*p.kernel, p.group_c), (*s[2:], s[1])) if is_fast(p) else ((p.group_c, *p.kernel), s[1:])
    return merged(order[1], order[0])


def sums_room(problem: Any) -> int:
    """Elements from row to row of sums that are kept."""
    return round_up(problem.group_c * problem.taps, 16 // DTYPES[problem.accumulate].itemsize)


def weight_product(problem: Any, m: Columns) -> GemmProblem:
    """dw of a chunk of images, or its sums in [group][chunk][k][room]."""
    p, y = problem, problem.strides.y
    count = len(chunks_of(p))
    step = even_dy(p)
    if step is None:
        pitch = dy_pitch(p, m.images)
        a, between = Matrix(pitch, 1), p.group_k * pitch
    else:
        a, between = Matrix(y[1], step), p.group_k * y[1]
    depth, pixel = m.row_steps
    shape = (p.groups,) if p.groups > 1 else ()
    sizes = (p.group_k, p.group_c * p.taps, m.images * p.pixels)
    direct, room = result_steps(p), sums_room(p)

    def batch(step: int) -> tuple[int, ...]:
        return (step,) if shape else ()

    a, b = a._replace(batch=batch(between)), Matrix(pixel, depth, batch(m.group))
    if direct is None:
        out = Matrix(room, 1, batch(count * p.group_k * room))
        return product(p, sizes, (p.y_dtype, p.x_dtype, p.accumulate), a, b, out, shape)
    out, c = Matrix(*direct, batch(p.group_k * direct[0])), Matrix(0, 0, batch(0))
    if p.has_c:
        c = Matrix(p.strides.c[0], _c_step(p) or 0, batch(p.group_k * p.strides.c[0]))
    return product(p, sizes, (p.y_dtype, p.x_dtype, p.w_dtype), a, b, out, shape, c)
