"""The kernels of cumulative sums: along rows by shuffles within a warp, across them by a thread each."""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.memory import REGISTER, narrow, widen
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.warp import WARP, lane_index, shuffle, shuffle_up, warp_all, warp_index
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
    """ "rows": a warp for each row, four times 32 elements at a time; "each": a thread for each.

    A product of some factors may be infinite, or too small for its digits, where that of all before them is not: warps
    multiply 32 in order where a product of neighbours is.
    """
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

    CHAINED = product and dtype[0] != "i"
    tiny = number(0) if not CHAINED else number(2.2250738585072014e-308 if number == types.float64 else 2.0**-126)
    largest = number(1) if not CHAINED else number(1.7976931348623157e308 if number == types.float64 else 3.4028234e38)

    @device_function
    def in_order(own, carry, lane):  # type: ignore[no-untyped-def]
        """(this lane's result, what goes on to the next 32), one factor after the other."""
        mine = carry
        for k in range(WARP):
            factor = shuffle(own, types.uint32(k))
            if (lane > types.uint32(k)) if EXCLUSIVE else (lane >= types.uint32(k)):
                mine = number(mine * factor)
        return mine, shuffle(number(mine * own) if EXCLUSIVE else mine, types.uint32(WARP - 1))

    @device_function
    def swept(own, carry, lane):  # type: ignore[no-untyped-def]
        """(this lane's result, what goes on to the next 32) by five steps of shuffles."""
        total, step, plain = own, types.uint32(1), True
        if CHAINED:
            plain = tiny <= abs(total) <= largest
        while step < WARP:
            other = shuffle_up(total, step)
            if lane >= step:
                total = number(total * other if PRODUCT else total + other)
            if CHAINED:
                plain = plain and tiny <= abs(total) <= largest
            step = types.uint32(step * types.uint32(2))
        last = shuffle(total, types.uint32(WARP - 1))
        if EXCLUSIVE:
            total = shuffle_up(total, types.uint32(1))
            if lane == 0:
                total = number(none)
        if CHAINED and not warp_all(plain):
            return in_order(own, carry, lane)
        if PRODUCT:
            return number(carry * total), number(carry * last)
        return number(carry + total), number(carry + last)

    @gpu_kernel("scan_rows", signature, spec=(dtype, exclusive, backwards, product), threads=THREADS, registers=128)
    def whole(out, x, rows, n, sizes, o_s, x_s, o_c, x_c):  # type: ignore[no-untyped-def]
        row = I64(block_index()) * (THREADS // WARP) + I64(warp_index())
        if row < rows:
            lane = lane_index()
            to, source = begins(row, sizes, o_s, x_s)
            carry, i = number(none), I64(lane)
            at = n - 1 - i if REVERSE else i
            to, source = to + at * o_c, source + at * x_c
            o_w, x_w = I64(-WARP if REVERSE else WARP) * o_c, I64(-WARP if REVERSE else WARP) * x_c
            for _ in range(0, n, 4 * WARP):
                # four loads in flight a lane, each of 32 neighbours
                own0, own1, own2, own3 = number(none), number(none), number(none), number(none)
                if i < n:
                    own0 = number(read(x, source))
                if i + WARP < n:
                    own1 = number(read(x, source + x_w))
                if i + 2 * WARP < n:
                    own2 = number(read(x, source + 2 * x_w))
                if i + 3 * WARP < n:
                    own3 = number(read(x, source + 3 * x_w))
                own0, carry = swept(own0, carry, lane)
                own1, carry = swept(own1, carry, lane)
                own2, carry = swept(own2, carry, lane)
                own3, carry = swept(own3, carry, lane)
                if i < n:
                    write(out, to, own0)
                if i + WARP < n:
                    write(out, to + o_w, own1)
                if i + 2 * WARP < n:
                    write(out, to + 2 * o_w, own2)
                if i + 3 * WARP < n:
                    write(out, to + 3 * o_w, own3)
                i, to, source = i + 4 * WARP, to + 4 * o_w, source + 4 * x_w

    return whole


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_kernel, ("rows", "f32", False, False, False), ("SHFL.UP", "LDG.E", "STG.E")),
    (make_kernel, ("rows", "bf16", True, True, False), ("SHFL.UP", "LDG.E.U16")),
    (make_kernel, ("rows", "f32", False, False, True), ("SHFL.UP", "SHFL.IDX", "VOTE")),
    (make_kernel, ("rows", "f64", True, True, True), ("SHFL.IDX", "DMUL")),
    (make_kernel, ("each", "f64", False, True, False), ("DADD", "LDG.E.64")),
    (make_kernel, ("each", "i64", True, False, False), ("LDG.E.64",)),
]
