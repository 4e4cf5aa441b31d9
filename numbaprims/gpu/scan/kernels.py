"""The kernels of cumulative sums: along rows by shuffles within a warp, across them by a thread each."""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.memory import REGISTER, narrow, widen
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.warp import WARP, lane_index, shuffle, shuffle_up, warp_index
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, device_function, gpu_kernel, thread_index, types

THREADS = 128
DIMS = 4
"""Kept dimensions, at most."""
I64, U64 = types.int64, types.uint64
FOUR = types.UniTuple(types.int64, DIMS)


def _types(dtype: str) -> tuple[Any, Any]:
    """(what is computed in, what is stored)"""
    if dtype == "i64":
        return types.int64, types.int64
    return REGISTER[DTYPES[dtype].accumulate], STORAGE[dtype]


def _access(dtype: str) -> tuple[Any, Any]:
    """(read an element, write one)"""
    if dtype == "i64":

        @device_function
        def read(x, at):  # type: ignore[no-untyped-def]
            return x[at]

        @device_function
        def write(out, at, y):  # type: ignore[no-untyped-def]
            out[at] = y

    else:

        @device_function
        def read(x, at):  # type: ignore[no-untyped-def]
            return widen(x[at], dtype)

        @device_function
        def write(out, at, y):  # type: ignore[no-untyped-def]
            out[at] = narrow(y, dtype)

    return read, write


@device_function
def begins(row, sizes, o_s, x_s):  # type: ignore[no-untyped-def]
    """Where a row begins in both arrays."""
    rest = I64(quotient(U64(row), U64(sizes[3])))
    i3 = row - rest * sizes[3]
    above = I64(quotient(U64(rest), U64(sizes[2])))
    i2 = rest - above * sizes[2]
    i0 = I64(quotient(U64(above), U64(sizes[1])))
    i1 = above - i0 * sizes[1]
    to = i0 * o_s[0] + i1 * o_s[1] + i2 * o_s[2] + i3 * o_s[3]
    return to, i0 * x_s[0] + i1 * x_s[1] + i2 * x_s[2] + i3 * x_s[3]


@functools.cache
def make_kernel(way: str, dtype: str, exclusive: bool, backwards: bool, product: bool) -> GpuKernel:
    """ "rows": a warp for each row, 32 elements at a time; "each": a thread for each."""
    number, stored = _types(dtype)
    read, write = _access(dtype)
    EXCLUSIVE, REVERSE, PRODUCT, data = exclusive, backwards, product, types.CPointer(stored)
    none = 1 if product else 0
    signature = types.void(data, data, I64, I64, FOUR, FOUR, FOUR, I64, I64)

    if way == "each":

        @gpu_kernel("scan_each", signature, spec=(dtype, exclusive, backwards, product), threads=THREADS, registers=128)
        def each(out, x, rows, n, sizes, o_s, x_s, o_c, x_c):  # type: ignore[no-untyped-def]
            row = I64(block_index()) * THREADS + I64(thread_index())
            if row < rows:
                to, source = begins(row, sizes, o_s, x_s)
                total = number(none)
                for i in range(n):
                    at = n - 1 - i if REVERSE else i
                    before = total
                    own = read(x, source + at * x_c)
                    total = number(total * own if PRODUCT else total + own)
                    write(out, to + at * o_c, before if EXCLUSIVE else total)

        return each

    @gpu_kernel("scan_rows", signature, spec=(dtype, exclusive, backwards, product), threads=THREADS, registers=128)
    def whole(out, x, rows, n, sizes, o_s, x_s, o_c, x_c):  # type: ignore[no-untyped-def]
        row = I64(block_index()) * (THREADS // WARP) + I64(warp_index())
        if row < rows:
            lane = lane_index()
            to, source = begins(row, sizes, o_s, x_s)
            carry = number(none)
            for first in range(0, n, WARP):
                i = first + I64(lane)
                at = n - 1 - i if REVERSE else i
                own = number(none)
                if i < n:
                    own = number(read(x, source + at * x_c))
                total = own
                step = types.uint32(1)
                while step < WARP:
                    other = shuffle_up(total, step)
                    if lane >= step:
                        total = number(total * other if PRODUCT else total + other)
                    step = types.uint32(step * types.uint32(2))
                before = shuffle_up(total, types.uint32(1))
                if lane == 0:
                    before = number(none)
                if i < n:
                    sums = before if EXCLUSIVE else total
                    write(out, to + at * o_c, number(carry * sums if PRODUCT else carry + sums))
                last = shuffle(total, types.uint32(WARP - 1))
                carry = number(carry * last if PRODUCT else carry + last)

    return whole


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_kernel, ("rows", "f32", False, False, False), ("SHFL.UP", "LDG.E", "STG.E")),
    (make_kernel, ("rows", "bf16", True, True, False), ("SHFL.UP", "LDG.E.U16")),
    (make_kernel, ("each", "f64", False, True, False), ("DADD", "LDG.E.64")),
    (make_kernel, ("each", "i64", True, False, False), ("LDG.E.64",)),
]
