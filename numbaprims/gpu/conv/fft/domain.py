"""Where spectra lie and which products they are, for every direction.

========  ===============================  ============================  ==========================
          plain spectra                    wide spectra                  results
========  ===============================  ============================  ==========================
forward   x: tiles, channels               w: channels, output channels  y: tiles, output channels
data      dy                               w, turned round, exchanged    dx
weight    x: tiles, channels               dy: tiles, output channels    dw: channels, output ones
========  ===============================  ============================  ==========================

A product sums over channels; that of the weight's gradient sums over tiles, and adds slices of them up.  Its tiles are
parts of dy, N - R + 1 pixels high, and what they meet of x is N pixels high.

By `form`, for each pair and group, C channels of the plain operand, K of the wide one (and D tiles for the gradient):

=====  ========================================  ==============================  ======================
       products                                  words of a pair                 operations
=====  ========================================  ==============================  ======================
four   one, of twice the depth and the width     2 C T + 4 C K + 2 K T           8 C K T
three  three                                     3 C T + 3 C K + 3 K T           6 C K T
=====  ========================================  ==============================  ======================

So three moves fewer words where C K > (C + K) T, and computes less by a quarter anyway; spectra of tiles are written
once and read once, those of filters read only where they are prepared.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.conv.transformed import Domain, Pose, batched_product, pose, slices
from numbaprims.gpu.gemm.arguments import ceil_div, round_up
from numbaprims.ops._gemm_problem import GemmProblem

FORMS = ("three", "four")


class Operand(NamedTuple):
    """Spectra of channels and tiles; steps in elements."""

    to_pair: int
    to_group: int
    to_channel: int
    to_tile: int
    deep: int
    wide: int
    nbytes: int


class Cut(NamedTuple):
    """A slice of the tiles and its products: `result` = `wide`^T `plain`, or the other way round."""

    first: int
    tiles: int
    plain: Operand
    wide: Operand
    result: Operand
    product: GemmProblem
    wide_first: bool
    """Whether gemm's A is the wide operand."""


class Grid(NamedTuple):
    """How an image is cut."""

    rows: int
    columns: int
    step: tuple[int, int]
    """From one tile to the next."""


def grid_of(problem: Any, n: int) -> Grid:
    """The tiles of y (dx for the data gradient)."""
    q = pose(problem)
    h, w = (n - taps + 1 for taps in problem.kernel[1:])
    return Grid(ceil_div(q.out[0], h), ceil_div(q.out[1], w), (h, w))


def summed(q: Pose) -> int:
    """Channels of a group that a product sums over: those of x, once for each tap along the depth."""
    return q.x_channels * q.depth.taps


def order_of(problem: Any) -> str:
    """What the spectra of an image have side by side: what its products sum over comes last."""
    if problem.direction == "weight":
        return "channels"
    given = problem.x_order if problem.direction == "forward" else problem.y_order
    return "channels" if given == "channels_last" else "tiles"


def cuts(problem: Any, n: int, form: str) -> list[Cut]:
    """The slices of the tiles of all images."""
    q, grid = pose(problem), grid_of(problem, n)
    tiles = q.images * grid.rows * grid.columns
    size, words = DTYPES[problem.accumulate].itemsize, n * n if form == "four" else 3 * n * n // 2
    spread = 2 if form == "four" and problem.direction == "weight" else 1  # dy's spectra are the wide ones
    of_tile = words * q.groups * (summed(q) + spread * q.out_channels) * size
    make = _gradient if problem.direction == "weight" else _forward
    return [make(problem, q, n, form, first, count) for first, count in slices(tiles, of_tile)]


def _forward(problem: Any, q: Pose, n: int, form: str, first: int, tiles: int) -> Cut:
    parts, products = (2, 1) if form == "four" else (1, 3)
    half = n * n // 2
    domain = Domain(
        products * half, q.groups, parts * summed(q), parts * q.out_channels, tiles, problem.accumulate,
        order_of(problem),
    )  # fmt: skip
    v, m, u = domain.bytes

    def operand(steps: tuple[int, int, int, int], channels: int, nbytes: int) -> Operand:
        deep = half * steps[0] if form == "three" else channels * steps[2]
        return Operand(*steps, deep, 0, nbytes)

    wide = operand(domain.u, summed(q), u)._replace(wide=q.out_channels)
    return Cut(
        first, tiles, operand(domain.v, summed(q), v), wide, operand(domain.m, q.out_channels, m), domain.product(),
        domain.order == "tiles",
    )  # fmt: skip


def _gradient(problem: Any, q: Pose, n: int, form: str, first: int, tiles: int) -> Cut:
    parts, products = (2, 1) if form == "four" else (1, 3)
    half, size = n * n // 2, DTYPES[problem.accumulate].itemsize

    def operand(rows: int, columns: int, wide: int) -> Operand:
        """Spectra [pair][group][part, row][part, column]."""
        pitch = round_up(columns, 4)
        to_pair = q.groups * parts * rows * pitch
        deep = half * to_pair if form == "three" else rows * pitch
        nbytes = round_up(products * half * to_pair * size, 256)
        return Operand(to_pair, parts * rows * pitch, 1, pitch, deep, wide, nbytes)

    plain = operand(tiles, summed(q), 0)
    wide = operand(tiles, parts * q.out_channels, q.out_channels)
    # of the result, rows are output channels and columns the "tiles"
    result = operand(q.out_channels, summed(q), 0)
    result = result._replace(to_channel=result.to_tile, to_tile=1)
    product = batched_product(
        (parts * q.out_channels, summed(q), parts * tiles), (products * half, q.groups), (1, wide.to_tile),
        (plain.to_tile, 1), (result.to_channel, 1), (wide[:2], plain[:2], result[:2]), problem.accumulate,
        accumulate=first > 0,
    )  # fmt: skip
    return Cut(first, tiles, plain, wide, result, product, True)
