"""The kernels of gemv: out = alpha op(A) x + beta y, op(A) m x n.

Bound: A is read once, m n elements, for 2 m n operations: half of an operation a byte in float32, where an H200 could
do fourteen.  4096 x 4096 in float32 is 67 MB, 14 us at 4.8 TB/s.  Everything else is to keep enough loads in flight (32
KiB a multiprocessor) and to read nothing twice: x comes from the first-level cache, once for four rows.

No sum depends on how elements were loaded or which block came first: each thread adds its terms in order, lanes and
warps are added in a fixed order, and where the terms of a row are cut into chunks, these are added in order by a second
kernel.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.gpu.device.block import barrier
from numbaprims.gpu.device.memory import REGISTER, load_wide_readonly, narrow, repeat, widen
from numbaprims.gpu.device.packs import dot, lanes, load_apart, load_part, scaled_sum
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.warp import group_reduce, warp_barrier
from numbaprims.gpu.gemv.arguments import THREADS, WARPS
from numbaprims.gpu.jit import (
    STORAGE,
    GpuKernel,
    block_index,
    device_function,
    gpu_kernel,
    shared_array,
    thread_index,
    types,
)


def signature(dtype: str) -> Any:
    """The parameters of every kernel of gemv; `deliver` and the kernels name them."""
    number, pointer = REGISTER[dtype], types.CPointer(STORAGE[dtype])
    return types.void(
        *[pointer] * 4, types.CPointer(number), number, number, *[types.uint32] * 6, *[types.int64] * 5
    )  # fmt: skip


@device_function
def deliver(out, y, scratch, alpha, beta, i, m, chunk, chunks, has_y, y_step, out_step, total, dtype):  # type: ignore[no-untyped-def]
    """The sum of row i: into scratch[chunk, i] where there are several chunks, else the result."""
    if chunks > 1:
        scratch[types.int64(chunk) * types.int64(m) + types.int64(i)] = total
    else:
        value = alpha * total
        if has_y:
            value += beta * widen(y[types.int64(i) * y_step], dtype)
        out[types.int64(i) * out_step] = narrow(value, dtype)


@functools.cache
def make_rows(dtype: str, rows: int, side: int, warps: int, aligned: bool) -> GpuKernel:
    """Dot products of contiguous rows: `rows` (1 or 4) of them for each group of `side` lanes, or of `warps` warps.

    `aligned`: rows and x begin at multiples of 16 bytes and x lies side by side; else their elements are loaded one by
    one, to the same lanes.
    """
    number = REGISTER[dtype]
    V = lanes(dtype)
    width = side * warps
    groups = THREADS // width
    spec = (dtype, rows, side, warps, aligned)
    several = 4 if rows == 4 else 1

    @gpu_kernel("gemv_rows", signature(dtype), spec=spec, threads=THREADS, blocks_per_sm=4, registers=64)
    def kernel(  # type: ignore[no-untyped-def]
        out, a, x, y, scratch, alpha, beta, m, n, across, length, chunks, has_y, a_rs, a_cs, x_step, y_step, out_step
    ):
        place = types.uint32(thread_index() & types.uint32(width - 1))
        group = quotient(thread_index(), types.uint32(width))
        chunk = quotient(block_index(), across)
        row = types.uint32(((block_index() - chunk * across) * groups + group) * several)
        first = types.uint32(chunk * length)
        end = types.uint32(min(n, types.uint32(first + length)))
        # rows past the last are computed as the last is, and not written
        last = types.uint32(m - 1)
        r0 = types.int64(min(row, last)) * a_rs
        r1 = types.int64(min(types.uint32(row + 1), last)) * a_rs
        r2 = types.int64(min(types.uint32(row + 2), last)) * a_rs
        r3 = types.int64(min(types.uint32(row + 3), last)) * a_rs
        s0 = s1 = s2 = s3 = number(0.0)
        j = types.uint32(first + place * V)
        while j + V <= end:
            k = types.int64(j)
            if aligned:
                v = load_wide_readonly(x, k, V, dtype)
                s0 = dot(s0, load_wide_readonly(a, r0 + k, V, dtype), v)
                if rows == 4:
                    s1 = dot(s1, load_wide_readonly(a, r1 + k, V, dtype), v)
                    s2 = dot(s2, load_wide_readonly(a, r2 + k, V, dtype), v)
                    s3 = dot(s3, load_wide_readonly(a, r3 + k, V, dtype), v)
            else:
                v = load_apart(x, k * x_step, x_step, V, dtype)
                s0 = dot(s0, load_apart(a, r0 + k, types.int64(1), V, dtype), v)
                if rows == 4:
                    s1 = dot(s1, load_apart(a, r1 + k, types.int64(1), V, dtype), v)
                    s2 = dot(s2, load_apart(a, r2 + k, types.int64(1), V, dtype), v)
                    s3 = dot(s3, load_apart(a, r3 + k, types.int64(1), V, dtype), v)
            j = types.uint32(j + width * V)
        for _ in range(V - 1):
            # fewer than V terms, one by one; only one thread of a group has any
            if j < end:
                k = types.int64(j)
                f = load_wide_readonly(x, k * x_step, 1, dtype)
                s0 = dot(s0, load_wide_readonly(a, r0 + k, 1, dtype), f)
                if rows == 4:
                    s1 = dot(s1, load_wide_readonly(a, r1 + k, 1, dtype), f)
                    s2 = dot(s2, load_wide_readonly(a, r2 + k, 1, dtype), f)
                    s3 = dot(s3, load_wide_readonly(a, r3 + k, 1, dtype), f)
                j = types.uint32(j + 1)
        s0 = group_reduce(s0, side, "sum")
        if rows == 4:
            s1, s2 = group_reduce(s1, side, "sum"), group_reduce(s2, side, "sum")
            s3 = group_reduce(s3, side, "sum")
        # lane r of a group writes row r
        total = s0
        if rows == 4:
            r = types.uint32(place & types.uint32(side - 1))
            total = s0 if r == 0 else s1 if r == 1 else s2 if r == 2 else s3
        if warps > 1:
            sums = shared_array((WARPS, 4), number)
            if place & types.uint32(31) < several:
                sums[quotient(thread_index(), types.uint32(32)), place & types.uint32(31)] = total
            barrier()
            if place < several:
                total = sums[0, place]
                for w in range(1, WARPS):
                    total += sums[w, place]
        i = types.uint32(row + place)
        if place < several and i < m:
            deliver(out, y, scratch, alpha, beta, i, m, chunk, chunks, has_y, y_step, out_step, total, dtype)

    return kernel


@functools.cache
def make_columns(dtype: str, side: int, aligned: bool) -> GpuKernel:
    """Contiguous columns of op(A), the rows of a transposed A, read along: no load is strided.

    `side` lanes next to each other keep the sums of ``16 bytes * side`` outputs, the groups of a block take the columns
    in turn, and their sums are added up in shared memory.
    """
    number = REGISTER[dtype]
    V = lanes(dtype)
    groups = THREADS // side
    width = side * V

    @gpu_kernel(
        "gemv_columns", signature(dtype), spec=(dtype, side, aligned), threads=THREADS, blocks_per_sm=4, registers=64
    )
    def kernel(  # type: ignore[no-untyped-def]
        out, a, x, y, scratch, alpha, beta, m, n, across, length, chunks, has_y, a_rs, a_cs, x_step, y_step, out_step
    ):
        sums = shared_array((groups, width), number)
        lane = types.uint32(thread_index() & types.uint32(side - 1))
        group = quotient(thread_index(), types.uint32(side))
        chunk = quotient(block_index(), across)
        first_output = types.uint32((block_index() - chunk * across) * width)
        i = types.uint32(first_output + lane * V)
        first = types.uint32(chunk * length)
        end = types.uint32(min(n, types.uint32(first + length)))
        total = repeat(number(0.0), V)
        if i < m:
            j = types.uint32(first + group)
            at = types.int64(j) * a_cs + types.int64(i)
            at_x = types.int64(j) * x_step
            if aligned and i + V <= m:
                while j + 3 * groups < end:
                    # four loads in flight, added in order
                    b0 = load_wide_readonly(a, at, V, dtype)
                    b1 = load_wide_readonly(a, at + groups * a_cs, V, dtype)
                    b2 = load_wide_readonly(a, at + 2 * groups * a_cs, V, dtype)
                    b3 = load_wide_readonly(a, at + 3 * groups * a_cs, V, dtype)
                    f0 = load_wide_readonly(x, at_x, 1, dtype)[0]
                    f1 = load_wide_readonly(x, at_x + groups * x_step, 1, dtype)[0]
                    f2 = load_wide_readonly(x, at_x + 2 * groups * x_step, 1, dtype)[0]
                    f3 = load_wide_readonly(x, at_x + 3 * groups * x_step, 1, dtype)[0]
                    total = scaled_sum(f0, b0, total)
                    total = scaled_sum(f1, b1, total)
                    total = scaled_sum(f2, b2, total)
                    total = scaled_sum(f3, b3, total)
                    at += 4 * groups * a_cs
                    at_x += 4 * groups * x_step
                    j = types.uint32(j + 4 * groups)
                while j < end:
                    b = load_wide_readonly(a, at, V, dtype)
                    total = scaled_sum(load_wide_readonly(x, at_x, 1, dtype)[0], b, total)
                    at += groups * a_cs
                    at_x += groups * x_step
                    j = types.uint32(j + groups)
            else:
                left = types.int32(m - i)
                while j < end:
                    b = load_part(a, at, types.int64(1), left, V, dtype)
                    total = scaled_sum(load_wide_readonly(x, at_x, 1, dtype)[0], b, total)
                    at += groups * a_cs
                    at_x += groups * x_step
                    j = types.uint32(j + groups)
        for k in range(V):
            sums[group, lane * V + k] = total[k]
        barrier()
        k = thread_index()
        while k < width:
            i = types.uint32(first_output + k)
            if i < m:
                value = sums[0, k]
                for g in range(1, groups):
                    value += sums[g, k]
                deliver(out, y, scratch, alpha, beta, i, m, chunk, chunks, has_y, y_step, out_step, value, dtype)
            k = types.uint32(k + THREADS)

    return kernel


@functools.cache
def make_combine(dtype: str) -> GpuKernel:
    """The sums of the chunks of 32 outputs: warp w adds the chunks w, w + 8, ..., then the warps' sums are added."""
    number = REGISTER[dtype]

    @gpu_kernel("gemv_combine", signature(dtype), spec=(dtype,), threads=THREADS, registers=32)
    def kernel(  # type: ignore[no-untyped-def]
        out, a, x, y, scratch, alpha, beta, m, n, across, length, chunks, has_y, a_rs, a_cs, x_step, y_step, out_step
    ):
        sums = shared_array((WARPS, 32), number)
        lane = types.uint32(thread_index() & types.uint32(31))
        warp = quotient(thread_index(), types.uint32(32))
        i = types.uint32(block_index() * 32 + lane)
        total = number(0.0)
        if i < m:
            chunk = warp
            while chunk < chunks:
                total += scratch[types.int64(chunk) * types.int64(m) + types.int64(i)]
                chunk = types.uint32(chunk + WARPS)
        sums[warp, lane] = total
        barrier()
        if warp == 0 and i < m:
            total = sums[0, lane]
            for w in range(1, WARPS):
                total += sums[w, lane]
            deliver(out, y, scratch, alpha, beta, i, m, 0, 1, has_y, y_step, out_step, total, dtype)

    return kernel


@functools.cache
def make_row_block(dtype: str) -> GpuKernel:
    """Algorithm 1 of Zhang and Zhang (2013): block j computes output j with N M = 32 x 8 threads, any strides.

    Its lines: 1, `buff` is zero; 2 to 10, thread i adds the terms i, i + N M, i + 2 N M, ... to buff[i]; 11 to 16, the
    first warp adds buff[i] to buff[i mod N] for i from N M - 1 down to N; 17 to 23, it halves the range log2 N times;
    24, y[j] is buff[0].  Four things are not as printed:

    - Line 9 tests i against size(A[j]) after it has stepped, and line 5 leaves the loop out where i is at most N M, so
      that threads past the end of a short row would read behind it in lines 3 and 4: here i is tested before each load.
    - Nothing stands between lines 10 and 11, or between the steps of the loop from 18 on.  Warps ran in lockstep when
      this was written; now the block needs a barrier before line 11, and the warp one after each step.
    - Line 19 lets i run to 2^n itself, one too many, and line 23 the loop one step past n = 1.
    - A thread adds its terms of `length` elements at a time by themselves, so that errors do not grow with n.

    The transposed product, their gNewGemvf^T, is the same with the strides of op(A): loads are n elements apart then.
    """
    number = REGISTER[dtype]

    @gpu_kernel("gemv_row_block", signature(dtype), spec=(dtype,), threads=THREADS, registers=40)
    def kernel(  # type: ignore[no-untyped-def]
        out, a, x, y, scratch, alpha, beta, m, n, across, length, chunks, has_y, a_rs, a_cs, x_step, y_step, out_step
    ):
        buff = shared_array(THREADS, number)
        j = block_index()
        t = thread_index()
        buff[t] = number(0.0)
        i = t
        while i < n:
            part = number(0.0)
            end = types.uint32(i + min(length, types.uint32(n - i)))
            while i < end:
                product = widen(x[types.int64(i) * x_step], dtype) * widen(
                    a[types.int64(j) * a_rs + types.int64(i) * a_cs], dtype
                )
                part += product
                i = types.uint32(i + THREADS)
            buff[t] += part
        barrier()
        if t < 32:
            i = types.uint32(t + THREADS - 32)
            while i >= 32:
                buff[t] += buff[i]
                i = types.uint32(i - 32)
            warp_barrier()
            half = types.uint32(16)
            while half > 0:
                if half <= t and t < 2 * half:
                    buff[t - half] += buff[t]
                warp_barrier()
                half = types.uint32(half >> 1)
            if t == 0:
                deliver(out, y, scratch, alpha, beta, j, m, 0, 1, has_y, y_step, out_step, buff[0], dtype)

    return kernel


@functools.cache
def make_naive(dtype: str) -> GpuKernel:
    """One output a thread, one term after the other, wherever they lie; every `length` of them by themselves."""
    number = REGISTER[dtype]

    @gpu_kernel("gemv_naive", signature(dtype), spec=(dtype,), threads=THREADS, registers=40)
    def kernel(  # type: ignore[no-untyped-def]
        out, a, x, y, scratch, alpha, beta, m, n, across, length, chunks, has_y, a_rs, a_cs, x_step, y_step, out_step
    ):
        i = types.uint32(block_index() * THREADS + thread_index())
        if i < m:
            total = number(0.0)
            first = types.uint32(0)
            while first < n:
                part = number(0.0)
                for j in range(min(length, types.uint32(n - first))):
                    k = types.int64(first + j)
                    part += widen(a[types.int64(i) * a_rs + k * a_cs], dtype) * widen(x[k * x_step], dtype)
                total += part
                first = types.uint32(first + length)
            deliver(out, y, scratch, alpha, beta, i, m, 0, 1, has_y, y_step, out_step, total, dtype)

    return kernel


GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_rows, ("f32", 4, 32, 1, True), ("LDG.E.128.CONSTANT", "SHFL.BFLY", "FFMA")),
    (make_rows, ("f32", 1, 32, 8, True), ("LDG.E.128.CONSTANT", "SHFL.BFLY", "FFMA", "BAR")),
    (make_rows, ("bf16", 4, 32, 8, True), ("LDG.E.128.CONSTANT", "SHFL.BFLY", "FFMA", "BAR")),
    (make_rows, ("f16", 4, 8, 1, True), ("LDG.E.128.CONSTANT", "SHFL.BFLY", "HADD2.F32")),
    (make_rows, ("f64", 4, 32, 1, True), ("LDG.E.128.CONSTANT", "SHFL.BFLY", "DFMA")),
    (make_rows, ("f32", 4, 32, 1, False), ("LDG.E", "SHFL.BFLY", "FFMA")),
    (make_columns, ("f32", 32, True), ("LDG.E.128.CONSTANT", "FFMA", "BAR")),
    (make_columns, ("bf16", 32, True), ("LDG.E.128.CONSTANT", "FFMA", "BAR")),
    (make_columns, ("f32", 4, True), ("LDG.E.128.CONSTANT", "FFMA", "BAR")),
    (make_columns, ("f64", 32, True), ("LDG.E.128.CONSTANT", "DFMA", "BAR")),
    (make_combine, ("f32",), ("LDG.E", "BAR")),
    (make_row_block, ("f32",), ("LDG.E", "BAR", "LDS", "STS")),
    (make_row_block, ("bf16",), ("LDG.E.U16", "BAR")),
    (make_naive, ("f32",), ("LDG.E", "FFMA")),
]
