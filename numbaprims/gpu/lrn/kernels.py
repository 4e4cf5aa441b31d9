"""The kernels of local response normalisation: a thread an element, in the order of memory."""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.math import divide, exp, log
from numbaprims.gpu.device.memory import REGISTER, narrow, widen
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, device_function, gpu_kernel, thread_index, types

THREADS = 256


@functools.cache
def make_kernel(way: str, dtype: str, wide: bool) -> GpuKernel:
    """y, or the terms p = s**-beta and t = dy x p / s of the gradient, or dx from these.

    Axes are those of `axes_of`, with ones in front; p and t are contiguous in their order.  `wide`: indices have 64
    bits.
    """
    I, U = (types.int64, types.uint64) if wide else (types.int32, types.uint32)  # noqa: E741
    acc = DTYPES[dtype].accumulate
    number, GRADIENT, TERMS = REGISTER[acc], way == "gradient", way == "terms"
    data, terms = types.CPointer(STORAGE[dtype]), types.CPointer(STORAGE[acc])
    signature = types.void(data, data, data, terms, terms, *[number] * 3, I, *[I] * 30)

    @device_function
    def split(rest, size):  # type: ignore[no-untyped-def]
        """(what is left, the place along an axis)"""
        above = I(quotient(U(rest), U(size)))
        return above, I(rest - above * size)

    @gpu_kernel("lrn_" + way, signature, spec=(way, dtype, wide), threads=THREADS, registers=255 if wide else 128)
    def lrn(  # type: ignore[no-untyped-def]
        out, dy, x, p, t, a, beta, k, elements, n0, n1, n2, n3, n4, l0, l1, l2, l3, l4, h0, h1, h2, h3, h4,
        o0, o1, o2, o3, o4, d0, d1, d2, d3, d4, x0, x1, x2, x3, x4,
    ):  # fmt: skip
        i = I(I(block_index()) * THREADS + I(thread_index()))
        if i < elements:
            rest, i4 = split(i, n4)
            rest, i3 = split(rest, n3)
            rest, i2 = split(rest, n2)
            i0, i1 = split(rest, n1)
            total = number(0)
            j0 = I(max(I(i0 - l0), I(0)))
            while j0 < I(min(I(i0 + h0 + 1), n0)):
                j1 = I(max(I(i1 - l1), I(0)))
                while j1 < I(min(I(i1 + h1 + 1), n1)):
                    j2 = I(max(I(i2 - l2), I(0)))
                    while j2 < I(min(I(i2 + h2 + 1), n2)):
                        j3 = I(max(I(i3 - l3), I(0)))
                        while j3 < I(min(I(i3 + h3 + 1), n3)):
                            j4 = I(max(I(i4 - l4), I(0)))
                            while j4 < I(min(I(i4 + h4 + 1), n4)):
                                if GRADIENT:
                                    total = number(total + t[I((((j0 * n1 + j1) * n2 + j2) * n3 + j3) * n4 + j4)])
                                else:
                                    at = I(j0 * x0 + j1 * x1 + j2 * x2 + j3 * x3 + j4 * x4)
                                    value = number(widen(x[at], dtype))
                                    total = number(total + value * value)
                                j4 = I(j4 + 1)
                            j3 = I(j3 + 1)
                        j2 = I(j2 + 1)
                    j1 = I(j1 + 1)
                j0 = I(j0 + 1)
            own = number(widen(x[I(i0 * x0 + i1 * x1 + i2 * x2 + i3 * x3 + i4 * x4)], dtype))
            to = I(i0 * o0 + i1 * o1 + i2 * o2 + i3 * o3 + i4 * o4)
            if GRADIENT:
                given = number(widen(dy[I(i0 * d0 + i1 * d1 + i2 * d2 + i3 * d3 + i4 * d4)], dtype))
                out[to] = narrow(number(given * p[i] - number(2) * a * beta * own * total), dtype)
            else:
                s = number(k + a * total)
                power = exp(number(-beta * log(s)))
                if TERMS:
                    given = number(widen(dy[I(i0 * d0 + i1 * d1 + i2 * d2 + i3 * d3 + i4 * d4)], dtype))
                    p[i] = power
                    t[i] = divide(number(given * own * power), s)
                else:
                    out[to] = narrow(number(own * power), dtype)

    return lrn


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_kernel, ("forward", "f32", False), ("LDG.E", "STG.E")),
    (make_kernel, ("forward", "bf16", True), ("LDG.E.U16",)),
    (make_kernel, ("terms", "f16", False), ("MUFU.RCP",)),
    (make_kernel, ("gradient", "f64", False), ("LDG.E.64",)),
]
