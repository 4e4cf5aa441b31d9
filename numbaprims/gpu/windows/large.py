"""Large windows, as global pooling has: a warp for each, whose lanes take its elements in turns.

A thread a window would walk over thousands of elements one after another, and neighbouring threads through different
lines of memory.  Lanes of a warp read neighbours; their results are merged by a butterfly, in the same order each time.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.gpu.device.memory import load_wide, repeat
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.warp import lane_index, shuffle_xor, warp_index
from numbaprims.gpu.jit import GpuKernel, block_index, gpu_kernel, types
from numbaprims.gpu.windows.forward import signature_of, steps
from numbaprims.gpu.windows.geometry import THREADS, geometry

WARPS = THREADS // 32
"""Windows of a block."""


@functools.cache
def make_large(operation: str, dtype: str, adaptive: bool, dilated: bool, padded: bool) -> GpuKernel:
    """Results of an operation of `forward.OPERATIONS`; its parameters are those of `make_forward`."""
    at, parts = geometry(False), steps(operation, dtype, False)
    I, split, window, taps, offset = at.index, at.split, at.window, at.taps, at.offset  # noqa: E741
    begin, add, join, finish = parts
    mean, placed = operation == "avg", operation in ("max_places", "places")
    spec = (operation, dtype, adaptive, dilated, padded)

    @gpu_kernel("windows_large", signature_of(dtype, I), spec=spec, threads=THREADS, registers=128)
    def large(  # type: ignore[no-untyped-def]
        out, indices, x, p, windows, channels, n0, n1, n2, m0, m1, m2, k0, k1, k2, s0, s1, s2, b0, b1, b2, d0, d1, d2,
        l0, l1, l2, on, oc, o0, o1, o2, jn, jc, j0, j1, j2, xn, xc, x0, x1, x2,
    ):  # fmt: skip
        one = I(I(block_index()) * WARPS + I(warp_index()))
        if one < windows:
            n, c, z, y, w = split(one, channels, n0, n1, n2, 1, False, 3)
            start0, first0, end0 = window(z, m0, n0, k0, s0, b0, d0, adaptive, dilated)
            start1, first1, end1 = window(y, m1, n1, k1, s1, b1, d1, adaptive, dilated)
            start2, first2, end2 = window(w, m2, n2, k2, s2, b2, d2, adaptive, dilated)
            start = I(n * xn + c * xc)
            across, rows = types.uint32(end2 - first2), types.uint32(end1 - first1)
            count = types.uint32(types.uint32(end0 - first0) * rows * across)
            best, where = begin(1)
            element = lane_index()
            while element < count:
                row = quotient(element, across)
                k = I(types.uint32(element - row * across))
                plane = quotient(row, rows)
                j = I(types.uint32(row - plane * rows))
                z_at = I(start0 + (first0 + I(plane)) * d0)
                y_at = I(start1 + (first1 + j) * d1)
                x_at = I(start2 + (first2 + k) * d2)
                values = load_wide(x, I(start + z_at * x0 + y_at * x1 + x_at * x2), 1, dtype)
                best, where = add(best, where, values, I((z_at * m1 + y_at) * m2 + x_at), p)
                element = types.uint32(element + 32)
            bit = types.uint32(16)
            while bit:
                there = where
                if placed:
                    there = repeat(shuffle_xor(where[0], bit), 1)
                best, where = join(best, where, repeat(shuffle_xor(best[0], bit), 1), there)
                bit = types.uint32(bit >> 1)
            if lane_index() == 0:
                counted = I(1)
                if mean:
                    counted = I(
                        taps((start0, first0, end0), k0, d0, l0, adaptive, dilated, padded)
                        * taps((start1, first1, end1), k1, d1, l1, adaptive, dilated, padded)
                        * taps((start2, first2, end2), k2, d2, l2, adaptive, dilated, padded)
                    )
                to = offset(n, c, z, y, w, on, oc, o0, o1, o2)
                finish(out, to, indices, offset(n, c, z, y, w, jn, jc, j0, j1, j2), best, where, counted, p)

    return large


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_large, ("avg", "f32", True, False, False), ("LDG.E", "SHFL")),
    (make_large, ("max_places", "bf16", True, False, False), ("LDG.E.U16", "SHFL", "STG.E.64")),
    (make_large, ("places", "f32", False, False, False), ("SHFL", "STG.E.64")),
    (make_large, ("avg", "u8", False, True, True), ("LDG.E.U8", "SHFL")),
]
