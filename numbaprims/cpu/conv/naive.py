"""The definition as loops: every type, stride, size and direction.  The last resort; never chosen where another can."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from numbaprims.cpu.conv.arguments import ARGS, GEOMETRY, bias_dtype, geometry_table
from numbaprims.cpu.conv.long import in_parts
from numbaprims.cpu.gemm.finish import activate_in_place, activation_address
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import (
    advance,
    load_scalar,
    load_wide_scalar,
    record,
    scalar,
    stack_array,
    store_narrow_scalar,
    store_scalar,
)
from numbaprims.cpu.solver import Config, Solver


@helper
def end_element(args, room, total, channel, c_at, acc):  # type: ignore[no-untyped-def]
    """act(alpha total + beta c + bias[channel])."""
    total = scalar(total * scalar(args.alpha, acc), acc)
    if args.has_c:
        total = scalar(total + load_wide_scalar(args.c, c_at) * scalar(args.beta, acc), acc)
    if args.has_bias:
        total = scalar(total + load_wide_scalar(args.bias, channel * args.bias_step), acc)
    if args.activation != 0:
        store_scalar(room, 0, total)
        activate_in_place(args, room, 1)
        total = load_scalar(room, 0)
    return total


@functools.cache
def make_forward(x: str, w: str, out: str, bias: str, acc: str, zeros: bool, requantized: bool) -> RangeKernel:
    """Kernel over the rows (n, k, o, p) of y."""
    types = ARGS.types(out=out, first=x, second=w, c=out, bias=bias, extra="f32")
    lowest, highest = (0, 255) if out == "u8" else (-128, 127)

    @range_kernel("conv_naive_forward", types, spec=(x, w, out, bias, acc, zeros, requantized))
    def naive_forward(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        g = record(GEOMETRY, args.geometry)
        room = stack_array(acc, 8)  # one element, in the form that an activation's kernel takes
        y_d, y_h = g.y_d, g.y_h
        x_zero = scalar(args.x_zero, acc)
        for row in range(lo, hi):
            rest, p = divmod(row, y_h)
            rest, o = divmod(rest, y_d)
            n, k = divmod(rest, g.k)
            group = k // g.group_k
            w_zero = scalar(0, acc)
            if zeros:
                w_zero = scalar(load_scalar(args.extra, g.k + k), acc)
            first_c = group * g.group_c
            d0 = o * g.stride_d - g.pad_d
            h0 = p * g.stride_h - g.pad_h
            x = advance(args.first, n * g.xs_n + first_c * g.xs_c)
            w = advance(args.second, k * g.ws_k)
            at = n * g.ys_n + k * g.ys_k + o * g.ys_d + p * g.ys_h
            c_at = n * g.cs_n + k * g.cs_k + o * g.cs_d + p * g.cs_h
            for q in range(g.y_w):
                w0 = q * g.stride_w - g.pad_w
                total = scalar(0, acc)
                for c in range(g.group_c):
                    for z in range(g.k_d):
                        d = d0 + z * g.dilation_d
                        if d < 0 or d >= g.x_d:
                            continue
                        for r in range(g.k_h):
                            h = h0 + r * g.dilation_h
                            if h < 0 or h >= g.x_h:
                                continue
                            x_at = c * g.xs_c + d * g.xs_d + h * g.xs_h
                            w_at = c * g.ws_c + z * g.ws_d + r * g.ws_h
                            for s in range(g.k_w):
                                v = w0 + s * g.dilation_w
                                if v < 0 or v >= g.x_w:
                                    continue
                                left = scalar(load_wide_scalar(x, x_at + v * g.xs_w), acc)
                                right = scalar(load_wide_scalar(w, w_at + s * g.ws_w), acc)
                                if zeros:
                                    left = scalar(left - x_zero, acc)
                                    right = scalar(right - w_zero, acc)
                                total = scalar(total + left * right, acc)
                total = end_element(args, room, total, k, c_at + q * g.cs_w, acc)
                if requantized:
                    scaled = np.rint(scalar(total, "f32") * load_scalar(args.extra, k))
                    scaled = scaled + load_scalar(args.extra, 2 * g.k + k)
                    scaled = min(max(scaled, scalar(lowest, "f32")), scalar(highest, "f32"))
                    store_narrow_scalar(args.out, at + q * g.ys_w, scalar(scaled, "i32"))
                else:
                    store_narrow_scalar(args.out, at + q * g.ys_w, total)

    return naive_forward


@functools.cache
def make_data(dtype: str, out: str, acc: str) -> RangeKernel:
    """Kernel over the rows (n, c, d, h) of x's gradient."""
    types = ARGS.types(out=out, first=dtype, second=dtype, c=out, bias=dtype)

    @range_kernel("conv_naive_data", types, spec=(dtype, out, acc))
    def naive_data(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        g = record(GEOMETRY, args.geometry)
        room = stack_array(acc, 8)
        x_d, x_h = g.x_d, g.x_h
        for row in range(lo, hi):
            rest, h = divmod(row, x_h)
            rest, d = divmod(rest, x_d)
            n, c = divmod(rest, g.c)
            group, own_c = divmod(c, g.group_c)
            first_k = group * g.group_k
            y = advance(args.first, n * g.ys_n + first_k * g.ys_k)
            w = advance(args.second, first_k * g.ws_k + own_c * g.ws_c)
            at = n * g.xs_n + c * g.xs_c + d * g.xs_d + h * g.xs_h
            c_at = n * g.cs_n + c * g.cs_k + d * g.cs_d + h * g.cs_h
            for v in range(g.x_w):
                total = scalar(0, acc)
                for k in range(g.group_k):
                    for z in range(g.k_d):
                        o, rest = divmod(d + g.pad_d - z * g.dilation_d, g.stride_d)
                        if rest != 0 or o < 0 or o >= g.y_d:
                            continue
                        for r in range(g.k_h):
                            up = h + g.pad_h - r * g.dilation_h
                            p, rest = divmod(up, g.stride_h)
                            if rest != 0 or p < 0 or p >= g.y_h:
                                continue
                            y_at = k * g.ys_k + o * g.ys_d + p * g.ys_h
                            w_at = k * g.ws_k + z * g.ws_d + r * g.ws_h
                            for s in range(g.k_w):
                                left = v + g.pad_w - s * g.dilation_w
                                q, rest = divmod(left, g.stride_w)
                                if rest != 0 or q < 0 or q >= g.y_w:
                                    continue
                                value = load_wide_scalar(y, y_at + q * g.ys_w)
                                total = scalar(total + value * load_wide_scalar(w, w_at + s * g.ws_w), acc)
                total = end_element(args, room, total, c, c_at + v * g.cs_w, acc)
                store_narrow_scalar(args.out, at + v * g.xs_w, total)

    return naive_data


@functools.cache
def make_weight(dtype: str, out: str, acc: str) -> RangeKernel:
    """Kernel over the rows (k, c, z, r) of the weight's gradient."""
    types = ARGS.types(out=out, first=dtype, second=dtype, c=out)

    @range_kernel("conv_naive_weight", types, spec=(dtype, out, acc))
    def naive_weight(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        g = record(GEOMETRY, args.geometry)
        room = stack_array(acc, 8)
        for row in range(lo, hi):
            rest, r = divmod(row, g.k_h)
            rest, z = divmod(rest, g.k_d)
            k, own_c = divmod(rest, g.group_c)
            c = k // g.group_k * g.group_c + own_c
            x = advance(args.second, c * g.xs_c)
            y = advance(args.first, k * g.ys_k)
            at = k * g.ws_k + own_c * g.ws_c + z * g.ws_d + r * g.ws_h
            c_at = k * g.cs_n + own_c * g.cs_k + z * g.cs_d + r * g.cs_h
            for s in range(g.k_w):
                total = scalar(0, acc)
                for n in range(g.n):
                    for o in range(g.y_d):
                        d = o * g.stride_d - g.pad_d + z * g.dilation_d
                        if d < 0 or d >= g.x_d:
                            continue
                        for p in range(g.y_h):
                            h = p * g.stride_h - g.pad_h + r * g.dilation_h
                            if h < 0 or h >= g.x_h:
                                continue
                            x_at = n * g.xs_n + d * g.xs_d + h * g.xs_h
                            y_at = n * g.ys_n + o * g.ys_d + p * g.ys_h
                            for q in range(g.y_w):
                                v = q * g.stride_w - g.pad_w + s * g.dilation_w
                                if v < 0 or v >= g.x_w:
                                    continue
                                value = load_wide_scalar(x, x_at + v * g.xs_w)
                                total = scalar(total + value * load_wide_scalar(y, y_at + q * g.ys_w), acc)
                total = end_element(args, room, total, 0, c_at + s * g.cs_w, acc)
                store_narrow_scalar(args.out, at + s * g.ws_w, total)

    return naive_weight


@functools.cache
def make_bias(dtype: str, out: str, acc: str) -> RangeKernel:
    """Kernel over the channels of y: the sum of each."""
    types = ARGS.types(out=out, first=dtype)

    @range_kernel("conv_naive_bias", types, spec=(dtype, out, acc))
    def naive_bias(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        g = record(GEOMETRY, args.geometry)
        for k in range(lo, hi):
            total = scalar(0, acc)
            for n in range(g.n):
                for o in range(g.y_d):
                    # a row's sum by itself: sums of as many terms as there are pixels lose half of their digits
                    for p in range(g.y_h):
                        at = n * g.ys_n + k * g.ys_k + o * g.ys_d + p * g.ys_h
                        row = scalar(0, acc)
                        for q in range(g.y_w):
                            row = scalar(row + load_wide_scalar(args.first, at + q * g.ys_w), acc)
                        total = scalar(total + row, acc)
            store_narrow_scalar(args.out, k * g.ws_k, total)

    return naive_bias


@in_parts
class Naive(Solver):
    """One element at a time."""

    name = "naive"

    def estimate(self, problem: Any, target: Any) -> float:
        # a scalar multiply-add with its index arithmetic, strided reads of the weight
        return float(1.67 * target.rates.call + target.rates.cycles(12.3 * problem.flops()))

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        return None

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        p, acc = problem, problem.accumulate
        if p.direction == "forward":
            kernel = make_forward(
                p.x_dtype, p.w_dtype, p.y_dtype, bias_dtype(p), acc, p.zeros != "none", p.requantized
            )  # fmt: skip
            rows = p.n * p.k * p.y_size[0] * p.y_size[1]
        elif p.direction == "data":
            kernel = make_data(p.y_dtype, p.x_dtype, acc)
            rows = p.n * p.c * p.x_size[0] * p.x_size[1]
        elif p.direction == "weight":
            kernel = make_weight(p.y_dtype, p.w_dtype, acc)
            rows = p.k * p.group_c * p.kernel[0] * p.kernel[1]
        else:
            kernel = make_bias(p.y_dtype, p.w_dtype, acc)
            rows = p.k
        table = geometry_table(p)
        values = {
            "geometry": int(table.ctypes.data), "activation": activation_address(p, target), "has_c": int(p.has_c),
            "has_bias": int(p.bias), "bias_step": p.strides.bias,
        }  # fmt: skip
        phases = [(kernel, rows, max(1, min(16, rows // 8)))]
        return Program.of(
            ARGS, values, phases, keep=(table,), parallel=self.estimate(p, target) > 5 * target.rates.wake
        )
