"""The gradient of prelu's weight: dweight[c] = sum of x dy over the elements of channel c with x <= 0.

Two kernels.  The first sums chunks of a channel, whose cut depends on the problem only, into scratch memory; the second
adds up the chunks of a channel.  Threads, warps and chunks are added in a fixed order, and no atomic operation takes
part: the bits are the same each time.  A thread takes the same elements in the same order whether it loads them as 16
bytes or one by one, so that alignment does not change them either.

Bytes: x and dy once; the scratch memory is 1/2048 of them or less.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

from numbaprims.dispatch.solver import Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.activation.kernels import THREADS, lanes
from numbaprims.gpu.device.block import barrier, block_sum
from numbaprims.gpu.device.memory import REGISTER, load_wide, narrow, widen
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.warp import lane_index, warp_index, warp_sum
from numbaprims.gpu.jit import (
    STORAGE,
    GpuKernel,
    block_index,
    block_index_y,
    device_function,
    gpu_kernel,
    shared_array,
    thread_index,
    types,
)
from numbaprims.gpu.launch import Step, aligned, make_launcher, step

WARPS = THREADS // 32
TURNS = 8
"""Accesses of a thread for each of x and dy, in a chunk."""
DEPTH = 512
"""Elements of a channel that make a chunk where channels lie side by side."""
LOOPS = 3
"""Loops over a channel that a launch walks."""
MOST = 1 << 30
"""Elements of a channel that a launch takes."""
MOST_CHUNKS = 65535
"""Blocks of a grid along y."""


def chunk_length(dtype: str) -> int:
    """Elements of a chunk of one channel."""
    return THREADS * TURNS * lanes(dtype)


@device_function
def place(i, n1, n2, s0, s1, s2):  # type: ignore[no-untyped-def]
    """Where element i of three nested loops lies; n1 and n2 are the lengths of the inner ones."""
    row = quotient(i, n2)
    first = quotient(row, n1)
    i1 = types.int64(types.uint32(row - first * n1))
    return types.int64(first) * s0 + i1 * s1 + types.int64(types.uint32(i - row * n2)) * s2


@device_function
def term(dy, x, zero):  # type: ignore[no-untyped-def]
    """What one element adds; NaN in x counts."""
    return zero if x > zero else x * dy


@functools.cache
def make_rows_sums(dtype: str, vectors: bool) -> GpuKernel:
    """scratch[channel, slot + chunk] = the sum of one chunk of one channel; a block for each.

    `vectors`: 16 bytes lie side by side and aligned wherever a thread's elements begin.
    """
    number = REGISTER[dtype]
    pointer = types.CPointer(STORAGE[dtype])
    V = lanes(dtype)
    length = chunk_length(dtype)
    signature = types.void(
        types.CPointer(number), pointer, pointer, *[types.uint32] * 6, *[types.int64] * 8
    )  # fmt: skip

    @gpu_kernel("activation_prelu_rows", signature, spec=(dtype, vectors), threads=THREADS, registers=64)
    def rows_sums(  # type: ignore[no-untyped-def]
        scratch, dy, x, n, n1, n2, slots, slot, channels, dy_channel, dy0, dy1, dy2, x_channel, x0, x1, x2
    ):
        # channels beyond what a grid holds along y are taken in turns
        sums = shared_array(WARPS, number)
        zero = number(0.0)
        chunk = block_index()
        begin = types.uint32(chunk * length)
        end = types.uint32(min(n, types.uint32(begin + length)))
        channel = block_index_y()
        while channel < channels:
            at_dy = types.int64(channel) * dy_channel
            at_x = types.int64(channel) * x_channel
            total = zero
            i = types.uint32(begin + thread_index() * V)
            while i < end:
                if vectors and i + V <= end:
                    a = load_wide(dy, at_dy + place(i, n1, n2, dy0, dy1, dy2), V, dtype)
                    b = load_wide(x, at_x + place(i, n1, n2, x0, x1, x2), V, dtype)
                    for k in range(V):
                        total += term(a[k], b[k], zero)
                else:
                    for k in range(types.uint32(min(types.uint32(V), types.uint32(end - i)))):
                        j = types.uint32(i + k)
                        a1 = widen(dy[at_dy + place(j, n1, n2, dy0, dy1, dy2)], dtype)
                        b1 = widen(x[at_x + place(j, n1, n2, x0, x1, x2)], dtype)
                        total += term(a1, b1, zero)
                i = types.uint32(i + THREADS * V)
            total = block_sum(total, sums, WARPS)
            if thread_index() == 0:
                scratch[types.int64(channel) * types.int64(slots) + types.int64(slot + chunk)] = total
            channel = types.uint32(channel + 65535)

    return rows_sums


@functools.cache
def make_channels_sums(dtype: str) -> GpuKernel:
    """The same sums where channels lie side by side: a block takes one chunk of 32 channels, a warp every eighth
    element of theirs."""
    number = REGISTER[dtype]
    pointer = types.CPointer(STORAGE[dtype])
    signature = types.void(types.CPointer(number), pointer, pointer, *[types.uint32] * 6, *[types.int64] * 6)

    @gpu_kernel("activation_prelu_channels", signature, spec=(dtype,), threads=THREADS, registers=40)
    def channels_sums(  # type: ignore[no-untyped-def]
        scratch, dy, x, n, n1, n2, slots, slot, channels, dy0, dy1, dy2, x0, x1, x2
    ):
        sums = shared_array((WARPS, 32), number)
        zero = number(0.0)
        chunk = block_index_y()
        lane, warp = types.uint32(lane_index()), types.uint32(warp_index())
        channel = types.uint32(block_index() * 32 + lane)
        end = types.uint32(min(n, types.uint32((chunk + 1) * DEPTH)))
        total = zero
        if channel < channels:
            i = types.uint32(chunk * DEPTH + warp)
            while i < end:
                a = widen(dy[place(i, n1, n2, dy0, dy1, dy2) + types.int64(channel)], dtype)
                b = widen(x[place(i, n1, n2, x0, x1, x2) + types.int64(channel)], dtype)
                total += term(a, b, zero)
                i = types.uint32(i + WARPS)
        sums[warp, lane] = total
        barrier()
        if warp == 0 and channel < channels:
            total = sums[0, lane]
            for k in range(1, WARPS):
                total += sums[k, lane]
            scratch[types.int64(channel) * types.int64(slots) + types.int64(slot + chunk)] = total

    return channels_sums


@functools.cache
def make_combine(dtype: str) -> GpuKernel:
    """dweight[channel] = the sum of its slots: a warp for each channel."""
    number = REGISTER[dtype]
    signature = types.void(
        types.CPointer(STORAGE[dtype]), types.CPointer(number), types.uint32, types.uint32, types.int64
    )  # fmt: skip

    @gpu_kernel("activation_prelu_combine", signature, spec=(dtype,), threads=THREADS, registers=32)
    def combine(out, scratch, channels, slots, out_step):  # type: ignore[no-untyped-def]
        channel = types.uint32(block_index() * WARPS + types.uint32(warp_index()))
        if channel < channels:
            total = number(0.0)
            i = types.uint32(lane_index())
            while i < slots:
                total += scratch[types.int64(channel) * types.int64(slots) + types.int64(i)]
                i = types.uint32(i + 32)
            total = warp_sum(total)
            if lane_index() == 0:
                out[types.int64(channel) * out_step] = narrow(total, dtype)

    return combine


def bind(problem: Any, layout: str) -> Launcher:
    """The launcher of a gradient of prelu's weight; `layout` as the problem has it, or "strided" for any."""
    V = lanes(problem.dtype)
    shape = problem.loops.shape
    strides = dict(zip(problem.operands, problem.loops.strides, strict=True))
    offsets = dict(zip(problem.operands, problem.loops.offsets, strict=True))
    wide = layout == "rows" and shape[-1] % V == 0
    for name in ("dy", "x"):
        wide &= offsets[name] % V == 0 and all(stride % V == 0 for stride in strides[name][:-1])
    scalar = functools.cache(functools.partial(_launcher, problem, layout, strides, offsets, False))
    if not wide:
        return scalar()
    vector = _launcher(problem, layout, strides, offsets, True)

    def launch(out: Any, x: Any, dy: Any, *rest: Any, **floats: Any) -> None:
        (vector if aligned(16, x, dy) else scalar())(out, x, dy)

    return launch


def _launcher(
    problem: Any, layout: str, strides: dict[str, tuple[int, ...]], offsets: dict[str, int], vectors: bool
) -> Launcher:
    dtype = problem.dtype
    size = DTYPES[dtype].itemsize
    channels, *over = problem.loops.shape
    outside = max(0, len(over) - LOOPS)
    by_channels = layout == "channels"
    depth = DEPTH if by_channels else chunk_length(dtype)
    # the loop in which a launch begins, cut where it has more elements or chunks than one takes
    length, rest = over[outside], math.prod(over[outside + 1 :])
    piece = min(length, max(1, (MOST_CHUNKS * DEPTH if by_channels else MOST) // rest))
    chunks = -(-piece * rest // depth)
    ones = LOOPS - (len(over) - outside)
    indices = list(itertools.product(*map(range, over[:outside]), range(0, length, piece)))
    slots = chunks * len(indices)
    kernel = make_channels_sums(dtype) if by_channels else make_rows_sums(dtype, vectors)
    grid = (-(-channels // 32), chunks) if by_channels else (chunks, min(channels, 65535))
    steps: list[Step] = []
    for number, index in enumerate(indices):
        inside = [1] * ones + [min(piece, length - index[-1]), *over[outside + 1 :]]
        starts: list[int] = []
        steps_of: list[int] = []
        for name in ("dy", "x"):
            own = strides[name]
            starts.append(size * (offsets[name] + sum(i * s for i, s in zip(index, own[1:], strict=False))))
            inner = (0,) * ones + tuple(own[1 + outside :])
            steps_of += inner if by_channels else (own[0], *inner)
        # a piece that is shorter has empty chunks, which are 0
        fixed = (math.prod(inside), inside[1], inside[2], slots, number * chunks, channels, *steps_of)
        steps.append(step(kernel, grid, _sum_values(starts, fixed)))
    last = (channels, slots, strides["out"][0])
    steps.append(step(make_combine(dtype), -(-channels // WARPS), _combine_values(last)))
    accumulate = DTYPES[DTYPES[dtype].accumulate].itemsize
    return make_launcher(steps, scratch=slots * channels * accumulate)


def _sum_values(starts: list[int], fixed: tuple[int, ...]) -> Callable[..., tuple[Any, ...]]:
    dy_start, x_start = starts

    def values(arrays: Any, floats: Any, scratch: int) -> tuple[Any, ...]:
        return (scratch, arrays[2].pointer + dy_start, arrays[1].pointer + x_start, *fixed)

    return values


def _combine_values(last: tuple[int, ...]) -> Callable[..., tuple[Any, ...]]:
    def values(arrays: Any, floats: Any, scratch: int) -> tuple[Any, ...]:
        return (arrays[0].pointer, scratch, *last)

    return values


GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_rows_sums, ("f32", True), ("LDG.E.128", "SHFL")),
    (make_rows_sums, ("bf16", False), ("LDG.E.U16",)),
    (make_channels_sums, ("f32",), ("LDG.E",)),
    (make_combine, ("f32",), ("SHFL",)),
]
