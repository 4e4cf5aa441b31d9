"""Depthwise convolutions: every group has one channel of x."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims.cpu.conv.depthwise_work import Work, pixels_work, rows_work
from numbaprims.cpu.launch import make_launcher
from numbaprims.dispatch.solver import Config, Launcher, Solver

ROWS = ("planes", "rows")


def form(problem: Any) -> str | None:
    """How the operands lie, for the kernels: "rows", "pixels", or None where neither kind takes them."""
    p, s = problem, problem.strides
    if p.x_order in ROWS and p.y_order in ROWS:
        return "rows" if not p.has_c or s.c[4] == 1 or p.direction == "weight" or sides_width(p) == 1 else None
    if p.x_order == "last" and p.y_order == "last" and p.group_k == 1:
        taps_in_line = p.kernel[1] == 1 or p.kernel[2] == 1 or s.w[3] == p.kernel[2] * s.w[4]
        channels = not p.has_c or s.c[1] == 1
        return "pixels" if p.direction == "weight" or (taps_in_line and channels) else None
    return None


def sides_width(problem: Any) -> int:
    """Columns of the result."""
    return int((problem.x_size if problem.direction == "data" else problem.y_size)[2])


class Depthwise(Solver):
    """Every channel by itself."""

    name = "depthwise"

    def why_not(self, problem: Any, target: Any) -> str | None:
        p = problem
        if not p.depthwise:
            return "the groups have several channels of x"
        if p.direction == "bias":
            return "it has no gradient of the bias"
        if p.direction == "data" and p.group_k > 1:
            return "its data gradient takes one filter a channel"
        if p.accumulate == "i32":
            return "it has no integers"
        if p.kernel[0] > 1 or p.x_size[0] > 1:
            return "it has two spatial dimensions"
        if p.dilation[1:] != (1, 1) or p.stride[2] > 2 or p.taps > 49:
            return "it has no dilation, horizontal strides of 1 and 2, and windows of up to 49 elements"
        if form(p) is None:
            return "the rows of x and y must be contiguous, or the channels of both with one filter each"
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        return 1e-6 + float(problem.flops()) / 80e9

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        if form(problem) != "pixels":
            return None
        work = pixels_work(problem, target, only_pack=True)
        packed = np.zeros(work.packed + 64, np.uint8)
        packed = packed[-packed.ctypes.data % 64 :]
        make_launcher(work.program, parallel=False)(packed, None, weights, None, None, packed)
        return packed

    def workspace(self, problem: Any, target: Any, config: Config) -> int:
        work = self._work(problem, target)
        return work.shared + work.worker

    @staticmethod
    def _work(problem: Any, target: Any) -> Work:
        return rows_work(problem, target) if form(problem) == "rows" else pixels_work(problem, target)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        work = self._work(problem, target)
        parallel = self.estimate(problem, target) > 15e-6
        return make_launcher(work.program, parallel=parallel, shared=work.shared, per_worker=work.worker)
