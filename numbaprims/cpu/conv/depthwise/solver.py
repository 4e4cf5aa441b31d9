"""Depthwise convolutions: every group has one channel of x."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numbaprims.cpu.conv.depthwise import work
from numbaprims.cpu.conv.long import in_parts
from numbaprims.cpu.program import Program
from numbaprims.cpu.solver import Config, Solver, run


def neighbours(problem: Any) -> tuple[bool, bool]:
    """Whether the columns of x, y and c are neighbours, and whether their channels are (one alone always is)."""
    p, s = problem, problem.strides
    arrays = [(s.x, p.c, p.x_size), (s.y, p.k, p.y_size)]
    if p.has_c and p.direction != "weight":
        arrays.append((s.c, *((p.c, p.x_size) if p.direction == "data" else (p.k, p.y_size))))
    columns = all(steps[4] == 1 or size[2] == 1 for steps, _, size in arrays)
    return columns, all(steps[1] == 1 or channels == 1 for steps, channels, _ in arrays)


def form(problem: Any) -> str | None:
    """How the operands lie, for the kernels: "rows", "pixels", or None where neither kind takes them."""
    p = problem
    columns, channels = neighbours(p)
    if columns:
        return "rows"
    if channels and p.group_k == 1:
        return "pixels" if p.direction == "weight" or work.in_line(p) else None
    return None


def _ways(problem: Any, target: Any) -> tuple[Callable[..., float], Callable[..., Program]]:
    """The estimate and the program of the kernels that take a problem."""
    if form(problem) == "pixels":
        return work.pixels_time, work.pixels_program
    if work.in_blocks(problem, target):
        return work.blocks_time, work.blocks_program
    return work.rows_time, work.rows_program


@in_parts
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
        if p.direction != "weight" and p.out_dtype != p.in_dtype:
            return "it stores the dtype of its operands"
        if not p.planar:
            return "it has two spatial dimensions"
        if p.dilation[1:] != (1, 1) or p.stride[2] > 2 or p.taps > 49:
            return "it has no dilation, horizontal strides of 1 and 2, and windows of up to 49 elements"
        if form(p) is None:
            return "the rows of x and y must be contiguous, or the channels of both with one filter each"
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        return _ways(problem, target)[0](problem, target)

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        make = _ways(problem, target)[1]
        if make is work.rows_program:
            return None
        packed = np.zeros(work.packed_bytes(problem, target) + 64, np.uint8)
        packed = packed[-packed.ctypes.data % 64 :]
        run(make(problem, target, False, only_pack=True), packed, None, weights, None, None, packed)
        return packed

    def workspace(self, problem: Any, target: Any, config: Config) -> int:
        program = self.program(problem, target, config)
        return program.shared + program.worker

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        time, make = _ways(problem, target)
        return make(problem, target, time(problem, target) > 3.75 * target.rates.wake)
