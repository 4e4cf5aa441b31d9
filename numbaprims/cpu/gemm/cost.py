"""What a product costs: the formula behind `estimate`, and the best block sizes by it.

time = launch + (padded operations) / peak + elements packed + elements of B read from afar.  The constants were
measured on one core of a Zen 4 (3.7 GHz, AVX-512, 1 MB L2, 32 MB L3); only their ratios matter for a choice.
"""

from __future__ import annotations

from typing import Any

from numbaprims.arrays import DTYPES

CLOCK = 3.7e9
# Seconds an element of a packed panel takes (read, write, and the read of it by the first tile).
PACK_ALONG = 0.12e-9
PACK_ACROSS = 0.30e-9
PACK_SCALAR = 1.5e-9
# Seconds an element of B takes beyond the second-level cache: read in whole rows by packing, or in pieces of a row
# by the tiles of a direct product, whose jumps no prefetcher follows.
FAR_L3 = {"packed": 0.08e-9, "direct": 0.15e-9}
FAR_MEMORY = {"packed": 0.20e-9, "direct": 0.55e-9}
LAUNCH = {"direct": 0.6e-6, "private": 1.3e-6, "blocked": 1.6e-6}
PHASE = 0.3e-6


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """The next multiple of b."""
    return ceil_div(a, b) * b


def peak(problem: Any, target: Any) -> float:
    """Operations a second of one core at 16 float32 multiply-adds a cycle (8 without AVX2)."""
    lanes = (16 if target.vector_bytes >= 32 else 8) * 4 // DTYPES[problem.accumulate].itemsize
    return CLOCK * 2 * lanes


def multiply_time(problem: Any, target: Any, mr: int, nr: int, efficiency: float, kind: str | None = None) -> float:
    """The tiles' own time: whole tiles, whatever part of them is there.

    Dot instructions ran at 1.85 (bf16) and 3.9 (int8) times the operations of float32 on 512 x 512 x 512.
    """
    efficiency *= {"bf16": 1.85, "u8s8": 3.9}.get(kind or "", 1.0)
    padded = 2.0 * problem.batch * round_up(problem.m, mr) * round_up(problem.n, nr) * problem.k
    tiles = problem.batch * ceil_div(problem.m, mr) * ceil_div(problem.n, nr)
    # sums are written once for each tile, from registers: 40 GB/s to the second-level cache and beyond
    stores = problem.batch * problem.m * problem.n * DTYPES[problem.accumulate].itemsize / 40e9
    edge = 0.0 if problem.m % mr == 0 and problem.n % nr == 0 else 10e-9
    return padded / (peak(problem, target) * efficiency) + tiles * (6e-9 + edge) + stores


def pack_time(order: str, elements: float, unit_along: str) -> float:
    """Packing `elements`; `unit_along` is the order whose panels need no transpose."""
    if order == unit_along:
        return elements * PACK_ALONG
    return elements * (PACK_ACROSS if order in ("row", "column") else PACK_SCALAR)


def far_time(problem: Any, target: Any, how: str, passes: int = 1) -> float:
    """Reading B from beyond the second-level cache."""
    elements = problem.k * problem.n
    size = elements * DTYPES[problem.b_dtype].itemsize
    if size <= target.l2 // 2:
        return 0.0
    far = FAR_L3 if size <= target.l3 // 2 else FAR_MEMORY
    return problem.batch * passes * elements * far[how] * DTYPES[problem.b_dtype].itemsize / 4
