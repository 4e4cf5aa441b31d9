"""What a product takes on a GPU, in seconds, by formula.

A kernel of tiles is bound by the slowest of three, after the time that starts it and fills its pipeline:

- arithmetic: the multiprocessor with the most tiles computes them all, whole ones, whatever part of them is there; at a
  fraction of its rate where few warps are on it: it has four schedulers, and what one warp waits for (30 clocks for a
  load of shared memory) only others hide; w warps reach 1.07 w / (w + 1.2), as 4, 8 and 16 do of float32 on an H100;
- memory: every operand once, at 85 % of the bandwidth, or less where too few bytes are under way: bandwidth x latency
  (3.35 TB/s x 0.8 us = 2.7 MB on an H100);
- the second-level cache: every tile reads its rows of A and columns of B anew; 2.5 times the memory's bandwidth.

The other constants have not been measured on a GPU; the formulas' terms are counts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.gemm.arguments import ceil_div

#: Seconds from one kernel to the next on a stream, and until the first block of k has arrived (two memory latencies).
LAUNCH, FILL = 2.5e-6, 1.5e-6
LATENCY = 0.8e-6
MEMORY, CACHE = 0.85, 2.5


class Work(NamedTuple):
    """A kernel of tiles, as far as its time depends on it."""

    bm: int
    bn: int
    threads: int
    blocks_per_multiprocessor: int
    bytes_in_flight: int
    """Of one block: what its copies under way bring in."""
    rate: float
    """Operations a second of the whole GPU, with all its multiprocessors busy."""
    element: float
    """Bytes of an element of A and B as it is read."""
    a_waste: float = 1.0
    b_waste: float = 1.0
    """Bytes that are moved for each that is wanted: 32-byte sectors of which one element is used."""


def tile_seconds(problem: Any, target: Any, work: Work, *, chunks: int = 1, round_k: int = 16) -> float:
    """A kernel of tiles over a problem, k cut into `chunks`, each a multiple of `round_k`."""
    tiles = problem.batch * ceil_div(problem.m, work.bm) * ceil_div(problem.n, work.bn)
    blocks = tiles * chunks
    depth = ceil_div(ceil_div(problem.k, chunks), round_k) * round_k
    busiest = ceil_div(blocks, target.multiprocessors)
    resident = min(busiest, work.blocks_per_multiprocessor)
    warps = resident * work.threads / 32
    fill = min(1.0, 1.07 * warps / (warps + 1.2))
    rate = work.rate / target.multiprocessors * fill
    arithmetic = busiest * 2.0 * work.bm * work.bn * depth / rate
    size_out = DTYPES[problem.out_dtype].itemsize
    a_bytes = problem.batch * problem.m * problem.k * work.element * work.a_waste
    b_bytes = problem.batch * problem.k * problem.n * work.element * work.b_waste
    out_bytes = problem.batch * problem.m * problem.n * size_out * (2 if problem.has_c else 1)
    under_way = min(blocks, target.multiprocessors * work.blocks_per_multiprocessor) * work.bytes_in_flight
    bandwidth = MEMORY * target.bandwidth * min(1.0, under_way / (LATENCY * target.bandwidth))
    memory = (a_bytes + b_bytes + out_bytes) / bandwidth
    reread = blocks * depth * work.element * (work.bm * work.a_waste + work.bn * work.b_waste)
    return LAUNCH + FILL + max(arithmetic, memory, reread / (CACHE * target.bandwidth))


def sweep_seconds(nbytes: float, target: Any) -> float:
    """One more kernel that reads or writes `nbytes` and computes nothing to speak of; within half of the second-level
    cache they never leave it."""
    bandwidth = target.bandwidth * (CACHE if nbytes < target.l2 / 2 else MEMORY)
    return LAUNCH + nbytes / bandwidth
