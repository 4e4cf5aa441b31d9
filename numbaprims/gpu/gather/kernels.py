"""Pads, their gradients, and elements by indices: a thread an element of the result, or a pack.

The bound is the bytes; a thread takes 30 to 80 instructions beside, those of its place along each axis.  Indices have
64 bits where an array needs them only: a division by a size in 32 is three instructions, by its reciprocal.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.block import barrier
from numbaprims.gpu.device.memory import REGISTER, load_vector, narrow, repeat, store_vector, widen
from numbaprims.gpu.device.tile import divisor, index_types, remainder, splitter
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
CHECKERS = 1024
"""Threads of the one block that checks indices."""
AXES = 5
I64 = types.int64
BITS: dict[int, Any] = {1: types.uint8, 2: types.uint16, 4: types.uint32, 8: types.uint64}
INDEX: dict[str, Any] = {"i32": types.int32, "i64": types.int64}
_ints = types.CPointer(types.int64)


@functools.cache
def make_pad(size: int, mode: str, axes: int, W: int, wide: bool) -> GpuKernel:
    """The padded array of elements of `size` bytes, W of them, which lie side by side in both, at a time.

    Of each of the last `axes` axes: padded, before, kept, and the steps of y and x; where W > 1 the innermost counts
    packs, and so do steps.
    """
    T, I, U = BITS[size], *index_types(wide)  # noqa: E741
    pointer, split = types.CPointer(T), splitter(wide)
    five = types.UniTuple(I, AXES)
    signature = types.void(pointer, pointer, types.uint64, I, *[divisor(wide)] * (AXES - 1), *[five] * 4)

    @device_function
    def outside(i, kept):  # type: ignore[no-untyped-def]
        """The element of x for a place before or behind it, -1 for the constant."""
        if mode == "edge":
            return I(0) if i < 0 else I(kept - 1)
        elif mode == "wrap":
            return I(I(kept - 1) - I(remainder(U(I(-1) - i), U(kept)))) if i < 0 else I(remainder(U(i), U(kept)))
        elif mode == "reflect":
            period = I(max(I(I(2) * I(kept - 1)), I(1)))
            i = I(remainder(U(abs(i)), U(period)))
            return I(min(i, I(period - i)))
        else:
            return I(-1)

    @device_function
    def place(i, before, kept):  # type: ignore[no-untyped-def]
        i = I(i - before)
        if i < 0 or i >= kept:
            i = outside(i, kept)
        return i

    @gpu_kernel("gather_pad", signature, spec=(size, mode, axes, W, wide), threads=THREADS, registers=128)
    def pad(out, x, value, packs, n1, n2, n3, n4, before, kept, o, s):  # type: ignore[no-untyped-def]
        i = I(I(block_index()) * I(THREADS) + I(thread_index()))
        while i < packs:
            rest, to, at, least = i, I(0), I(0), I(0)
            if axes > 1:
                rest, i4 = split(rest, n4)
            else:
                i4, rest = rest, I(0)
            j = place(i4, before[4], kept[4])
            to, at, least = I(i4 * o[4]), I(j * s[4]), j
            if axes > 1:
                i3, rest = rest, I(0)
                if axes > 2:
                    rest, i3 = split(i3, n3)
                j = place(i3, before[3], kept[3])
                to, at, least = I(to + i3 * o[3]), I(at + j * s[3]), I(min(least, j))
            if axes > 2:
                i2, rest = rest, I(0)
                if axes > 3:
                    rest, i2 = split(i2, n2)
                j = place(i2, before[2], kept[2])
                to, at, least = I(to + i2 * o[2]), I(at + j * s[2]), I(min(least, j))
            if axes > 3:
                i1, rest = rest, I(0)
                if axes > 4:
                    rest, i1 = split(i1, n1)
                j = place(i1, before[1], kept[1])
                to, at, least = I(to + i1 * o[1]), I(at + j * s[1]), I(min(least, j))
            if axes > 4:
                j = place(rest, before[0], kept[0])
                to, at, least = I(to + rest * o[0]), I(at + j * s[0]), I(min(least, j))
            if mode == "constant" and least < 0:
                store_vector(out, I64(to) * W, repeat(T(value), W))
            else:
                store_vector(out, I64(to) * W, load_vector(x, I64(at) * W, W))
            i = I(i + I(grid_size()) * I(THREADS))

    return pad


@functools.cache
def make_fold(dtype: str, mode: str, wide: bool) -> GpuKernel:
    """The gradient of a pad.  Of each axis: elements of dx, the first that is padded, before, kept, padded, the steps
    of dx and dy."""
    I, U = index_types(wide)  # noqa: E741
    acc, split = DTYPES[dtype].accumulate, splitter(wide)
    number, pointer = REGISTER[acc], types.CPointer(STORAGE[dtype])
    signature = types.void(pointer, pointer, I, *[divisor(wide)] * AXES, *[I] * (6 * AXES))

    @device_function
    def floor_modulo(x, y):  # type: ignore[no-untyped-def]
        if x < 0:
            return I(I(y - I(1)) - I(remainder(U(I(-1) - x), U(y))))
        return I(remainder(U(x), U(y)))

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
            start, step, turn, end = floor_modulo(start, kept), kept, kept, padded
        elif mode == "reflect" and kept > 1:
            period = I(I(2) * I(kept - 1))
            one, other = floor_modulo(start, period), floor_modulo(I(before - j), period)
            start, end = I(min(one, other)), padded
            step = I(max(one, other) - start)
            turn = I(period - step)
            if step == 0:
                step, turn = period, period
        elif mode == "reflect":
            start, end = I(0), padded
        return start, step, turn, end

    @gpu_kernel("gather_fold", signature, spec=(dtype, mode, wide), threads=THREADS, registers=255)
    def fold(  # type: ignore[no-untyped-def]
        out, dy, elements, n0, n1, n2, n3, n4, f0, f1, f2, f3, f4, b0, b1, b2, b3, b4, k0, k1, k2, k3, k4,
        p0, p1, p2, p3, p4, o0, o1, o2, o3, o4, d0, d1, d2, d3, d4,
    ):  # fmt: skip
        i = I(I(block_index()) * I(THREADS) + I(thread_index()))
        while i < elements:
            rest, i4 = split(i, n4)
            rest, i3 = split(rest, n3)
            rest, i2 = split(rest, n2)
            i0, i1 = split(rest, n1)
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
            i = I(i + I(grid_size()) * I(THREADS))

    return fold


@functools.cache
def make_check(index: str) -> GpuKernel:
    """The place of the first index that is out of range, by one block."""
    signature = types.void(_ints, types.CPointer(INDEX[index]), I64, I64)

    @gpu_kernel("gather_check", signature, spec=(index,), threads=CHECKERS, registers=64)
    def check(status, indices, count, size):  # type: ignore[no-untyped-def]
        found = shared_array((CHECKERS,), types.int64)
        bad, j = count, I64(thread_index())
        while j < count:
            # four loads in flight; what is asked again behind the last changes nothing
            for part in range(4):
                at = min(j + part * CHECKERS, count - 1)
                k = I64(indices[at])
                if k < -size or k >= size:
                    bad = min(bad, at)
            j += 4 * CHECKERS
        me, half = I64(thread_index()), I64(CHECKERS // 2)
        found[me] = bad
        barrier()
        while half > 0:
            if me < half:
                found[me] = min(found[me], found[me + half])
            barrier()
            half = half // 2
        if me == 0:
            status[0] = I64(-1) if found[0] == count else found[0]

    return check


@functools.cache
def make_gather(size: int, W: int, index: str, wide: bool) -> GpuKernel:
    """y[o, j, i] = x[o, indices[j], i] of arrays in C order, where no index is out of range: a pack of W elements a
    thread, `inner` of them in a run."""
    I, _ = index_types(wide)  # noqa: E741
    pointer, split, by = types.CPointer(BITS[size]), splitter(wide), divisor(wide)
    signature = types.void(pointer, _ints, pointer, types.CPointer(INDEX[index]), I, I64, by, by)

    @gpu_kernel("gather_rows", signature, spec=(size, W, index, wide), threads=THREADS, registers=64)
    def gather(out, status, x, indices, packs, length, count, inner):  # type: ignore[no-untyped-def]
        e = I(I(block_index()) * I(THREADS) + I(thread_index()))
        while e < packs:
            rest, i = split(e, inner)
            o, j = split(rest, count)
            # whatever the status is, which comes meanwhile
            k = I64(indices[j])
            k = max(I64(0), min(I64(k + length) if k < 0 else k, length - 1))
            at = I64((I64(o) * length + k) * I64(inner[0]) + I64(i))
            found = load_vector(x, at * W, W)
            if status[0] < 0:
                store_vector(out, I64(e) * W, found)
            e = I(e + I(grid_size()) * I(THREADS))

    return gather


@functools.cache
def make_chains(index: str) -> GpuKernel:
    """Of each row its first index, and of each index the next one of the same row; -1 where there is none.

    A thread looks along all indices from its own on: length + count / 2 times count loads in all, from the caches.
    """
    signature = types.void(_ints, _ints, types.CPointer(INDEX[index]), I64, I64)

    @gpu_kernel("gather_chains", signature, spec=(index,), threads=THREADS, registers=64)
    def chains(first, following, indices, length, count):  # type: ignore[no-untyped-def]
        t = I64(I64(block_index()) * THREADS + I64(thread_index()))
        while t < length + count:
            row, j = t, I64(0)
            if t >= length:
                row, j = I64(indices[t - length]), I64(t - length + 1)
                if row < 0:
                    row = I64(row + length)
            found = I64(-1)
            while j < count and found < 0:
                k = I64(indices[j])
                if k == row or k + length == row:
                    found = j
                j = I64(j + 1)
            if t < length:
                first[t] = found
            else:
                following[t - length] = found
            t = I64(t + I64(grid_size()) * THREADS)

    return chains


@functools.cache
def make_sums(dtype: str, wide: bool) -> GpuKernel:
    """dx[o, k, i] = the sum of dy[o, j, i] along the chain of row k; `mean`: by its length."""
    I, _ = index_types(wide)  # noqa: E741
    split, by = splitter(wide), divisor(wide)
    number, pointer = REGISTER[DTYPES[dtype].accumulate], types.CPointer(STORAGE[dtype])
    signature = types.void(pointer, _ints, pointer, _ints, _ints, I, by, I64, by, I64, I64)

    @gpu_kernel("gather_sums", signature, spec=(dtype, wide), threads=THREADS, registers=64)
    def sums(out, status, dy, first, following, elements, length, count, inner, skip, mean):  # type: ignore[no-untyped-def]
        e = I(I(block_index()) * I(THREADS) + I(thread_index()))
        if status[0] >= 0:
            e = elements
        while e < elements:
            rest, i = split(e, inner)
            o, k = split(rest, length)
            total, terms, j = number(0), I64(0), I64(first[k])
            if k == skip:
                j = I64(-1)
            while j >= 0:
                total = number(total + widen(dy[I64((I64(o) * count + j) * I64(inner[0]) + I64(i))], dtype))
                terms = I64(terms + 1)
                j = I64(following[j])
            if mean and terms > 1:
                total = number(total * (number(1) / number(terms)))
            out[e] = narrow(total, dtype)
            e = I(e + I(grid_size()) * I(THREADS))

    return sums


@functools.cache
def make_one_hot(size: int, index: str, wide: bool) -> GpuKernel:
    """y[o, d, i], on where indices[o, i] is d."""
    T, (I, _), split, by = BITS[size], index_types(wide), splitter(wide), divisor(wide)  # noqa: E741
    signature = types.void(types.CPointer(T), types.CPointer(INDEX[index]), types.uint64, types.uint64, I, by, by)

    @gpu_kernel("gather_one_hot", signature, spec=(size, index, wide), threads=THREADS, registers=64)
    def one_hot(out, indices, off, on, elements, depth, inner):  # type: ignore[no-untyped-def]
        e = I(I(block_index()) * I(THREADS) + I(thread_index()))
        while e < elements:
            rest, i = split(e, inner)
            o, d = split(rest, depth)
            k = I64(indices[I(o * inner[0] + i)])
            value = off
            if k == d or k + depth[0] == d:
                value = on
            out[e] = T(value)
            e = I(e + I(grid_size()) * I(THREADS))

    return one_hot


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_pad, (4, "constant", 3, 1, False), ("LDG.E", "STG.E")),
    (make_pad, (2, "reflect", 5, 1, True), ("LDG.E.U16",)),
    (make_pad, (4, "reflect", 4, 4, False), ("LDG.E.128", "STG.E.128")),
    (make_fold, ("f32", "reflect", False), ("LDG.E", "STG.E")),
    (make_check, ("i32",), ("LDG.E", "STG.E.64")),
    (make_gather, (4, 4, "i64", False), ("LDG.E.128", "STG.E.128")),
    (make_gather, (1, 1, "i32", True), ("LDG.E.U8",)),
    (make_chains, ("i32",), ("LDG.E", "STG.E.64")),
    (make_sums, ("bf16", False), ("LDG.E.U16",)),
    (make_one_hot, (8, "i64", False), ("STG.E.64",)),
]
