"""The largest, the mean or the p-norm of each window: a thread for V neighbouring channels of one window.

Threads lie as the results do in memory, so that a warp's accesses are neighbours.  A row of a window is summed before
it is added to the window's sum: no accumulator of float32 adds a whole large window in order.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numbaprims.gpu.device.memory import REGISTER, load_wide, repeat, store_narrow, store_vector
from numbaprims.gpu.jit import STORAGE, GpuKernel, device_function, gpu_kernel, types
from numbaprims.gpu.windows.elements import (
    kept,
    larger,
    place_of_first,
    place_of_larger,
    places,
    plus,
    plus_magnitude,
    plus_power,
    plus_square,
    power,
    quotients,
    root,
    rounded_mean,
)
from numbaprims.gpu.windows.geometry import THREADS, geometry

OPERATIONS = ("max", "max_places", "places", "avg", "lp1", "lp2", "lp")
"""What a kernel computes; "places" writes those of the largest and nothing else."""
_REAL = ("f64", "f32", "f16", "bf16")


class Steps(NamedTuple):
    """Device functions that compute an operation."""

    begin: Any
    add: Any
    join: Any
    finish: Any


@functools.cache
def steps(operation: str, dtype: str, wide: bool) -> Steps:
    """The operation's parts: a window's state is its largest or its sum, and the place of the largest."""
    I = types.int64 if wide else types.int32  # noqa: E741
    number, real = REGISTER[dtype], dtype in _REAL
    # integers are summed in int32, of which 2**23 are within range, or in int64
    total = number if real or not wide else types.int64
    largest, placed = operation in ("max", "max_places", "places"), operation in ("max_places", "places")
    lowest = -float("inf") if real else -(2**31)

    @device_function
    def begin(V):  # type: ignore[no-untyped-def]
        """Of no element, for V channels."""
        return repeat(number(lowest) if largest else total(0), V), repeat(I(-1), V)

    @device_function
    def add(best, where, values, place, p):  # type: ignore[no-untyped-def]
        """With the channels of one more element."""
        if placed:
            where = place_of_larger(where, best, values, place)
        if largest:
            best = larger(best, values)
        elif operation == "avg":
            best = plus(best, values)
        elif operation == "lp1":
            best = plus_magnitude(best, values)
        elif operation == "lp2":
            best = plus_square(best, values)
        else:
            best = plus_power(best, values, p)
        return best, where

    @device_function
    def join(best, where, other, there):  # type: ignore[no-untyped-def]
        """Of two parts of a window."""
        if placed:
            where = place_of_first(where, best, other, there)
        best = larger(best, other) if largest else plus(best, other)
        return best, where

    @device_function
    def finish(out, to, indices, there, best, where, count, p):  # type: ignore[no-untyped-def]
        """Write the result, a mean of `count` elements."""
        if operation == "avg" and real:
            store_narrow(out, to, quotients(best, number(count)), dtype)
        elif operation == "avg":
            store_narrow(out, to, rounded_mean(best, count), dtype)
        elif operation == "lp2":
            store_narrow(out, to, root(best), dtype)
        elif operation == "lp":
            store_narrow(out, to, power(best, number(1) / p), dtype)
        elif operation != "places":
            store_narrow(out, to, best, dtype)
        if placed:
            store_vector(indices, there, places(where))

    return Steps(begin, add, join, finish)


def signature_of(dtype: str, index: Any) -> Any:
    """Of a forward kernel: arrays, p, how many results there are, channels, geometry, strides of the arrays."""
    data = types.CPointer(STORAGE[dtype])
    number = REGISTER[dtype] if dtype in _REAL else types.float32
    return types.void(data, types.CPointer(types.int64), data, number, *[index] * (2 + 7 * 3 + 3 * 5))


@functools.cache
def make_forward(
    operation: str, dtype: str, rank: int, kernel: tuple[int, ...], V: int, adaptive: bool, dilated: bool, padded: bool,
    last: bool, wide: bool,
) -> GpuKernel:  # fmt: skip
    """Results of the operation.

    `kernel` holds the taps along (z, y, x) where they are few and their loops are to be unrolled, else zeros.  Then no
    load is in a branch, and all are in flight: a tap outside stands for the nearest one inside, of which there is one;
    that changes no maximum, and sums leave it out.

    `padded`: a mean counts the padding; `last`: channels are innermost; `wide`: indices have 64 bits.
    """
    at, parts = geometry(wide), steps(operation, dtype, wide)
    I, result, split, window, taps, offset = at.index, at.result, at.split, at.window, at.taps, at.offset  # noqa: E741
    begin, add, join, finish = parts
    mean, summed = operation == "avg", operation in ("avg", "lp1", "lp2", "lp")
    K0, K1, K2 = kernel
    signature = signature_of(dtype, I)
    spec = (operation, dtype, rank, kernel, V, adaptive, dilated, padded, last, wide)

    @gpu_kernel("windows", signature, spec=spec, threads=THREADS, registers=255 if wide else 128)
    def forward(  # type: ignore[no-untyped-def]
        out, indices, x, p, threads, channels, n0, n1, n2, m0, m1, m2, k0, k1, k2, s0, s1, s2, b0, b1, b2, d0, d1, d2,
        l0, l1, l2, on, oc, o0, o1, o2, jn, jc, j0, j1, j2, xn, xc, x0, x1, x2,
    ):  # fmt: skip
        thread = result()
        if thread < threads:
            n, c, z, y, w = split(thread, channels, n0, n1, n2, V, last, rank)
            here0 = window(z, m0, n0, k0, s0, b0, d0, adaptive, dilated)
            here1 = window(y, m1, n1, k1, s1, b1, d1, adaptive, dilated)
            here2 = window(w, m2, n2, k2, s2, b2, d2, adaptive, dilated)
            start = I(n * xn + c * xc)
            best, where = begin(V)
            i = I(0) if K0 else here0[1]
            while i < (I(K0) if K0 else here0[2]):
                a = I(min(I(max(i, here0[1])), I(here0[2] - 1))) if K0 else i
                z_at = I(here0[0] + a * d0)
                j = I(0) if K1 else here1[1]
                while j < (I(K1) if K1 else here1[2]):
                    b = I(min(I(max(j, here1[1])), I(here1[2] - 1))) if K1 else j
                    y_at = I(here1[0] + b * d1)
                    line = I(start + z_at * x0 + y_at * x1)
                    row, none = best, where
                    if summed:
                        row, none = begin(V)
                    k = I(0) if K2 else here2[1]
                    while k < (I(K2) if K2 else here2[2]):
                        e = I(min(I(max(k, here2[1])), I(here2[2] - 1))) if K2 else k
                        x_at = I(here2[0] + e * d2)
                        values = load_wide(x, I(line + x_at * x2), V, dtype)
                        if K0 and summed:
                            values = kept(values, (a == i) & (b == j) & (e == k))
                        row, none = add(row, none, values, I((z_at * m1 + y_at) * m2 + x_at), p)
                        k = I(k + 1)
                    if summed:
                        row, none = join(best, where, row, none)
                    best, where = row, none
                    j = I(j + 1)
                i = I(i + 1)
            count = I(1)
            if mean:
                count = I(
                    taps(here0, k0, d0, l0, adaptive, dilated, padded)
                    * taps(here1, k1, d1, l1, adaptive, dilated, padded)
                    * taps(here2, k2, d2, l2, adaptive, dilated, padded)
                )
            to = offset(n, c, z, y, w, on, oc, o0, o1, o2)
            finish(out, to, indices, offset(n, c, z, y, w, jn, jc, j0, j1, j2), best, where, count, p)

    return forward


_3X3 = (1, 3, 3)
_FREE = (0, 0, 0)
#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_forward, ("max", "f32", 2, _3X3, 1, False, False, False, False, False), ("LDG.E",)),
    (make_forward, ("max", "f32", 2, _3X3, 4, False, False, False, True, False), ("LDG.E.128", "STG.E.128")),
    (make_forward, ("max", "bf16", 2, _3X3, 8, False, False, False, True, False), ("LDG.E.128", "STG.E.128")),
    (make_forward, ("max", "i8", 2, _3X3, 16, False, False, False, True, False), ("LDG.E.128", "STG.E.128")),
    (make_forward, ("max_places", "f32", 2, _3X3, 1, False, False, False, False, False), ("STG.E.64",)),
    (make_forward, ("max_places", "bf16", 2, _FREE, 2, False, True, False, True, False), ("STG.E.128",)),
    (make_forward, ("places", "f32", 3, _FREE, 1, True, False, False, False, True), ("STG.E.64",)),
    (make_forward, ("avg", "f32", 2, _FREE, 1, False, False, True, False, False), ("LDG.E",)),
    (make_forward, ("avg", "f16", 2, _FREE, 8, True, False, False, True, False), ("LDG.E.128",)),
    (make_forward, ("avg", "u8", 2, _FREE, 1, False, False, True, False, True), ("LDG.E.U8",)),
    (make_forward, ("avg", "f64", 3, _FREE, 2, False, True, True, True, False), ("LDG.E.128",)),
    (make_forward, ("lp2", "f32", 2, _FREE, 4, False, False, False, True, False), ("LDG.E.128",)),
    (make_forward, ("lp", "f32", 1, _FREE, 1, False, False, False, False, False), ("LDG.E",)),
]
