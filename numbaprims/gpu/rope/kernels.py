"""The kernel of rotary position embedding: a thread for four pairs side by side, or for one, and for what stays."""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.memory import REGISTER, load_vector, narrow, store_vector, widen
from numbaprims.gpu.device.tile import divisor, index_types, splitter
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, device_function, gpu_kernel, thread_index, types

THREADS = 256
DIMS = 4
"""Of rows, at most."""
I64 = types.int64


@functools.cache
def make_kernel(
    dtype: str, cache: str, positions: str, interleaved: bool, inverse: bool, W: int, wide: bool
) -> GpuKernel:
    """Rows of x by those of cos and sin; steps are those of rows over four dimensions, then of columns.

    `W`: 1, or 4 where the columns of all arrays lie side by side, aligned to so many; `wide`: places have 64 bits.
    """
    I, _ = index_types(wide)  # noqa: E741
    number, data, table = REGISTER[DTYPES[dtype].accumulate], types.CPointer(STORAGE[dtype]), STORAGE[cache]
    PLACES, PAIRS, INVERSE = positions != "", interleaved, inverse
    place_type, split, four = (
        types.int32 if positions == "i32" else types.int64,
        splitter(wide),
        types.UniTuple(I, DIMS),
    )
    signature = types.void(
        data, data, types.CPointer(table), types.CPointer(table), types.CPointer(place_type), I, I, I, I64,
        *[divisor(wide)] * DIMS, *[four] * 5, *[I] * 4, *[I64] * 2,
    )  # fmt: skip

    @device_function
    def turned(a, b, c, s):  # type: ignore[no-untyped-def]
        """A pair, as it is stored."""
        a, b = number(widen(a, dtype)), number(widen(b, dtype))
        c, s = number(widen(c, cache)), number(widen(s, cache))
        if INVERSE:
            s = -s
        return narrow(number(a * c - b * s), dtype), narrow(number(a * s + b * c), dtype)

    @gpu_kernel(
        "rope", signature, spec=(dtype, cache, positions, interleaved, inverse, W, wide), threads=THREADS, registers=128
    )
    def rope(  # type: ignore[no-untyped-def]
        out, x, cos, sin, positions, count, half, width, limit, items, n1, n2, n3, o_s, x_s, c_s, s_s, p_s,
        o_c, x_c, c_c, s_c, c_row, s_row,
    ):  # fmt: skip
        i = I(I(block_index()) * I(THREADS) + I(thread_index()))
        if i < count:
            row, v = split(i, items)
            rest, i3 = split(row, n3)
            rest, i2 = split(rest, n2)
            i0, i1 = split(rest, n1)
            v = I(v * I(W))
            to = I(i0 * o_s[0] + i1 * o_s[1] + i2 * o_s[2] + i3 * o_s[3])
            source = I(i0 * x_s[0] + i1 * x_s[1] + i2 * x_s[2] + i3 * x_s[3])
            if v < half:
                if PLACES:
                    place = I64(positions[I(i0 * p_s[0] + i1 * p_s[1] + i2 * p_s[2] + i3 * p_s[3])])
                    place = max(I64(0), min(place, limit - 1))
                    c_at, s_at = place * c_row, place * s_row
                else:
                    c_at = I64(I(i0 * c_s[0] + i1 * c_s[1] + i2 * c_s[2] + i3 * c_s[3]))
                    s_at = I64(I(i0 * s_s[0] + i1 * s_s[1] + i2 * s_s[2] + i3 * s_s[3]))
                one, two = (I(I(2) * v), I(I(2) * v + I(W))) if PAIRS else (v, I(half + v))
                if W == 1:
                    at_one, at_two = I(source + one * x_c), I(source + two * x_c)
                    first, second = turned(x[at_one], x[at_two], cos[c_at + I64(v * c_c)], sin[s_at + I64(v * s_c)])
                    out[I(to + one * o_c)] = first
                    out[I(to + two * o_c)] = second
                else:
                    a, b = load_vector(x, I64(I(source + one)), W), load_vector(x, I64(I(source + two)), W)
                    c, s = load_vector(cos, c_at + I64(v), W), load_vector(sin, s_at + I64(v), W)
                    if PAIRS:
                        a0, b0 = turned(a[0], a[1], c[0], s[0])
                        a1, b1 = turned(a[2], a[3], c[1], s[1])
                        a2, b2 = turned(b[0], b[1], c[2], s[2])
                        a3, b3 = turned(b[2], b[3], c[3], s[3])
                        store_vector(out, I64(I(to + one)), (a0, b0, a1, b1))
                        store_vector(out, I64(I(to + two)), (a2, b2, a3, b3))
                    else:
                        a0, b0 = turned(a[0], b[0], c[0], s[0])
                        a1, b1 = turned(a[1], b[1], c[1], s[1])
                        a2, b2 = turned(a[2], b[2], c[2], s[2])
                        a3, b3 = turned(a[3], b[3], c[3], s[3])
                        store_vector(out, I64(I(to + one)), (a0, a1, a2, a3))
                        store_vector(out, I64(I(to + two)), (b0, b1, b2, b3))
            elif W == 1:
                v = I(v + half)
                out[I(to + v * o_c)] = x[I(source + v * x_c)]
            else:
                v = I(v + half)
                store_vector(out, I64(I(to + v)), load_vector(x, I64(I(source + v)), W))

    return rope


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_kernel, ("f32", "f32", "", False, False, 4, False), ("LDG.E.128", "STG.E.128")),
    (make_kernel, ("bf16", "f32", "i64", True, False, 4, False), ("LDG.E.64", "STG.E.64")),
    (make_kernel, ("f16", "f16", "i32", False, True, 1, False), ("LDG.E.U16",)),
    (make_kernel, ("f64", "f64", "", True, True, 1, True), ("LDG.E.64",)),
]
