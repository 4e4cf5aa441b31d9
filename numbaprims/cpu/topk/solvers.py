"""The ways to find the k first elements, and what each is estimated to take."""

from __future__ import annotations

import math
from typing import Any

from numbaprims.cpu.jit import RangeKernel
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.solver import Config, Regions, Solver
from numbaprims.cpu.topk.kernels import ARGS, TOP, make_across, make_insert, make_radix
from numbaprims.dtypes import DTYPES
from numbaprims.ops._topk_problem import starts_of

CHUNKS = 64
"""Parts of the work, where there are rows enough."""
TILE = 4096
"""Elements of a tile at least."""
LANES = 64
"""A multiple of the keys of a vector."""


class _Topk(Solver):
    make: Any = None

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def lanes(self, problem: Any, target: Any) -> int:
        return lanes(problem.word, target.vector_bytes)

    def cycles(self, problem: Any, W: int) -> float:
        """Of a row."""
        return 0.0

    def estimate(self, problem: Any, target: Any) -> float:
        moved = problem.bytes_moved()
        cycles = problem.rows * self.cycles(problem, self.lanes(problem, target))
        return float(target.rates.call + target.rates.cycles(cycles) + moved / target.bandwidth(moved))

    def sample(self, problem: Any, target: Any) -> int:
        """Elements at an end of a row that are treated otherwise."""
        return 0

    def together(self, problem: Any, target: Any) -> int:
        """Rows side by side."""
        return 1

    def kernel(self, problem: Any, target: Any) -> RangeKernel:
        p = problem
        return type(self).make(p.dtype, p.word, p.largest, p.layout != "rows", self.lanes(p, target))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        p, starts = problem, starts_of(problem)
        block = max(1, min(p.kept[-1], max(TILE, p.rows * p.n // CHUNKS) // p.n))
        block = -(-block // self.together(p, target)) * self.together(p, target)
        blocks = -(-p.kept[-1] // block)
        ints = {"n": p.n, "k": p.k, "rows": p.kept[-1], "block": block, "blocks": blocks, "starts": starts.ctypes.data}
        for name, (kept, step) in zip("vix", p.lies, strict=True):
            ints |= {f"{name}_row": kept[-1], f"{name}_col": step}
        ints["sample"] = self.sample(p, target)
        kernel = self.kernel(p, target)
        tiles = blocks * len(starts)
        return Program.of(
            ARGS, ints, [(kernel, tiles, max(1, tiles // CHUNKS))], regions=self.regions(p, target, config),
            keep=(starts,), **target.rates.waking(self.estimate(p, target)),
        )  # fmt: skip


class Insert(_Topk):
    """A threshold, and a sorted list of what is beyond it."""

    name = "insert"
    make = staticmethod(make_insert)

    def cycles(self, problem: Any, W: int) -> float:
        p = problem
        # of elements in any order; those that come the smallest first all go through the list
        hits = p.k * (1 + math.log(p.n / p.k))
        return 50 + p.n / W * (4 if p.layout == "rows" else 2 * W) + hits * (40 + 0.6 * p.k)

    def sample(self, problem: Any, target: Any) -> int:
        # of a rising row the k-th of the last ones is a bound that k elements pass, or few more
        vectors = -(-math.isqrt(problem.n * problem.k) // LANES)
        return vectors * LANES if problem.n >= 4 * max(problem.k, 8) and vectors * LANES <= problem.n else 0

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        count = problem.k + 1
        return Regions(own={"keys": count * DTYPES[problem.word].itemsize, "places": 8 * count})


class Radix(_Topk):
    """A histogram of the first bits, and a sort of what may be among the first."""

    name = "radix"
    make = staticmethod(make_radix)

    def cycles(self, problem: Any, W: int) -> float:
        p, size = problem, DTYPES[problem.word].itemsize
        chosen = min(p.n, p.k + p.n / 16)
        return 3000 + p.n * (5 if p.layout == "rows" else 7) + size * (700 + 5 * chosen)

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        keys, places = (problem.n + 1) * DTYPES[problem.word].itemsize, 8 * (problem.n + 1)
        both = {"keys": keys, "places": places, "other_keys": keys, "other_places": places}
        return Regions(own=both | {"counts": 8 << TOP})


class Across(_Topk):
    """Rows side by side in the lanes of a vector, each with its sorted list."""

    name = "across"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.word != "i32" or problem.n >= 1 << 31:
            return "an element and its place are more than 64 bits"
        if problem.kept[-1] < (W := self.together(problem, target)):
            return f"there are {problem.kept[-1]} rows, a vector has {W} lanes"
        return None

    def together(self, problem: Any, target: Any) -> int:
        return int(target.vector_bytes // 8)

    def cycles(self, problem: Any, W: int) -> float:
        p, side = problem, W // 2
        # any of the rows has an element for its list
        hits = min(p.n, side * p.k * (1 + math.log(max(1.0, p.n / (side * p.k)))))
        read = 8 + (2 * side if self.layout(p) == "strided" else 0)
        return (100 + read * p.n + hits * (2 + 0.75 * p.k) + 3 * side * p.k) / side

    def sample(self, problem: Any, target: Any) -> int:
        # of so many first ones some row has one for its list more often than not, and a guess costs more than it saves:
        # 4,096 rows of 128, k = 8, took 127 ns each, where the core could not learn 65,000 guesses, 60 so (Zen 5)
        return 2 * self.together(problem, target) * problem.k

    def layout(self, problem: Any) -> str:
        """What lies side by side: elements of a row ("rows"), or of neighbouring rows ("side")."""
        return "side" if problem.layout != "rows" and problem.lies[2][0][-1] == 1 else str(problem.layout)

    def kernel(self, problem: Any, target: Any) -> RangeKernel:
        p = problem
        return make_across(p.dtype, p.largest, self.layout(p), self.together(p, target))

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        return Regions(own={"keys": 8 * self.together(problem, target) * (problem.k + 3)})


class Naive(Insert):
    """The list, an element after the other."""

    name = "naive"

    def lanes(self, problem: Any, target: Any) -> int:
        return 1

    def cycles(self, problem: Any, W: int) -> float:
        return 10 * super().cycles(problem, W)


SOLVERS = (Insert(), Across(), Radix(), Naive())
