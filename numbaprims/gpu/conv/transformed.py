"""What solvers share that multiply in the domain of a transform (Winograd's or Fourier's).

Tiles of the input are transformed into V, windows into U, and for each position p of the transform (and each group)
M[p] = U[p]^T V[p] is a matrix product, by gemm's own solvers; the inverse transform of M is the result.  The data
gradient of stride 1 is posed as forward: the convolution of dy with the windows turned round and channels exchanged.

All three lie in scratch memory, at most `MOST_WORKSPACE` of it: the tiles are taken in slices, one after another.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numbaprims.dispatch.solver import Solver, default_config
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.gemm import SOLVERS
from numbaprims.gpu.gemm.arguments import ceil_div, round_up
from numbaprims.gpu.launch import Nested, Part
from numbaprims.ops._gemm_problem import GemmProblem, Strides, _order
from numbaprims.ops.epilogue import Activation

#: Bytes of V and M of one slice; a constant, because sums could depend on it.
MOST_WORKSPACE = 256 << 20
#: Tiles of a slice are a multiple of it.
SLICE = 128
#: Solvers of gemm that round float32 to the 10 bits of tfloat32, where `config(allow_tf32=True)` lets them.
TENSOR_CORES = ("wgmma", "mma", "mma_split_k")


class Depth(NamedTuple):
    """The dimension along which nothing is transformed: its results are images, and its taps more channels to sum."""

    out: int = 1
    x: int = 1
    taps: int = 1
    stride: int = 1
    gap: int = 1
    pad: int = 0
    x_step: int = 0
    """Strides in elements, of x or of what is posed as x; as the rest."""
    out_step: int = 0
    c_step: int = 0
    w_step: int = 0


class Pose(NamedTuple):
    """A convolution of images with stride 1, forward or of the data, as one forward; a forward one has any stride."""

    n: int
    groups: int
    x_channels: int
    """Of one group, as the rest."""
    out_channels: int
    x: tuple[int, int]
    out: tuple[int, int]
    pad: tuple[int, int]
    x_steps: tuple[int, int, int, int]
    """Strides in elements: n, c, h, w."""
    out_steps: tuple[int, int, int, int]
    c_steps: tuple[int, int, int, int]
    w_steps: tuple[int, int, int, int]
    """Of out channel, x channel, row, column."""
    w_start: int
    """Where the first tap lies."""
    w_group: int
    depth: Depth = Depth()

    @property
    def images(self) -> int:
        """Of the result."""
        return self.n * self.depth.out


def _planar(steps: Any) -> tuple[int, int, int, int]:
    """Strides without that of the depth."""
    return steps[0], steps[1], steps[3], steps[4]


def pose(problem: Any) -> Pose:
    """The forward form of a problem; the weight's gradient gives the forward problem that it belongs to."""
    p, s = problem, problem.strides
    w = _planar(s.w)
    q = Pose(
        p.n, p.groups, p.group_c, p.group_k, p.x_size[1:], p.y_size[1:], p.padding[1:], _planar(s.x), _planar(s.y),
        _planar(s.c), w, 0, p.group_k * w[0],
        Depth(
            p.y_size[0], p.x_size[0], p.kernel[0], p.stride[0], p.dilation[0], p.padding[0], s.x[2], s.y[2], s.c[2],
            s.w[2],
        ),
    )  # fmt: skip
    if problem.direction != "data":
        return q
    (z, r, t), d = problem.kernel, q.depth
    depth = d._replace(
        out=d.x, x=d.out, pad=(z - 1) * d.gap - d.pad, x_step=d.out_step, out_step=d.x_step, w_step=-d.w_step
    )
    return q._replace(
        x_channels=q.out_channels, out_channels=q.x_channels, x=q.out, out=q.x,
        pad=(r - 1 - q.pad[0], t - 1 - q.pad[1]), x_steps=q.out_steps, out_steps=q.x_steps,
        w_steps=(w[1], w[0], -w[2], -w[3]), 
        w_start=(z - 1) * d.w_step + (r - 1) * w[2] + (t - 1) * w[3], depth=depth,
    )  # fmt: skip


class Domain(NamedTuple):
    """The products of one slice of tiles, and where their operands lie.

    U is [position][group][channel][out], and with `order` "tiles" V is [position][group][channel][tile] and M
    [position][group][out][tile]; with "channels" they end in [tile][channel] and [tile][out].  The last dimension of
    each has room for a multiple of 4 elements, so that gemm reads 16 bytes at a time.
    """

    positions: int
    groups: int
    channels: int
    """Those that are summed over, of one group."""
    outs: int
    tiles: int
    dtype: str
    order: str

    def _steps(self, rows: int, columns: int) -> tuple[int, int, int, int]:
        """Strides of [position][group][row][column]."""
        pitch = round_up(columns, 4)
        return self.groups * rows * pitch, rows * pitch, pitch, 1

    def _by_order(self, channels: int) -> tuple[int, int, int, int]:
        """Strides of position, group, channel, tile."""
        if self.order == "tiles":
            return self._steps(channels, self.tiles)
        p, g, tile, channel = self._steps(self.tiles, channels)
        return p, g, channel, tile

    @property
    def v(self) -> tuple[int, int, int, int]:
        """Strides of V: position, group, channel, tile."""
        return self._by_order(self.channels)

    @property
    def m(self) -> tuple[int, int, int, int]:
        """Strides of M: position, group, out, tile."""
        return self._by_order(self.outs)

    @property
    def u(self) -> tuple[int, int, int, int]:
        """Strides of U: position, group, channel, out."""
        return self._steps(self.channels, self.outs)

    @property
    def bytes(self) -> tuple[int, int, int]:
        """Of V, M and U, each a multiple of 256."""
        size = DTYPES[self.dtype].itemsize
        return tuple(round_up(steps[0] * self.positions * size, 256) for steps in (self.v, self.m, self.u))  # type: ignore[return-value]

    def product(self) -> GemmProblem:
        """All products as gemm's problem: A is U with tiles side by side, V with channels side by side."""
        v, m, u = self.v, self.m, self.u
        tall = (self.outs, self.tiles) if self.order == "tiles" else (self.tiles, self.outs)
        swapped = (u[3], u[2]), (v[2], v[3]), (m[2], m[3]), (u[:2], v[:2], m[:2])
        plain = (v[3], v[2]), (u[2], u[3]), (m[3], m[2]), (v[:2], u[:2], m[:2])
        a, b, out, batch = swapped if self.order == "tiles" else plain
        return batched_product((*tall, self.channels), (self.positions, self.groups), a, b, out, batch, self.dtype)


def batched_product(
    sizes: tuple[int, int, int], batch: tuple[int, ...], a: tuple[int, int], b: tuple[int, int], out: tuple[int, int],
    batch_steps: tuple[tuple[int, ...], ...], dtype: str, *, accumulate: bool = False,
) -> GemmProblem:  # fmt: skip
    """A plain product (m, n, k) for each of a batch; `accumulate` adds to what `out` holds."""
    m, n, k = sizes
    return GemmProblem(
        m=m, n=n, k=k, batch=math.prod(batch), a_dtype=dtype, b_dtype=dtype, out_dtype=dtype,
        a_order=_order(*a, m, k), b_order=_order(*b, k, n), out_order=_order(*out, m, n), has_c=accumulate,
        bias="none", activation=Activation("identity"), scaled=False, batch_shape=batch,
        strides=Strides(a, b, out, out, 0, (*batch_steps, batch_steps[2])),
    )  # fmt: skip


def slices(tiles: int, bytes_of_tile: int) -> list[tuple[int, int]]:
    """(first, count) of the slices of tiles, as even as they can be."""
    parts = max(1, ceil_div(tiles * bytes_of_tile, MOST_WORKSPACE))
    size = min(tiles, round_up(ceil_div(tiles, parts), SLICE))
    return [(first, min(size, tiles - first)) for first in range(0, tiles, size)]


def ranked(product: GemmProblem, target: Any, *, rounded: bool = True) -> list[Solver]:
    """gemm's solvers for the product, the quickest by its own estimate first; without `rounded` no float32 is rounded,
    whatever the settings allow."""
    able = [
        solver for solver in SOLVERS
        if solver.why_not(product, target) is None and (rounded or solver.name not in TENSOR_CORES)
    ]  # fmt: skip
    return sorted(able, key=lambda solver: solver.estimate(product, target))


def multiply_step(
    product: GemmProblem, target: Any, name: str, out: str, a: str | int, b: str | int, rounded: bool = True
) -> Nested:
    """A product of what lies in regions (or, as a place of the call says, in prepared weights) by a solver of gemm, by
    the quickest where that one does not take it."""
    able = ranked(product, target, rounded=rounded)
    solver = next((solver for solver in able if solver.name == name), able[0])
    launch = solver.bind(product, target, default_config(solver, product, target))
    more = Part(out) if product.has_c else None
    return Nested(launch, (Part(out), Part(a), Part(b), more), (1.0, float(product.has_c), 0.0, 0.0, 0.0, 0.0))
