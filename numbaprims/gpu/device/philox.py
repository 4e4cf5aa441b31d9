"""Philox 4x32-10 in a kernel: the words of `numbaprims.philox`."""

from __future__ import annotations

from numbaprims.gpu.jit import device_function, types
from numbaprims.philox import MULTIPLIERS, ROUNDS, WEYL

U32, U64 = types.uint32, types.uint64
MULTIPLY_0, MULTIPLY_1, WEYL_0, WEYL_1 = (*MULTIPLIERS, *WEYL)


@device_function
def random_block(block, seed, offset):  # type: ignore[no-untyped-def]
    """The four words, uint32, of block `block` of a stream; all three are uint64."""
    c0, c1, c2, c3 = U32(block), U32(block >> 32), U32(offset), U32(offset >> 32)
    k0, k1 = U32(seed), U32(seed >> 32)
    for _ in range(ROUNDS):
        p0, p1 = U64(c0) * U64(MULTIPLY_0), U64(c2) * U64(MULTIPLY_1)  # of 32 by 32 bits, one instruction each
        c0, c1, c2, c3 = U32(U32(p1 >> 32) ^ c1 ^ k0), U32(p1), U32(U32(p0 >> 32) ^ c3 ^ k1), U32(p0)
        k0, k1 = U32(k0 + U32(WEYL_0)), U32(k1 + U32(WEYL_1))
    return c0, c1, c2, c3
