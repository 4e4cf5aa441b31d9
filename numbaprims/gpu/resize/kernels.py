"""The kernels of resizing: the taps of each axis, in float64, and a thread that reads them for a pixel of 4 channels.

Tables hold for each result along d, h and w, one axis behind the other, its first pixel, how many there are, and room
for as many weights as any has; pixels outside stand for those at the border.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.gpu.device.memory import REGISTER, load_vector, narrow, store_vector, widen
from numbaprims.gpu.device.tile import divisor, index_types, quotient, splitter
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, device_function, gpu_kernel, thread_index, types

THREADS = 256
LANES = 4
"""Channels of a thread."""
I32, I64, U64, F64 = types.int32, types.int64, types.uint64, types.float64


@functools.cache
def make_tables(mode: str, align_corners: bool, antialias: bool, acc: str, place: str = "f64") -> GpuKernel:
    """A thread a result of an axis; places are fractions of integers, weights computed in float64."""
    number = REGISTER[acc]
    integers, weights = types.CPointer(I32), types.CPointer(STORAGE[acc])
    signature = types.void(integers, integers, weights, *[I32] * 9, *[I64] * 6, F64)
    NEAREST, EXACT, LINEAR, SPREAD = mode == "nearest", mode == "nearest_exact", mode == "linear", antialias
    CORNERS = align_corners

    @device_function
    def below(x, y):  # type: ignore[no-untyped-def]
        """x / y rounded down, x of any sign."""
        if x >= I64(0):
            return I64(quotient(U64(x), U64(y)))
        return I64(-I64(quotient(U64(I64(y - I64(1)) - x), U64(y))))

    @device_function
    def keys(x, a):  # type: ignore[no-untyped-def]
        """The weight of a pixel at a distance x."""
        x = F64(abs(x))
        if LINEAR:
            return F64(max(F64(1.0) - x, F64(0.0)))
        if x < F64(1.0):
            return F64(((a + 2.0) * x - (a + 3.0)) * x * x + 1.0)
        if x < F64(2.0):
            return F64(((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a)
        return F64(0.0)

    @gpu_kernel("resize_tables", signature, spec=(mode, align_corners, antialias, acc, place), threads=THREADS)
    def tables(  # type: ignore[no-untyped-def]
        first, count, weight, m0, m1, m2, n0, n1, n2, t0, t1, t2, p0, p1, p2, q0, q1, q2, a
    ):
        i = I32(I32(block_index()) * THREADS + I32(thread_index()))
        if i < I32(m0 + m1 + m2):
            o, n, taps, p, q, at = i, n0, t0, p0, q0, I32(i * t0)
            if i >= m0:
                o, n, taps, p, q = I32(i - m0), n1, t1, p1, q1
                at = I32(m0 * t0 + o * t1)
            if i >= I32(m0 + m1):
                o, n, taps, p, q = I32(i - m0 - m1), n2, t2, p2, q2
                at = I32(m0 * t0 + m1 * t1 + o * t2)
            if NEAREST or EXACT:
                index = below(I64(o) * p, q) if NEAREST else below(I64(I64(2) * I64(o) + I64(1)) * p, I64(I64(2) * q))
                first[i] = I32(min(index, I64(n - 1)))
                count[i] = I32(1)
                weight[at] = number(1)
            elif taps == I32(1):  # of one pixel
                first[i], count[i], weight[at] = I32(0), I32(1), number(1)
            elif SPREAD:
                scale = F64(p) / F64(q)
                wide = F64(max(scale, F64(1.0)))
                center = scale * (F64(o) + F64(0.5))
                support = wide if LINEAR else wide * F64(2.0)
                low = I32(max(I32(center - support + F64(0.5)), I32(0)))
                high = I32(min(I32(center + support + F64(0.5)), n))
                total = F64(0.0)
                j = low
                while j < high:
                    total = F64(total + keys((F64(j) - center + F64(0.5)) / wide, a))
                    j = I32(j + 1)
                first[i], count[i] = low, I32(high - low)
                j = low
                while j < high:
                    value = keys((F64(j) - center + F64(0.5)) / wide, a) / total
                    weight[I32(at + j - low)] = number(value)
                    j = I32(j + 1)
            else:
                unit = q if CORNERS else I64(I64(2) * q)
                place = I64(o) * p if CORNERS else I64(I64(I64(2) * I64(o) + I64(1)) * p - q)
                if LINEAR:
                    place = I64(max(place, I64(0)))
                base = below(place, unit)
                t = F64(I64(place - base * unit)) / F64(unit)
                first[i] = I32(base) if LINEAR else I32(I32(base) - I32(1))
                count[i] = taps
                k = I32(0)
                while k < taps:
                    distance = t - F64(k) if LINEAR else t + F64(1.0) - F64(k)
                    weight[I32(at + k)] = number(keys(distance, a))
                    k = I32(k + 1)

    return tables


@functools.cache
def make_kernel(way: str, dtype: str, channels: str, wide: bool) -> GpuKernel:
    """y, or x's gradient, or copies ("copy"); `wide`: indices have 64 bits.

    A thread takes a pixel of LANES channels, whose place and weights are found once: "first": anywhere, "last":
    channels innermost, "packed": so, and side by side, aligned to their bytes.  The gradient of an element finds by
    halving which results read it, and adds them up in their order.
    """
    I, _ = index_types(wide)  # noqa: E741
    acc = "f64" if dtype == "f64" else "f32"
    number, GRADIENT, COPY, BYTES = REGISTER[acc], way == "gradient", way == "copy", dtype == "u8"
    data, integers = types.CPointer(STORAGE[dtype]), types.CPointer(I32)
    weights, by, split = types.CPointer(STORAGE[acc]), divisor(wide), splitter(wide)
    LAST, PACKED = channels != "first", channels == "packed"
    signature = types.void(data, data, integers, integers, weights, I, I, *[by] * 4, *[I32] * 9, *[I] * 10)

    @device_function
    def read(x, at, step, left):  # type: ignore[no-untyped-def]
        """An element of each channel; of those that are not there the last one's."""
        if PACKED:
            return load_vector(x, I64(at), LANES)
        return x[at], x[I(at + I(min(I(1), left)) * step)], x[I(at + I(min(I(2), left)) * step)], x[I(at + left * step)]

    @device_function
    def write(out, at, step, left, y0, y1, y2, y3):  # type: ignore[no-untyped-def]
        if PACKED:
            store_vector(out, I64(at), (y0, y1, y2, y3))
        else:
            out[at] = y0
            if left > 0:
                out[I(at + step)] = y1
            if left > 1:
                out[I(at + I(2) * step)] = y2
            if left > 2:
                out[I(at + I(3) * step)] = y3

    @device_function
    def stored(total):  # type: ignore[no-untyped-def]
        if BYTES:  # of a mean of bytes, which is none below 0
            return narrow(I32(total + number(0.5)), dtype)
        else:
            return narrow(total, dtype)

    @device_function
    def inside(j, n):  # type: ignore[no-untyped-def]
        return I32(min(I32(max(j, I32(0))), I32(n - 1)))

    @device_function
    def begin(first, count, at, m, i):  # type: ignore[no-untyped-def]
        """The first result that reads pixel i or one behind it."""
        low, high = I32(0), m
        while low < high:
            middle = I32(I32(low + high) >> I32(1))
            if I32(first[I32(at + middle)] + count[I32(at + middle)]) > i:
                high = middle
            else:
                low = I32(middle + 1)
        return low

    @device_function
    def share(first, count, weight, at, from_, taps, n, o, i):  # type: ignore[no-untyped-def]
        """What result o takes of pixel i."""
        total, k, base = number(0), I32(0), first[I32(at + o)]
        while k < count[I32(at + o)]:
            if inside(I32(base + k), n) == i:
                total = number(total + weight[I32(from_ + o * taps + k)])
            k = I32(k + 1)
        return total

    @gpu_kernel("resize_" + way, signature, spec=(way, dtype, channels, wide), threads=THREADS)
    def resize(  # type: ignore[no-untyped-def]
        out, x, first, count, weight, items, c, blocks, d, h, w, m0, m1, m2, n0, n1, n2, t0, t1, t2,
        o_n, o_c, o_d, o_h, o_w, x_n, x_c, x_d, x_h, x_w,
    ):  # fmt: skip
        at = I(I(block_index()) * I(THREADS) + I(thread_index()))
        if at < items:
            if LAST:
                rest, ic = split(at, blocks)
                rest, iw = split(rest, w)
                rest, ih = split(rest, h)
                i_n, id_ = split(rest, d)
            else:
                rest, iw = split(at, w)
                rest, ih = split(rest, h)
                rest, id_ = split(rest, d)
                i_n, ic = split(rest, blocks)
            ic = I(ic * I(LANES))
            left = I(min(I(c - ic), I(LANES)) - I(1))
            source = I(i_n * x_n + ic * x_c)
            to = I(i_n * o_n + ic * o_c + id_ * o_d + ih * o_h + iw * o_w)
            pd, ph, pw = I32(id_), I32(ih), I32(iw)
            at1, at2 = m0, I32(m0 + m1)
            from1 = I32(m0 * t0)
            from2 = I32(from1 + m1 * t1)
            if COPY:
                source = I(source + I(first[pd]) * x_d + I(first[I32(at1 + ph)]) * x_h)
                found = read(x, I(source + I(first[I32(at2 + pw)]) * x_w), x_c, left)
                write(out, to, o_c, left, found[0], found[1], found[2], found[3])
            else:
                sum0, sum1, sum2, sum3 = number(0), number(0), number(0), number(0)
                if GRADIENT:
                    b1, b2 = begin(first, count, at1, m1, ph), begin(first, count, at2, m2, pw)
                    j0 = begin(first, count, I32(0), m0, pd)
                    while j0 < m0 and first[j0] <= pd:
                        a0 = share(first, count, weight, I32(0), I32(0), t0, n0, j0, pd)
                        j1 = b1
                        while j1 < m1 and first[I32(at1 + j1)] <= ph:
                            a1 = number(a0 * share(first, count, weight, at1, from1, t1, n1, j1, ph))
                            j2 = b2
                            while j2 < m2 and first[I32(at2 + j2)] <= pw:
                                a2 = number(a1 * share(first, count, weight, at2, from2, t2, n2, j2, pw))
                                found = read(x, I(source + I(j0) * x_d + I(j1) * x_h + I(j2) * x_w), x_c, left)
                                sum0 = number(sum0 + a2 * number(widen(found[0], dtype)))
                                sum1 = number(sum1 + a2 * number(widen(found[1], dtype)))
                                sum2 = number(sum2 + a2 * number(widen(found[2], dtype)))
                                sum3 = number(sum3 + a2 * number(widen(found[3], dtype)))
                                j2 = I32(j2 + 1)
                            j1 = I32(j1 + 1)
                        j0 = I32(j0 + 1)
                else:
                    f1, f2 = first[I32(at1 + ph)], first[I32(at2 + pw)]
                    c1, c2 = count[I32(at1 + ph)], count[I32(at2 + pw)]
                    k0 = I32(0)
                    while k0 < count[pd]:
                        a0, r0 = weight[I32(pd * t0 + k0)], I(inside(I32(first[pd] + k0), n0))
                        k1 = I32(0)
                        while k1 < c1:
                            a1 = number(a0 * weight[I32(from1 + ph * t1 + k1)])
                            r1 = I(inside(I32(f1 + k1), n1))
                            k2 = I32(0)
                            while k2 < c2:
                                a2 = number(a1 * weight[I32(from2 + pw * t2 + k2)])
                                r2 = I(inside(I32(f2 + k2), n2))
                                found = read(x, I(source + r0 * x_d + r1 * x_h + r2 * x_w), x_c, left)
                                sum0 = number(sum0 + a2 * number(widen(found[0], dtype)))
                                sum1 = number(sum1 + a2 * number(widen(found[1], dtype)))
                                sum2 = number(sum2 + a2 * number(widen(found[2], dtype)))
                                sum3 = number(sum3 + a2 * number(widen(found[3], dtype)))
                                k2 = I32(k2 + 1)
                            k1 = I32(k1 + 1)
                        k0 = I32(k0 + 1)
                write(out, to, o_c, left, stored(sum0), stored(sum1), stored(sum2), stored(sum3))

    return resize


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_tables, ("linear", False, False, "f32"), ("DFMA", "STG.E")),
    (make_tables, ("cubic", False, True, "f32"), ("DFMA",)),
    (make_kernel, ("forward", "f32", "first", False), ("LDG.E", "STG.E")),
    (make_kernel, ("forward", "bf16", "last", True), ("LDG.E.U16",)),
    (make_kernel, ("forward", "f32", "packed", False), ("LDG.E.128", "STG.E.128")),
    (make_kernel, ("copy", "u8", "first", False), ("LDG.E.U8",)),
    (make_kernel, ("gradient", "f16", "packed", False), ("LDG.E.64", "STG.E.64")),
    (make_kernel, ("gradient", "f16", "first", False), ("LDG.E.U16",)),
]
