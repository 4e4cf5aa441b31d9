"""The definition as loops: every type, stride, size and direction.  The last resort; never chosen where another can."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from numbaprims.cpu.conv.arguments import ARGS, WORD, bias_dtype, geometry_table
from numbaprims.cpu.conv.long import in_parts
from numbaprims.cpu.gemm.finish import activate_in_place, activation_address
from numbaprims.cpu.jit import RangeKernel, helper, range_kernel
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import (
    advance,
    load_scalar,
    load_wide_scalar,
    load_word,
    scalar,
    stack_array,
    store_narrow_scalar,
    store_scalar,
)
from numbaprims.cpu.solver import Config, Solver

N, C, K, GROUP_C, GROUP_K = (WORD[name] for name in ("n", "c", "k", "group_c", "group_k"))
X_SIZE, KERNEL, Y_SIZE = WORD["x_d"], WORD["k_d"], WORD["y_d"]
STRIDE, DILATION, PAD = WORD["stride_d"], WORD["dilation_d"], WORD["pad_d"]
XS, WS, YS, CS = WORD["xs_n"], WORD["ws_k"], WORD["ys_n"], WORD["cs_n"]


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
        g = args.geometry
        room = stack_array(acc, 8)  # one element, in the form that an activation's kernel takes
        y_d, y_h = load_word(g, Y_SIZE), load_word(g, Y_SIZE + 1)
        x_zero = scalar(args.x_zero, acc)
        for row in range(lo, hi):
            rest, p = divmod(row, y_h)
            rest, o = divmod(rest, y_d)
            n, k = divmod(rest, load_word(g, K))
            group = k // load_word(g, GROUP_K)
            w_zero = scalar(0, acc)
            if zeros:
                w_zero = scalar(load_scalar(args.extra, load_word(g, K) + k), acc)
            first_c = group * load_word(g, GROUP_C)
            d0 = o * load_word(g, STRIDE) - load_word(g, PAD)
            h0 = p * load_word(g, STRIDE + 1) - load_word(g, PAD + 1)
            x = advance(args.first, n * load_word(g, XS) + first_c * load_word(g, XS + 1))
            w = advance(args.second, k * load_word(g, WS))
            at = n * load_word(g, YS) + k * load_word(g, YS + 1) + o * load_word(g, YS + 2) + p * load_word(g, YS + 3)
            c_at = n * load_word(g, CS) + k * load_word(g, CS + 1) + o * load_word(g, CS + 2) + p * load_word(g, CS + 3)
            for q in range(load_word(g, Y_SIZE + 2)):
                w0 = q * load_word(g, STRIDE + 2) - load_word(g, PAD + 2)
                total = scalar(0, acc)
                for c in range(load_word(g, GROUP_C)):
                    for z in range(load_word(g, KERNEL)):
                        d = d0 + z * load_word(g, DILATION)
                        if d < 0 or d >= load_word(g, X_SIZE):
                            continue
                        for r in range(load_word(g, KERNEL + 1)):
                            h = h0 + r * load_word(g, DILATION + 1)
                            if h < 0 or h >= load_word(g, X_SIZE + 1):
                                continue
                            x_at = c * load_word(g, XS + 1) + d * load_word(g, XS + 2) + h * load_word(g, XS + 3)
                            w_at = c * load_word(g, WS + 1) + z * load_word(g, WS + 2) + r * load_word(g, WS + 3)
                            for s in range(load_word(g, KERNEL + 2)):
                                v = w0 + s * load_word(g, DILATION + 2)
                                if v < 0 or v >= load_word(g, X_SIZE + 2):
                                    continue
                                left = scalar(load_wide_scalar(x, x_at + v * load_word(g, XS + 4)), acc)
                                right = scalar(load_wide_scalar(w, w_at + s * load_word(g, WS + 4)), acc)
                                if zeros:
                                    left = scalar(left - x_zero, acc)
                                    right = scalar(right - w_zero, acc)
                                total = scalar(total + left * right, acc)
                total = end_element(args, room, total, k, c_at + q * load_word(g, CS + 4), acc)
                if requantized:
                    scaled = np.rint(scalar(total, "f32") * load_scalar(args.extra, k))
                    scaled = scaled + load_scalar(args.extra, 2 * load_word(g, K) + k)
                    scaled = min(max(scaled, scalar(lowest, "f32")), scalar(highest, "f32"))
                    store_narrow_scalar(args.out, at + q * load_word(g, YS + 4), scalar(scaled, "i32"))
                else:
                    store_narrow_scalar(args.out, at + q * load_word(g, YS + 4), total)

    return naive_forward


@functools.cache
def make_data(dtype: str, out: str, acc: str) -> RangeKernel:
    """Kernel over the rows (n, c, d, h) of x's gradient."""
    types = ARGS.types(out=out, first=dtype, second=dtype, c=out, bias=dtype)

    @range_kernel("conv_naive_data", types, spec=(dtype, out, acc))
    def naive_data(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        g = args.geometry
        room = stack_array(acc, 8)
        x_d, x_h = load_word(g, X_SIZE), load_word(g, X_SIZE + 1)
        for row in range(lo, hi):
            rest, h = divmod(row, x_h)
            rest, d = divmod(rest, x_d)
            n, c = divmod(rest, load_word(g, C))
            group, own_c = divmod(c, load_word(g, GROUP_C))
            first_k = group * load_word(g, GROUP_K)
            y = advance(args.first, n * load_word(g, YS) + first_k * load_word(g, YS + 1))
            w = advance(args.second, first_k * load_word(g, WS) + own_c * load_word(g, WS + 1))
            at = n * load_word(g, XS) + c * load_word(g, XS + 1) + d * load_word(g, XS + 2) + h * load_word(g, XS + 3)
            c_at = n * load_word(g, CS) + c * load_word(g, CS + 1) + d * load_word(g, CS + 2) + h * load_word(g, CS + 3)
            for v in range(load_word(g, X_SIZE + 2)):
                total = scalar(0, acc)
                for k in range(load_word(g, GROUP_K)):
                    for z in range(load_word(g, KERNEL)):
                        o, rest = divmod(d + load_word(g, PAD) - z * load_word(g, DILATION), load_word(g, STRIDE))
                        if rest != 0 or o < 0 or o >= load_word(g, Y_SIZE):
                            continue
                        for r in range(load_word(g, KERNEL + 1)):
                            up = h + load_word(g, PAD + 1) - r * load_word(g, DILATION + 1)
                            p, rest = divmod(up, load_word(g, STRIDE + 1))
                            if rest != 0 or p < 0 or p >= load_word(g, Y_SIZE + 1):
                                continue
                            y_at = k * load_word(g, YS + 1) + o * load_word(g, YS + 2) + p * load_word(g, YS + 3)
                            w_at = k * load_word(g, WS) + z * load_word(g, WS + 2) + r * load_word(g, WS + 3)
                            for s in range(load_word(g, KERNEL + 2)):
                                left = v + load_word(g, PAD + 2) - s * load_word(g, DILATION + 2)
                                q, rest = divmod(left, load_word(g, STRIDE + 2))
                                if rest != 0 or q < 0 or q >= load_word(g, Y_SIZE + 2):
                                    continue
                                value = load_wide_scalar(y, y_at + q * load_word(g, YS + 4))
                                total = scalar(
                                    total + value * load_wide_scalar(w, w_at + s * load_word(g, WS + 4)), acc
                                )
                total = end_element(args, room, total, c, c_at + v * load_word(g, CS + 4), acc)
                store_narrow_scalar(args.out, at + v * load_word(g, XS + 4), total)

    return naive_data


@functools.cache
def make_weight(dtype: str, out: str, acc: str) -> RangeKernel:
    """Kernel over the rows (k, c, z, r) of the weight's gradient."""
    types = ARGS.types(out=out, first=dtype, second=dtype, c=out)

    @range_kernel("conv_naive_weight", types, spec=(dtype, out, acc))
    def naive_weight(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        g = args.geometry
        room = stack_array(acc, 8)
        for row in range(lo, hi):
            rest, r = divmod(row, load_word(g, KERNEL + 1))
            rest, z = divmod(rest, load_word(g, KERNEL))
            k, own_c = divmod(rest, load_word(g, GROUP_C))
            c = k // load_word(g, GROUP_K) * load_word(g, GROUP_C) + own_c
            x = advance(args.second, c * load_word(g, XS + 1))
            y = advance(args.first, k * load_word(g, YS + 1))
            at = (
                k * load_word(g, WS)
                + own_c * load_word(g, WS + 1)
                + z * load_word(g, WS + 2)
                + r * load_word(g, WS + 3)
            )
            c_at = (
                k * load_word(g, CS)
                + own_c * load_word(g, CS + 1)
                + z * load_word(g, CS + 2)
                + r * load_word(g, CS + 3)
            )
            for s in range(load_word(g, KERNEL + 2)):
                total = scalar(0, acc)
                for n in range(load_word(g, N)):
                    for o in range(load_word(g, Y_SIZE)):
                        d = o * load_word(g, STRIDE) - load_word(g, PAD) + z * load_word(g, DILATION)
                        if d < 0 or d >= load_word(g, X_SIZE):
                            continue
                        for p in range(load_word(g, Y_SIZE + 1)):
                            h = p * load_word(g, STRIDE + 1) - load_word(g, PAD + 1) + r * load_word(g, DILATION + 1)
                            if h < 0 or h >= load_word(g, X_SIZE + 1):
                                continue
                            x_at = n * load_word(g, XS) + d * load_word(g, XS + 2) + h * load_word(g, XS + 3)
                            y_at = n * load_word(g, YS) + o * load_word(g, YS + 2) + p * load_word(g, YS + 3)
                            for q in range(load_word(g, Y_SIZE + 2)):
                                v = (
                                    q * load_word(g, STRIDE + 2)
                                    - load_word(g, PAD + 2)
                                    + s * load_word(g, DILATION + 2)
                                )
                                if v < 0 or v >= load_word(g, X_SIZE + 2):
                                    continue
                                value = load_wide_scalar(x, x_at + v * load_word(g, XS + 4))
                                total = scalar(
                                    total + value * load_wide_scalar(y, y_at + q * load_word(g, YS + 4)), acc
                                )
                total = end_element(args, room, total, 0, c_at + s * load_word(g, CS + 4), acc)
                store_narrow_scalar(args.out, at + s * load_word(g, WS + 4), total)

    return naive_weight


@functools.cache
def make_bias(dtype: str, out: str, acc: str) -> RangeKernel:
    """Kernel over the channels of y: the sum of each."""
    types = ARGS.types(out=out, first=dtype)

    @range_kernel("conv_naive_bias", types, spec=(dtype, out, acc))
    def naive_bias(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        g = args.geometry
        for k in range(lo, hi):
            total = scalar(0, acc)
            for n in range(load_word(g, N)):
                for o in range(load_word(g, Y_SIZE)):
                    # a row's sum by itself: sums of as many terms as there are pixels lose half of their digits
                    for p in range(load_word(g, Y_SIZE + 1)):
                        at = (
                            n * load_word(g, YS)
                            + k * load_word(g, YS + 1)
                            + o * load_word(g, YS + 2)
                            + p * load_word(g, YS + 3)
                        )
                        row = scalar(0, acc)
                        for q in range(load_word(g, Y_SIZE + 2)):
                            row = scalar(row + load_wide_scalar(args.first, at + q * load_word(g, YS + 4)), acc)
                        total = scalar(total + row, acc)
            store_narrow_scalar(args.out, k * load_word(g, WS), total)

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
