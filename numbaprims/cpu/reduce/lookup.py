"""Bytes through a table of 256: 64 at a time by two permutations where the CPU has those of bytes, else one by one.

Of 16 entries each, pshufb would take 64 operations for 32 bytes, and one by one takes 3 each.
"""

from __future__ import annotations

import functools

from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.pointwise.form import ARGS
from numbaprims.cpu.simd import load_scalar, pointer_from_address, store_scalar
from numbaprims.cpu.simd.bytes import permuted_bytes


@functools.cache
def make_lookup(permutes: bool) -> RangeKernel:
    """The range kernel of contiguous bytes; the table's address is the call's first number."""

    @range_kernel("reduce_lookup", ARGS.types(), spec=(permutes,))
    def reduce_lookup(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        address = int(args.f0)
        table = pointer_from_address(address, "u8")
        out, x = args.a0, args.a1
        first, end = lo * args.tile, min(hi * args.tile, args.n)
        if permutes:
            whole = first + (end - first) // 64 * 64
            permuted_bytes(args, address, first, whole)
            first = whole
        for i in range(first, end):
            store_scalar(out, i, load_scalar(table, load_scalar(x, i)))

    return reduce_lookup
