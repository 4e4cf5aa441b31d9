"""The kernel of topk: a thread for each row, whose sorted list is the row of the results."""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.gpu.device.memory import widen
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, device_function, gpu_kernel, thread_index, types

THREADS = 128
DIMS = 4
"""Kept dimensions, at most."""
I64, U64 = types.int64, types.uint64
FOUR = types.UniTuple(types.int64, DIMS)


@functools.cache
def make_kernel(dtype: str, largest: bool) -> GpuKernel:
    """Rows of x; steps are those of rows over four dimensions, then of elements."""
    LARGEST, stored = largest, types.int64 if dtype == "i64" else STORAGE[dtype]
    data = types.CPointer(stored)
    signature = types.void(data, types.CPointer(I64), data, I64, I64, I64, FOUR, FOUR, FOUR, FOUR, I64, I64, I64)

    if dtype[0] == "i":

        @device_function
        def first(a, b):  # type: ignore[no-untyped-def]
            return a > b if LARGEST else a < b

    else:

        @device_function
        def first(a, b):  # type: ignore[no-untyped-def]
            """Whether a comes before b, NaN being the largest."""
            x, y = widen(a, dtype), widen(b, dtype)
            if LARGEST:
                return x > y or (x != x and y == y)
            return x < y or (y != y and x == x)

    @gpu_kernel("topk_list", signature, spec=(dtype, largest), threads=THREADS, registers=128)
    def topk(values, indices, x, rows, n, k, sizes, v_s, i_s, x_s, v_c, i_c, x_c):  # type: ignore[no-untyped-def]
        row = I64(block_index()) * THREADS + I64(thread_index())
        if row < rows:
            rest = I64(quotient(U64(row), U64(sizes[3])))
            i3 = row - rest * sizes[3]
            above = I64(quotient(U64(rest), U64(sizes[2])))
            i2 = rest - above * sizes[2]
            i0 = I64(quotient(U64(above), U64(sizes[1])))
            i1 = above - i0 * sizes[1]
            v_at = i0 * v_s[0] + i1 * v_s[1] + i2 * v_s[2] + i3 * v_s[3]
            i_at = i0 * i_s[0] + i1 * i_s[1] + i2 * i_s[2] + i3 * i_s[3]
            x_at = i0 * x_s[0] + i1 * x_s[1] + i2 * x_s[2] + i3 * x_s[3]
            for i in range(n):
                own = x[x_at + i * x_c]
                count = min(i, k)
                if count < k or first(own, values[v_at + (k - 1) * v_c]):
                    at = min(count, k - 1)
                    while at > 0 and first(own, values[v_at + (at - 1) * v_c]):
                        values[v_at + at * v_c] = values[v_at + (at - 1) * v_c]
                        indices[i_at + at * i_c] = indices[i_at + (at - 1) * i_c]
                        at -= 1
                    values[v_at + at * v_c] = own
                    indices[i_at + at * i_c] = i

    return topk


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_kernel, ("f32", True), ("LDG.E", "STG.E")),
    (make_kernel, ("bf16", False), ("LDG.E.U16",)),
    (make_kernel, ("i64", True), ("LDG.E.64",)),
]
