"""The kernels of `im2col_gemm`: the column matrix of some images, and the way back.

Every thread has one pixel of y and one channel of x (one pixel of x on the way back) and walks over the taps, so that
an element takes no division.  Neighbouring threads are neighbours among the pixels ("slow", rows of the matrix are
channels and taps) or among the channels ("fast", rows are pixels), and so are the elements that they store (load).

Bound: the matrix is taps times as large as y's pixels by x's channels, written by one kernel and read by the other.  An
element takes 8 instructions: 132 multiprocessors make 4 T of them a second, 16 TB/s of float32, so that the memory
decides.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.conv.arguments import common_types, pointer
from numbaprims.gpu.conv.depthwise_kernels import next_digit
from numbaprims.gpu.device.memory import advance, load_vector, repeat, store_vector
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.gemm.epilogue import local_sums, make_finish
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

THREADS = 256
I32, I64, U32 = types.int32, types.int64, types.uint32


@functools.cache
def make_columns(dtype: str, order: str, count: int) -> GpuKernel:
    """The column matrix: `count` channels of one pixel and all taps a thread; more than one are one aligned access."""
    T = STORAGE[dtype]
    fast = order == "fast"
    signature = types.void(pointer(dtype), pointer(dtype), *(types.int32,) * 21, *(types.int64,) * 10)

    @gpu_kernel("conv_columns", signature, spec=(dtype, order, count), threads=THREADS, registers=80)
    def conv_columns(  # type: ignore[no-untyped-def]
        matrix, source, elements, channels, group_c, y_d, y_h, y_w, k_d, k_h, k_w, step_d, step_h, step_w,
        gap_d, gap_h, gap_w, pad_d, pad_h, pad_w, size_d, size_h, size_w,
        s_n, s_c, s_d, s_h, s_w, m_n, m_g, m_c, m_tap, m_pixel,
    ):  # fmt: skip
        number = U32(block_index() * U32(THREADS) + thread_index())
        pixels = I32(y_d * y_h * y_w)
        while number < U32(elements):
            if fast:
                rest, channel = next_digit(number, channels)
                n, pixel = next_digit(rest, pixels)
            else:
                rest, pixel = next_digit(number, pixels)
                n, channel = next_digit(rest, channels)
            rest, w = next_digit(pixel, y_w)
            d, h = next_digit(rest, y_h)
            channel = I32(channel * count)
            group, own = next_digit(channel, group_c)
            at_d, at_h, at_w = I32(I32(d) * step_d - pad_d), I32(h * step_h - pad_h), I32(w * step_w - pad_w)
            begin = I64(n) * s_n + I64(channel) * s_c
            at = I64(n) * m_n + I64(group) * m_g + I64(own) * m_c + I64(pixel) * m_pixel
            for z in range(k_d):
                place_d = I32(at_d + z * gap_d)
                for r in range(k_h):
                    place_h = I32(at_h + r * gap_h)
                    line = begin + I64(place_d) * s_d + I64(place_h) * s_h
                    inside = U32(place_d) < U32(size_d) and U32(place_h) < U32(size_h)
                    place_w = at_w
                    for _ in range(k_w):
                        value = repeat(T(0), count)
                        if inside and U32(place_w) < U32(size_w):
                            value = load_vector(source, line + I64(place_w) * s_w, count)
                        store_vector(matrix, at, value)
                        place_w = I32(place_w + gap_w)
                        at += m_tap
            number = U32(number + U32(THREADS) * grid_size())

    return conv_columns


@functools.cache
def make_fold(dtype: str, out_dtype: str, order: str, unit: bool, activation: str) -> GpuKernel:
    """One element of x's gradient a thread: what the taps left for it in the matrix, added up from the first tap to the
    last, and the end.  `unit` says that all strides are 1, so that every tap finds a pixel without a division."""
    acc = DTYPES[dtype].accumulate
    S = local_sums(acc)
    finish = make_finish(dtype, out_dtype, acc, activation, 1)
    fast = order == "fast"
    signature = types.void(
        *common_types(dtype, dtype, out_dtype), types.CPointer(STORAGE[acc]), *(types.int32,) * 21, *(types.int64,) * 15
    )

    @device_function
    def find_any(place, step, size):  # type: ignore[no-untyped-def]
        """The pixel of y whose window has a tap at `place`, and whether there is one."""
        whole = I32(quotient(U32(max(place, I32(0))), U32(step)))
        return whole, place >= 0 and I32(whole * step) == place and whole < size

    @device_function
    def find_unit(place, step, size):  # type: ignore[no-untyped-def]
        return place, U32(place) < U32(size)

    find = find_unit if unit else find_any

    @gpu_kernel("conv_fold", signature, spec=(dtype, out_dtype, order, int(unit), activation), threads=THREADS,
                registers=80)  # fmt: skip
    def conv_fold(  # type: ignore[no-untyped-def]
        out, first, second, c, bias, has_c, has_bias, bias_step, code, alpha, beta, p0, p1, p2,
        matrix, elements, channels, group_c, x_d, x_h, x_w, k_d, k_h, k_w, step_d, step_h, step_w,
        gap_d, gap_h, gap_w, pad_d, pad_h, pad_w, y_d, y_h, y_w,
        m_n, m_g, m_c, m_tap, m_pixel, o_n, o_c, o_d, o_h, o_w, c_n, c_c, c_d, c_h, c_w,
    ):  # fmt: skip
        number = U32(block_index() * U32(THREADS) + thread_index())
        total = cuda.local.array(1, S)
        while number < U32(elements):
            if fast:
                rest, channel = next_digit(number, channels)
                rest, w = next_digit(rest, x_w)
                rest, h = next_digit(rest, x_h)
                n, d = next_digit(rest, x_d)
            else:
                rest, w = next_digit(number, x_w)
                rest, h = next_digit(rest, x_h)
                rest, d = next_digit(rest, x_d)
                n, channel = next_digit(rest, channels)
            group, own = next_digit(channel, group_c)
            total[0] = S(0)
            at = I64(n) * m_n + I64(group) * m_g + I64(own) * m_c
            for z in range(k_d):
                o, has_d = find(I32(d + pad_d - z * gap_d), step_d, y_d)
                for r in range(k_h):
                    p, has_h = find(I32(h + pad_h - r * gap_h), step_h, y_h)
                    place = I32(w + pad_w)
                    for _ in range(k_w):
                        q, has_w = find(place, step_w, y_w)
                        if has_d and has_h and has_w:
                            total[0] = total[0] + matrix[at + I64(I32((o * y_h + p) * y_w + q)) * m_pixel]
                        place = I32(place - gap_w)
                        at += m_tap
            at_out = I64(n) * o_n + I64(channel) * o_c + I64(d) * o_d + I64(h) * o_h + I64(w) * o_w
            at_c = I64(n) * c_n + I64(channel) * c_c + I64(d) * c_d + I64(h) * c_h + I64(w) * c_w
            finish(
                total, I32(0), I32(0), advance(out, at_out), advance(c, at_c), advance(bias, I64(channel) * bias_step),
                I32(1), I64(0), I64(0), I64(0), I64(0), I64(0), has_c, has_bias, code, I32(0), alpha, beta, p0, p1, p2,
            )  # fmt: skip
            number = U32(number + U32(THREADS) * grid_size())

    return conv_fold


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_columns, ("f32", "slow", 1), ("LDG.E", "STG.E")),
    (make_fold, ("bf16", "bf16", "fast", False, "switch"), ("FADD", "LDG.E", "STG.E.U16")),
    (make_columns, ("bf16", "fast", 8), ("LDG.E.128", "STG.E.128")),
    (make_fold, ("f32", "f32", "slow", True, "gelu"), ("FADD", "LDG.E", "STG.E")),
]
