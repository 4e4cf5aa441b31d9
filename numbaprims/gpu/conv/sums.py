"""`sums`: the gradient of a bias, the sum of each channel of y.

Two kernels, without atomics: the first sums chunks of a channel, cut by the sizes only, the second adds up the chunks.
Threads, warps and chunks are added in a fixed order, so the bits are the same each time.  Where channels lie last, a
warp reads 32 of them side by side, and eight warps every eighth pixel; else a block walks along one channel.

Bound: y is read once, one addition an element.  A chunk has 8192 elements, so that the scratch memory is 1/8192 of y.
Three divisions find a pixel; one does where the rows of an image follow one another, none where images do, too.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.dispatch.solver import Config, Launcher, Solver
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.activation.sums import make_combine
from numbaprims.gpu.conv.arguments import LARGEST, pointer
from numbaprims.gpu.conv.gemm_1x1 import merged
from numbaprims.gpu.conv.products import spans
from numbaprims.gpu.device.block import barrier, block_sum
from numbaprims.gpu.device.memory import REGISTER, load_wide, widen
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.warp import lane_index, warp_index
from numbaprims.gpu.gemm import cost
from numbaprims.gpu.gemm.arguments import ceil_div
from numbaprims.gpu.jit import GpuKernel, block_index, device_function, gpu_kernel, shared_array, thread_index, types
from numbaprims.gpu.launch import make_launcher, step

THREADS = 256
WARPS = THREADS // 32
CHUNK = 8192
"""Elements of a channel that a block adds up, 32 a thread."""
DEPTH = 1024
"""The same where channels lie last: 128 a thread, of 32 channels."""
I32, I64, U32 = types.int32, types.int64, types.uint32


@device_function
def place_any(number, y_d, y_h, y_w, ys_n, ys_d, ys_h, ys_w):  # type: ignore[no-untyped-def]
    """Where pixel `number` of all images lies."""
    rest = quotient(U32(number), U32(y_w))
    w = I64(U32(number) - rest * U32(y_w))
    more = quotient(rest, U32(y_h))
    h = I64(rest - more * U32(y_h))
    n = quotient(more, U32(y_d))
    return I64(n) * ys_n + I64(more - n * U32(y_d)) * ys_d + h * ys_h + w * ys_w


@device_function
def place_images(number, y_d, y_h, y_w, ys_n, ys_d, ys_h, ys_w):  # type: ignore[no-untyped-def]
    """The same where an image is one row of y_w."""
    n = quotient(U32(number), U32(y_w))
    return I64(n) * ys_n + I64(U32(number) - n * U32(y_w)) * ys_w


@device_function
def place_even(number, y_d, y_h, y_w, ys_n, ys_d, ys_h, ys_w):  # type: ignore[no-untyped-def]
    """The same where all pixels are evenly spaced."""
    return I64(number) * ys_w


PLACES = {"any": place_any, "images": place_images, "even": place_even}


def _signature(dtype: str) -> Any:
    return types.void(
        types.CPointer(REGISTER[dtype]), pointer(dtype), *(types.int32,) * 6, *(types.int64,) * 5
    )  # fmt: skip


@functools.cache
def make_rows(dtype: str, spacing: str, vectors: bool) -> GpuKernel:
    """scratch[channel, chunk]: a block for each.  With `vectors` 4 pixels (8 of halves) are one aligned access."""
    S = REGISTER[dtype]
    V = 16 // DTYPES[dtype].itemsize if vectors else 1
    place = PLACES[spacing]

    @gpu_kernel("conv_sums_rows", _signature(dtype), spec=(dtype, spacing, int(vectors)), threads=THREADS, registers=64)
    def conv_sums_rows(  # type: ignore[no-untyped-def]
        scratch, y, channels, pixels, chunks, y_d, y_h, y_w, ys_n, ys_k, ys_d, ys_h, ys_w
    ):
        room = shared_array(WARPS, S)
        channel = quotient(block_index(), U32(chunks))
        chunk = U32(block_index() - channel * U32(chunks))
        end = U32(min(U32(pixels), U32((chunk + U32(1)) * U32(CHUNK))))
        begin = I64(channel) * ys_k
        total = S(0)
        pixel = U32(chunk * U32(CHUNK) + thread_index() * U32(V))
        while pixel < end:
            at = begin + place(pixel, y_d, y_h, y_w, ys_n, ys_d, ys_h, ys_w)
            values = load_wide(y, at, V, dtype)
            for e in range(V):
                total = S(total + values[e])
            pixel = U32(pixel + U32(THREADS * V))
        total = block_sum(total, room, WARPS)
        if thread_index() == U32(0):
            scratch[I64(block_index())] = total

    return conv_sums_rows


@functools.cache
def make_last(dtype: str, spacing: str) -> GpuKernel:
    """The same where channels lie side by side: a block takes one chunk of 32 channels."""
    S = REGISTER[dtype]
    place = PLACES[spacing]

    @gpu_kernel("conv_sums_last", _signature(dtype), spec=(dtype, spacing), threads=THREADS, registers=64)
    def conv_sums_last(  # type: ignore[no-untyped-def]
        scratch, y, channels, pixels, chunks, y_d, y_h, y_w, ys_n, ys_k, ys_d, ys_h, ys_w
    ):
        room = shared_array((WARPS, 32), S)
        part = quotient(block_index(), U32(chunks))
        chunk = U32(block_index() - part * U32(chunks))
        lane, warp = U32(lane_index()), U32(warp_index())
        channel = U32(part * U32(32) + lane)
        end = U32(min(U32(pixels), U32((chunk + U32(1)) * U32(DEPTH))))
        total = S(0)
        if channel < U32(channels):
            pixel = U32(chunk * U32(DEPTH) + warp)
            while pixel < end:
                at = place(pixel, y_d, y_h, y_w, ys_n, ys_d, ys_h, ys_w)
                total = S(total + widen(y[at + I64(channel) * ys_k], dtype))
                pixel = U32(pixel + U32(WARPS))
        room[warp, lane] = total
        barrier()
        if warp == U32(0) and channel < U32(channels):
            total = room[0, lane]
            for k in range(1, WARPS):
                total = S(total + room[k, lane])
            scratch[I64(channel) * chunks + I64(chunk)] = total

    return conv_sums_last


class Sums(Solver):
    """The sum of each channel in two passes, of fixed order."""

    name = "sums"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.direction != "bias":
            return "it sums, and this is a sum of products"
        if spans(problem) >= LARGEST or problem.n * problem.pixels >= LARGEST:
            return "there are more elements than 32-bit indices"
        return None

    def _chunks(self, problem: Any) -> int:
        return ceil_div(max(1, problem.n * problem.pixels), DEPTH if problem.y_order == "last" else CHUNK)

    def estimate(self, problem: Any, target: Any) -> float:
        return float(2 * cost.LAUNCH + cost.FILL + problem.bytes_moved() / (cost.MEMORY * target.bandwidth))

    def workspace(self, problem: Any, target: Any, config: Config) -> int:
        return int(problem.k * self._chunks(problem) * DTYPES[problem.accumulate].itemsize)

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        return None

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        p, chunks = problem, self._chunks(problem)
        last = p.y_order == "last"
        s = p.strides.y
        spacing, size, steps = "any", p.y_size, s
        every, inside = merged((s[0], *s[2:]), (p.n, *p.y_size)), merged(s[2:], p.y_size)
        if every is not None:
            spacing, steps = "even", (0, s[1], 0, 0, every)
        elif inside is not None:
            spacing, size, steps = "images", (1, 1, p.pixels), (s[0], s[1], 0, 0, inside)
        numbers = (p.k, p.n * p.pixels, chunks, *size, *steps)
        # a vector lies inside of a row, and so do all
        lanes = 16 // DTYPES[p.y_dtype].itemsize
        run = p.n * p.pixels if spacing == "even" else size[2]
        even = steps[4] == 1 and run % lanes == 0 and all(step % lanes == 0 for step in steps[:4])
        blocks = ceil_div(p.k, 32) * chunks if last else p.k * chunks
        tail = (p.k, chunks, p.strides.w[0])

        def make(aligned: bool) -> Launcher:
            kernel = make_last(p.y_dtype, spacing) if last else make_rows(p.y_dtype, spacing, even and aligned)
            return make_launcher(
                [
                    step(kernel, blocks, lambda arrays, _, scratch: (scratch, arrays[1].pointer, *numbers)),
                    step(
                        make_combine(p.y_dtype), ceil_div(p.k, WARPS),
                        lambda arrays, _, scratch: (arrays[0].pointer, scratch, *tail),
                    ),
                ],
                scratch=self.workspace(p, target, config),
            )  # fmt: skip

        of_alignment = functools.cache(make)
        of_alignment(True)

        def launch(out, dy, *rest, **floats):  # type: ignore[no-untyped-def]
            of_alignment(dy.pointer % 16 == 0)(out, dy, *rest, **floats)

        return launch


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_rows, ("f32", "images", True), ("LDG.E.128", "SHFL")),
    (make_rows, ("bf16", "any", False), ("LDG.E.U16", "SHFL")),
    (make_last, ("f16", "even"), ("LDG.E.U16", "LDS")),
]
