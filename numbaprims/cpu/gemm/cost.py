"""What a product costs: the formula behind `estimate`, and the best block sizes by it.

time = launch + (padded operations) / peak + elements packed + elements of B read from afar.  How long cycles, bytes and
calls take says `CpuTarget.rates`; the numbers here are of the kernels, measured on one core of a Zen 5.  Only ratios
matter for a choice, which tests/test_gemm_choice.py judges by stored times.
"""

from __future__ import annotations

import math
from typing import Any

from numbaprims.dtypes import DTYPES

# The part of a core's multiply-adds that the tiles of a long product reach.
REACHED = 37 / 41
# Cycles an element of a packed panel takes (read, write, and the read of it by the first tile), on Zen 4 and 5 alike.
PACK_ALONG, PACK_ACROSS, PACK_SCALAR = 0.287, 0.6, 6.15
# How many times as long B takes from beyond the second-level cache as a loop that only moves its bytes: read in whole
# rows by packing, in pieces of a row that the tiles of a direct product prefetch, in pieces of rows of bytes, or whole
# rows by tiles of few, where `waits`.
FAR_L3 = {"packed": 2.1, "direct": 1.8, "bytes": 2.8875, "rows": 1.15}
FAR_MEMORY = {"packed": 2.4, "direct": 1.35, "bytes": 3.0, "rows": 1.15}
# The part of that which a direct product does not hide behind its multiply-adds where the third level is fast.
SHOWN = 0.1
# The part of reading A that packing does not hide where it waits: 1760 x 16 x 1760 takes 1.33 ms packed, 0.96 where A
# lies (Granite Rapids).
A_SHOWN = 0.5
# And a product by what a plan has packed: 8 x 768 x 3072 takes 377 us, 600 were it all to show (Zen 4).
PACKED_SHOWN = 0.25
# Of sums written once for each tile, from registers, the part of the second-level cache's rate.
WRITTEN = 0.2
# Cycles that a tile takes to begin and end, and more where any is cut off.
TILE, EDGE = 24.6, 41.0
# Bytes of a line and ways of a cache, and how fast tiles are whose rows of B share sets, by how many of these rows the
# second level holds: of 128^3, eight times its rows, 83 GFLOP/s of 95 were reached (Zen 3).
LINE, WAYS = 64, 8
ALIASED = ((8.0, 0.96), (2.0, 0.85), (0.5, 0.78), (0.0, 0.4))
# Calls of a program that beginning takes as long as.
LAUNCH = {"direct": 1.0, "direct_panels": 2.0, "private": 2.5, "blocked": 17 / 6}
# Work that is worth waking other threads for takes the calling one so many times as long as waking them: a parallel
# region costs as much as 0.4 MFLOP at the peak of a core, and below five times that two threads lost to one.
WORTH = 1.906


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """The next multiple of b."""
    return ceil_div(a, b) * b


def peak(problem: Any, target: Any) -> float:
    """Operations a second that the tiles of one core reach."""
    return REACHED * float(target.rates.flops(target.vector_bytes // DTYPES[problem.accumulate].itemsize))


def worth_threads(problem: Any, target: Any) -> bool:
    """Whether a product, or what is made of products, is worth waking other threads for."""
    return bool(problem.flops() > WORTH * target.rates.wake * target.rates.flops(target.vector_bytes // 4))


def multiply_time(problem: Any, target: Any, mr: int, nr: int, efficiency: float, kind: str | None = None) -> float:
    """The tiles' own time: whole tiles, whatever part of them is there, but for a last panel of one vector.

    Dot instructions ran at 1.85 (bf16, of twice as many) and 3.9 (int8) times the operations of float32 on 512 x 512 x
    512.
    """
    efficiency *= {"bf16": 0.925 * target.rates.dots, "u8s8": 3.9}.get(kind or "", 1.0)
    lanes = target.vector_bytes // DTYPES[problem.accumulate].itemsize
    columns = round_up(problem.n, lanes if problem.n % nr <= lanes and kind is None else nr)
    padded = 2.0 * problem.batch * round_up(problem.m, mr) * columns * problem.k
    tiles = problem.batch * ceil_div(problem.m, mr) * ceil_div(problem.n, nr)
    rates = target.rates
    stores = problem.batch * problem.m * problem.n * DTYPES[problem.accumulate].itemsize / (WRITTEN * rates.l2)
    edge = 0.0 if problem.m % mr == 0 and problem.n % nr == 0 else EDGE
    return float(padded / (peak(problem, target) * efficiency) + rates.cycles(tiles * (TILE + edge)) + stores)


def pack_time(target: Any, order: str, elements: float, unit_along: str) -> float:
    """Packing `elements`; `unit_along` is the order whose panels need no transpose.

    Vectors of half the width take half as long again for an element, but where they are turned in registers.
    """
    if order == unit_along:
        return float(target.rates.cycles(elements * PACK_ALONG * (1 + 64 / target.vector_bytes) / 2))
    return float(target.rates.cycles(elements * (PACK_ACROSS if order in ("row", "column") else PACK_SCALAR)))


def b_time(problem: Any, target: Any, passes: int = 1) -> float:
    """Packing B, `passes` times. Turned in registers it hides what reading it from afar takes."""
    pack = pack_time(target, problem.b_order, problem.batch * passes * problem.k * problem.n, "row")
    far = far_time(problem, target, "packed", passes)
    shows = problem.b_order == "row" or (passes > 1 and target.rates.waits)
    return pack + far if shows else max(pack, far)


def launch_time(target: Any, how: str) -> float:
    """Beginning."""
    return float(LAUNCH[how] * target.rates.call)


def in_memory(problem: Any, target: Any) -> bool:
    """Whether B is read from memory itself."""
    return bool(problem.k * problem.n * DTYPES[problem.b_dtype].itemsize > target.rates.third(target.l3) / 2)


def far_time(problem: Any, target: Any, how: str, passes: int = 1) -> float:
    """Reading B from beyond the second-level cache."""
    size = problem.k * problem.n * DTYPES[problem.b_dtype].itemsize
    if size <= target.l2 // 2:
        return 0.0
    rates = target.rates
    factor = FAR_MEMORY[how] / rates.memory if in_memory(problem, target) else FAR_L3[how] / rates.l3
    return float(problem.batch * passes * size * factor)


def aliased(target: Any, step: int, rows: int) -> float:
    """The part of a direct product's speed where rows of B, so many bytes apart, share the sets of caches.

    Each tile reads the same line of all rows: from the second level where the first has no room for them, and from
    beyond where the second has none (a Zen 3, 512 KiB: 768^3 took 14.3 ms for 10.9, 512^3 4.4 for 3.6, 1024^3 69 for
    25).  Both levels are taken to have 8 ways.
    """
    if step % LINE:
        return 1.0
    near, far = (
        size // LINE // math.gcd(step // LINE, max(1, size // LINE // WAYS)) for size in (target.l1d, target.l2)
    )
    return 1.0 if near >= rows else next(part for least, part in ALIASED if far >= least * rows)


def a_time(problem: Any, target: Any) -> float:
    """Reading A from beyond the second-level cache, once."""
    size = problem.m * problem.k * DTYPES[problem.a_dtype].itemsize
    if size <= target.l2 // 2:
        return 0.0
    return float(problem.batch * size / (target.rates.memory if size > target.l3 // 2 else target.rates.l3))


def packed_a_time(problem: Any, target: Any, passes: int = 1) -> float:
    """Packing A, `passes` times."""
    pack = pack_time(target, problem.a_order, problem.batch * passes * problem.k * problem.m, "column")
    return pack + (A_SHOWN * a_time(problem, target) if target.rates.waits else 0.0)


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
