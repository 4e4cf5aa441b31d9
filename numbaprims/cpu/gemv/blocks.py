"""What the blocked solvers share: how a problem is cut, and the program that runs it.

The bound. A product reads m n elements of A and m + n of the vectors once and computes 2 m n operations:
half an operation a byte in float32. One core does 64 float32 operations a cycle and reads 64 bytes a
cycle from its second-level cache, so a gemv is bound by how fast A arrives; no cache blocking can help,
since no element of A is used twice. What a kernel can do is read A once, in long pieces, with loads that
don't straddle cache lines, and keep everything else (x, the sums) out of the way.
Measured on a Zen 5 core (3.7 GHz, 48 KiB, 1 MiB, 32 MiB of caches), float32, plain and transposed, against
a loop that only reads: 128 x 1024 (second level) 172 and 150 GB/s of 200, 1024 x 1024 (third level) 94 and
96 of 105, 4096 x 4096 (memory) 33 and 32 of 38.
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

from numbaprims.cpu.gemv.arguments import ARGS, accumulate, walk
from numbaprims.cpu.gemv.finish import make_combine, make_pack
from numbaprims.cpu.jit import RangeKernel
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.solver import Config, Regions, Solver
from numbaprims.dtypes import DTYPES

TILE_BYTES = 262144
"""What a worker takes of A at a time, in about 3 us; 1 MiB is still cut in four."""
PARALLEL_BYTES = 1 << 20
"""Two threads need 7.3 us for 1 MiB, one 11.5; for 512 KiB 4.5 and 5.1, and their launch eats that up."""
COMBINE_ELEMENTS = 4096
START = 5 / 6
"""Calls of a program that beginning takes as long as."""


class Cut(NamedTuple):
    """How a problem is cut; it depends on the problem and the CPU, never on the number of threads."""

    kernel: RangeKernel
    tile: int
    """Outputs of a block."""
    blocks: int
    length: int
    """Terms of a chunk."""
    chunks: int
    taken: int = 1
    """Tiles that a worker takes at a time."""


def pieces(total: int, most: int, multiple: int = 1) -> tuple[int, int]:
    """Cut `total` into the fewest pieces of at most `most`, about equal, and give (length, count).

    >>> pieces(5000, 4096, 32)
    (2528, 2)
    """
    count = max(1, -(-total // most))
    length = max(1, -(-total // count))
    length = -(-length // multiple) * multiple
    return length, max(1, -(-total // length))


def read_rate(size: float, target: Any) -> float:
    """Bytes a second that one core reads of so many: from its second-level cache, the third-level cache or memory."""
    rates = target.rates
    if size <= target.l2:
        return float(0.7 * rates.l2)
    return float(0.838 * rates.l3 if size <= rates.third(target.l3) else 0.6875 * rates.memory)


def bytes_a_second(problem: Any, target: Any) -> float:
    """How fast one core reads A."""
    return read_rate(problem.bytes_moved(), target)


class Blocked(Solver, abc.ABC):
    """A solver of tiles: blocks of outputs times chunks of terms."""

    @abc.abstractmethod
    def cut(self, problem: Any, target: Any, W: int) -> Cut:
        """Choose the kernel and the tiles."""

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        acc = accumulate(problem.dtype)
        cut = self.cut(problem, target, lanes(acc, target.vector_bytes))
        sums = cut.chunks * problem.m * DTYPES[acc].itemsize if combines(problem, cut) else 0
        packed = problem.n * DTYPES[problem.dtype].itemsize if packs_x(problem) else 0
        return Regions({"sums": sums, "packed_x": packed})

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        W = lanes(accumulate(problem.dtype), target.vector_bytes)
        cut = self.cut(problem, target, W)
        ints = walk(problem) | {
            "tile": cut.tile,
            "blocks": cut.blocks,
            "length": cut.length,
            "chunks": cut.chunks,
            "combine": int(combines(problem, cut)),
            "packs": int(packs_x(problem)),
        }
        phases = [(cut.kernel, cut.blocks * cut.chunks, cut.taken)]
        if packs_x(problem):
            phases.insert(0, (make_pack(problem.dtype), 1, 1))
        if combines(problem, cut):
            phases.append((make_combine(problem.dtype, W), -(-problem.m // W), COMBINE_ELEMENTS // W))
        parallel = problem.bytes_moved() >= PARALLEL_BYTES
        return Program.of(ARGS, ints, phases, parallel=parallel, regions=self.regions(problem, target, config))


def packs_x(problem: Any) -> bool:
    """Whether x is packed first: rows are multiplied with vectors of it."""
    if problem.order != "row" or problem.n <= 1:
        return False
    return bool(problem.strides.x * problem.strides.a[1] != 1)


def combines(problem: Any, cut: Cut) -> bool:
    """Whether sums go through the workspace: those of several chunks, or to a y or out with gaps."""
    turned = problem.order == "column" and problem.strides.a[0] == -1
    step = -1 if turned else 1
    gaps = problem.strides.out != step or (problem.has_y and problem.strides.y != step)
    return cut.chunks > 1 or (gaps and problem.m > 1)
