"""Kernels over elements that depend on their places: a thread draws a block's words and uses those of its elements.

A block of Philox takes 20 products of 32 bits, both halves of each: some 110 instructions for four elements. In float32
a dropout moves 32 bytes with them, for which an H100 leaves 280 (`gpu.activation.kernels` has the count), so that the
bound is the bytes. Of arrays with gaps each thread has one element, and draws four words for it.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.gpu.device.memory import REGISTER, load_wide, repeat, store_narrow
from numbaprims.gpu.device.random import draw
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, gpu_kernel, grid_size, thread_index, types

THREADS = 256
LOOPS = 4
"""Loops that one launch of a kernel walks; the host walks those outside of them."""


def lanes(dtype: str) -> int:
    """Elements of a thread: those of a block, or of 16 bytes."""
    return 2 if dtype == "f64" else 4


def _signature(dtype: str, *more: Any) -> Any:
    pointer, number = types.CPointer(STORAGE[dtype]), REGISTER[dtype]
    return types.void(pointer, pointer, types.uint64, *[types.uint32] * 5, number, number, types.uint32, *more)


@functools.cache
def make_contiguous(kind: str, dtype: str, V: int) -> GpuKernel:
    """n elements side by side from the place `first` on, a multiple of 4; V a thread and turn.

    What is drawn lies where `x` does, which is not read.
    """
    drops = kind == "dropout"

    @gpu_kernel("random", _signature(dtype), spec=(kind, dtype, V), threads=THREADS, registers=64)
    def contiguous(out, x, first, s0, s1, o0, o1, least, one, two, n):  # type: ignore[no-untyped-def]
        start = types.uint32(block_index() * THREADS + thread_index())
        step = types.uint32(grid_size() * THREADS)
        packs = quotient(n, types.uint32(V))
        pack = start
        while pack < packs:
            i = types.uint32(pack * V)
            values = load_wide(x, i, V, dtype) if drops else repeat(one, V)
            store_narrow(out, i, draw(kind, dtype, first + i, s0, s1, o0, o1, least, one, two, values), dtype)
            pack = types.uint32(pack + step)
        if V > 1:
            # fewer than V elements are left
            j = types.uint32(packs * V + start)
            if j < n:
                value = load_wide(x, j, 1, dtype) if drops else repeat(one, 1)
                store_narrow(out, j, draw(kind, dtype, first + j, s0, s1, o0, o1, least, one, two, value), dtype)

    return contiguous


@functools.cache
def make_loops(kind: str, dtype: str) -> GpuKernel:
    """Elements of up to four nested loops in C order from the place `first` on, wherever they lie."""
    signature = _signature(dtype, *[types.uint32] * 3, *[types.int64] * (2 * LOOPS))
    drops = kind == "dropout"

    @gpu_kernel("random_loops", signature, spec=(kind, dtype), threads=THREADS, registers=64)
    def loops(  # type: ignore[no-untyped-def]
        out, x, first, s0, s1, o0, o1, least, one, two, n, n1, n2, n3, a0, a1, a2, a3, b0, b1, b2, b3
    ):  # fmt: skip
        i = types.uint32(block_index() * THREADS + thread_index())
        step = types.uint32(grid_size() * THREADS)
        while i < n:
            row = quotient(i, n3)
            rest = quotient(row, n2)
            outer = quotient(rest, n1)
            i0, i1 = types.int64(outer), types.int64(types.uint32(rest - outer * n1))
            i2, i3 = types.int64(types.uint32(row - rest * n2)), types.int64(types.uint32(i - row * n3))
            at_out = i0 * a0 + i1 * a1 + i2 * a2 + i3 * a3
            value = one
            if drops:
                value = load_wide(x, i0 * b0 + i1 * b1 + i2 * b2 + i3 * b3, 1, dtype)[0]
            store_narrow(out, at_out, draw(kind, dtype, first + i, s0, s1, o0, o1, least, one, two, (value,)), dtype)
            i = types.uint32(i + step)

    return loops


_VECTORS = ("LDG.E.128", "STG.E.128")
#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_contiguous, ("dropout", "f32", 4), _VECTORS),
    (make_contiguous, ("dropout", "bf16", 4), ("LDG.E.64", "STG.E.64")),
    (make_contiguous, ("dropout", "f64", 2), _VECTORS),
    (make_contiguous, ("uniform", "f32", 4), ("STG.E.128",)),
    (make_contiguous, ("normal", "f32", 4), ("STG.E.128",)),
    (make_contiguous, ("normal", "f64", 2), ("STG.E.128",)),
    (make_loops, ("dropout", "f32"), ("LDG.E", "STG.E")),
]
