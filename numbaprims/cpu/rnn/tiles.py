"""Sizes of the register tiles and blocks of recurrent products."""

from __future__ import annotations

from typing import Any


def best_height(vectors: int, rows: int, target: Any, more: int = 0) -> int:
    """Rows of a register tile of so many vectors a row, of which a batch fills most; `more` registers are taken."""
    registers = 32 if target.isa in ("avx512", "neon") else 16
    # sums, a row of weights and a broadcast are in registers
    most = max(1, (registers - 1 - more - vectors) // vectors)
    heights = range(most, max(0, most // 2), -1)
    # a row less reads the weights' panel more often
    best = min(heights, key=lambda each: -(-rows // each) * each * (1.0 + 0.02 * (most - each)))
    return min(best, rows)


def kc_of(target: Any, k: int, mr: int, rows: int, row_bytes: int) -> int:
    """Rows of a panel of weights that stay in the first-level cache beside those that they meet; all of them for a few
    sequences, which need them once."""
    if rows <= mr:
        return k
    return min(k, max(16, int(0.75 * target.l1d) // row_bytes // 4 * 4))
