"""The ways to draw random numbers or to drop elements, and what each is estimated to take."""

from __future__ import annotations

from typing import Any

from numbaprims.cpu.pointwise.blocks import BLOCK, any_strides, make_blocks, sizes_of
from numbaprims.cpu.pointwise.form import ARGS
from numbaprims.cpu.program import Bind, Block, Phase, Program, Run, array
from numbaprims.cpu.random.kernels import OUT, X, form_of, make_kernel
from numbaprims.cpu.solver import Config, Solver
from numbaprims.dtypes import DTYPES

#: Elements of a tile of contiguous arrays: some 4 us.
TILE = 16384
#: Cycles of an element with registers of 64 bytes, by kind and by bytes of what is computed in: those of half as many
#: bytes take twice as long. Measured where the caches hide (Zen 4).
CYCLES = {
    ("dropout", 4): 1.6, ("dropout", 8): 1.9, ("uniform", 4): 1.7, ("uniform", 8): 3.6, ("normal", 4): 3.4,
    ("normal", 8): 9.0,
}  # fmt: skip


class _Random(Solver):
    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def arithmetic(self, problem: Any, target: Any) -> float:
        size = DTYPES[DTYPES[problem.dtype].accumulate].itemsize
        return float(problem.n * CYCLES[problem.kind, size] * 64 / target.vector_bytes / target.rates.clock)

    def whole(
        self, problem: Any, target: Any, kernel: Any, tiles: int, ints: dict[str, int], keep: tuple[Any, ...] = ()
    ) -> Program:
        work = self.estimate(problem, target)
        chunk = target.rates.grain(tiles, work)
        binds = {ARGS.arrays[slot]: array(slot) for slot in (OUT, X)[: len(problem.strides)]}
        drop = problem.kind == "dropout"
        binds |= {name: Bind(ARGS.slot(name)) for name in ARGS.floats[: 3 if drop else 2]}
        scale: dict[str, float] = {} if drop else dict(zip(ARGS.floats[2:], problem.scale, strict=False))
        run = Run((Phase(kernel, tiles, chunk),), (Block(ARGS, {**ints, **scale}, binds),))
        return Program((run,), **target.rates.waking(work), keep=keep)

    def walk(self, problem: Any, target: Any, *, single: bool = False) -> Program:
        """Blocks of elements in C order, or one at a time, wherever they lie."""
        form = form_of(problem.kind, problem.dtype, target)
        form, plan, tiles = any_strides(form, problem.loops, problem.strides, single=single, in_order=True)
        kernel, compute = make_blocks(*sizes_of(form), target.vector_bytes), make_kernel(form)
        ints = {"plan": plan.ctypes.data, "compute": compute.address}
        return self.whole(problem, target, kernel, tiles, ints, (plan, compute))


class Vector(_Random):
    """Contiguous arrays in C order."""

    name = "vector"
    stream = False

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None if problem.layout == "contiguous" else "the arrays are not contiguous in C order"

    def estimate(self, problem: Any, target: Any) -> float:
        moved = problem.bytes_moved()
        if moved > target.third and not problem.in_place:
            # a line that is stored to is read first
            moved += problem.n * DTYPES[problem.dtype].itemsize
        return float(target.rates.call + max(self.arithmetic(problem, target), moved / target.bandwidth(moved)))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        kernel = make_kernel(form_of(problem.kind, problem.dtype, target, self.stream))
        return self.whole(problem, target, kernel, -(-problem.n // TILE), {"n": problem.n, "tile": TILE})


class Stream(Vector):
    """The same for arrays larger than the caches, results written past them."""

    name = "stream"
    stream = True

    def estimate(self, problem: Any, target: Any) -> float:
        # whatever the size, results go to memory; in place, nothing is gained
        moved = problem.bytes_moved() / target.rates.memory
        return float(target.rates.call + 1.01 * max(self.arithmetic(problem, target), moved))


class Rows(_Random):
    """Any strides: blocks in C order through the kernel for contiguous elements."""

    name = "rows"

    def estimate(self, problem: Any, target: Any) -> float:
        moved = 1.2 * problem.bytes_moved()
        work = max(self.arithmetic(problem, target), moved / target.bandwidth(moved))
        if problem.layout == "strided":
            work += target.rates.cycles(4 * len(problem.strides) * problem.n)  # gathered and scattered
        block = problem.inner if problem.layout != "strided" and problem.inner >= BLOCK else BLOCK
        return float(target.rates.call + work + target.rates.cycles(80 * problem.n / block))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        return self.walk(problem, target)


class Naive(_Random):
    """One element at a time, wherever it lies."""

    name = "naive"

    def estimate(self, problem: Any, target: Any) -> float:
        return float(target.rates.call + target.rates.cycles(400 * problem.n))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        return self.walk(problem, target, single=True)


SOLVERS = (Vector(), Stream(), Rows(), Naive())
