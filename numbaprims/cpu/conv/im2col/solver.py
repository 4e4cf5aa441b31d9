"""The solver im2col_gemm: the whole column matrix, then a product (Chellapilla et al. 2006); or a product, then col2im.

The matrix has taps times as many elements as the input: writing and reading it is what the other solvers save.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from numbaprims.cpu.conv.arguments import bias_dtype
from numbaprims.cpu.conv.im2col.kernels import COLUMNS, make_columns, make_fold
from numbaprims.cpu.conv.implicit.passes import Pass, along
from numbaprims.cpu.conv.implicit.planes import make_planes
from numbaprims.cpu.conv.implicit.solvers import HALVED, HEIGHTS, Layout, lay_out
from numbaprims.cpu.conv.implicit.tiles import PASS, make_pack_driver
from numbaprims.cpu.gemm.cost import round_up
from numbaprims.cpu.gemm.finish import make_finish
from numbaprims.cpu.program import Phase, Program
from numbaprims.cpu.solver import Config, Regions, Solver

SLACK = 1024


class ColumnLayout(Layout):
    """The product with the column matrix, and the matrix in front of the workers' parts."""

    def __init__(self, problem: Any, target: Any, config: Config) -> None:
        p = problem
        self.forward = p.direction == "forward"
        self.one_image = not self.forward
        # rows that may be written a vector past their end
        self.pitch = round_up(p.pixels, 16) + 16
        super().__init__(problem, target, config)
        self.matrix_bytes = p.n * p.c * p.taps * self.pitch * self.size
        self.regions = Regions(
            {**self.regions.shared, "matrix": self.matrix_bytes + SLACK},
            {**self.regions.own, "row": 0 if self.forward else p.x_size[2] * self.size + SLACK},
        )
        strides = p.strides
        words = (
            self.pitch, p.c, *p.kernel, *p.x_size, *p.y_size, *p.stride, *p.dilation, *p.padding,
            *strides.x, *strides.c,
        )  # fmt: skip
        self.words = COLUMNS.table(dict(zip(COLUMNS.slots, words, strict=True)))

    def _walks(self, problem: Any) -> list[Pass]:
        p, s = problem, problem.strides
        one = (1, 1, 1)
        planes = p.y_size[1] * p.y_size[2], p.y_size[2], 1
        matrix = (p.c * p.taps * self.pitch, p.taps * self.pitch, *planes)
        walk = super()._walks(dataclasses.replace(problem, direction="forward"))[0]
        if self.forward:
            matrix = along(matrix, p.y_size)
            return [dataclasses.replace(walk, size=p.y_size, stride=one, dilation=one, padding=(0, 0, 0), x=matrix)]
        # rows: (channel, tap) of x; the weights have one step for both
        made = Pass(
            p.n, p.groups, p.group_c * p.taps, p.group_k, p.y_size, p.y_size, one, one, one, (0, 0, 0),
            walk.y, (1, s.w[0], 0, 0, 0), 0, p.group_k * s.w[0],
            (matrix[0], self.pitch, *planes), 0, (0,) * 5, 0,
        )  # fmt: skip
        return [made]

    def _channels_last(self, problem: Any) -> bool:
        return False

    def _in_dtype(self, problem: Any) -> str:
        return str(problem.accumulate if self.forward else problem.in_dtype)

    def _ways(self, one_tap: bool) -> list[int]:
        return [1] if self.forward else super()._ways(True)

    def _table(self) -> tuple[np.ndarray, tuple[Any, ...]]:
        table, keep = super()._table()
        if self.forward:
            table[:, PASS.slot("channel_step")] = self.pitch
        return table, keep

    def kernels(self, target: Any) -> dict[str, int]:
        values = super().kernels(target)
        values |= {"columns": int(self.words.ctypes.data)}
        if self.forward:
            return values | {"x_moved": 1}
        fold = make_finish(self.acc, self.problem.out_dtype, bias_dtype(self.problem), self.W).address
        return values | {"y_moved": 1, "finish": fold}


class Im2col(Solver):
    """The classic: what the others are measured by."""

    name = "im2col_gemm"
    version = 2

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.direction not in ("forward", "data"):
            return f"it computes results and data gradients, not direction {problem.direction}"
        if problem.accumulate not in ("f32", "f64"):
            return "it sums in float32 or float64 only"
        if problem.direction == "data":
            steps, taps = problem.strides.w, problem.kernel
            even = zip(steps[1:], (problem.taps, taps[1] * taps[2], taps[2], 1), (problem.group_c, *taps), strict=True)
            if any(size > 1 and step != wanted for step, wanted, size in even):
                return "channels and taps of the weight do not follow one another in memory"
        return None

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        rows = problem.group_k if problem.direction == "forward" else problem.group_c * problem.taps
        mr = 6
        if target.isa in ("avx512", "neon"):
            padded = {height: round_up(rows, height) for height in HEIGHTS}
            mr = next(height for height in HEIGHTS if padded[height] <= 1.02 * min(padded.values()))
        kc = 192 if problem.accumulate == "f32" else 96
        yield {"mr": mr, "nv": 2, "kc": kc, "mc": 252, "transposed": 0, "direct": 1}

    def estimate(self, problem: Any, target: Any) -> float:
        layout = lay_out(ColumnLayout, problem, target, next(iter(self.configs(problem, target))))
        # the matrix is written once and read once, from memory where it exceeds the caches; wide strides are gathered
        rates = target.rates
        speed = 0.25 * rates.memory if layout.matrix_bytes > rates.third(target.l3) / 2 else 0.238 * rates.l3
        if problem.stride[2] > 2:
            speed = rates.clock / 0.41
        products = layout.seconds * (1.0 if target.isa in ("avx512", "neon") else HALVED[1])
        seconds = 7.5 * rates.call + products + layout.matrix_bytes / speed
        if problem.x_order not in ("planes", "rows"):
            # the matrix's elements are gathered one by one, those of the gradient added up so
            depth, height, width = problem.x_size
            if problem.direction == "data":
                seconds += rates.cycles(6.15 * problem.n * problem.c * depth * height * width)
            else:
                seconds += rates.cycles(6.56 * layout.matrix_bytes / layout.size)
        return float(seconds)

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        return lay_out(ColumnLayout, problem, target, config).regions

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        return lay_out(ColumnLayout, problem, target, config).pack(target, weights)

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        layout = lay_out(ColumnLayout, problem, target, config)
        planes = problem.n * problem.c
        phases = [Phase(make_planes(), layout.count("tiles"), 1, one_queue=True)]
        chunk = max(1, min(16, planes // 8))
        if layout.forward:
            phases.insert(0, Phase(make_columns(problem.x_dtype, layout.acc, layout.W), planes, chunk))
        else:
            phases.append(Phase(make_fold(layout.acc, layout.W), planes, chunk))
        if not problem.prepared and not layout.private:
            tiles = layout.count("pack_tiles")
            phases.insert(0, Phase(make_pack_driver(), tiles, max(1, tiles // 8)))
        return layout.program(target, phases, (*layout.keep, layout.words))
