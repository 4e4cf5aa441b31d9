"""The kernels of local response normalisation: a thread for four elements, neighbours in the order of memory."""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.math import divide, exp, log
from numbaprims.gpu.device.memory import REGISTER, narrow, widen
from numbaprims.gpu.device.tile import divisor, index_types, splitter
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, device_function, gpu_kernel, thread_index, types

THREADS = 256
RUN = 4
"""Elements of a thread."""


@functools.cache
def make_kernel(way: str, dtype: str, wide: bool) -> GpuKernel:
    """y, or the terms p = s**-beta and t = dy x p / s of the gradient, or dx from these.

    A thread takes RUN neighbours along the first axis, which is one with windows, and reads what these share once.
    `wide`: indices have 64 bits.
    """
    I, _ = index_types(wide)  # noqa: E741
    acc = DTYPES[dtype].accumulate
    number, GRADIENT, TERMS = REGISTER[acc], way == "gradient", way == "terms"
    data, terms, split = types.CPointer(STORAGE[dtype]), types.CPointer(STORAGE[acc]), splitter(wide)
    five = types.UniTuple(I, 5)
    signature = types.void(data, data, data, terms, terms, *[number] * 3, I, I, *[divisor(wide)] * 4, I, *[five] * 5)

    @device_function
    def taken(total, value, j, begin, last):  # type: ignore[no-untyped-def]
        """The sum of a window, with element j if it is in there."""
        if j >= begin and j <= last:
            total = number(total + value)
        return total

    @gpu_kernel("lrn_" + way, signature, spec=(way, dtype, wide), threads=THREADS, registers=255 if wide else 128)
    def lrn(out, dy, x, p, t, a, beta, k, items, n0, n1, n2, n3, n4, plane, low, high, o, d, s):  # type: ignore[no-untyped-def]
        i = I(I(block_index()) * I(THREADS) + I(thread_index()))
        if i < items:
            rest, i4 = split(i, n4)
            rest, i3 = split(rest, n3)
            rest, i2 = split(rest, n2)
            i0, i1 = split(rest, n1)
            inside = I(i - i0 * plane)
            i0 = I(i0 * I(RUN))
            sum0, sum1, sum2, sum3 = number(0), number(0), number(0), number(0)
            first, end = I(max(I(i0 - low[0]), I(0))), I(min(I(i0 + I(RUN) + high[0]), n0))
            for j1 in range(I(max(I(i1 - low[1]), I(0))), I(min(I(i1 + high[1] + I(1)), n1[0]))):
                for j2 in range(I(max(I(i2 - low[2]), I(0))), I(min(I(i2 + high[2] + I(1)), n2[0]))):
                    for j3 in range(I(max(I(i3 - low[3]), I(0))), I(min(I(i3 + high[3] + I(1)), n3[0]))):
                        for j4 in range(I(max(I(i4 - low[4]), I(0))), I(min(I(i4 + high[4] + I(1)), n4[0]))):
                            if GRADIENT:
                                step = plane
                                at = I(((I(j1) * n2[0] + I(j2)) * n3[0] + I(j3)) * n4[0] + I(j4))
                            else:
                                step = s[0]
                                at = I(I(j1) * s[1] + I(j2) * s[2] + I(j3) * s[3] + I(j4) * s[4])
                            j, at = first, I(at + first * step)
                            while j < end:
                                if GRADIENT:
                                    value = t[at]
                                else:
                                    value = number(widen(x[at], dtype))
                                    value = number(value * value)
                                sum0 = taken(sum0, value, j, I(i0 - low[0]), I(i0 + high[0]))
                                sum1 = taken(sum1, value, j, I(i0 + I(1) - low[0]), I(i0 + I(1) + high[0]))
                                sum2 = taken(sum2, value, j, I(i0 + I(2) - low[0]), I(i0 + I(2) + high[0]))
                                sum3 = taken(sum3, value, j, I(i0 + I(3) - low[0]), I(i0 + I(3) + high[0]))
                                j, at = I(j + I(1)), I(at + step)
            of = I(i0 * s[0] + i1 * s[1] + i2 * s[2] + i3 * s[3] + i4 * s[4])
            to = I(i0 * o[0] + i1 * o[1] + i2 * o[2] + i3 * o[3] + i4 * o[4])
            given_at = I(i0 * d[0] + i1 * d[1] + i2 * d[2] + i3 * d[3] + i4 * d[4])
            place = I(i0 * plane + inside)
            for run in range(RUN):
                total = sum0
                if run == 1:
                    total = sum1
                elif run == 2:
                    total = sum2
                elif run == 3:
                    total = sum3
                if I(i0 + I(run)) < n0:
                    own = number(widen(x[of], dtype))
                    if GRADIENT:
                        given = number(widen(dy[given_at], dtype))
                        found = number(given * p[place] - number(2) * a * beta * own * total)
                        out[to] = narrow(found, dtype)
                    else:
                        within = number(k + a * total)
                        power = exp(number(-beta * log(within)))
                        if TERMS:
                            given = number(widen(dy[given_at], dtype))
                            p[place] = power
                            t[place] = divide(number(given * own * power), within)
                        else:
                            out[to] = narrow(number(own * power), dtype)
                of, to, given_at, place = I(of + s[0]), I(to + o[0]), I(given_at + d[0]), I(place + plane)

    return lrn


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_kernel, ("forward", "f32", False), ("LDG.E", "STG.E")),
    (make_kernel, ("forward", "bf16", True), ("LDG.E.U16",)),
    (make_kernel, ("terms", "f16", False), ("MUFU.RCP",)),
    (make_kernel, ("gradient", "f64", False), ("LDG.E.64",)),
]
