"""Sums of sums: what keeps the error of a long sum from growing with its length."""

from __future__ import annotations

from numbaprims.cpu.jit import helper
from numbaprims.cpu.simd import load_first, store_first, zeros

FEW = 4096
"""Parts that are added one after the other; of more, neighbours are added, and neighbours of those sums."""
TERMS = 1 << 18
"""Terms of a part at most, where nothing else cuts a sum."""


@helper
def add_parts(parts, step, count, at, left, W, acc):  # type: ignore[no-untyped-def]
    """The sum of parts[p * step + at : ... + left] over p < count, one vector; what many parts held is lost."""
    if count > FEW:
        reach = 1
        while reach < count:
            for p in range(0, count - reach, 2 * reach):
                here = p * step + at
                both = load_first(parts, here, left, W) + load_first(parts, here + reach * step, left, W)
                store_first(parts, here, left, both)
            reach *= 2
        count = 1
    total = zeros(acc, W)
    for p in range(count):
        total = total + load_first(parts, p * step + at, left, W)
    return total
