"""Direct convolutions: sums over all taps kept in registers, operands read from a padded copy, no matrix of patches."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims.cpu.conv.direct_layout import Planes
from numbaprims.cpu.launch import make_launcher
from numbaprims.dispatch.solver import Config, Launcher, Solver

ROWS = ("planes", "rows")


class Direct(Solver):
    """Filters by pixels in registers, without a column matrix."""

    name = "direct"

    def why_not(self, problem: Any, target: Any) -> str | None:
        p = problem
        if p.direction not in ("forward", "data"):
            return f"it has no direction {p.direction}"
        if p.accumulate == "i32":
            return "it has no integers"
        if p.direction == "data" and p.stride != (1, 1, 1):
            return "its data gradient has stride 1 only"
        if p.kernel[0] > 1 or p.x_size[0] > 1:
            return "it has two spatial dimensions"
        if p.stride[2] > 4:
            return "its horizontal stride is at most 4"
        if p.x_order not in ROWS or p.y_order not in ROWS or (p.has_c and p.strides.c[4] not in (0, 1)):
            return "the rows of x, y and c must be contiguous"
        if p.has_c and p.strides.c[4] == 0 and (p.x_size if p.direction == "data" else p.y_size)[2] > 1:
            return "the rows of x, y and c must be contiguous"
        if Planes(p, target).copied_bytes(1) > target.l2 // 2:
            return "the input rows of one row of the result exceed half of the second-level cache"
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        return Planes(problem, target).estimate()

    def workspace(self, problem: Any, target: Any, config: Config) -> int:
        layout = Planes(problem, target)
        return layout.shared + layout.worker

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        layout = Planes(problem, target)
        packed = np.zeros(layout.packed + 64, np.uint8)
        packed = packed[-packed.ctypes.data % 64 :]
        make_launcher(layout.program(only_pack=True), parallel=False)(packed, None, weights, None, None, packed)
        return packed

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        layout = Planes(problem, target)
        parallel = layout.estimate() > 15e-6
        return make_launcher(layout.program(), parallel=parallel, shared=layout.shared, per_worker=layout.worker)
