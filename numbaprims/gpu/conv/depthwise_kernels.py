"""The kernels of `depthwise`: every channel by itself, no shared memory, sums in registers.

Bound: x is read and y written once.  A 3 x 3 layer does 18 operations for 8 bytes of float32, 2.25 a byte, where an
H200 could do 14: only bytes count, as long as a result takes few instructions.  A thread computes V = 4 neighbours of a
row: a row of 3 taps takes 6 loads (9 with stride 2) for its 12 products, from the first-level cache, where neighbours
and the rows above have brought most of them.  Count for 3 x 3, stride 1, float32: 18 loads of x, 9 of w and 36 FFMA in
about 400 instructions for 4 results (five divisions, 64-bit addresses, the comparisons of the borders).  132
multiprocessors issue 33 T of them a second: 0.33 T results, 2.6 TB/s, half of what an H200 moves.

Neighbouring threads take neighbours of a row ("slow"), or of the channels where those lie last ("fast").
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.conv.arguments import common_types, pointer
from numbaprims.gpu.device.block import barrier, block_sum
from numbaprims.gpu.device.memory import advance, widen
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.warp import lane_index, warp_index
from numbaprims.gpu.gemm.arguments import vector_length
from numbaprims.gpu.gemm.epilogue import local_sums, make_finish
from numbaprims.gpu.jit import (
    STORAGE,
    GpuKernel,
    block_index,
    cuda,
    device_function,
    gpu_kernel,
    grid_size,
    shared_array,
    thread_index,
    types,
)

THREADS = 128
WARPS = THREADS // 32
I32, I64, U32 = types.int32, types.int64, types.uint32


@device_function
def next_digit(number, length):  # type: ignore[no-untyped-def]
    """Quotient and remainder of a uint32 by an int32."""
    whole = quotient(U32(number), U32(length))
    return whole, I32(U32(number) - whole * U32(length))


@functools.cache
def make_depthwise(
    dtype: str, out_dtype: str, order: str, taps_h: int, taps_w: int, gain_w: int, gap_w: int, activation: str
) -> GpuKernel:
    """V results of a row a thread; `gain_w` is the step through the source from one to the next, `gap_w` from one tap
    to the next."""
    acc = DTYPES[dtype].accumulate
    S, V = local_sums(acc), vector_length(acc)
    finish = make_finish(dtype, out_dtype, acc, activation, V)
    fast = order == "fast"
    LOWEST = min(0, (taps_w - 1) * gap_w)
    SPAN = (V - 1) * gain_w + abs((taps_w - 1) * gap_w) + 1
    TAPS = max(1, taps_w)
    signature = types.void(*common_types(dtype, dtype, out_dtype), *(types.int32,) * 19, *(types.int64,) * 22)

    @gpu_kernel(
        "conv_depthwise", signature, spec=(dtype, out_dtype, order, taps_h, taps_w, gain_w, gap_w, activation),
        threads=THREADS, registers=128,
    )  # fmt: skip
    def conv_depthwise(  # type: ignore[no-untyped-def]
        out, source, plain, c, bias, has_c, has_bias, bias_step, code, alpha, beta, p0, p1, p2,
        elements, groups, u_count, v_h, v_w, runs, vg_h, vb_h, vb_w, kg_h, k_c, v_step, k_step, s_h, s_w,
        size_h, size_w, bias_axis, flags,
        p_u, p_c, p_d, p_h, p_w, p_base, p_group, s_group, o_u, o_c, o_d, o_h, o_w, o_base, o_group,
        c_u, c_c, c_d, c_h, c_w, c_base, c_group,
    ):  # fmt: skip
        number = U32(block_index() * U32(THREADS) + thread_index())
        x = cuda.local.array(V, S)
        row, weights = cuda.local.array(SPAN, S), cuda.local.array(TAPS, S)
        channels = I32(groups * u_count)
        while number < U32(elements):
            if fast:
                rest, channel = next_digit(number, channels)
                more, run = next_digit(rest, runs)
                n, h = next_digit(more, v_h)
            else:
                rest, run = next_digit(number, runs)
                more, h = next_digit(rest, v_h)
                n, channel = next_digit(more, channels)
            group, u = next_digit(channel, u_count)
            w = I32(run * V)
            at_h, at_w = I32(h * vg_h + vb_h), I32(w * gain_w + vb_w + LOWEST)
            for e in range(V):
                x[e] = S(0)
            begin = I64(group) * s_group + I64(n) * v_step
            weight = I64(group) * p_group + I64(u) * p_u + p_base
            for _ in range(k_c):
                for r in range(taps_h):
                    place = I32(at_h + r * kg_h)
                    if U32(place) < U32(size_h):
                        line = begin + I64(place) * s_h
                        for i in range(SPAN):
                            row[i] = S(0)
                            if U32(I32(at_w + i)) < U32(size_w):
                                row[i] = widen(source[line + I64(I32(at_w + i)) * s_w], dtype)
                        for s in range(taps_w):
                            weights[s] = widen(plain[weight + r * p_h + s * p_w], dtype)
                        for s in range(taps_w):
                            for e in range(V):
                                x[e] = x[e] + row[e * gain_w + s * gap_w - LOWEST] * weights[s]
                begin += k_step
                weight += p_c
            at_out = I64(group) * o_group + I64(u) * o_u + I64(n) * o_c + I64(h) * o_h + o_base
            at_c = I64(group) * c_group + I64(u) * c_u + I64(n) * c_c + I64(h) * c_h + c_base
            finish(
                x, I32(0), w, advance(out, at_out), advance(c, at_c), advance(bias, I64(channel) * bias_step),
                v_w, I64(0), o_w, I64(0), c_w, I64(0), has_c, bias_axis, code, flags, alpha, beta, p0, p1, p2,
            )  # fmt: skip
            number = U32(number + U32(THREADS) * grid_size())

    return conv_depthwise


@functools.cache
def make_depthwise_weight(dtype: str, order: str, taps_h: int, taps_w: int) -> GpuKernel:
    """The sums of one chunk of the pixels of one channel of y, for all taps; a block for each.

    Every thread takes each 128th pixel, one load of y for taps_h * taps_w products; then the threads' sums are added in
    a fixed order.  With "fast" a block takes 32 channels, its lanes neighbours among them, its warps each fourth pixel.
    The workspace is [group][chunk][u][room].
    """
    fast = order == "fast"
    acc = DTYPES[dtype].accumulate
    S = local_sums(acc)
    TAPS = taps_h * taps_w
    signature = types.void(
        types.CPointer(STORAGE[acc]), pointer(dtype), pointer(dtype), *(types.int32,) * 17, *(types.int64,) * 9
    )

    @device_function
    def place_pixels(block, chunks):  # type: ignore[no-untyped-def]
        """Channel, chunk, first pixel in it and pixels to the next."""
        channel, number = next_digit(block, chunks)
        return channel, number, I32(thread_index()), I32(THREADS)

    @device_function
    def place_channels(block, chunks):  # type: ignore[no-untyped-def]
        part, number = next_digit(block, chunks)
        return I32(part * U32(32) + lane_index()), number, I32(warp_index()), I32(WARPS)

    @device_function
    def add_block(value, scratch):  # type: ignore[no-untyped-def]
        return block_sum(value, scratch, WARPS), thread_index() == U32(0)

    @device_function
    def add_warps(value, scratch):  # type: ignore[no-untyped-def]
        barrier()
        scratch[I32(thread_index())] = value
        barrier()
        total = scratch[I32(lane_index())]
        for warp in range(1, WARPS):
            total = S(total + scratch[I32(lane_index() + U32(32 * warp))])
        return total, warp_index() == U32(0)

    place, add = (place_channels, add_warps) if fast else (place_pixels, add_block)
    ROOM = THREADS if fast else WARPS

    @gpu_kernel("conv_depthwise_weight", signature, spec=(dtype, order, taps_h, taps_w), threads=THREADS, registers=128)
    def conv_depthwise_weight(  # type: ignore[no-untyped-def]
        workspace, source, plain, chunks, chunk, pixels, u_count, room, y_h, y_w, step_h, step_w, gap_h, gap_w,
        pad_h, pad_w, size_h, size_w, blocks, channels,
        s_group, s_n, s_h, s_w, p_group, p_u, p_n, p_h, p_w,
    ):  # fmt: skip
        scratch = shared_array(ROOM, S)
        sums = cuda.local.array(TAPS, S)
        block = block_index()
        while block < U32(blocks):
            channel, number, first, between = place(block, chunks)
            group, u = next_digit(channel, u_count)
            for tap in range(TAPS):
                sums[tap] = S(0)
            begin = I64(group) * s_group
            at = I64(group) * p_group + I64(u) * p_u
            pixel = I32(number * chunk + first)
            end = I32(min(number * chunk + chunk, pixels)) if channel < channels else I32(0)
            while pixel < end:
                rest, w = next_digit(pixel, y_w)
                n, h = next_digit(rest, y_h)
                value = widen(plain[at + I64(n) * p_n + I64(h) * p_h + I64(w) * p_w], dtype)
                image = begin + I64(n) * s_n
                for r in range(taps_h):
                    place_h = I32(h * step_h - pad_h + r * gap_h)
                    if U32(place_h) < U32(size_h):
                        line = image + I64(place_h) * s_h
                        for s in range(taps_w):
                            place_w = I32(w * step_w - pad_w + s * gap_w)
                            if U32(place_w) < U32(size_w):
                                x = widen(source[line + I64(place_w) * s_w], dtype)
                                sums[r * taps_w + s] = sums[r * taps_w + s] + value * x
                pixel = I32(pixel + between)
            for tap in range(TAPS):
                total, mine = add(sums[tap], scratch)
                if mine and channel < channels:
                    workspace[((I64(group) * chunks + number) * u_count + u) * room + tap] = total
            block = U32(block + grid_size())

    return conv_depthwise_weight


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_depthwise, ("f32", "f32", "slow", 3, 3, 1, 1, "switch"), ("FFMA", "LDG.E", "STG.E.128")),
    (make_depthwise, ("bf16", "bf16", "fast", 3, 3, 2, 1, "gelu"), ("FFMA", "LDG.E.U16", "STG.E.64")),
    (make_depthwise, ("f32", "f32", "slow", 7, 7, 1, -1, "switch"), ("FFMA", "LDG.E", "STG.E.128")),
    (make_depthwise_weight, ("f32", "slow", 3, 3), ("FFMA", "LDG.E", "SHFL")),
    (make_depthwise_weight, ("f16", "fast", 5, 5), ("FFMA", "LDG.E.U16", "LDS")),
]
