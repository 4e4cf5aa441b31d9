"""The solvers of activations on a GPU.  Every one is bound by the bytes that it moves (see `gpu.pointwise`)."""

from __future__ import annotations

from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.activation import formulas, gradients, halves
from numbaprims.gpu.activation.kernels import FORMULAS, SWITCH, make_kernel
from numbaprims.gpu.pointwise.walk import LAUNCH, Array, seconds, walker, width
from numbaprims.gpu.reduce.posed import solver_of
from numbaprims.gpu.solver import Solver
from numbaprims.ops._reduction_problem import posed

#: Operands by name -> the place of their array in a launch; glu's gate is the second half of x, and dgate of out.
PLACES = {"out": 0, "dgate": 0, "dy": 2, "x": 1, "y": 3, "weight": 4, "gate": 1}
"""Results first, then operands as formulas take them."""


def _arrays(problem: Any) -> tuple[list[Array], list[Array]]:
    """Results and operands."""
    lies = dict(zip(problem.operands, zip(problem.loops.strides, problem.loops.offsets, strict=True), strict=True))
    found = {name: Array(PLACES[name], problem.dtype, *lies[name]) for name in PLACES if name in lies}
    results = [found.pop(name) for name in ("out", "dgate") if name in found]
    operands = list(found.values())
    # formulas of gradients take what was saved, too
    return results, operands * 2 if list(found) == ["dy"] else operands


def _width(problem: Any) -> int:
    return width(problem.inner, *_arrays(problem))


class _Elementwise(Solver):
    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.direction == "weight":
            return "it computes one result for each element, and this is a sum"
        return None

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        return self.walk(problem, target, _width(problem))

    def walk(self, problem: Any, target: Any, V: int) -> Launcher:
        """All elements, by packs of V."""
        back = problem.direction == "backward"
        two = "weight" in problem.operands or "gate" in problem.operands
        name, codes = problem.kind + "_of_two" * two, tuple[int, ...]()
        cheap = (gradients if back else formulas).CHEAP
        if name in cheap:
            name, codes = SWITCH, (cheap.index(name),)
        if not back and name in halves.FORWARD and problem.dtype in ("f16", "bf16"):
            name += "_half"
        name += "_backward" * back
        count = FORMULAS[name].numbers
        return walker(
            make_kernel, name, DTYPES[problem.dtype].accumulate, problem.loops.shape, *_arrays(problem), target,
            lambda floats: (*floats[:count], *codes), V,
        )  # fmt: skip


class Vector(_Elementwise):
    """Contiguous arrays: 16 bytes a thread and access."""

    name = "vector"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.layout != "contiguous":
            return super().why_not(problem, target) or "the arrays are not contiguous in one order of dimensions"
        return super().why_not(problem, target)

    def estimate(self, problem: Any, target: Any) -> float:
        return seconds(problem.bytes_moved(), target, 0.9)


class Rows(_Elementwise):
    """Runs of contiguous elements: up to 16 bytes an access where every run begins at a multiple of them.

    An operand may have one value a run, as prelu's slope of a channel has.
    """

    name = "rows"

    def why_not(self, problem: Any, target: Any) -> str | None:
        refusal = super().why_not(problem, target)
        if refusal is None:
            results, operands = _arrays(problem)
            if {each.strides[-1] for each in results} | {each.strides[-1] for each in operands} - {0} != {1}:
                return "an array is not contiguous along the innermost loop"
        return refusal

    def estimate(self, problem: Any, target: Any) -> float:
        wide = _width(problem) > 1
        return seconds(
            problem.bytes_moved(), target, 0.8 if wide else 0.5 if DTYPES[problem.dtype].itemsize > 2 else 0.3
        )


class Naive(_Elementwise):
    """One element at a time, wherever it lies; refuses nothing."""

    name = "naive"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        # a sector of 32 bytes for each element of each operand
        moved = 32.0 * problem.n * len(problem.operands)
        return LAUNCH + seconds(max(moved, problem.bytes_moved()), target, 0.8)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        if problem.direction == "weight":
            return CHANNEL_SUMS.bind(problem, target, config)
        return self.walk(problem, target, 1)


class ChannelSums(Solver):
    """The gradient of prelu's weight by the reduce engine: one row a channel."""

    name = "channel_sums"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None if problem.direction == "weight" else "it computes the gradient of prelu's weight only"

    def estimate(self, problem: Any, target: Any) -> float:
        sums = _sums(problem)
        return float(solver_of(sums).estimate(sums, target))

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        sums = _sums(problem)
        launcher: Launcher = solver_of(sums).bind(sums, target, config)
        return launcher


def _sums(problem: Any) -> Any:
    steps = dict(zip(problem.operands, problem.loops.strides, strict=True))
    every = [steps[name] for name in ("out", "x", "dy")]
    shape = problem.loops.shape
    return posed("prelu_weight_gradient", (problem.dtype,) * 3, shape, range(1, len(shape)), every)


CHANNEL_SUMS = ChannelSums()
SOLVERS = (Vector(), Rows(), CHANNEL_SUMS, Naive())
