"""The kernel that moves rows from one array and element type to another: gathers, copies, sums of two directions."""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.gpu.device.memory import REGISTER, narrow, widen
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.jit import (
    STORAGE,
    GpuKernel,
    block_index,
    block_index_y,
    gpu_kernel,
    grid_size,
    thread_index,
    types,
)

THREADS = 256
#: Blocks of a grid at most; each goes on behind the last.
MOST_BLOCKS = 1 << 20


@functools.cache
def make_rows(source: str, result: str) -> GpuKernel:
    """Row j of out gets row table[j] of x (zeros where that is -1; row j where there is no table), plus the row
    `second` elements behind it and `added`, one value a column, where they are there.

    A row is (row // inner, row % inner), whose steps are `_outer` and `_row`; the grid's second dimension counts
    directions, `_plane` apart.
    """
    I64, U64, wide = types.int64, types.uint64, REGISTER["f64" if "f64" in (source, result) else "f32"]
    pointers = (types.CPointer(STORAGE[result]), *[types.CPointer(STORAGE[source])] * 2, types.CPointer(types.int64))
    signature = types.void(*pointers, *[types.int64] * 13)

    @gpu_kernel("rnn_rows", signature, spec=(source, result), threads=THREADS, registers=64)
    def rnn_rows(  # type: ignore[no-untyped-def]
        out, x, added, table, elements, width, out_plane, out_inner, out_outer, out_row, x_plane, x_inner, x_outer,
        x_row, x_column, second, flags,
    ):  # fmt: skip
        i = I64(block_index()) * THREADS + I64(thread_index())
        plane = I64(block_index_y())
        while i < elements:
            row = I64(quotient(U64(i), U64(width)))
            v = i - row * width
            o = I64(quotient(U64(row), U64(out_inner)))
            to = plane * out_plane + o * out_outer + (row - o * out_inner) * out_row + v
            s = row
            if (flags & 1) != 0:
                s = table[row]
            value = wide(0)
            if (flags & 2) == 0 and s >= 0:
                o = I64(quotient(U64(s), U64(x_inner)))
                at = plane * x_plane + o * x_outer + (s - o * x_inner) * x_row + v * x_column
                value = wide(widen(x[at], source))
                if second != 0:
                    value = wide(value + widen(x[at + second], source))
            if (flags & 4) != 0:
                value = wide(value + widen(added[v], source))
            if (flags & 8) != 0:
                value = wide(value + widen(out[to], result))
            out[to] = narrow(value, result)
            i += I64(grid_size()) * THREADS

    return rnn_rows


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_rows, ("f32", "f32"), ("LDG.E", "STG.E")),
    (make_rows, ("f32", "f16"), ("LDG.E", "STG.E.U16")),
    (make_rows, ("bf16", "f32"), ("LDG.E.U16", "STG.E")),
]
