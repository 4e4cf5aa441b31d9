"""What multiplies the blocks of k that lie in shared memory: the inside of every kernel of tiles, for a thread's sums.

A block of k is BK rows of BM words of A, `padding` behind each, and after them BK rows of BN words of B.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.device.memory import load_vector
from numbaprims.gpu.device.mma import dot4
from numbaprims.gpu.gemm.arguments import vector_length
from numbaprims.gpu.gemm.lists import TUPLES
from numbaprims.gpu.gemm.loads import words_of
from numbaprims.gpu.gemm.sizes import Tile, padding
from numbaprims.gpu.jit import cuda, device_function, types

I32 = types.int32


class Multiply(NamedTuple):
    """The device functions of one tile."""

    corner: Any
    """corner(t): where in the tile a thread's first vectors of rows and of columns begin."""
    four: Any
    """four(sm, at_a, at_b, xa, xb, sums): four rows of k from the words at_a and at_b on."""


def _multiply_add(a_dtype: str, b_dtype: str) -> Any:
    if DTYPES[a_dtype].accumulate == "i32":

        @device_function
        def dot(x, y, total):  # type: ignore[no-untyped-def]
            return dot4(x, y, total, a_dtype, b_dtype)

        return dot

    @device_function
    def multiply_add(x, y, total):  # type: ignore[no-untyped-def]
        return total + x * y

    return multiply_add


@functools.cache
def make_multiply(a_dtype: str, b_dtype: str, size: Tile) -> Multiply:
    """For operands that are words of `words_of` in shared memory."""
    words = words_of(a_dtype)
    WORD, V = words.type, vector_length(DTYPES[a_dtype].accumulate)
    TM, TN, LM, LN, WN, SUMS = size.tm, size.tn, size.lm, size.ln, size.wn, size.tm * size.tn
    LDA, LDB = size.bm + padding(words.size), size.bn + padding(words.size)
    multiply_add = _multiply_add(a_dtype, b_dtype)
    _, fill = TUPLES[V]

    @device_function
    def corner(t):  # type: ignore[no-untyped-def]
        warp, lane = I32(t // 32), I32(t % 32)
        return I32((warp // WN) * (TM * LM) + (lane // LN) * V), I32((warp % WN) * (TN * LN) + (lane % LN) * V)

    @device_function
    def multiply_one(sm, at_a, at_b, xa, xb, sums):  # type: ignore[no-untyped-def]
        va = cuda.local.array(V, WORD)
        for g in range(TM // V):
            fill(va, load_vector(sm, at_a + g * (LM * V), V))
            for e in range(V):
                xa[g * V + e] = va[e]
        for g in range(TN // V):
            fill(va, load_vector(sm, at_b + g * (LN * V), V))
            for e in range(V):
                xb[g * V + e] = va[e]
        for i in range(TM):
            for j in range(TN):
                sums[i * TN + j] = multiply_add(xa[i], xb[j], sums[i * TN + j])

    # Four k side by side let the loads of one hide behind the multiply-adds of another.  LLVM unrolls this loop by
    # itself up to 16 sums; a longer one is written out, which costs Numba 3 s more for each kernel.
    @device_function
    def four_in_loop(sm, at_a, at_b, xa, xb, sums):  # type: ignore[no-untyped-def]
        for u in range(4):
            multiply_one(sm, at_a + u * LDA, at_b + u * LDB, xa, xb, sums)

    @device_function
    def four_in_line(sm, at_a, at_b, xa, xb, sums):  # type: ignore[no-untyped-def]
        multiply_one(sm, at_a, at_b, xa, xb, sums)
        multiply_one(sm, at_a + LDA, at_b + LDB, xa, xb, sums)
        multiply_one(sm, at_a + 2 * LDA, at_b + 2 * LDB, xa, xb, sums)
        multiply_one(sm, at_a + 3 * LDA, at_b + 3 * LDB, xa, xb, sums)

    return Multiply(corner, four_in_loop if SUMS <= 16 else four_in_line)
