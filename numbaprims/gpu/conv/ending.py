"""The end of an implicit product: a tile of sums in shared memory becomes elements of the result, anywhere in memory.

The result of v lies at an offset of its own, from a table in shared memory.  Four sums are stored as one vector where
their elements are neighbours and begin at a multiple of it, in what is made of pixels as well as of channels.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.conv.arguments import common_types
from numbaprims.gpu.conv.gather import DIGITS
from numbaprims.gpu.device.memory import advance, load_vector, store_vector
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.gemm.arguments import C_VECTORS, OUT_VECTORS, vector_length
from numbaprims.gpu.gemm.epilogue import local_sums, make_finish
from numbaprims.gpu.gemm.lists import TUPLES
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, cuda, device_function, gpu_kernel, thread_index, types

I32, I64, U32 = types.int32, types.int64, types.uint32


@functools.cache
def make_drain(
    first: str, out_dtype: str, acc: str, activation: str, rows: int, columns: int, ld: int, threads: int,
    rows_are_u: bool, partial: bool,
) -> Any:  # fmt: skip
    """A device function by which all threads of a block end a tile of sums::

        drain(
            sums, tables, at_out, at_c, t, u0, u_count, v0, v_count, out, c, bias, o_u, c_u, has_c, bias_axis,
            bias_step, code, flags, alpha, beta, p0, p1, p2, workspace, room,
        )

    `tables` from `at_out` and `at_c` on has the offsets of the tile's v in out and in c; a barrier comes first.
    `flags` say that vectors may begin where all offsets allow it.  With `partial` the sums go to `workspace` as they
    are, rows `room` apart.
    """
    V, S = vector_length(acc), local_sums(acc)
    PER_ROW, VECTORS = columns // V, rows * columns // V
    finish, finish_one = (make_finish(first, out_dtype, acc, activation, count) for count in (V, 1))
    as_tuple, fill = TUPLES[V]

    @device_function
    def run(tables, at, column):  # type: ignore[no-untyped-def]
        """Offset of the first of V neighbours in v; -1 if they are no neighbours in memory, or not aligned."""
        begin = tables[I64(at + column)]
        together = begin % V == 0
        for e in range(1, V):
            together = together and I32(tables[I64(at + column + e)] - begin) == e
        return begin if together else I32(-1)

    @device_function
    def end_pixels(  # type: ignore[no-untyped-def]
        x, tables, at_out, at_c, row, column, u0, u_count, v0, v_count, out, c, bias, o_u, c_u, has_c, bias_axis,
        bias_step, code, flags, alpha, beta, p0, p1, p2, workspace, room,
    ):  # fmt: skip
        u, v = I32(u0 + row), I32(v0 + column)
        channel, own_c = advance(out, I64(u) * o_u), advance(c, I64(u) * c_u)
        first = I32(-1)
        first_c = I32(0)
        if (flags & OUT_VECTORS) != 0 and v + V <= v_count:
            first = run(tables, at_out, column)
            if has_c != 0:
                first_c = run(tables, at_c, column) if (flags & C_VECTORS) != 0 else I32(-1)
        if first >= 0 and first_c >= 0:
            finish(
                x, u, I32(0), advance(channel, first), advance(own_c, first_c), bias, I32(V), I64(0), I64(1), I64(0),
                I64(1), bias_step, has_c, bias_axis, code, I32(OUT_VECTORS | C_VECTORS), alpha, beta, p0, p1, p2,
            )  # fmt: skip
        else:
            one = cuda.local.array(1, S)
            for e in range(V):
                if v + e < v_count:
                    one[0] = x[e]
                    finish_one(
                        one, u, I32(0), advance(channel, tables[I64(at_out + column + e)]),
                        advance(own_c, tables[I64(at_c + column + e)]), bias, I32(1), I64(0), I64(0), I64(0), I64(0),
                        bias_step, has_c, bias_axis, code, I32(0), alpha, beta, p0, p1, p2,
                    )  # fmt: skip

    @device_function
    def end_channels(  # type: ignore[no-untyped-def]
        x, tables, at_out, at_c, row, column, u0, u_count, v0, v_count, out, c, bias, o_u, c_u, has_c, bias_axis,
        bias_step, code, flags, alpha, beta, p0, p1, p2, workspace, room,
    ):  # fmt: skip
        finish(
            x, I32(0), I32(u0 + column), advance(out, tables[I64(at_out + row)]), advance(c, tables[I64(at_c + row)]),
            bias, u_count, I64(0), o_u, I64(0), c_u, bias_step, has_c, bias_axis, code, flags, alpha, beta, p0, p1, p2,
        )  # fmt: skip

    @device_function
    def end_partial(  # type: ignore[no-untyped-def]
        x, tables, at_out, at_c, row, column, u0, u_count, v0, v_count, out, c, bias, o_u, c_u, has_c, bias_axis,
        bias_step, code, flags, alpha, beta, p0, p1, p2, workspace, room,
    ):  # fmt: skip
        first_row, first_column = (u0, v0) if rows_are_u else (v0, u0)
        store_vector(workspace, I64(first_row + row) * I64(room) + I64(first_column + column), as_tuple(x))

    end = end_partial if partial else end_pixels if rows_are_u else end_channels

    @device_function
    def drain(  # type: ignore[no-untyped-def]
        sums, tables, at_out, at_c, t, u0, u_count, v0, v_count, out, c, bias, o_u, c_u, has_c, bias_axis, bias_step,
        code, flags, alpha, beta, p0, p1, p2, workspace, room,
    ):  # fmt: skip
        x = cuda.local.array(V, S)
        number = t
        while number < VECTORS:
            row, column = I32(number // PER_ROW), I32((number % PER_ROW) * V)
            in_u, in_v = (row, column) if rows_are_u else (column, row)
            if I32(u0 + in_u) < u_count and I32(v0 + in_v) < v_count:
                fill(x, load_vector(sums, I32(row * ld + column), V))
                end(
                    x, tables, at_out, at_c, row, column, u0, u_count, v0, v_count, out, c, bias, o_u, c_u, has_c,
                    bias_axis, bias_step, code, flags, alpha, beta, p0, p1, p2, workspace, room,
                )  # fmt: skip
            number = I32(number + threads)

    return drain


REDUCE_THREADS = 128
FEW = 1024
"""Chunks that are added in order."""


@functools.cache
def make_reduce(dtype: str, out_dtype: str, activation: str, order: str, rows_are_u: bool) -> GpuKernel:
    """The second kernel of a product whose k is cut: one element of the result a thread, the sums of all chunks added
    from the first to the last, FEW by themselves; workspace is [group][chunk][row][room]."""
    acc = DTYPES[dtype].accumulate
    S = local_sums(acc)
    finish = make_finish(dtype, out_dtype, acc, activation, 1)
    digits = DIGITS[order]
    signature = types.void(
        *common_types(dtype, dtype, out_dtype), types.CPointer(STORAGE[acc]), *(types.int32,) * 9, *(types.int64,) * 12
    )

    @gpu_kernel(
        "conv_reduce", signature, spec=(dtype, out_dtype, activation, order, int(rows_are_u)), threads=REDUCE_THREADS,
        registers=64,
    )  # fmt: skip
    def conv_reduce(  # type: ignore[no-untyped-def]
        out, first, second, c, bias, has_c, has_bias, bias_step, code, alpha, beta, p0, p1, p2,
        workspace, chunks, groups, u_count, v_count, v_c, v_d, v_h, v_w, room,
        o_u, o_c, o_d, o_h, o_w, o_group, c_u, c_c, c_d, c_h, c_w, c_group,
    ):  # fmt: skip
        number = I64(block_index()) * REDUCE_THREADS + I64(thread_index())
        rows, columns = (u_count, v_count) if rows_are_u else (v_count, u_count)
        row = I64(types.uint64(number) // types.uint64(columns))
        column = I32(number - row * columns)
        group = I32(quotient(U32(row), U32(rows)))
        own = I32(row - I64(group) * rows)
        if group < groups:
            x = cuda.local.array(1, S)
            x[0] = S(0)
            between = I64(rows) * room
            at = I64(group) * chunks * between + I64(own) * room + column
            left = chunks
            while left > 0:
                total = S(0)
                for _ in range(min(left, I32(FEW))):
                    total = total + workspace[at]
                    at += between
                x[0] = x[0] + total
                left = I32(left - FEW)
            u, v = (own, column) if rows_are_u else (column, own)
            plain, d, h, w = digits(v, v_c, v_d, v_h, v_w)
            at_out = I64(group) * o_group + u * o_u + plain * o_c + d * o_d + h * o_h + w * o_w
            at_c = I64(group) * c_group + u * c_u + plain * c_c + d * c_d + h * c_h + w * c_w
            channel = I32(group * u_count + u)
            finish(
                x, I32(0), I32(0), advance(out, at_out), advance(c, at_c), advance(bias, I64(channel) * bias_step),
                I32(1), I64(0), I64(0), I64(0), I64(0), I64(0), has_c, has_bias, code, I32(0), alpha, beta, p0, p1, p2,
            )  # fmt: skip

    return conv_reduce


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_reduce, ("f32", "f32", "switch", "slow", True), ("LDG.E", "FADD")),
    (make_reduce, ("bf16", "bf16", "gelu", "fast", False), ("LDG.E", "STG.E.U16")),
]
