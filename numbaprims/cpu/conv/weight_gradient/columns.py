"""Gradients of the weight by an explicit column matrix and gemm: the textbook's way, kept to measure others by.

dw (K x CRS) = sum over images of dy (K x PQ) columns (PQ x CRS).  Bound: that of the product, and the column matrix,
R S times as large as x, which is written once and read once for each block of filters.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.cpu.conv.arguments import ARGS, GEOMETRY, geometry_table
from numbaprims.cpu.conv.long import in_parts
from numbaprims.cpu.conv.weight_gradient.arguments import PATCHES
from numbaprims.cpu.conv.weight_gradient.kernels import make_patches
from numbaprims.cpu.conv.weight_gradient.solver import gather_lanes
from numbaprims.cpu.gemm import SOLVERS as GEMM
from numbaprims.cpu.gemm.cost import round_up, worth_threads
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.program import Part, Program, Region, array, join
from numbaprims.cpu.simd import Arguments, address_of, block_of, call_range, lanes, record, stack_record
from numbaprims.cpu.solver import Config, Regions, Solver
from numbaprims.dispatch.solver import default_config
from numbaprims.dtypes import DTYPES
from numbaprims.ops._gemm_problem import GemmProblem, Strides
from numbaprims.ops.epilogue import IDENTITY

# Lines (group, o, p) lo ... hi - 1 of one image: out[group][pixel][width].
COLUMNS = Arguments(
    arrays=ARGS.arrays, floats=ARGS.floats, ints=("geometry", "patches", "in_size", "out_size", "width", "run")
)


@functools.cache
def make_columns() -> RangeKernel:
    """The column matrix of one image."""

    @range_kernel("conv_weight_columns", COLUMNS.types(), spec=())
    def conv_weight_columns(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        g = record(GEOMETRY, args.geometry)
        lines, columns = g.y_h, g.y_w
        block = stack_record(PATCHES)
        block.geometry = block_of(g)
        block.channels = g.group_c
        block.run = args.run
        block.unit = 1
        block.width = args.width
        block.columns = columns
        for line in range(lo, hi):
            rest, p = divmod(line, lines)
            group, o = divmod(rest, g.y_d)
            start = group * g.group_c * g.xs_c
            block.out = address_of(args.out) + args.out_size * line * columns * args.width
            block.source = address_of(args.first) + args.in_size * start
            block.d0 = o * g.stride_d - g.pad_d
            block.p0 = p
            call_range(args.patches, block, 0, 0, 1)

    return conv_weight_columns


@in_parts
class Im2colWeight(Solver):
    """The column matrix of one image after another, and gemm."""

    name = "im2col_gemm_weight"

    def why_not(self, problem: Any, target: Any) -> str | None:
        p, s = problem, problem.strides
        if p.direction != "weight":
            return "it computes gradients of the weight"
        if p.accumulate != p.in_dtype:
            return "its column matrix holds float32 or float64"
        if p.has_c or p.scaled:
            return "gemm adds up the images in the result, which alpha and c must not meet more than once"
        _, lines, columns = p.y_size
        if lines > 1 and s.y[3] != columns * s.y[4] or p.y_size[0] > 1 and s.y[2] != lines * columns * s.y[4]:
            return "pixels of dy have no common step"
        if not self._in_rows(p):
            return "a filter's elements do not lie side by side in the result"
        return None

    @staticmethod
    def _in_rows(problem: Any) -> bool:
        """Whether the filters of the result are contiguous, in the order of (c, z, r, s)."""
        steps = problem.strides.w[1:]
        expected = 1
        for length, step in reversed(list(zip((problem.group_c, *problem.kernel), steps, strict=True))):
            if length > 1 and step != expected:
                return False
            expected *= length
        return True

    @staticmethod
    def _product(problem: Any, width: int, has_c: bool) -> GemmProblem:
        """The product of one image, its groups as a batch."""
        p, s = problem, problem.strides
        columns = p.group_c * p.taps
        step = s.y[4] if p.y_size[2] > 1 else 1
        out = (s.w[0] if p.k > 1 else columns, 1)
        order = "column" if s.y[1] == 1 and p.group_k > 1 else "row" if step == 1 else "strided"
        return GemmProblem(
            m=p.group_k, n=columns, k=p.pixels, batch=p.groups, a_dtype=p.y_dtype, b_dtype=p.y_dtype,
            out_dtype=p.out_dtype, a_order=order, b_order="row", out_order="row", has_c=has_c, bias="none",
            activation=IDENTITY, scaled=False, batch_shape=(p.groups,),
            strides=Strides(
                (s.y[1], step), (width, 1), out, out if has_c else (0, 0), 0,
                ((p.group_k * s.y[1],), (p.pixels * width,), (p.group_k * out[0],),
                 (p.group_k * out[0] if has_c else 0,)),
            ),
        )  # fmt: skip

    @staticmethod
    def _best(product: GemmProblem, target: Any) -> Solver:
        able = [solver for solver in GEMM if solver.why_not(product, target) is None]
        return min(able, key=lambda solver: solver.estimate(product, target))

    @staticmethod
    def _width(problem: Any, target: Any) -> int:
        return round_up(problem.group_c * problem.taps, lanes(problem.accumulate, target.vector_bytes))

    def estimate(self, problem: Any, target: Any) -> float:
        p = problem
        width = self._width(p, target)
        product = self._product(p, width, False)
        rows = p.pixels * p.c * p.kernel[0] * p.kernel[1]
        side_by_side = p.strides.x[4] in (0, 1) and p.dilation[2] == 1
        rates = target.rates
        gather = rates.cycles(rows * (6.15 if side_by_side else 4.1 * p.kernel[2]))
        # the matrix is written, and read by the product, at a quarter of the rate of memory
        written = p.pixels * p.groups * width * DTYPES[p.accumulate].itemsize / (0.25 * rates.memory)
        each = 10 / 3 * rates.call + gather + written + self._best(product, target).estimate(product, target)
        # weight_gemm's formula exceeds its times by a fifth too: over 186 layers the choice costs 0.3 % so, without 0.9
        return float(5 * rates.call + 1.22 * p.n * each)

    def workspace(self, problem: Any, target: Any, config: Config) -> int:
        rooms = []
        for has_c in (False, True):
            product = self._product(problem, self._width(problem, target), has_c)
            solver = self._best(product, target)
            rooms.append(solver.workspace(product, target, default_config(solver, product, target)))
        return self.regions(problem, target, config).nbytes + max(rooms)

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        p = problem
        elements = p.groups * p.pixels * self._width(p, target)
        return Regions({"matrix": elements * DTYPES[p.accumulate].itemsize + 64})

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        p = problem
        width, size = self._width(p, target), DTYPES[p.accumulate].itemsize
        W = lanes(p.accumulate, target.vector_bytes)
        table = geometry_table(p)
        patches = make_patches(p.x_dtype, p.accumulate, gather_lanes(p.kernel[2], W))
        values = {
            "geometry": int(table.ctypes.data), "patches": patches.address,
            "in_size": size, "out_size": size, "width": width, "run": p.kernel[2],
        }  # fmt: skip
        lines = p.groups * p.y_size[0] * p.y_size[1]
        columns = Program.of(COLUMNS, values, [(make_columns(), lines, 4)], keep=(table,))
        products = []
        for has_c in (False, True):
            product = self._product(p, width, has_c)
            solver = self._best(product, target)
            products.append(solver.program(product, target, default_config(solver, product, target)))
        parts = []
        for n in range(p.n):
            dy = array(1, n * p.strides.y[0] * DTYPES[p.y_dtype].itemsize)
            x = array(2, n * p.strides.x[0] * DTYPES[p.x_dtype].itemsize)
            parts.append(Part(columns, [Region("matrix"), x], []))
            parts.append(
                Part(products[min(n, 1)], [array(0), dy, Region("matrix"), array(0) if n else None], [1.0, 1.0])
            )
        return join(parts, shared=self.regions(p, target, config).shared, parallel=worth_threads(p, target))
