"""What multiplies the blocks of k that lie in shared memory: the inside of every kernel of tiles, for a thread's sums.

A block of k is BK rows of BM words of A, `padding` behind each, and after them BK rows of BN words of B.  A thread's
fragments of one row, TM words of A and TN of B, are loaded while those of the row before are multiplied: a load of
shared memory takes 30 clocks, the 64 multiply-adds of an 8 x 8 thread 64 or more.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.memory import load_shared_vectors, store_vector
from numbaprims.gpu.device.mma import add_products, add_products_f64
from numbaprims.gpu.gemm.arguments import vector_length
from numbaprims.gpu.gemm.epilogue import local_sums
from numbaprims.gpu.gemm.lists import TUPLES
from numbaprims.gpu.gemm.loads import words_of
from numbaprims.gpu.gemm.sizes import Tile, padding
from numbaprims.gpu.jit import cuda, device_function, types

I32, I64, U32 = types.int32, types.int64, types.uint32


class Multiply(NamedTuple):
    """The device functions of one tile."""

    begin: Any
    """begin(t): the words in the blocks of A and of B where a thread's fragments begin."""
    load: Any
    """load(sm, at_a, at_b): a thread's fragments of a step of k, from the addresses at_a and at_b on."""
    add: Any
    """add(sums, xa, xb): the products of two fragments."""
    steps: Any
    """steps(sm, at_a, at_b, xa, xb, sums): all steps of a block but the last two, whose first fragments are xa and xb;
    returns the fragments of the last but one."""
    keep: Any
    """keep(tile, t, sums): a thread's sums into their places in a tile of sums, rows as long as B's."""
    rows: int
    """Rows of k in a step."""


class _Fragments(NamedTuple):
    """What differs between ordinary multiply-adds and tensor cores."""

    begin: Any
    load: Any
    add: Any
    keep: Any


def _ordinary(a_dtype: str, b_dtype: str, size: Tile, ldb: int) -> _Fragments:
    """A step is one row of k; a thread takes rows and columns in vectors of 16 bytes, LM (LN) vectors apart."""
    V = vector_length(DTYPES[a_dtype].accumulate)
    TM, TN, LM, LN, WN = size.tm, size.tn, size.lm, size.ln, size.wn
    A_VECTORS, A_APART, B_VECTORS, B_APART = TM // V, LM * V, TN // V, LN * V
    as_tuple, _ = TUPLES[V]
    S = local_sums(DTYPES[a_dtype].accumulate)

    @device_function
    def corner(t):  # type: ignore[no-untyped-def]
        # Lanes stand two rows by LN columns in pairs: neighbours read the same word of B, every second one the same of
        # A, so that half a warp's 16-byte loads are one access of shared memory.
        warp, lane = I32(t // 32), I32(t % 32)
        row, column = I32(lane // (2 * LN) * 2 + lane % 2), I32(lane // 2 % LN)
        return I32((warp // WN) * (TM * LM) + row * V), I32((warp % WN) * (TN * LN) + column * V)

    @device_function
    def load(sm, at_a, at_b):  # type: ignore[no-untyped-def]
        xa = load_shared_vectors(sm, at_a, V, A_VECTORS, A_APART)
        return xa, load_shared_vectors(sm, at_b, V, B_VECTORS, B_APART)

    @device_function
    def add(sums, xa, xb):  # type: ignore[no-untyped-def]
        add_products(sums, xa, xb, a_dtype, b_dtype)

    @device_function
    def keep(tile, t, sums):  # type: ignore[no-untyped-def]
        vector = cuda.local.array(V, S)
        row0, column0 = corner(t)
        for i in range(TM):
            for g in range(TN // V):
                at = I64((row0 + (i // V) * (LM * V) + i % V) * ldb + column0 + g * (LN * V))
                for e in range(V):
                    vector[e] = sums[i * TN + g * V + e]
                store_vector(tile, at, as_tuple(vector))

    return _Fragments(corner, load, add, keep)


def _tensor(size: Tile, lda: int, ldb: int) -> _Fragments:
    """A step is one product of float64 on tensor cores, whose fragments `add_products_f64` describes."""
    TM, TN, WN, K = size.tm, size.tn, size.wn, size.mma
    LDA, LDB, PARTS = 32 * lda, 32 * ldb, size.tn // 2

    @device_function
    def corner(t):  # type: ignore[no-untyped-def]
        warp, lane = I32(t // 32), I32(t % 32)
        return I32((warp // WN) * (TM * 8) + lane // 4), I32((warp % WN) * (TN * 4) + lane % 4 * 2)

    @device_function
    def begin(t):  # type: ignore[no-untyped-def]
        warp, lane = I32(t // 32), I32(t % 32)
        a = I32((warp // WN) * (TM * 8) + lane // 4 + lane % 4 * lda)
        return a, I32((warp % WN) * (TN * 4) + lane // 4 + lane % 4 * ldb)

    @device_function
    def load_4(sm, at_a, at_b):  # type: ignore[no-untyped-def]
        return load_shared_vectors(sm, at_a, 1, TM, 8), load_shared_vectors(sm, at_b, 1, PARTS, 8)

    @device_function
    def load_8(sm, at_a, at_b):  # type: ignore[no-untyped-def]
        xa, xb = load_4(sm, at_a, at_b)
        ya, yb = load_4(sm, U32(at_a + LDA), U32(at_b + LDB))
        return xa + ya, xb + yb

    @device_function
    def load_16(sm, at_a, at_b):  # type: ignore[no-untyped-def]
        xa, xb = load_8(sm, at_a, at_b)
        ya, yb = load_8(sm, U32(at_a + 2 * LDA), U32(at_b + 2 * LDB))
        return xa + ya, xb + yb

    @device_function
    def add(sums, xa, xb):  # type: ignore[no-untyped-def]
        add_products_f64(sums, xa, xb, K)

    @device_function
    def keep(tile, t, sums):  # type: ignore[no-untyped-def]
        row0, column0 = corner(t)
        for i in range(TM):
            for j in range(PARTS):
                at = I64((row0 + 8 * i) * ldb + column0 + 8 * j)
                store_vector(tile, at, (sums[i * TN + 2 * j], sums[i * TN + 2 * j + 1]))

    return _Fragments(begin, {4: load_4, 8: load_8, 16: load_16}[K], add, keep)


@functools.cache
def make_multiply(a_dtype: str, b_dtype: str, size: Tile) -> Multiply:
    """For operands that are words of `words_of` in shared memory."""
    word = words_of(a_dtype).size
    lda, ldb = (extent + padding(word, size.mma) for extent in (size.bm, size.bn))
    begin, load, add, keep = _tensor(size, lda, ldb) if size.mma else _ordinary(a_dtype, b_dtype, size, ldb)
    rows = max(1, size.mma)
    NEXT_A, NEXT_B = rows * lda * word, rows * ldb * word

    @device_function
    def two(sm, at_a, at_b, xa, xb, sums):  # type: ignore[no-untyped-def]
        ya, yb = load(sm, U32(at_a + NEXT_A), U32(at_b + NEXT_B))
        add(sums, xa, xb)
        xa, xb = load(sm, U32(at_a + 2 * NEXT_A), U32(at_b + 2 * NEXT_B))
        add(sums, ya, yb)
        return xa, xb

    @device_function
    def none(sm, at_a, at_b, xa, xb, sums):  # type: ignore[no-untyped-def]
        return xa, xb

    @functools.cache
    def pairs(count: int) -> Any:
        """`count` times `two`, written out: LLVM unrolls no loop of so many instructions."""
        if count < 2:
            return two if count else none
        half = count // 2
        first, second = pairs(half), pairs(count - half)
        SKIP = 2 * half

        @device_function
        def both(sm, at_a, at_b, xa, xb, sums):  # type: ignore[no-untyped-def]
            xa, xb = first(sm, at_a, at_b, xa, xb, sums)
            return second(sm, U32(at_a + SKIP * NEXT_A), U32(at_b + SKIP * NEXT_B), xa, xb, sums)

        return both

    return Multiply(begin, load, add, pairs(size.bk // rows // 2 - 1), keep, rows)


@functools.cache
def make_four(a_dtype: str, b_dtype: str, size: Tile) -> Any:
    """four(sm, at_a, at_b, sums): four rows of k from the addresses at_a and at_b on."""
    word = words_of(a_dtype).size
    A, B = ((extent + padding(word)) * word for extent in (size.bm, size.bn))
    _, load, add, _, _, _ = make_multiply(a_dtype, b_dtype, size)

    @device_function
    def four(sm, at_a, at_b, sums):  # type: ignore[no-untyped-def]
        xa, xb = load(sm, at_a, at_b)
        ya, yb = load(sm, U32(at_a + A), U32(at_b + B))
        add(sums, xa, xb)
        xa, xb = load(sm, U32(at_a + 2 * A), U32(at_b + 2 * B))
        add(sums, ya, yb)
        ya, yb = load(sm, U32(at_a + 3 * A), U32(at_b + 3 * B))
        add(sums, xa, xb)
        add(sums, ya, yb)

    return four
