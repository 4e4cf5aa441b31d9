"""Attention on a GPU: a warp for each row of q, or of k in the gradient, and 32 rows of the other side at a time.

A lane has a row of the other side while scores are made, and a feature while rows are added up: the exponentials go
from one to the other by shared memory.  The maximum, the sum and the row of out are those of the online softmax.
Bound: the products, at the rate of scalar multiply-adds; no tensor cores, and each warp reads k and v for itself.
"""

from __future__ import annotations

import functools
from typing import Any

from numbaprims.gpu.device.math import exp, log
from numbaprims.gpu.device.memory import REGISTER, narrow, widen
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.warp import lane_index, maximum, warp_barrier, warp_index, warp_max, warp_sum
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, device_function, gpu_kernel, shared_array, types

WARPS = 4
THREADS = 32 * WARPS
I32, I64, U32, U64 = types.int32, types.int64, types.uint32, types.uint64
STEPS = types.UniTuple(types.int64, 4)
"""Of an array over (batch, heads, rows, columns)."""


def signature(dtype: str, mask: str, arrays: int, steps: int) -> Any:
    """Operands, the mask, lse; a literal's worth of numbers; steps of each array."""
    number, element = REGISTER[dtype], types.CPointer(STORAGE[dtype])
    masks = element if mask == "float" else types.CPointer(types.uint8)
    return types.void(*[element] * arrays, masks, types.CPointer(number), number, *[I64] * 7, *[STEPS] * steps)


@device_function
def start(steps, batch, head, row):  # type: ignore[no-untyped-def]
    """Where a row of a head begins."""
    return batch * steps[0] + head * steps[1] + row * steps[2]


@device_function
def block_of(causal, turned, blocks, all_heads):  # type: ignore[no-untyped-def]
    """(head, which `blocks`-th of its rows) of this block: of a causal call the ones with most to do first, which are
    the last rows of q, or with `turned` the first of k."""
    if causal:
        part = quotient(block_index(), U32(all_heads))
        head = I32(block_index() - part * U32(all_heads))
        part = part if turned else U32(U32(blocks) - U32(1) - part)
    else:
        head = I32(quotient(block_index(), U32(blocks)))
        part = U32(block_index() - U32(head) * U32(blocks))
    return head, part


@device_function
def place(index, rows, heads, share, keys, flags):  # type: ignore[no-untyped-def]
    """(batch, head, head of k and v, row, how many keys it sees) of a row of q."""
    head = I64(quotient(U64(index), U64(rows)))
    row = index - head * rows
    batch = I64(quotient(U64(head), U64(heads)))
    head -= batch * heads
    limit = min(keys, row + 1) if (flags & 1) != 0 else keys
    return batch, head, I64(quotient(U64(head), U64(share))), row, limit


@device_function
def inner(x, at, step, y, there, y_step, count, zero, dtype):  # type: ignore[no-untyped-def]
    """The product of two rows."""
    total = zero
    for e in range(count):
        total += widen(x[at + e * step], dtype) * widen(y[there + e * y_step], dtype)
    return total


@device_function
def masked(s, mask, at, kind, dtype, never):  # type: ignore[no-untyped-def]
    """A score with what the mask says of it."""
    if kind == "bool":
        return s if mask[at] != 0 else never
    if kind == "float":
        return s + widen(mask[at], dtype)
    return s


@functools.cache
def make_forward(dtype: str, mask: str, wide: int) -> GpuKernel:
    """A warp for each row of q; rows of out have up to `wide` times 32 elements."""
    number, kind, lanes = REGISTER[dtype], mask, 32 * wide

    @gpu_kernel(
        "attention_forward", signature(dtype, mask, 4, 6), spec=(dtype, mask, wide), threads=THREADS, registers=128
    )  # fmt: skip
    def kernel(  # type: ignore[no-untyped-def]
        out, q, k, v, mask, lse, scale, count, rows, heads, share, keys, flags, sizes,
        out_s, q_s, k_s, v_s, mask_s, lse_s,
    ):  # fmt: skip
        sums, shares = shared_array((WARPS, lanes), number), shared_array((WARPS, 32), number)
        warp, lane = warp_index(), lane_index()
        width, values = sizes >> 32, sizes & 0xFFFFFFFF
        never, zero = number(-float("inf")), number(0.0)
        index = I64(block_index()) * WARPS + I64(warp)
        if index < count:
            batch, head, group, row, limit = place(index, rows, heads, share, keys, flags)
            q0, k0 = start(q_s, batch, head, row), start(k_s, batch, group, I64(0))
            v0, m0 = start(v_s, batch, group, I64(0)), start(mask_s, batch, head, row)
            most, total = never, zero
            for i in range(wide):
                sums[warp, lane + 32 * i] = zero
            first = I64(0)
            while first < limit:
                j = first + I64(lane)
                s = never
                if j < limit:
                    s = scale * inner(q, q0, q_s[3], k, k0 + j * k_s[2], k_s[3], width, zero, dtype)
                    s = masked(s, mask, m0 + j * mask_s[3], kind, dtype, never)
                best = maximum(most, warp_max(s))
                base = zero if best == never else best
                e, less = exp(s - base), exp(most - base)
                total = total * less + warp_sum(e)
                shares[warp, lane] = e
                warp_barrier()
                for i in range(wide):
                    c = I64(lane) + 32 * i
                    if c < values:
                        x = sums[warp, c] * less
                        for r in range(min(I64(32), limit - first)):
                            x += shares[warp, r] * widen(v[v0 + (first + r) * v_s[2] + c * v_s[3]], dtype)
                        sums[warp, c] = x
                warp_barrier()
                most = best
                first += 32
            inverse = zero if total == zero else number(1.0) / total
            to = start(out_s, batch, head, row)
            for i in range(wide):
                c = I64(lane) + 32 * i
                if c < values:
                    out[to + c * out_s[3]] = narrow(sums[warp, c] * inverse, dtype)
            if (flags & 2) != 0 and lane == 0:
                lse[start(lse_s, batch, head, row)] = most + log(total)

    return kernel


@functools.cache
def make_queries(dtype: str, mask: str, wide: int) -> GpuKernel:
    """A warp for each row of dq."""
    number, kind, lanes = REGISTER[dtype], mask, 32 * wide

    @gpu_kernel(
        "attention_queries", signature(dtype, mask, 6, 8), spec=(dtype, mask, wide), threads=THREADS, registers=128
    )  # fmt: skip
    def kernel(  # type: ignore[no-untyped-def]
        dq, dout, q, k, v, out, mask, lse, scale, count, rows, heads, share, keys, flags, sizes,
        dq_s, dout_s, q_s, k_s, v_s, out_s, mask_s, lse_s,
    ):  # fmt: skip
        sums, shares = shared_array((WARPS, lanes), number), shared_array((WARPS, 32), number)
        warp, lane = warp_index(), lane_index()
        width, values = sizes >> 32, sizes & 0xFFFFFFFF
        never, zero = number(-float("inf")), number(0.0)
        index = I64(block_index()) * WARPS + I64(warp)
        if index < count:
            batch, head, group, row, limit = place(index, rows, heads, share, keys, flags)
            q0, k0 = start(q_s, batch, head, row), start(k_s, batch, group, I64(0))
            v0, m0 = start(v_s, batch, group, I64(0)), start(mask_s, batch, head, row)
            d0 = start(dout_s, batch, head, row)
            delta = inner(dout, d0, dout_s[3], out, start(out_s, batch, head, row), out_s[3], values, zero, dtype)
            base = lse[start(lse_s, batch, head, row)]
            base = zero if base == never else base
            for i in range(wide):
                sums[warp, lane + 32 * i] = zero
            first = I64(0)
            while first < limit:
                j = first + I64(lane)
                x = zero
                if j < limit:
                    s = scale * inner(q, q0, q_s[3], k, k0 + j * k_s[2], k_s[3], width, zero, dtype)
                    p = exp(masked(s, mask, m0 + j * mask_s[3], kind, dtype, never) - base)
                    d = inner(dout, d0, dout_s[3], v, v0 + j * v_s[2], v_s[3], values, zero, dtype)
                    x = scale * p * (d - delta)
                shares[warp, lane] = x
                warp_barrier()
                for i in range(wide):
                    c = I64(lane) + 32 * i
                    if c < width:
                        x = sums[warp, c]
                        for r in range(min(I64(32), limit - first)):
                            x += shares[warp, r] * widen(k[k0 + (first + r) * k_s[2] + c * k_s[3]], dtype)
                        sums[warp, c] = x
                warp_barrier()
                first += 32
            to = start(dq_s, batch, head, row)
            for i in range(wide):
                c = I64(lane) + 32 * i
                if c < width:
                    dq[to + c * dq_s[3]] = narrow(sums[warp, c], dtype)

    return kernel


@functools.cache
def make_keys(dtype: str, mask: str, wide: int) -> GpuKernel:
    """A warp for each row of dk and dv, over all query heads of its group."""
    number, kind, lanes = REGISTER[dtype], mask, 32 * wide

    @gpu_kernel(
        "attention_keys", signature(dtype, mask, 7, 9), spec=(dtype, mask, wide), threads=THREADS, registers=168
    )  # fmt: skip
    def kernel(  # type: ignore[no-untyped-def]
        dk, dv, dout, q, k, v, out, mask, lse, scale, count, rows, heads, share, keys, flags, sizes,
        dk_s, dv_s, dout_s, q_s, k_s, v_s, out_s, mask_s, lse_s,
    ):  # fmt: skip
        of_k, of_v = shared_array((WARPS, lanes), number), shared_array((WARPS, lanes), number)
        shares, errors = shared_array((WARPS, 32), number), shared_array((WARPS, 32), number)
        warp, lane = warp_index(), lane_index()
        width, values = sizes >> 32, sizes & 0xFFFFFFFF
        never, zero = number(-float("inf")), number(0.0)
        index = I64(block_index()) * WARPS + I64(warp)
        if index < count:
            group = I64(quotient(U64(index), U64(keys)))
            j = index - group * keys
            groups = I64(quotient(U64(heads), U64(share)))
            batch = I64(quotient(U64(group), U64(groups)))
            group -= batch * groups
            k0, v0 = start(k_s, batch, group, j), start(v_s, batch, group, j)
            for i in range(wide):
                of_k[warp, lane + 32 * i] = zero
                of_v[warp, lane + 32 * i] = zero
            for head in range(group * share, (group + 1) * share):
                q0, m0 = start(q_s, batch, head, I64(0)), start(mask_s, batch, head, I64(0)) + j * mask_s[3]
                d0, o0 = start(dout_s, batch, head, I64(0)), start(out_s, batch, head, I64(0))
                first = I64(0)
                if (flags & 1) != 0:
                    first = j
                while first < rows:
                    row = first + I64(lane)
                    p, x = zero, zero
                    if row < rows:
                        base = lse[start(lse_s, batch, head, row)]
                        base = zero if base == never else base
                        s = scale * inner(q, q0 + row * q_s[2], q_s[3], k, k0, k_s[3], width, zero, dtype)
                        p = exp(masked(s, mask, m0 + row * mask_s[2], kind, dtype, never) - base)
                        at = d0 + row * dout_s[2]
                        d = inner(dout, at, dout_s[3], v, v0, v_s[3], values, zero, dtype)
                        delta = inner(dout, at, dout_s[3], out, o0 + row * out_s[2], out_s[3], values, zero, dtype)
                        x = scale * p * (d - delta)
                    shares[warp, lane], errors[warp, lane] = p, x
                    warp_barrier()
                    have = min(I64(32), rows - first)
                    for i in range(wide):
                        c = I64(lane) + 32 * i
                        if c < width:
                            y = of_k[warp, c]
                            for r in range(have):
                                y += errors[warp, r] * widen(q[q0 + (first + r) * q_s[2] + c * q_s[3]], dtype)
                            of_k[warp, c] = y
                        if c < values:
                            y = of_v[warp, c]
                            for r in range(have):
                                y += shares[warp, r] * widen(dout[d0 + (first + r) * dout_s[2] + c * dout_s[3]], dtype)
                            of_v[warp, c] = y
                    warp_barrier()
                    first += 32
            to_k, to_v = start(dk_s, batch, group, j), start(dv_s, batch, group, j)
            for i in range(wide):
                c = I64(lane) + 32 * i
                if c < width:
                    dk[to_k + c * dk_s[3]] = narrow(of_k[warp, c], dtype)
                if c < values:
                    dv[to_v + c * dv_s[3]] = narrow(of_v[warp, c], dtype)

    return kernel


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_forward, ("f32", "", 2), ("FFMA", "SHFL", "STS", "LDS")),
    (make_forward, ("bf16", "bool", 4), ("FFMA", "LDG.E.U16", "LDS")),
    (make_forward, ("f64", "float", 1), ("DFMA", "LDS")),
    (make_queries, ("f32", "", 2), ("FFMA", "STS", "LDS")),
    (make_keys, ("f16", "float", 2), ("FFMA", "LDG.E.U16", "LDS")),
]
