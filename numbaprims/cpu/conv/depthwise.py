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
    """Sizes and strides of what windows walk over and of what they lead to (of dy and dx for the data gradient)."""
    p, s = problem, problem.strides
    if p.direction == "data":
        return p.y_size, p.x_size, s.y, s.x
    return p.x_size, p.y_size, s.x, s.y


def row_tile(problem: Any, target: Any) -> tuple[int, int]:
    """Rows and lanes of a tile: of least padding."""
    p, wide = problem, target.isa in ("avx512", "neon")
    rows, columns = sides(p)[1][1:]
    W = lanes(p.accumulate, target.vector_bytes)
    while W > 4 and columns <= W // 2:
        W //= 2
    if p.direction == "data":
        rows = ceil_div(rows + p.padding[1] % p.stride[1], p.stride[1])
        heights = {1: (7, 8, 6, 5), 2: (4, 3)}.get(p.stride[1] * p.stride[2], (2, 1))
    else:
        heights = (7, 8, 6, 5)
    if not wide:
        heights = tuple(dict.fromkeys(max(1, height // 2) for height in heights))
    if rows <= max(heights):
        return rows, W
    return min(heights, key=lambda height: round_up(rows, height)), W


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
        size = sides(p)[1]
        return round_up(size[1] * size[2] * itemsize(p.accumulate), 64)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        p, s = problem, problem.strides
        in_size, out_size, in_steps, out_steps = sides(p)
        RT, W = row_tile(p, target)
        (_, R, S), (_, SH, SW), pad, room = p.kernel, p.stride, p.padding, self._room(p)
        gradient, spread = p.direction == "weight", p.direction == "data"
        if gradient:
            kernel = depthwise_rows.make_gradient(p.in_dtype, p.accumulate, RT, R, S, SH, SW, W)
        else:
            kernel = depthwise_rows.make_rows(
                p.in_dtype, p.accumulate, RT, R, S, SH, SW, W, int(p.has_c), int(room > 0), int(spread)
            )  # fmt: skip
        none = np.zeros(in_size[2] * itemsize(p.in_dtype), np.uint8)
        values = {
            "images": p.n, "channels": p.k, "multiplier": p.group_k,
            "in_h": in_size[1], "in_w": in_size[2], "out_h": out_size[1], "out_w": out_size[2],
            "row": pad[1] if spread else -pad[1], "column": pad[2] if spread else -pad[2],
            # tiles of a spread window begin where padding and row together are a multiple of the stride
            "first_row": -(pad[1] % SH) if spread else 0, "first_column": -(pad[2] % SW) if spread else 0,
            "in_n": in_steps[0], "in_c": in_steps[1], "in_row": in_steps[3],
            "out_n": out_steps[0], "out_c": out_steps[1], "out_row": out_steps[3],
            "c_n": s.c[0], "c_c": s.c[1], "c_row": s.c[3], "c_column": s.c[4],
            "w_k": s.w[0], "w_row": s.w[3], "w_column": s.w[4],
            "has_c": int(p.has_c), "has_bias": int(p.bias), "bias_step": s.bias,
            "activation": activation_address(p, target), "zeros": int(none.ctypes.data), "worker_bytes": room,
        }  # fmt: skip
        tiles = p.k if gradient else p.n * p.k
        program = Program(
            [values[name] for name in depthwise_rows.ARGS.ints], [(kernel, tiles, ceil_div(tiles, 32))], keep=(none,)
        )
        return make_launcher(program, parallel=self.estimate(p, target) > 15e-6, per_worker=room)
