"""What a product costs: the formula behind `estimate`, and the best block sizes by it.

time = launch + (padded operations) / peak + elements packed + elements of B read from afar.  The constants were
measured on one core of a Zen 5 (3.7 GHz, AVX-512, 1 MB L2, 32 MB L3); only their ratios matter for a choice, which
tests/test_gemm_choice.py judges by stored times.
"""

from __future__ import annotations

from typing import Any

from numbaprims.dtypes import DTYPES

CLOCK = 3.7e9
# Seconds an element of a packed panel takes (read, write, and the read of it by the first tile).
PACK_ALONG = 0.07e-9
PACK_ACROSS = 0.17e-9
PACK_SCALAR = 1.5e-9
# Seconds an element of B takes beyond the second-level cache: read in whole rows by packing, or in pieces of a row
# by the tiles of a direct product, whose jumps no prefetcher follows.
FAR_L3 = {"packed": 0.08e-9, "direct": 0.11e-9}
FAR_MEMORY = {"packed": 0.20e-9, "direct": 0.25e-9}
LAUNCH = {"direct": 0.6e-6, "direct_panels": 1.2e-6, "private": 1.5e-6, "blocked": 1.7e-6}
PHASE = 0.3e-6


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """The next multiple of b."""
    return ceil_div(a, b) * b


def peak(problem: Any, target: Any) -> float:
    """Operations a second of one core: two vectors of multiply-adds a cycle, but one of 64 bytes on a Zen 4."""
    vectors = 1 if target.vector_bytes == 64 and target.name == "znver4" else 2
    return CLOCK * 2 * vectors * target.vector_bytes // DTYPES[problem.accumulate].itemsize


def multiply_time(problem: Any, target: Any, mr: int, nr: int, efficiency: float, kind: str | None = None) -> float:
    """The tiles' own time: whole tiles, whatever part of them is there, but for a last panel of one vector.

    Dot instructions ran at 1.85 (bf16) and 3.9 (int8) times the operations of float32 on 512 x 512 x 512.
    """
    efficiency *= {"bf16": 1.85, "u8s8": 3.9}.get(kind or "", 1.0)
    lanes = target.vector_bytes // DTYPES[problem.accumulate].itemsize
    columns = round_up(problem.n, lanes if problem.n % nr <= lanes and kind is None else nr)
    padded = 2.0 * problem.batch * round_up(problem.m, mr) * columns * problem.k
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


def span(order: list[tuple[float, float]], tiles: int) -> float:
    """Seconds until two workers have done all blocks of `tiles` tiles: (seconds of one, of a copy before the first).

    The first has the first half of all tiles, and both copy a block that they share; who is ready earlier goes on with
    those that the other has not begun.

    >>> span([(1.0, 0.0)] * 3, 1), span([(1.0, 0.5)], 4), span([(4.0, 0.0), (1.0, 0.0)], 4)
    (2.0, 2.5, 12.0)
    """
    half = len(order) * tiles // 2
    whole, part = divmod(half, tiles)
    first = sum(tiles * one + copy for one, copy in order[:whole])
    second = sum(tiles * one + copy for one, copy in order[whole:])
    if part:
        one, copy = order[whole]
        first += part * one + copy
        second -= part * one
    late, early = (first, second) if first > second else (second, first)
    one, copy = order[max(0, whole - (part == 0))] if first > second else order[-1]
    moved = min(int((late - early - copy) / (2 * one)), half) if one and late > early + copy else 0
    return min(max(late - n * one, early + copy + n * one) if n else late for n in (0, moved, moved + 1))
