"""Pads, their gradients, and elements by indices: a thread an element of the result, in the order of memory.

The bound is the bytes; a thread takes 40 to 100 instructions beside, those of its place along each axis.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.block import barrier
from numbaprims.gpu.device.memory import REGISTER, narrow, widen
from numbaprims.gpu.jit import (
    STORAGE,
    GpuKernel,
    block_index,
    device_function,
    gpu_kernel,
    grid_size,
    shared_array,
    thread_index,
    types,
)

THREADS = 256
AXES = 5
I = types.int64  # noqa: E741
BITS: dict[int, Any] = {1: types.uint8, 2: types.uint16, 4: types.uint32, 8: types.uint64}
INDEX: dict[str, Any] = {"i32": types.int32, "i64": types.int64}
_ints = types.CPointer(types.int64)


@device_function
def _split(rest, size):  # type: ignore[no-untyped-def]
    """(what is left, the place along an axis)"""
    above = I(rest // size)
    return above, I(rest - above * size)


@functools.cache
def make_pad(size: int, mode: str) -> GpuKernel:
    """The padded array of elements of `size` bytes.  Of each axis: padded, before, kept, and the steps of y and x."""
    T = BITS[size]
    pointer = types.CPointer(T)
    signature = types.void(pointer, pointer, types.uint64, I, *[I] * (5 * AXES))

    @device_function
    def place(i, before, kept):  # type: ignore[no-untyped-def]
        """The element of x, -1 for the constant."""
        i = I(i - before)
        if mode == "edge":
            i = I(min(max(i, I(0)), I(kept - 1)))
        elif mode == "wrap":
            i = I(i % kept)
        elif mode == "reflect":
            period = I(max(I(2 * (kept - 1)), I(1)))
            i = I(i % period)
            i = I(min(i, I(period - i)))
        elif i >= kept or i < 0:
            i = I(-1)
        return i

    @gpu_kernel("gather_pad", signature, spec=(size, mode), threads=THREADS, registers=128)
    def pad(  # type: ignore[no-untyped-def]
        out, x, value, elements, n0, n1, n2, n3, n4, b0, b1, b2, b3, b4, k0, k1, k2, k3, k4, o0, o1, o2, o3, o4,
        x0, x1, x2, x3, x4,
    ):  # fmt: skip
        i = I(I(block_index()) * THREADS + I(thread_index()))
        while i < elements:
            rest, i4 = _split(i, n4)
            rest, i3 = _split(rest, n3)
            rest, i2 = _split(rest, n2)
            i0, i1 = _split(rest, n1)
            to = I(i0 * o0 + i1 * o1 + i2 * o2 + i3 * o3 + i4 * o4)
            j0, j1, j2, j3, j4 = (
                place(i0, b0, k0),
                place(i1, b1, k1),
                place(i2, b2, k2),
                place(i3, b3, k3),
                place(i4, b4, k4),
            )
            if mode == "constant" and min(min(min(j0, j1), min(j2, j3)), j4) < 0:
                out[to] = T(value)
            else:
                out[to] = x[I(j0 * x0 + j1 * x1 + j2 * x2 + j3 * x3 + j4 * x4)]
            i = I(i + I(grid_size()) * THREADS)

    return pad


@functools.cache
def make_fold(dtype: str, mode: str) -> GpuKernel:
    """The gradient of a pad.  Of each axis: elements of dx, the first that is padded, before, kept, padded, the steps
    of dx and dy."""
    acc = DTYPES[dtype].accumulate
    number, pointer = REGISTER[acc], types.CPointer(STORAGE[dtype])
    signature = types.void(pointer, pointer, I, *[I] * (7 * AXES))

    @device_function
    def ways(j, first, before, kept, padded):  # type: ignore[no-untyped-def]
        """(the first place of an element, the steps to the next ones by turns, their end)"""
        j = I(j - first)
        start, step, turn, end = I(j + before), I(1), I(1), I(j + before + 1)
        if j < 0 or j >= kept:
            end = start
        elif mode == "edge":
            if j == 0:
                start = I(0)
            if j == kept - 1:
                end = padded
        elif mode == "wrap":
            start, step, turn, end = I(start % kept), kept, kept, padded
        elif mode == "reflect" and kept > 1:
            period = I(2 * (kept - 1))
            one, other = I(start % period), I((before - j) % period)
            start, end = I(min(one, other)), padded
            step = I(max(one, other) - start)
            turn = I(period - step)
            if step == 0:
                step, turn = period, period
        elif mode == "reflect":
            start, end = I(0), padded
        return start, step, turn, end

    @gpu_kernel("gather_fold", signature, spec=(dtype, mode), threads=THREADS, registers=255)
    def fold(  # type: ignore[no-untyped-def]
        out, dy, elements, n0, n1, n2, n3, n4, f0, f1, f2, f3, f4, b0, b1, b2, b3, b4, k0, k1, k2, k3, k4,
        p0, p1, p2, p3, p4, o0, o1, o2, o3, o4, d0, d1, d2, d3, d4,
    ):  # fmt: skip
        i = I(I(block_index()) * THREADS + I(thread_index()))
        while i < elements:
            rest, i4 = _split(i, n4)
            rest, i3 = _split(rest, n3)
            rest, i2 = _split(rest, n2)
            i0, i1 = _split(rest, n1)
            total = number(0)
            j0, s0, t0, e0 = ways(i0, f0, b0, k0, p0)
            while j0 < e0:
                j1, s1, t1, e1 = ways(i1, f1, b1, k1, p1)
                while j1 < e1:
                    j2, s2, t2, e2 = ways(i2, f2, b2, k2, p2)
                    while j2 < e2:
                        j3, s3, t3, e3 = ways(i3, f3, b3, k3, p3)
                        while j3 < e3:
                            j4, s4, t4, e4 = ways(i4, f4, b4, k4, p4)
                            while j4 < e4:
                                at = I(j0 * d0 + j1 * d1 + j2 * d2 + j3 * d3 + j4 * d4)
                                total = number(total + widen(dy[at], dtype))
                                j4, s4, t4 = I(j4 + s4), t4, s4
                            j3, s3, t3 = I(j3 + s3), t3, s3
                        j2, s2, t2 = I(j2 + s2), t2, s2
                    j1, s1, t1 = I(j1 + s1), t1, s1
                j0, s0, t0 = I(j0 + s0), t0, s0
            out[I(i0 * o0 + i1 * o1 + i2 * o2 + i3 * o3 + i4 * o4)] = narrow(total, dtype)
            i = I(i + I(grid_size()) * THREADS)

    return fold


@functools.cache
def make_check(index: str) -> GpuKernel:
    """The place of the first index that is out of range, by one block."""
    signature = types.void(_ints, types.CPointer(INDEX[index]), I, I)

    @gpu_kernel("gather_check", signature, spec=(index,), threads=THREADS, registers=64)
    def check(status, indices, count, size):  # type: ignore[no-untyped-def]
        found = shared_array((THREADS,), types.int64)
        me, bad, j = I(thread_index()), I(-1), I(thread_index())
        while j < count and bad < 0:
            k = I(indices[j])
            if k < -size or k >= size:
                bad = j
            j = I(j + THREADS)
        found[me] = bad
        barrier()
        if me == 0:
            for t in range(1, THREADS):
                other = I(found[t])
                if other >= 0 and (bad < 0 or other < bad):
                    bad = other
            status[0] = bad

    return check


@functools.cache
def make_gather(size: int, index: str) -> GpuKernel:
    """y[o, j, i] = x[o, indices[j], i] of arrays in C order, where no index is out of range."""
    pointer = types.CPointer(BITS[size])
    signature = types.void(pointer, _ints, pointer, types.CPointer(INDEX[index]), *[I] * 4)

    @gpu_kernel("gather_rows", signature, spec=(size, index), threads=THREADS, registers=64)
    def gather(out, status, x, indices, elements, length, count, inner):  # type: ignore[no-untyped-def]
        e = I(I(block_index()) * THREADS + I(thread_index()))
        if status[0] >= 0:
            e = elements
        while e < elements:
            rest, i = _split(e, inner)
            o, j = _split(rest, count)
            k = I(indices[j])
            if k < 0:
                k = I(k + length)
            out[e] = x[I((o * length + k) * inner + i)]
            e = I(e + I(grid_size()) * THREADS)

    return gather


@functools.cache
def make_chains(index: str) -> GpuKernel:
    """Of each row its first index, and of each index the next one of the same row; -1 where there is none.

    A thread looks along all indices from its own on: length + count / 2 times count loads in all, from the caches.
    """
    signature = types.void(_ints, _ints, types.CPointer(INDEX[index]), I, I)

    @gpu_kernel("gather_chains", signature, spec=(index,), threads=THREADS, registers=64)
    def chains(first, following, indices, length, count):  # type: ignore[no-untyped-def]
        t = I(I(block_index()) * THREADS + I(thread_index()))
        while t < length + count:
            row, j = t, I(0)
            if t >= length:
                row, j = I(indices[t - length]), I(t - length + 1)
                if row < 0:
                    row = I(row + length)
            found = I(-1)
            while j < count and found < 0:
                k = I(indices[j])
                if k == row or k + length == row:
                    found = j
                j = I(j + 1)
            if t < length:
                first[t] = found
            else:
                following[t - length] = found
            t = I(t + I(grid_size()) * THREADS)

    return chains


@functools.cache
def make_sums(dtype: str) -> GpuKernel:
    """dx[o, k, i] = the sum of dy[o, j, i] along the chain of row k; `mean`: by its length."""
    number, pointer = REGISTER[DTYPES[dtype].accumulate], types.CPointer(STORAGE[dtype])
    signature = types.void(pointer, _ints, pointer, _ints, _ints, *[I] * 6)

    @gpu_kernel("gather_sums", signature, spec=(dtype,), threads=THREADS, registers=64)
    def sums(out, status, dy, first, following, elements, length, count, inner, skip, mean):  # type: ignore[no-untyped-def]
        e = I(I(block_index()) * THREADS + I(thread_index()))
        if status[0] >= 0:
            e = elements
        while e < elements:
            rest, i = _split(e, inner)
            o, k = _split(rest, length)
            total, terms, j = number(0), I(0), I(first[k])
            if k == skip:
                j = I(-1)
            while j >= 0:
                total = number(total + widen(dy[I((o * count + j) * inner + i)], dtype))
                terms = I(terms + 1)
                j = I(following[j])
            if mean and terms > 1:
                total = number(total * (number(1) / number(terms)))
            out[e] = narrow(total, dtype)
            e = I(e + I(grid_size()) * THREADS)

    return sums


@functools.cache
def make_one_hot(size: int, index: str) -> GpuKernel:
    """y[o, d, i], on where indices[o, i] is d."""
    T = BITS[size]
    signature = types.void(types.CPointer(T), types.CPointer(INDEX[index]), types.uint64, types.uint64, I, I, I)

    @gpu_kernel("gather_one_hot", signature, spec=(size, index), threads=THREADS, registers=64)
    def one_hot(out, indices, off, on, elements, depth, inner):  # type: ignore[no-untyped-def]
        e = I(I(block_index()) * THREADS + I(thread_index()))
        while e < elements:
            rest, i = _split(e, inner)
            o, d = _split(rest, depth)
            k = I(indices[I(o * inner + i)])
            value = off
            if k == d or k + depth == d:
                value = on
            out[e] = T(value)
            e = I(e + I(grid_size()) * THREADS)

    return one_hot


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_pad, (4, "constant"), ("LDG.E", "STG.E")),
    (make_pad, (2, "reflect"), ("LDG.E.U16",)),
    (make_fold, ("f32", "reflect"), ("LDG.E", "STG.E")),
    (make_gather, (4, "i64"), ("LDG.E.64", "STG.E")),
    (make_chains, ("i32",), ("LDG.E", "STG.E.64")),
    (make_sums, ("bf16",), ("LDG.E.U16",)),
    (make_one_hot, (8, "i64"), ("STG.E.64",)),
]
