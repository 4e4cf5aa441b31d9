"""The definition, one thread for each element of the result: every type, stride, size and direction.  The last resort.

A grid has as many blocks as fill the GPU, and its threads walk over the result; all index arithmetic is in 64 bits.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu import parts
from numbaprims.gpu.activation.kernels import forward_of
from numbaprims.gpu.conv.arguments import common_types, common_values, operand_dtypes
from numbaprims.gpu.device.memory import advance, narrow, widen
from numbaprims.gpu.gemm import cost
from numbaprims.gpu.gemm.activations import compiled_kind
from numbaprims.gpu.gemm.arguments import ceil_div, register_type
from numbaprims.gpu.gemm.epilogue import make_finish
from numbaprims.gpu.jit import (
    STORAGE,
    GpuKernel,
    block_index,
    cuda,
    device_function,
    gpu_kernel,
    grid_size,
    thread_index,
    types,
)
from numbaprims.gpu.launch import make_launcher, step
from numbaprims.gpu.solver import Solver

THREADS = 128
BLOCKS = 16
"""Blocks a multiprocessor: its 2048 threads."""
I32, I64, U64, F32 = types.int32, types.int64, types.uint64, types.float32
#: Names of the integers behind the common parameters, int64: triples are depth, height, width; `xs`, `ws`, `ys`, `cs`
#: strides in elements.
GEOMETRY = (
    "elements, k, groups, group_c, group_k, x_d, x_h, x_w, z, r, s, y_d, y_h, y_w, step_d, step_h, step_w, "
    "gap_d, gap_h, gap_w, pad_d, pad_h, pad_w, xs_n, xs_c, xs_d, xs_h, xs_w, ws_k, ws_c, ws_z, ws_r, ws_s, "
    "ys_n, ys_k, ys_d, ys_h, ys_w, cs_0, cs_1, cs_2, cs_3, cs_4"
).split(", ")


def geometry(problem: Any, elements: int) -> tuple[int, ...]:
    """The integers of GEOMETRY."""
    p, s = problem, problem.strides
    values = (
        elements, p.k, p.groups, p.group_c, p.group_k, *p.x_size, *p.kernel, *p.y_size, *p.stride, *p.dilation,
        *p.padding, *s.x, *s.w, *s.y, *s.c,
    )  # fmt: skip
    assert len(values) == len(GEOMETRY)
    return values


@device_function
def split(number, length):  # type: ignore[no-untyped-def]
    """Quotient and remainder of two numbers that are not negative."""
    whole = U64(number) // U64(length)
    return I64(whole), I64(U64(number) - whole * U64(length))


@functools.cache
def make_end(first: str, out: str, activation: str, requantized: bool) -> Any:
    """end(x, out, at, c, c_at, bias, has_c, has_bias, code, alpha, beta, p0, p1, p2, factor, zero): one sum, a local
    array, into out[at]; `c_at` is its place in c, bias already that of its channel."""
    acc = DTYPES[first].accumulate
    finish = make_finish(first, out, acc, activation, 1)
    LOWEST, HIGHEST = (0.0, 255.0) if out == "u8" else (-128.0, 127.0)

    @device_function
    def end_plain(  # type: ignore[no-untyped-def]
        x, out_, at, c, c_at, bias, has_c, has_bias, code, alpha, beta, p0, p1, p2, factor, zero
    ):
        # one row of one column
        finish(
            x, I32(0), I32(0), advance(out_, at), advance(c, c_at), bias, I32(1), I64(0), I64(0), I64(0), I64(0),
            I64(0), has_c, has_bias, code, I32(0), alpha, beta, p0, p1, p2,
        )  # fmt: skip

    @device_function
    def end_quantized(  # type: ignore[no-untyped-def]
        x, out_, at, c, c_at, bias, has_c, has_bias, code, alpha, beta, p0, p1, p2, factor, zero
    ):
        total = x[0]
        if has_c != 0:
            total = I32(total + widen(c[c_at], out))
        if has_bias != 0:
            total = I32(total + bias[0])
        if code != 0:  # integers take no other activation than relu
            total = I32(max(total, I32(0)))
        scaled = forward_of("round", 0, F32(total) * factor, p0, p1, p2) + zero
        scaled = min(max(scaled, F32(LOWEST)), F32(HIGHEST))
        out_[at] = narrow(I32(scaled), out)

    return end_quantized if requantized else end_plain


@functools.cache
def make_forward(x: str, w: str, out: str, activation: str, zeros: bool, requantized: bool) -> GpuKernel:
    """One element of y a thread; with `zeros`, zero points are taken off x and w."""
    S = register_type(DTYPES[x].accumulate)
    end = make_end(x, out, activation, requantized)
    quantized = zeros or requantized
    signature = types.void(
        *common_types(x, w, out), *(types.int64,) * len(GEOMETRY), types.CPointer(types.float32), types.int32
    )

    @gpu_kernel(
        "conv_naive_forward", signature, spec=(x, w, out, activation, int(zeros), int(requantized)), threads=THREADS
    )
    def naive_forward(  # type: ignore[no-untyped-def]
        out_, first, second, c, bias, has_c, has_bias, bias_step, code, alpha, beta, p0, p1, p2,
        elements, k, groups, group_c, group_k, x_d, x_h, x_w, z, r, s, y_d, y_h, y_w, step_d, step_h, step_w,
        gap_d, gap_h, gap_w, pad_d, pad_h, pad_w, xs_n, xs_c, xs_d, xs_h, xs_w, ws_k, ws_c, ws_z, ws_r, ws_s,
        ys_n, ys_k, ys_d, ys_h, ys_w, cs_0, cs_1, cs_2, cs_3, cs_4,
        extra, x_zero,
    ):  # fmt: skip
        number = I64(block_index()) * THREADS + I64(thread_index())
        stride = I64(grid_size()) * THREADS
        total = cuda.local.array(1, S)
        while number < elements:
            rest, q = split(number, y_w)
            rest, p = split(rest, y_h)
            rest, o = split(rest, y_d)
            n, channel = split(rest, k)
            group, _ = split(channel, group_k)
            factor, zero, w_zero = F32(0.0), F32(0.0), S(0)
            if quantized:
                w_zero = S(extra[k + channel])
            if requantized:
                factor, zero = extra[channel], extra[2 * k + channel]
            d0, h0, w0 = o * step_d - pad_d, p * step_h - pad_h, q * step_w - pad_w
            total[0] = S(0)
            for i in range(group_c):
                x_at = n * xs_n + (group * group_c + i) * xs_c
                w_at = channel * ws_k + i * ws_c
                for zz in range(z):
                    d = d0 + zz * gap_d
                    for rr in range(r):
                        h = h0 + rr * gap_h
                        if d >= 0 and d < x_d and h >= 0 and h < x_h:
                            for ss in range(s):
                                v = w0 + ss * gap_w
                                if v >= 0 and v < x_w:
                                    left = widen(first[x_at + d * xs_d + h * xs_h + v * xs_w], x)
                                    right = widen(second[w_at + zz * ws_z + rr * ws_r + ss * ws_s], w)
                                    if zeros:
                                        left, right = S(left - S(x_zero)), S(right - w_zero)
                                    total[0] = S(total[0] + left * right)
            end(
                total, out_, n * ys_n + channel * ys_k + o * ys_d + p * ys_h + q * ys_w, c,
                n * cs_0 + channel * cs_1 + o * cs_2 + p * cs_3 + q * cs_4, advance(bias, channel * bias_step),
                has_c, has_bias, code, alpha, beta, p0, p1, p2, factor, zero,
            )  # fmt: skip
            number += stride

    return naive_forward


@functools.cache
def make_data(y: str, out: str, activation: str) -> GpuKernel:
    """One element of x's gradient a thread."""
    S = register_type(DTYPES[y].accumulate)
    end = make_end(y, out, activation, False)
    signature = types.void(*common_types(y, y, out), *(types.int64,) * len(GEOMETRY))

    @gpu_kernel("conv_naive_data", signature, spec=(y, out, activation), threads=THREADS)
    def naive_data(  # type: ignore[no-untyped-def]
        out_, first, second, c, bias, has_c, has_bias, bias_step, code, alpha, beta, p0, p1, p2,
        elements, k, groups, group_c, group_k, x_d, x_h, x_w, z, r, s, y_d, y_h, y_w, step_d, step_h, step_w,
        gap_d, gap_h, gap_w, pad_d, pad_h, pad_w, xs_n, xs_c, xs_d, xs_h, xs_w, ws_k, ws_c, ws_z, ws_r, ws_s,
        ys_n, ys_k, ys_d, ys_h, ys_w, cs_0, cs_1, cs_2, cs_3, cs_4,
    ):  # fmt: skip
        number = I64(block_index()) * THREADS + I64(thread_index())
        stride = I64(grid_size()) * THREADS
        total = cuda.local.array(1, S)
        while number < elements:
            rest, v = split(number, x_w)
            rest, h = split(rest, x_h)
            rest, d = split(rest, x_d)
            n, channel = split(rest, groups * group_c)
            group, own = split(channel, group_c)
            total[0] = S(0)
            for i in range(group_k):
                y_at = n * ys_n + (group * group_k + i) * ys_k
                w_at = (group * group_k + i) * ws_k + own * ws_c
                for zz in range(z):
                    back = d + pad_d - zz * gap_d
                    o, d_left = split(max(back, I64(0)), step_d)
                    for rr in range(r):
                        up = h + pad_h - rr * gap_h
                        p, h_left = split(max(up, I64(0)), step_h)
                        if back >= 0 and d_left == 0 and o < y_d and up >= 0 and h_left == 0 and p < y_h:
                            for ss in range(s):
                                left = v + pad_w - ss * gap_w
                                q, w_left = split(max(left, I64(0)), step_w)
                                if left >= 0 and w_left == 0 and q < y_w:
                                    value = widen(first[y_at + o * ys_d + p * ys_h + q * ys_w], y)
                                    weight = widen(second[w_at + zz * ws_z + rr * ws_r + ss * ws_s], y)
                                    total[0] = S(total[0] + value * weight)
            end(
                total, out_, n * xs_n + channel * xs_c + d * xs_d + h * xs_h + v * xs_w, c,
                n * cs_0 + channel * cs_1 + d * cs_2 + h * cs_3 + v * cs_4, advance(bias, channel * bias_step),
                has_c, has_bias, code, alpha, beta, p0, p1, p2, F32(0.0), F32(0.0),
            )  # fmt: skip
            number += stride

    return naive_data


@functools.cache
def make_weight(y: str, out: str, activation: str) -> GpuKernel:
    """One element of the weight's gradient a thread; rows of y, `terms` of them, and so many of these sums are each
    summed by themselves, since sums of as many terms as there are pixels lose half of their digits."""
    S = register_type(DTYPES[y].accumulate)
    end = make_end(y, out, activation, False)
    signature = types.void(*common_types(y, y, out), *(types.int64,) * (len(GEOMETRY) + 2))

    @gpu_kernel("conv_naive_weight", signature, spec=(y, out, activation), threads=THREADS)
    def naive_weight(  # type: ignore[no-untyped-def]
        out_, first, second, c, bias, has_c, has_bias, bias_step, code, alpha, beta, p0, p1, p2,
        elements, k, groups, group_c, group_k, x_d, x_h, x_w, z, r, s, y_d, y_h, y_w, step_d, step_h, step_w,
        gap_d, gap_h, gap_w, pad_d, pad_h, pad_w, xs_n, xs_c, xs_d, xs_h, xs_w, ws_k, ws_c, ws_z, ws_r, ws_s,
        ys_n, ys_k, ys_d, ys_h, ys_w, cs_0, cs_1, cs_2, cs_3, cs_4,
        batch, terms,
    ):  # fmt: skip
        number = I64(block_index()) * THREADS + I64(thread_index())
        stride = I64(grid_size()) * THREADS
        total = cuda.local.array(1, S)
        while number < elements:
            rest, ss = split(number, s)
            rest, rr = split(rest, r)
            rest, zz = split(rest, z)
            channel, own = split(rest, group_c)
            group, _ = split(channel, group_k)
            total[0] = part = S(0)
            rows = I64(0)
            for n in range(batch):
                x_at = n * xs_n + (group * group_c + own) * xs_c
                y_at = n * ys_n + channel * ys_k
                for o in range(y_d):
                    d = o * step_d - pad_d + zz * gap_d
                    for p in range(y_h):
                        h = p * step_h - pad_h + rr * gap_h
                        if d >= 0 and d < x_d and h >= 0 and h < x_h:
                            q = I64(0)
                            while q < y_w:
                                row, last = S(0), min(y_w, q + terms)
                                while q < last:
                                    v = q * step_w - pad_w + ss * gap_w
                                    if v >= 0 and v < x_w:
                                        value = widen(first[y_at + o * ys_d + p * ys_h + q * ys_w], y)
                                        row = S(row + value * widen(second[x_at + d * xs_d + h * xs_h + v * xs_w], y))
                                    q += 1
                                part, rows = S(part + row), rows + 1
                                if rows == terms:
                                    total[0], part, rows = S(total[0] + part), S(0), I64(0)
            total[0] = S(total[0] + part)
            end(
                total, out_, channel * ws_k + own * ws_c + zz * ws_z + rr * ws_r + ss * ws_s, c,
                channel * cs_0 + own * cs_1 + zz * cs_2 + rr * cs_3 + ss * cs_4, bias, has_c, has_bias, code,
                alpha, beta, p0, p1, p2, F32(0.0), F32(0.0),
            )  # fmt: skip
            number += stride

    return naive_weight


@functools.cache
def make_bias(y: str) -> GpuKernel:
    """The sum of one channel of y a thread, cut as that of a weight's gradient is."""
    S = register_type(DTYPES[y].accumulate)
    signature = types.void(types.CPointer(STORAGE[y]), types.CPointer(STORAGE[y]), *(types.int64,) * 12)

    @gpu_kernel("conv_naive_bias", signature, spec=(y,), threads=THREADS)
    def naive_bias(  # type: ignore[no-untyped-def]
        out, first, channels, batch, y_d, y_h, y_w, ys_n, ys_k, ys_d, ys_h, ys_w, out_step, terms
    ):
        channel = I64(block_index()) * THREADS + I64(thread_index())
        stride = I64(grid_size()) * THREADS
        while channel < channels:
            total, part, rows = S(0), S(0), I64(0)
            for n in range(batch):
                for o in range(y_d):
                    for p in range(y_h):
                        at = n * ys_n + channel * ys_k + o * ys_d + p * ys_h
                        q = I64(0)
                        while q < y_w:
                            row, last = S(0), min(y_w, q + terms)
                            while q < last:
                                row = S(row + widen(first[at + q * ys_w], y))
                                q += 1
                            part, rows = S(part + row), rows + 1
                            if rows == terms:
                                total, part, rows = S(total + part), S(0), I64(0)
            out[channel * out_step] = narrow(S(total + part), y)
            channel += stride

    return naive_bias


def results(problem: Any) -> int:
    """Elements of the result."""
    p = problem
    image = p.x_size[0] * p.x_size[1] * p.x_size[2]
    counts = {"forward": p.k * p.pixels * p.n, "data": p.n * p.c * image, "weight": p.k * p.group_c * p.taps}
    return int(counts.get(p.direction, p.k))


class Naive(Solver):
    """One element of the result a thread."""

    name = "naive"

    def estimate(self, problem: Any, target: Any) -> float:
        # two loads for each multiply-add, of which a multiprocessor issues a quarter a clock, with 64-bit addresses;
        # and a chain of loads, four under way at a time
        p = problem
        work = p.flops() / (target.peak("f64" if p.accumulate == "f64" else "f32") / 40)
        chain = 0.15e-6 * max(8.0, p.flops() / 2 / max(1, results(p)))
        return float(cost.LAUNCH + cost.FILL + max(work, chain, p.bytes_moved() / (cost.MEMORY * target.bandwidth)))

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        return None

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        p = problem
        elements = results(p)
        blocks = max(1, min(ceil_div(elements, THREADS), BLOCKS * target.multiprocessors))
        if p.direction == "bias":
            own = (p.k, p.n, *p.y_size, *p.strides.y, p.strides.w[0], parts.TERMS)
            return make_launcher(
                [step(make_bias(p.y_dtype), blocks, lambda arrays, _, __: (arrays[0].pointer, arrays[1].pointer, *own))]
            )
        first, second, out = operand_dtypes(p)
        activation, common, numbers = compiled_kind(p.activation.kind), common_values(p), geometry(p, elements)
        if p.direction == "forward":
            kernel = make_forward(first, second, out, activation, p.zeros != "none", p.requantized)

            def values(arrays: Any, floats: Any, _: Any) -> tuple[Any, ...]:
                extra = 0 if arrays[6] is None else arrays[6].pointer
                return (*common(arrays, floats), *numbers, extra, int(floats[5]))

            return make_launcher([step(kernel, blocks, values)])
        kernel = make_data(first, out, activation) if p.direction == "data" else make_weight(first, out, activation)
        tail = numbers if p.direction == "data" else (*numbers, p.n, parts.TERMS)
        return make_launcher([step(kernel, blocks, lambda arrays, floats, _: (*common(arrays, floats), *tail))])


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_forward, ("f32", "f32", "f32", "switch", False, False), ("FFMA", "LDG.E")),
    (make_forward, ("u8", "i8", "u8", "switch", True, True), ("IMAD", "LDG.E.U8")),
    (make_data, ("bf16", "bf16", "switch"), ("FFMA", "LDG.E.U16")),
    (make_weight, ("f32", "f32", "switch"), ("FFMA", "LDG.E")),
    (make_bias, ("f16",), ("FADD", "LDG.E.U16")),
]
