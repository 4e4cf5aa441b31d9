"""Kernels over elements, one for each operation and kind; the cheap kinds of an operation share one.

The bound is the bytes: y = f(x) in float32 moves 8 bytes an element, which an H100 does in 1.8 elements a clock and
multiprocessor; that leaves 70 instructions an element before arithmetic shows (35 in half precision), and the most
expensive formula, gelu, takes 40.  So a thread moves 16 bytes an access, and what matters is how many are in
flight: with 32 registers a multiprocessor holds 2048 threads, 32 KiB of loads, twice what 600 ns of latency at 3.35
TB/s need.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.gpu.activation.dispatch import OPERATIONS, SWITCH, compute
from numbaprims.gpu.device.memory import REGISTER, load_wide, repeat, store_narrow
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, gpu_kernel, grid_size, thread_index, types

THREADS = 256
LOOPS = 4
"""Loops that one launch of a kernel walks; the host walks those outside of them."""
OPERANDS = 5
"""out, dgate and three inputs."""


def lanes(dtype: str) -> int:
    """Elements of 16 bytes."""
    return {"f64": 2, "f32": 4}.get(dtype, 8)


@functools.cache
def make_contiguous(operation: str, kind: str, dtype: str, V: int) -> GpuKernel:
    """n elements that lie side by side in every array, V (16 bytes or one element) a thread and turn."""
    number = REGISTER[dtype]
    pointer = types.CPointer(STORAGE[dtype])
    signature = types.void(*[pointer] * OPERANDS, types.uint32, types.int32, *[number] * 3)
    second, third = OPERATIONS[operation][1] > 1, OPERATIONS[operation][1] > 2
    pair = operation == "glu_backward"
    # the gradient of gelu in halves keeps 8 distributions at once: 768 threads with two loads of 16 bytes each
    most = 72 if (operation, kind) == ("backward", "gelu") else 64

    @gpu_kernel("activation", signature, spec=(operation, kind, dtype, V), threads=THREADS, registers=most)
    def contiguous(out, dgate, a, b, c, n, code, p0, p1, p2):  # type: ignore[no-untyped-def]
        start = types.uint32(block_index() * THREADS + thread_index())
        step = types.uint32(grid_size() * THREADS)
        packs = quotient(n, types.uint32(V))
        pack = start
        while pack < packs:
            i = types.uint32(pack * V)
            x = load_wide(a, i, V, dtype)
            y = load_wide(b, i, V, dtype) if second else x
            z = load_wide(c, i, V, dtype) if third else x
            result = compute(operation, kind, code, x, y, z, p0, p1, p2)
            if pair:
                store_narrow(out, i, result[0], dtype)
                store_narrow(dgate, i, result[1], dtype)
            else:
                store_narrow(out, i, result, dtype)
            pack = types.uint32(pack + step)
        if V > 1:
            # fewer than V elements are left
            j = types.uint32(packs * V + start)
            if j < n:
                x1 = load_wide(a, j, 1, dtype)
                y1 = load_wide(b, j, 1, dtype) if second else x1
                z1 = load_wide(c, j, 1, dtype) if third else x1
                last = compute(operation, kind, code, x1, y1, z1, p0, p1, p2)
                if pair:
                    store_narrow(out, j, last[0], dtype)
                    store_narrow(dgate, j, last[1], dtype)
                else:
                    store_narrow(out, j, last, dtype)

    return contiguous


@functools.cache
def make_loops(operation: str, kind: str, dtype: str, V: int, broadcast: bool) -> GpuKernel:
    """Elements of up to four nested loops, each operand with strides of its own.

    With V > 1 the innermost loop is contiguous in every operand, and every run of it begins at a multiple of 16 bytes;
    `broadcast`: the last input has one value for all of it.  With V = 1 strides are anything.
    """
    number = REGISTER[dtype]
    pointer = types.CPointer(STORAGE[dtype])
    signature = types.void(
        *[pointer] * OPERANDS, types.int32, *[number] * 3, *[types.uint32] * 5, *[types.int64] * (LOOPS * OPERANDS)
    )
    second, third = OPERATIONS[operation][1] > 1, OPERATIONS[operation][1] > 2
    flat_b, flat_c = broadcast and not third, broadcast and third
    pair = operation == "glu_backward"

    @gpu_kernel(
        "activation_loops", signature, spec=(operation, kind, dtype, V, broadcast), threads=THREADS, registers=64
    )
    def loops(  # type: ignore[no-untyped-def]
        out, dgate, a, b, c, code, p0, p1, p2, total, across, n1, n2, n3,
        o0, o1, o2, o3, d0, d1, d2, d3, a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3,
    ):  # fmt: skip
        # `total` packs, `across` of them a run of the innermost loop, whose length is n3
        pack = types.uint32(block_index() * THREADS + thread_index())
        step = types.uint32(grid_size() * THREADS)
        while pack < total:
            row = quotient(pack, across)
            j = types.uint32((pack - row * across) * V)
            rest = quotient(row, n2)
            i2 = types.int64(types.uint32(row - rest * n2))
            first = quotient(rest, n1)
            i1 = types.int64(types.uint32(rest - first * n1))
            i0, i3 = types.int64(first), types.int64(j)
            at_out = i0 * o0 + i1 * o1 + i2 * o2 + i3 * o3
            at_dgate = i0 * d0 + i1 * d1 + i2 * d2 + i3 * d3
            at_a = i0 * a0 + i1 * a1 + i2 * a2 + i3 * a3
            at_b = i0 * b0 + i1 * b1 + i2 * b2 + i3 * b3
            at_c = i0 * c0 + i1 * c1 + i2 * c2 + i3 * c3
            left = types.uint32(n3 - j)
            if left >= V:
                x = load_wide(a, at_a, V, dtype)
                y, z = x, x
                if second:
                    if flat_b:
                        y = repeat(load_wide(b, at_b, 1, dtype)[0], V)
                    else:
                        y = load_wide(b, at_b, V, dtype)
                if third:
                    if flat_c:
                        z = repeat(load_wide(c, at_c, 1, dtype)[0], V)
                    else:
                        z = load_wide(c, at_c, V, dtype)
                result = compute(operation, kind, code, x, y, z, p0, p1, p2)
                if pair:
                    store_narrow(out, at_out, result[0], dtype)
                    store_narrow(dgate, at_dgate, result[1], dtype)
                else:
                    store_narrow(out, at_out, result, dtype)
            elif V > 1:
                for k in range(left):
                    x1 = load_wide(a, at_a + k, 1, dtype)
                    y1, z1 = x1, x1
                    if second:
                        y1 = load_wide(b, at_b if flat_b else at_b + k, 1, dtype)
                    if third:
                        z1 = load_wide(c, at_c if flat_c else at_c + k, 1, dtype)
                    last = compute(operation, kind, code, x1, y1, z1, p0, p1, p2)
                    if pair:
                        store_narrow(out, at_out + k, last[0], dtype)
                        store_narrow(dgate, at_dgate + k, last[1], dtype)
                    else:
                        store_narrow(out, at_out + k, last, dtype)
            pack = types.uint32(pack + step)

    return loops


_VECTORS = ("LDG.E.128", "STG.E.128")
#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    *[
        (make_contiguous, (operation, kind, dtype, lanes(dtype)), _VECTORS)
        for dtype in ("f32", "bf16")
        for operation, kind in (
            ("forward", SWITCH), ("backward", SWITCH), ("forward", "gelu"), ("backward", "gelu"), ("forward", "tanh"),
            ("backward", "mish"), ("binary", "glu"), ("glu_backward", "glu"), ("prelu_backward", "prelu"),
        )
    ],
    (make_contiguous, ("forward", "power", "f32", 4), _VECTORS),
    (make_contiguous, ("forward", "gelu", "f16", 8), _VECTORS),
    (make_contiguous, ("forward", "gelu", "f64", 2), _VECTORS),
    (make_loops, ("binary", "prelu", "f32", 4, True), _VECTORS),
    (make_loops, ("binary", "glu", "f16", 8, False), _VECTORS),
    (make_loops, ("forward", SWITCH, "f32", 1, False), ("LDG.E", "STG.E")),
]  # fmt: skip
