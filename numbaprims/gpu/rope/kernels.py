"""The kernel of rotary position embedding: a thread for each pair, and for each element that stays."""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.memory import REGISTER, narrow, widen
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, gpu_kernel, thread_index, types

THREADS = 256
DIMS = 4
"""Of rows, at most."""
I64, U64 = types.int64, types.uint64
FOUR = types.UniTuple(types.int64, DIMS)


@functools.cache
def make_kernel(dtype: str, cache: str, positions: str, interleaved: bool, inverse: bool) -> GpuKernel:
    """Rows of x by those of cos and sin; steps are those of rows over four dimensions, then of columns."""
    number, data, table = REGISTER[DTYPES[dtype].accumulate], types.CPointer(STORAGE[dtype]), STORAGE[cache]
    PLACES, PAIRS, INVERSE = positions != "", interleaved, inverse
    place_type = types.int32 if positions == "i32" else types.int64
    signature = types.void(
        data, data, types.CPointer(table), types.CPointer(table), types.CPointer(place_type), *[I64] * 4, *[FOUR] * 6,
        *[I64] * 4, *[I64] * 2,
    )  # fmt: skip

    @gpu_kernel("rope", signature, spec=(dtype, cache, positions, interleaved, inverse), threads=THREADS, registers=128)
    def rope(  # type: ignore[no-untyped-def]
        out, x, cos, sin, positions, count, half, width, limit, sizes, o_s, x_s, c_s, s_s, p_s, o_c, x_c, c_c, s_c,
        c_row, s_row,
    ):  # fmt: skip
        i = I64(block_index()) * THREADS + I64(thread_index())
        if i < count:
            items = width - half
            row = I64(quotient(U64(i), U64(items)))
            v = i - row * items
            rest = I64(quotient(U64(row), U64(sizes[3])))
            i3 = row - rest * sizes[3]
            above = I64(quotient(U64(rest), U64(sizes[2])))
            i2 = rest - above * sizes[2]
            i0 = I64(quotient(U64(above), U64(sizes[1])))
            i1 = above - i0 * sizes[1]
            to = i0 * o_s[0] + i1 * o_s[1] + i2 * o_s[2] + i3 * o_s[3]
            source = i0 * x_s[0] + i1 * x_s[1] + i2 * x_s[2] + i3 * x_s[3]
            if v < half:
                if PLACES:
                    place = I64(positions[i0 * p_s[0] + i1 * p_s[1] + i2 * p_s[2] + i3 * p_s[3]])
                    place = max(I64(0), min(place, limit - 1))
                    c_at, s_at = place * c_row, place * s_row
                else:
                    c_at = i0 * c_s[0] + i1 * c_s[1] + i2 * c_s[2] + i3 * c_s[3]
                    s_at = i0 * s_s[0] + i1 * s_s[1] + i2 * s_s[2] + i3 * s_s[3]
                c, s = number(widen(cos[c_at + v * c_c], cache)), number(widen(sin[s_at + v * s_c], cache))
                if INVERSE:
                    s = -s
                one, two = (2 * v, 2 * v + 1) if PAIRS else (v, half + v)
                a, b = number(widen(x[source + one * x_c], dtype)), number(widen(x[source + two * x_c], dtype))
                out[to + one * o_c] = narrow(number(a * c - b * s), dtype)
                out[to + two * o_c] = narrow(number(a * s + b * c), dtype)
            else:
                v += half
                out[to + v * o_c] = x[source + v * x_c]

    return rope


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_kernel, ("f32", "f32", "", False, False), ("LDG.E", "STG.E")),
    (make_kernel, ("bf16", "f32", "i64", True, False), ("LDG.E.U16",)),
    (make_kernel, ("f16", "f16", "i32", False, True), ("LDG.E.U16",)),
    (make_kernel, ("f64", "f64", "", True, True), ("LDG.E.64",)),
]
