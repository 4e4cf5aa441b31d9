"""The ways to compute an activation, and what each is estimated to take."""

from __future__ import annotations

from typing import Any

from numbaprims.cpu.activation.kernels import (
    CHEAP,
    HALF_OF,
    OPERATIONS,
    ROUNDING,
    SLOTS,
    compute_lanes,
    form_of,
    make_kernel,
)
from numbaprims.cpu.pointwise.blocks import BLOCK, any_strides, make_blocks, sizes_of
from numbaprims.cpu.pointwise.form import ARGS
from numbaprims.cpu.program import Bind, Block, Phase, Program, Run, array
from numbaprims.cpu.reduce.posed import PosedReduction
from numbaprims.cpu.reduce.solver import CYCLES
from numbaprims.cpu.solver import Config, Solver
from numbaprims.dtypes import DTYPES

# Elements of a tile.  Contiguous tiles are a multiple of every vector and page; some 2 us of the cheapest
# kinds.
TILE = 16384
# The same of elements that are walked one by one.
SINGLE = 512

READS_Y = ("sigmoid", "tanh", "exp")


def arithmetic_seconds(problem: Any, target: Any) -> float:
    """What one core takes for the arithmetic."""
    cost = OPERATIONS.get(problem.kind, CHEAP)
    # gradients of what computes an exponential are taken as half as fast
    if problem.direction != "forward" and problem.kind in OPERATIONS:
        cost = CHEAP if problem.kind in READS_Y else 2 * cost
    cost += ROUNDING.get(problem.dtype, 0.0) * (2 if "dgate" in problem.operands else 1)
    return float(problem.n / compute_lanes(problem.dtype, target, 1) * CYCLES * cost / target.rates.clock)


def memory_seconds(problem: Any, target: Any) -> float:
    """What one core takes to move the operands, the results written through the caches."""
    moved = problem.bytes_moved()
    if moved <= target.kept or problem.in_place:
        return float(moved / target.bandwidth(moved))
    # a line that is stored to is read first, unless an operand lies there
    moved += problem.n * DTYPES[problem.dtype].itemsize * (2 if "dgate" in problem.operands else 1)
    return float(moved / target.rates.memory)


def _program(
    problem: Any, target: Any, phase: tuple[Any, int], ints: dict[str, int], work: float, keep: tuple[Any, ...] = ()
) -> Program:
    """`work`: seconds that one core takes for the phase's kernel and tiles."""
    kernel, tiles = phase
    chunk = target.rates.grain(tiles, work)
    binds = None
    if "gate" in problem.operands or any(problem.loops.offsets):
        size = DTYPES[problem.dtype].itemsize
        places = zip(problem.operands, problem.loops.offsets, strict=True)
        binds = {ARGS.arrays[SLOTS[name]]: array(SLOTS[HALF_OF.get(name, name)], size * at) for name, at in places}
        binds |= {name: Bind(ARGS.slot(name)) for name in ARGS.floats[:3]}
    run = Run((Phase(kernel, tiles, chunk),), (Block(ARGS, ints, binds),))
    return Program((run,), **target.rates.waking(work), keep=keep)


class _Elementwise(Solver):
    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.direction == "weight":
            return "it computes one result for each element, and this is a sum"
        return None

    def walk(self, problem: Any, target: Any, work: float, *, single: bool = False) -> Program:
        """Blocks of elements, or one at a time, wherever they lie."""
        form = form_of(problem, target)
        strides = dict(zip(problem.operands, problem.loops.strides, strict=True))
        names = {slot: name for name, slot in SLOTS.items()}
        steps = [strides[names[each.slot]] for each in (*form.results, *form.operands)]
        form, plan, tiles = any_strides(form, problem.loops.shape, steps, single=single)
        kernel, compute = make_blocks(*sizes_of(form), target.vector_bytes), make_kernel(form)
        ints = {"plan": plan.ctypes.data, "compute": compute.address}
        return _program(problem, target, (kernel, tiles), ints, work, (plan, compute))


class Vector(_Elementwise):
    """Contiguous arrays, one vector kernel over all of them."""

    name = "vector"
    stream = False

    def why_not(self, problem: Any, target: Any) -> str | None:
        # one run of each, wherever it begins: halves of glu, arrays that run backwards
        if problem.layout == "strided" or len(problem.loops.shape) > 1:
            return super().why_not(problem, target) or "the arrays are not contiguous in one order of dimensions"
        return super().why_not(problem, target)

    def estimate(self, problem: Any, target: Any) -> float:
        return target.rates.call + max(arithmetic_seconds(problem, target), memory_seconds(problem, target))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        kernel = make_kernel(form_of(problem, target, self.stream))
        ints = {"n": problem.n, "tile": TILE}
        return _program(problem, target, (kernel, -(-problem.n // TILE)), ints, self.estimate(problem, target))


class Stream(Vector):
    """The same for arrays larger than the caches, results written past them."""

    name = "stream"
    stream = True

    def why_not(self, problem: Any, target: Any) -> str | None:
        if "dgate" in problem.operands:
            return "the halves of glu's gradient need not begin at the same place of a cache line"
        return super().why_not(problem, target)

    def estimate(self, problem: Any, target: Any) -> float:
        # whatever the size, results go to memory; in place, nothing is gained
        work = max(arithmetic_seconds(problem, target), problem.bytes_moved() / target.rates.memory)
        return float(target.rates.call + work * 1.01)


class Rows(_Elementwise):
    """Any strides: blocks through the kernel for contiguous elements."""

    name = "rows"

    def estimate(self, problem: Any, target: Any) -> float:
        in_rows = all(steps[-1] == 1 or steps[-1] == 0 for steps in problem.loops.strides)
        block = problem.inner if in_rows and problem.inner >= BLOCK else BLOCK
        work = arithmetic_seconds(problem, target) + 1.2 * memory_seconds(problem, target)
        if not in_rows:
            work += target.rates.cycles(4 * len(problem.operands) * problem.n)  # gathered and scattered
        return float(target.rates.call + work + target.rates.cycles(80 * problem.n / block))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        return self.walk(problem, target, self.estimate(problem, target))


class ChannelSums(Solver):
    """The gradient of prelu's weight: a sum of the reduce engine."""

    name = "channel_sums"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None if problem.direction == "weight" else "it computes the gradient of prelu's weight only"

    def estimate(self, problem: Any, target: Any) -> float:
        return _weight_sum(problem).estimate(target)

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        return _weight_sum(problem).program(target)


def _weight_sum(problem: Any) -> PosedReduction:
    # x before dy, as the slots of a launch have it
    out, dy, x = problem.loops.strides
    return PosedReduction.sum("prelu_weight_gradient", [problem.dtype] * 3, problem.loops.shape, (out, x, dy))


class Naive(_Elementwise):
    """One element at a time, wherever it lies."""

    name = "naive"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        return float(target.rates.call + target.rates.cycles(400 * problem.n))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        if problem.direction == "weight":
            return _weight_sum(problem).program(target, naive=True)
        return self.walk(problem, target, self.estimate(problem, target), single=True)


SOLVERS = (Vector(), Stream(), Rows(), ChannelSums(), Naive())
