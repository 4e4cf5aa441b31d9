"""Depthwise convolutions: every group has one channel of x."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims.cpu.conv import depthwise_rows
from numbaprims.cpu.conv.arguments import itemsize
from numbaprims.cpu.drivers import Program
from numbaprims.cpu.gemm.cost import ceil_div, round_up
from numbaprims.cpu.gemm.finish import activation_address
from numbaprims.cpu.launch import make_launcher
from numbaprims.cpu.simd import lanes
from numbaprims.dispatch.solver import Config, Launcher, Solver


def sides(problem: Any) -> tuple[Any, ...]:
    """Sizes and strides of the input and the result (height and width last), padding before the first element, and
    strides of the weight; the data gradient with stride 1 is a convolution of dy with flipped windows."""
    p, s = problem, problem.strides
    if p.direction == "forward":
        return p.x_size, p.y_size, s.x, s.y, p.padding
    reach = tuple((k - 1) * d for k, d in zip(p.kernel, p.dilation, strict=True))
    return p.y_size, p.x_size, s.y, s.x, tuple(r - pad for r, pad in zip(reach, p.padding, strict=True))


def row_tile(problem: Any, target: Any) -> tuple[int, int]:
    """Rows and lanes of a tile: of least padding."""
    size, full = sides(problem)[1], lanes(problem.accumulate, target.vector_bytes)
    W = full
    while W > 4 and size[2] <= W // 2:
        W //= 2
    if size[1] <= 8:
        return max(1, size[1]), W
    heights = (7, 8, 6, 5) if target.isa in ("avx512", "neon") else (4, 3)
    return min(heights, key=lambda height: round_up(size[1], height)), W


class Depthwise(Solver):
    """Every channel by itself."""

    name = "depthwise"

    def why_not(self, problem: Any, target: Any) -> str | None:
        p = problem
        if not p.depthwise:
            return "the groups have several channels of x"
        if p.direction != "forward" and (p.direction != "data" or p.stride != (1, 1, 1) or p.group_k > 1):
            return f"it has no direction {p.direction} with stride {p.stride} and {p.group_k} filters a channel"
        if p.accumulate == "i32":
            return "it has no integers"
        if p.x_order not in ("planes", "rows") or p.y_order not in ("planes", "rows"):
            return "the rows of x and y must be contiguous"
        if p.kernel[0] > 1 or p.x_size[0] > 1:
            return "it has two spatial dimensions"
        if p.dilation[1:] != (1, 1) or p.stride[2] > 2 or p.taps > 49:
            return "it has no dilation, horizontal strides of 1 and 2, and windows of up to 49 elements"
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        return 1e-6 + float(problem.flops()) / 80e9

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        return None

    def workspace(self, problem: Any, target: Any, config: Config) -> int:
        return self._room(problem)

    def _room(self, problem: Any) -> int:
        p = problem
        if p.activation.kind == "identity" or p.out_dtype == p.accumulate:
            return 0
        _, size, *_ = sides(p)
        return round_up(size[1] * size[2] * itemsize(p.accumulate), 64)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        p, s = problem, problem.strides
        in_size, out_size, in_steps, out_steps, pad = sides(p)
        RT, W = row_tile(p, target)
        (_, R, S), room = p.kernel, self._room(p)
        SH, SW = p.stride[1:]
        kernel = depthwise_rows.make_rows(
            p.in_dtype, p.accumulate, RT, R, S, SH, SW, W, int(p.has_c), int(room > 0)
        )  # fmt: skip
        flip = p.direction == "data"
        none = np.zeros(in_size[2] * itemsize(p.in_dtype), np.uint8)
        channels = p.k
        values = {
            "channels": channels, "multiplier": p.group_k,
            "in_h": in_size[1], "in_w": in_size[2], "out_h": out_size[1], "out_w": out_size[2],
            "row": -pad[1], "column": -pad[2],
            "in_n": in_steps[0], "in_c": in_steps[1], "in_row": in_steps[3],
            "out_n": out_steps[0], "out_c": out_steps[1], "out_row": out_steps[3],
            "c_n": s.c[0], "c_c": s.c[1], "c_row": s.c[3],
            "w_start": (R - 1) * s.w[3] + (S - 1) * s.w[4] if flip else 0,
            "w_k": s.w[0], "w_row": -s.w[3] if flip else s.w[3], "w_column": -s.w[4] if flip else s.w[4],
            "has_bias": int(p.bias), "bias_step": s.bias, "activation": activation_address(p, target),
            "zeros": int(none.ctypes.data), "worker_bytes": room,
        }  # fmt: skip
        planes = p.n * channels
        program = Program(
            [values[name] for name in depthwise_rows.ARGS.ints], [(kernel, planes, ceil_div(planes, 32))], keep=(none,)
        )
        return make_launcher(program, parallel=self.estimate(p, target) > 15e-6, per_worker=room)
