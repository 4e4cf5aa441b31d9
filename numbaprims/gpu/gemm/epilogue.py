"""The end of a product: out = activation(alpha sums + beta c + bias), and the way into out's type.

A kernel hands over `count` consecutive sums of one row at a time, in a local array.  Where out lets it (unit stride,
aligned) they are one vector store and c one vector load; at the ends of rows, and with any other strides, they go one
by one.  The sums are rounded to out's type once.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.gpu.device.memory import load_vector, load_wide, narrow, store_narrow, store_vector, widen
from numbaprims.gpu.gemm.activations import make_activation
from numbaprims.gpu.gemm.arguments import C_VECTORS, OUT_VECTORS, bias_dtype, vector_length
from numbaprims.gpu.gemm.lists import TUPLES
from numbaprims.gpu.jit import cuda, device_function, types


@functools.cache
def make_finish(a_dtype: str, out_dtype: str, acc: str, activation: str, count: int) -> Any:
    """A device function that ends `count` sums x of row i from column j on; i < m is the caller's to see to::

    finish(
        x, i, j, out, c, bias, n, out_rs, out_cs, c_rs, c_cs, bias_step, has_c, bias_axis, code, flags,
        alpha, beta, p0, p1, p2,
    )
    """
    activate = make_activation(activation, acc, count)
    as_tuple, fill = TUPLES[count]
    bias_type = bias_dtype(a_dtype)
    I32, I64, S = types.int32, types.int64, local_sums(acc)
    real = acc != "i32"

    @device_function
    def scale(x, factor):  # type: ignore[no-untyped-def]
        for e in range(count):
            x[e] = x[e] * factor

    @device_function
    def add_scaled(x, e, value, factor):  # type: ignore[no-untyped-def]
        x[e] = x[e] + value * factor

    @device_function
    def keep(x, factor):  # type: ignore[no-untyped-def]
        pass

    @device_function
    def add_plain(x, e, value, factor):  # type: ignore[no-untyped-def]
        x[e] = x[e] + value

    # integer products take alpha 1 and beta 1 only
    multiply, add_c = (scale, add_scaled) if real else (keep, add_plain)

    @device_function
    def finish(
        x, i, j, out, c, bias, n, out_rs, out_cs, c_rs, c_cs, bias_step, has_c, bias_axis, code, flags,
        alpha, beta, p0, p1, p2,
    ):  # type: ignore[no-untyped-def]  # fmt: skip
        left = I32(n - j)
        row = cuda.local.array(count, S)
        multiply(x, alpha)
        if has_c != 0:
            if left >= count and (flags & C_VECTORS) != 0:
                fill(row, load_wide(c, I64(i) * c_rs + I64(j), count, out_dtype))
                for e in range(count):
                    add_c(x, e, row[e], beta)
            else:
                for e in range(count):
                    if e < left:
                        add_c(x, e, widen(c[I64(i) * c_rs + I64(j + e) * c_cs], out_dtype), beta)
        if bias_axis == 1:
            for e in range(count):
                if e < left:
                    x[e] = x[e] + widen(bias[I64(j + e) * bias_step], bias_type)
        elif bias_axis == 2:
            shift = widen(bias[I64(i) * bias_step], bias_type)
            for e in range(count):
                x[e] = x[e] + shift
        activate(code, x, p0, p1, p2)
        if left >= count and (flags & OUT_VECTORS) != 0:
            store_narrow(out, I64(i) * out_rs + I64(j), as_tuple(x), out_dtype)
        else:
            for e in range(count):
                if e < left:
                    out[I64(i) * out_rs + I64(j + e) * out_cs] = narrow(x[e], out_dtype)

    return finish


def local_sums(acc: str) -> Any:
    """The type of a local array of sums."""
    return {"f64": types.float64, "f32": types.float32, "i32": types.int32}[acc]


@functools.cache
def make_drain(
    a_dtype: str, out_dtype: str, acc: str, activation: str, bm: int, bn: int, ld: int, threads: int, partial: bool
) -> Any:
    """A device function by which all threads of a block end a tile of sums that lies in shared memory::

        drain(
            sums, t, m0, n0, m, out, c, bias, n, out_rs, out_cs, c_rs, c_cs, bias_step, has_c, bias_axis, code,
            flags, alpha, beta, p0, p1, p2, workspace, room,
        )

    `sums` is a shared array of `bm` rows, `ld` elements from row to row; the tile begins at (m0, n0) of out.  A barrier
    comes first.  With `partial` the sums go to `workspace` as they are, rows of `room` elements, which is a multiple of
    a vector.

    Through shared memory because the sums of a thread have no run-time index: from registers the code of the end
    would stand there once for each of 16 vectors, or keep the addresses of 8 columns beside 64 sums (204 bytes of
    spills at 128 registers).  A tile of 128 x 128 is written and read in 1024 clocks of a multiprocessor's shared
    memory; its multiply-adds take 128 clocks for each k.  And each warp then stores whole lines.
    """
    V = vector_length(acc)
    S = local_sums(acc)
    PER_ROW, VECTORS = bn // V, bm * bn // V
    I32, I64 = types.int32, types.int64
    finish = make_finish(a_dtype, out_dtype, acc, activation, V)
    as_tuple, fill = TUPLES[V]

    @device_function
    def end_partial(
        x, i, j, out, c, bias, n, out_rs, out_cs, c_rs, c_cs, bias_step, has_c, bias_axis, code, flags,
        alpha, beta, p0, p1, p2, workspace, room,
    ):  # type: ignore[no-untyped-def]  # fmt: skip
        store_vector(workspace, I64(i) * I64(room) + I64(j), as_tuple(x))

    @device_function
    def end_whole(
        x, i, j, out, c, bias, n, out_rs, out_cs, c_rs, c_cs, bias_step, has_c, bias_axis, code, flags,
        alpha, beta, p0, p1, p2, workspace, room,
    ):  # type: ignore[no-untyped-def]  # fmt: skip
        finish(
            x, i, j, out, c, bias, n, out_rs, out_cs, c_rs, c_cs, bias_step, has_c, bias_axis, code, flags,
            alpha, beta, p0, p1, p2,
        )  # fmt: skip

    end = end_partial if partial else end_whole

    @device_function
    def drain(
        sums, t, m0, n0, m, out, c, bias, n, out_rs, out_cs, c_rs, c_cs, bias_step, has_c, bias_axis, code, flags,
        alpha, beta, p0, p1, p2, workspace, room,
    ):  # type: ignore[no-untyped-def]  # fmt: skip
        x = cuda.local.array(V, S)
        v = t
        while v < VECTORS:
            row, column = I32(v // PER_ROW), I32((v % PER_ROW) * V)
            i, j = I32(m0 + row), I32(n0 + column)
            if i < m and j < n:
                fill(x, load_vector(sums, I32(row * ld + column), V))
                end(
                    x, i, j, out, c, bias, n, out_rs, out_cs, c_rs, c_cs, bias_step, has_c, bias_axis, code, flags,
                    alpha, beta, p0, p1, p2, workspace, room,
                )  # fmt: skip
            v = I32(v + threads)

    return drain
