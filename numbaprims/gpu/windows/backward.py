"""Gradients of pooling: each element gathers from the windows that have it, in their order, and no atomic takes part.

Of max the places of the largest are compared; where they were not kept, `forward` finds them again into scratch memory:
once a window, not once an element of it.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.gpu.device.memory import REGISTER, load_vector, load_wide, repeat, store_narrow
from numbaprims.gpu.device.tile import remainder
from numbaprims.gpu.jit import STORAGE, GpuKernel, gpu_kernel, types
from numbaprims.gpu.windows.elements import (
    gradient_of_magnitude,
    gradient_of_mean,
    gradient_of_place,
    gradient_of_power,
    gradient_of_root,
    kept,
)
from numbaprims.gpu.windows.geometry import THREADS, geometry

OPERATIONS = ("places", "avg", "lp1", "lp2", "lp")


@functools.cache
def make_backward(
    operation: str, dtype: str, rank: int, cover: tuple[int, ...], V: int, adaptive: bool, dilated: bool, padded: bool,
    last: bool, wide: bool,
) -> GpuKernel:  # fmt: skip
    """dx from dy and what its operation reads.

    `cover` has the most windows that an element is in along (z, y, x), where they are few and their loops are to be
    unrolled, as in `make_forward`, else zeros; so is the rest.
    """
    at = geometry(wide)
    I, U = at.index, types.uint64 if wide else types.uint32  # noqa: E741
    result, split, window, taps, covering, offset = at.result, at.split, at.window, at.taps, at.covering, at.offset
    number = REGISTER[dtype]
    C0, C1, C2 = cover
    mean, gaps = operation == "avg", dilated and operation != "places"
    pointer = types.CPointer(STORAGE[dtype])
    signature = types.void(
        pointer, pointer, types.CPointer(types.int64), pointer, pointer, number, *[I] * (2 + 7 * 3 + 5 * 5)
    )
    spec = (operation, dtype, rank, cover, V, adaptive, dilated, padded, last, wide)

    @gpu_kernel("windows_gradient", signature, spec=spec, threads=THREADS, registers=255 if wide else 128)
    def backward(  # type: ignore[no-untyped-def]
        out, dy, indices, x, y, p, threads, channels, n0, n1, n2, m0, m1, m2, k0, k1, k2, s0, s1, s2, b0, b1, b2,
        d0, d1, d2, l0, l1, l2, on, oc, o0, o1, o2, gn, gc, g0, g1, g2, jn, jc, j0, j1, j2, xn, xc, x0, x1, x2,
        yn, yc, y0, y1, y2,
    ):  # fmt: skip
        thread = result()
        if thread < threads:
            n, c, r, q, w = split(thread, channels, m0, m1, m2, V, last, rank)
            first0, end0 = covering(r, m0, n0, k0, s0, b0, d0, adaptive)
            first1, end1 = covering(q, m1, n1, k1, s1, b1, d1, adaptive)
            first2, end2 = covering(w, m2, n2, k2, s2, b2, d2, adaptive)
            here = I((r * m1 + q) * m2 + w)
            total = repeat(number(0), V)
            value = total
            if operation == "lp1" or operation == "lp2" or operation == "lp":
                value = load_wide(x, offset(n, c, r, q, w, xn, xc, x0, x1, x2), V, dtype)
            a = first0
            while a < (I(first0 + C0) if C0 else end0):
                i = I(min(a, I(n0 - 1))) if C0 else a
                count0 = I(1)
                if mean:
                    place0 = window(i, m0, n0, k0, s0, b0, d0, adaptive, dilated)
                    count0 = taps(place0, k0, d0, l0, adaptive, dilated, padded)
                b = first1
                while b < (I(first1 + C1) if C1 else end1):
                    j = I(min(b, I(n1 - 1))) if C1 else b
                    count1 = count0
                    if mean:
                        place1 = window(j, m1, n1, k1, s1, b1, d1, adaptive, dilated)
                        count1 = I(count0 * taps(place1, k1, d1, l1, adaptive, dilated, padded))
                    e = first2
                    while e < (I(first2 + C2) if C2 else end2):
                        k = I(min(e, I(n2 - 1))) if C2 else e
                        inside = True
                        if gaps:
                            inside &= remainder(U(r + b0 - i * s0), U(d0)) == 0
                            inside &= remainder(U(q + b1 - j * s1), U(d1)) == 0
                            inside &= remainder(U(w + b2 - k * s2), U(d2)) == 0
                        if inside:
                            slope = load_wide(dy, offset(n, c, i, j, k, gn, gc, g0, g1, g2), V, dtype)
                            if C0:
                                slope = kept(slope, (a < end0) & (b < end1) & (e < end2))
                            if mean:
                                place2 = window(k, m2, n2, k2, s2, b2, d2, adaptive, dilated)
                                count = I(count1 * taps(place2, k2, d2, l2, adaptive, dilated, padded))
                                total = gradient_of_mean(total, slope, number(count))
                            elif operation == "places":
                                where = load_vector(indices, offset(n, c, i, j, k, jn, jc, j0, j1, j2), V)
                                total = gradient_of_place(total, slope, where, here)
                            elif operation == "lp1":
                                total = gradient_of_magnitude(total, slope, value)
                            else:
                                size = load_wide(y, offset(n, c, i, j, k, yn, yc, y0, y1, y2), V, dtype)
                                if operation == "lp2":
                                    total = gradient_of_root(total, slope, value, size)
                                else:
                                    total = gradient_of_power(total, slope, value, size, p)
                        e = I(e + 1)
                    b = I(b + 1)
                a = I(a + 1)
            store_narrow(out, offset(n, c, r, q, w, on, oc, o0, o1, o2), total, dtype)

    return backward


_FREE = (0, 0, 0)
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_backward, ("places", "f32", 2, (1, 2, 2), 1, False, False, False, False, False), ("LDG.E.64",)),
    (make_backward, ("places", "bf16", 2, _FREE, 2, False, False, False, True, False), ("LDG.E.128",)),
    (make_backward, ("places", "f32", 3, _FREE, 1, True, False, False, False, True), ("LDG.E.64",)),
    (make_backward, ("avg", "f32", 2, (1, 2, 2), 4, False, False, True, True, False), ("LDG.E.128", "STG.E.128")),
    (make_backward, ("avg", "f16", 2, _FREE, 8, True, False, False, True, False), ("LDG.E.128", "STG.E.128")),
    (make_backward, ("avg", "f64", 3, _FREE, 1, False, True, False, False, True), ("LDG.E.64",)),
    (make_backward, ("lp2", "f32", 2, _FREE, 1, False, False, False, False, False), ("LDG.E",)),
    (make_backward, ("lp1", "f32", 2, _FREE, 4, False, True, False, True, False), ("LDG.E.128",)),
    (make_backward, ("lp", "bf16", 2, _FREE, 1, False, False, False, False, False), ("LDG.E.U16",)),
]
