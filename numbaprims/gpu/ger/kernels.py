"""The kernels of ger: out = alpha x y^T + A.

Bound: A is read and out written once, 2 m n elements, for 2 m n operations.  In float32 that is a quarter of an
operation a byte, where an H200 could do fourteen: only the bytes count.  4096 x 4096 in float32 is 134 MB, 28 us at
4.8 TB/s; without A half of it.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.gpu.device.memory import REGISTER, load_wide, load_wide_readonly, narrow, store_narrow, widen
from numbaprims.gpu.device.packs import scaled, scaled_sum
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, gpu_kernel, thread_index, types

THREADS = 256
ROWS = 4
"""Rows of a thread in `make_tile`: as many 16-byte loads of A are in flight before the first store."""


def _signature(dtype: str) -> Any:
    """(out, x, y, a, alpha, m, n, across, out_rs, out_cs, a_rs, a_cs, x_step, y_step)"""
    number, pointer = REGISTER[dtype], types.CPointer(STORAGE[dtype])
    return types.void(*[pointer] * 4, number, *[types.uint32] * 3, *[types.int64] * 6)


@functools.cache
def make_tile(dtype: str, lanes: int, V: int, has_a: bool) -> GpuKernel:
    """Tiles of ``lanes * V`` columns and ``ROWS * 256 / lanes`` rows, V elements (16 bytes or one) an access.

    A thread keeps V elements of y and walks down four rows.  With V > 1 rows of out and of A begin at multiples of 16
    bytes, and so does y.
    """
    groups = THREADS // lanes

    @gpu_kernel("ger_tile", _signature(dtype), spec=(dtype, lanes, V, has_a), threads=THREADS, registers=64)
    def tile(out, x, y, a, alpha, m, n, across, out_rs, out_cs, a_rs, a_cs, x_step, y_step):  # type: ignore[no-untyped-def]
        down = quotient(block_index(), across)
        lane = types.uint32(thread_index() & types.uint32(lanes - 1))
        i = types.uint32(down * (ROWS * groups) + quotient(thread_index(), types.uint32(lanes)))
        j = types.uint32((block_index() - down * across) * (lanes * V) + lane * V)
        if j < n and i < m:
            if j + V <= n:
                if V > 1:
                    v = load_wide_readonly(y, j, V, dtype)
                else:
                    v = load_wide_readonly(y, types.int64(j) * y_step, V, dtype)
                at_out = types.int64(i) * out_rs + types.int64(j)
                at_a = types.int64(i) * a_rs + types.int64(j)
                at_x = types.int64(i) * x_step
                if i + 3 * groups < m:
                    f0 = alpha * widen(x[at_x], dtype)
                    f1 = alpha * widen(x[at_x + groups * x_step], dtype)
                    f2 = alpha * widen(x[at_x + 2 * groups * x_step], dtype)
                    f3 = alpha * widen(x[at_x + 3 * groups * x_step], dtype)
                    if has_a:
                        # all loads before the first store, which might be to A
                        b0 = load_wide(a, at_a, V, dtype)
                        b1 = load_wide(a, at_a + groups * a_rs, V, dtype)
                        b2 = load_wide(a, at_a + 2 * groups * a_rs, V, dtype)
                        b3 = load_wide(a, at_a + 3 * groups * a_rs, V, dtype)
                        store_narrow(out, at_out, scaled_sum(f0, v, b0), dtype)
                        store_narrow(out, at_out + groups * out_rs, scaled_sum(f1, v, b1), dtype)
                        store_narrow(out, at_out + 2 * groups * out_rs, scaled_sum(f2, v, b2), dtype)
                        store_narrow(out, at_out + 3 * groups * out_rs, scaled_sum(f3, v, b3), dtype)
                    else:
                        store_narrow(out, at_out, scaled(f0, v, v), dtype)
                        store_narrow(out, at_out + groups * out_rs, scaled(f1, v, v), dtype)
                        store_narrow(out, at_out + 2 * groups * out_rs, scaled(f2, v, v), dtype)
                        store_narrow(out, at_out + 3 * groups * out_rs, scaled(f3, v, v), dtype)
                else:
                    while i < m:
                        f = alpha * widen(x[at_x], dtype)
                        if has_a:
                            store_narrow(out, at_out, scaled_sum(f, v, load_wide(a, at_a, V, dtype)), dtype)
                            at_a += groups * a_rs
                        else:
                            store_narrow(out, at_out, scaled(f, v, v), dtype)
                        at_out += groups * out_rs
                        at_x += groups * x_step
                        i = types.uint32(i + groups)
            elif V > 1:
                # fewer than V elements at the end of each row
                last = types.uint32(min(m, types.uint32(i + ROWS * groups)))
                while i < last:
                    f = alpha * widen(x[types.int64(i) * x_step], dtype)
                    k = j
                    while k < n:
                        w = load_wide_readonly(y, k, 1, dtype)
                        at = types.int64(i) * out_rs + types.int64(k)
                        if has_a:
                            b = load_wide(a, types.int64(i) * a_rs + types.int64(k), 1, dtype)
                            store_narrow(out, at, scaled_sum(f, w, b), dtype)
                        else:
                            store_narrow(out, at, scaled(f, w, w), dtype)
                        k = types.uint32(k + 1)
                    i = types.uint32(i + groups)

    return tile


@functools.cache
def make_row_block(dtype: str, has_a: bool) -> GpuKernel:
    """Algorithm 2 of Zhang and Zhang (2013): block j updates row j with N M = 32 x 8 threads.

    Its lines: 2 and 3, the row's number of one vector in a register (`buff_y`); 4 and 6 to 9, thread i updates the
    elements i, i + N M, i + 2 N M, ... .  Line 7 writes element ``i mod N M`` where i is meant: as it stands, the first
    N M elements would take the updates of all others.  The vectors' names are those of BLAS here: their y[j] is x[j].
    """
    number = REGISTER[dtype]

    @gpu_kernel("ger_row_block", _signature(dtype), spec=(dtype, has_a), threads=THREADS, registers=32)
    def row_block(out, x, y, a, alpha, m, n, across, out_rs, out_cs, a_rs, a_cs, x_step, y_step):  # type: ignore[no-untyped-def]
        j = types.int64(block_index())
        buff = alpha * widen(x[j * x_step], dtype)
        i = thread_index()
        while i < n:
            k = types.int64(i)
            value = buff * widen(y[k * y_step], dtype)
            if has_a:
                value += widen(a[j * a_rs + k * a_cs], dtype)
            out[j * out_rs + k * out_cs] = narrow(number(value), dtype)
            i = types.uint32(i + THREADS)

    return row_block


@functools.cache
def make_naive(dtype: str, has_a: bool) -> GpuKernel:
    """One element a thread, wherever it lies."""
    number = REGISTER[dtype]

    @gpu_kernel("ger_naive", _signature(dtype), spec=(dtype, has_a), threads=THREADS, registers=32)
    def naive(out, x, y, a, alpha, m, n, across, out_rs, out_cs, a_rs, a_cs, x_step, y_step):  # type: ignore[no-untyped-def]
        row = quotient(block_index(), across)
        column = types.uint32((block_index() - row * across) * THREADS + thread_index())
        if column < n:
            i, j = types.int64(row), types.int64(column)
            value = alpha * widen(x[i * x_step], dtype) * widen(y[j * y_step], dtype)
            if has_a:
                value += widen(a[i * a_rs + j * a_cs], dtype)
            out[i * out_rs + j * out_cs] = narrow(number(value), dtype)

    return naive


_VECTORS = ("LDG.E.128", "STG.E.128", "FFMA")
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_tile, ("f32", 32, 4, True), _VECTORS),
    (make_tile, ("f32", 32, 4, False), ("LDG.E.128", "STG.E.128", "FMUL")),
    (make_tile, ("bf16", 32, 8, True), _VECTORS),
    (make_tile, ("f16", 8, 8, True), _VECTORS),
    (make_tile, ("f64", 32, 2, True), ("LDG.E.128", "STG.E.128", "DFMA")),
    (make_tile, ("f32", 32, 1, True), ("LDG.E", "STG.E", "FFMA")),
    (make_row_block, ("f32", True), ("LDG.E", "STG.E", "FFMA")),
    (make_row_block, ("bf16", True), ("LDG.E.U16", "STG.E.U16")),
    (make_naive, ("f32", True), ("LDG.E", "STG.E")),
]
