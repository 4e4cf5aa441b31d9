"""Direct convolutions: sums over all taps kept in registers, operands read from a padded copy, no matrix of patches."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims.cpu.conv.depthwise.solver import neighbours
from numbaprims.cpu.conv.direct.layout import DirectLayout, Pixels, Planes
from numbaprims.cpu.conv.direct.weight_layout import Gradient
from numbaprims.cpu.conv.long import in_parts
from numbaprims.cpu.program import Program
from numbaprims.cpu.solver import Config, Regions, Solver, run

MOST_CHANNELS = 8
"""Of a group, for the weight's gradient: with more, vectors along the channels (weight_gemm) are full."""


def kind_of(problem: Any) -> type[DirectLayout] | None:
    """The kernels for how the operands lie, None where there are none."""
    columns, channels = neighbours(problem)
    if problem.direction == "weight":
        return Gradient if columns else None
    return Planes if columns else Pixels if channels else None


def layout_of(problem: Any, target: Any) -> DirectLayout:
    """How a problem that the solver takes is cut."""
    kind = kind_of(problem)
    assert kind is not None
    return kind(problem, target)


@in_parts
class Direct(Solver):
    """Filters by pixels in registers, without a column matrix."""

    name = "direct"

    def why_not(self, problem: Any, target: Any) -> str | None:
        p = problem
        if p.direction == "bias":
            return "it has no direction bias"
        if p.accumulate == "i32":
            return "it has no integers"
        if p.direction != "weight" and p.out_dtype != p.in_dtype:
            return "it stores the dtype of its operands"
        if p.direction == "data" and p.stride != (1, 1, 1):
            return "its data gradient has stride 1 only"
        if not p.planar:
            return "it has two spatial dimensions"
        kind = kind_of(p)
        if kind is None:
            return "the rows of x, y and c must be contiguous, or their channels"
        if p.direction == "weight" and p.group_c > MOST_CHANNELS:
            return f"its gradient of the weight is for up to {MOST_CHANNELS} channels of a group"
        if kind is not Pixels and p.stride[2] > 4:
            return "its horizontal stride is at most 4 in planes"
        if kind(p, target).copied_bytes(1) > target.l2 // 2:
            return "the input rows of one row of the result exceed half of the second-level cache"
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        return layout_of(problem, target).estimate()

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        regions: Regions = layout_of(problem, target).regions
        return regions

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        layout = layout_of(problem, target)
        packed = np.zeros(layout.packed + 64, np.uint8)
        packed = packed[-packed.ctypes.data % 64 :]
        run(layout.program(only_pack=True), packed, None, weights, None, None, packed)
        return packed

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        return layout_of(problem, target).program()
