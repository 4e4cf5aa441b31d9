"""How the tiles of an implicit product come into shared memory: by two small tables, made in shared memory as well.

What an index v, or k, adds to the place of an element (products.py) is computed once for all that need it and kept as
four int32 (offset, d, h, w), one vector of 16 bytes: those of a tile's v before the loop, those of k by all threads
together for as many k as there are threads, ahead of their use.  An element then takes two such loads (most of them
shared with its neighbours), four additions, three comparisons as unsigned numbers, and a cp.async that copies 0 bytes
where the source has none and so writes a 0.  An index that does not exist has a place far outside.

The words of a tile lie as in gemm (loads.py): BK rows of k, `extent` words of v or u in each.  Lanes of a warp are
neighbours in v or u ("o"), or eight of them in k ("k"), as the strides suggest.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numbaprims.gpu.device.copy import copy_async_partial
from numbaprims.gpu.device.memory import load_vector, store_vector
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.gemm.loads import words_of
from numbaprims.gpu.gemm.sizes import padding
from numbaprims.gpu.jit import cuda, device_function, types

I32, I64, U32 = types.int32, types.int64, types.uint32
FAR = -(1 << 30)
"""The place of an index that does not exist: outside of every source, also when two of them are added."""


@device_function
def digits_slow(number, n_c, n_d, n_h, n_w):  # type: ignore[no-untyped-def]
    """c, d, h, w of a number whose last digit is w."""
    rest = quotient(U32(number), U32(n_w))
    w = I32(U32(number) - rest * U32(n_w))
    more = quotient(rest, U32(n_h))
    h = I32(rest - more * U32(n_h))
    c = quotient(more, U32(n_d))
    return I32(c), I32(more - c * U32(n_d)), h, w


@device_function
def digits_fast(number, n_c, n_d, n_h, n_w):  # type: ignore[no-untyped-def]
    """The same where the last digit is c."""
    rest = quotient(U32(number), U32(n_c))
    c = I32(U32(number) - rest * U32(n_c))
    more = quotient(rest, U32(n_w))
    w = I32(rest - more * U32(n_w))
    d = quotient(more, U32(n_h))
    return c, I32(d), I32(more - d * U32(n_h)), w


DIGITS = {"slow": digits_slow, "fast": digits_fast}


@functools.cache
def make_entry(order: str) -> Any:
    """entry(number, end, counts, gains, bases, step, source steps): (offset, d, h, w) of an index below `end`, and its
    digits."""
    digits = DIGITS[order]

    @device_function
    def entry(number, end, n_c, n_d, n_h, n_w, g_d, g_h, g_w, b_d, b_h, b_w, step, s_d, s_h, s_w):  # type: ignore[no-untyped-def]
        c, d, h, w = digits(number, n_c, n_d, n_h, n_w)
        at_d, at_h, at_w = I32(d * g_d + b_d), I32(h * g_h + b_h), I32(w * g_w + b_w)
        offset = I32(c * step + at_d * s_d + at_h * s_h + at_w * s_w)
        if number >= end:
            offset, at_d, at_h, at_w = I32(0), I32(FAR), I32(FAR), I32(FAR)
        return (offset, at_d, at_h, at_w), c, d, h, w

    return entry


class Fetch(NamedTuple):
    """The functions that start the copies of one operand's tile; `target` is the address of the tile."""

    plain: Any
    """plain(target, tables, at, source, u_left, k_left, step, t): `at` is where the offsets of the tile's k begin."""
    gathered: Any
    """gathered(target, tables, v_at, k_at, source, size_d, size_h, size_w, t)"""


@functools.cache
def make_fetch(dtype: str, way: str, extent: int, bk: int, threads: int, flat: bool) -> Fetch:
    """For tiles of `extent` v or u; `flat` says that the source has one plane, d is not looked at."""
    W = words_of(dtype).size
    LD = extent + padding(W)
    OL = threads // 8 if way == "k" else min(extent, threads)
    KL = threads // OL
    OP, KP = extent // OL, bk // KL
    KEPT = 4 * KP
    assert OL * OP == extent and KL * KP == bk, (way, extent, bk, threads)

    @device_function
    def place_k(t):  # type: ignore[no-untyped-def]
        return I32(t // KL), I32(t % KL)

    @device_function
    def place_o(t):  # type: ignore[no-untyped-def]
        return I32(t % OL), I32(t // OL)

    place = place_k if way == "k" else place_o

    @device_function
    def inside_planes(d, h, w, size_d, size_h, size_w):  # type: ignore[no-untyped-def]
        return U32(d) < U32(size_d) and U32(h) < U32(size_h) and U32(w) < U32(size_w)

    @device_function
    def inside_plane(d, h, w, size_d, size_h, size_w):  # type: ignore[no-untyped-def]
        return U32(h) < U32(size_h) and U32(w) < U32(size_w)

    inside = inside_plane if flat else inside_planes

    @device_function
    def copy(target, source, v, k, size_d, size_h, size_w):  # type: ignore[no-untyped-def]
        exists = inside(I32(v[1] + k[1]), I32(v[2] + k[2]), I32(v[3] + k[3]), size_d, size_h, size_w)
        copy_async_partial(target, source, I64(I32(v[0] + k[0])), W, I32(W) if exists else I32(0))

    @device_function
    def gathered_o(target, tables, v_at, k_at, source, size_d, size_h, size_w, t):  # type: ignore[no-untyped-def]
        outer, row = place(t)
        target, k_at = U32(target + (row * LD + outer) * W), I32(k_at + 4 * row)
        for i in range(OP):
            v = load_vector(tables, I64(v_at + 4 * outer) + 4 * i * OL, 4)
            for h in range(KP):
                k = load_vector(tables, I64(k_at) + 4 * h * KL, 4)
                copy(U32(target + (h * KL * LD + i * OL) * W), source, v, k, size_d, size_h, size_w)

    @device_function
    def gathered_k(target, tables, v_at, k_at, source, size_d, size_h, size_w, t):  # type: ignore[no-untyped-def]
        outer, row = place(t)
        target, k_at = U32(target + (row * LD + outer) * W), I32(k_at + 4 * row)
        ks = cuda.local.array(KEPT, I32)
        for h in range(KP):
            k = load_vector(tables, I64(k_at) + 4 * h * KL, 4)
            ks[4 * h], ks[4 * h + 1], ks[4 * h + 2], ks[4 * h + 3] = k[0], k[1], k[2], k[3]
        for i in range(OP):
            v = load_vector(tables, I64(v_at + 4 * outer) + 4 * i * OL, 4)
            for h in range(KP):
                k = (ks[4 * h], ks[4 * h + 1], ks[4 * h + 2], ks[4 * h + 3])
                copy(U32(target + (h * KL * LD + i * OL) * W), source, v, k, size_d, size_h, size_w)

    @device_function
    def plain(target, tables, at, source, u_left, k_left, step, t):  # type: ignore[no-untyped-def]
        outer, row = place(t)
        target, at = U32(target + (row * LD + outer) * W), I32(at + row)
        for h in range(KP):
            offset = I64(tables[I64(at) + h * KL]) + I64(outer) * step
            row_left = I32(k_left - row - h * KL)
            for i in range(OP):
                nbytes = I32(W) if row_left > 0 and I32(outer + i * OL) < u_left else I32(0)
                copy_async_partial(
                    U32(target + (h * KL * LD + i * OL) * W), source, offset + I64(i * OL) * step, W, nbytes
                )

    return Fetch(plain, gathered_k if way == "k" else gathered_o)


@device_function
def store_entry(tables, at, entry):  # type: ignore[no-untyped-def]
    store_vector(tables, I64(at), entry)
