"""The ways to run a stack, and what each is estimated to take."""

from __future__ import annotations

import dataclasses
from typing import Any

from numbaprims.cpu.program import Part, Program, Region, array, join
from numbaprims.cpu.reduce.posed import PosedReduction
from numbaprims.cpu.reduce.variant import MOST_ARRAYS
from numbaprims.cpu.solver import Config, Solver
from numbaprims.cpu.stack import gradients
from numbaprims.cpu.stack.channels import MOST_TAPS
from numbaprims.cpu.stack.emit import MOST_WEIGHTS
from numbaprims.cpu.stack.forward import ADDED, Pixels, Walk
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.stacks import name_of
from numbaprims.ops._reduction_problem import posed
from numbaprims.ops._stack_gradient import DPARAMETERS, PARAMETERS, arrays_of


def images(problem: Any) -> list[tuple[int, ...]]:
    """Strides of the arrays that are images."""
    others = (PARAMETERS, DPARAMETERS) if problem.backward else (2,)
    return [steps for k, steps in enumerate(problem.strides) if k not in others and steps is not None]


class _Stack(Walk, Solver):
    """A walk through sequences."""

    last, one_by_one = False, False
    """Whether a gradient's tiles have channels side by side, and whether they are computed by an element each."""

    def why_not(self, problem: Any, target: Any) -> str | None:
        # tiles of planes and of channels took 1.1 to 5 times as long (Zen 4)
        return None if Elements().why_not(problem, target) else "without a window, elements are walked as they lie"

    def estimate(self, problem: Any, target: Any) -> float:
        p = problem
        return gradients.whole_seconds(p, target, self) if p.backward else self.seconds(p, target)

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        p = problem
        return gradients.tiled(p, target, self) if p.backward else self.sequences(p, target)


class Planes(_Stack):
    """A vector is a part of a row of a plane."""

    name = "planes"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if any(steps[3] != 1 and problem.size[1] > 1 for steps in images(problem)):
            return "the rows of an image are not contiguous"
        windows_ = [step.window for step in problem.parsed if step.window is not None]
        taken = not problem.backward and any(
            max(each.kernel) > MOST_TAPS or each.dilation[1] > MOST_TAPS or each.numbers > MOST_WEIGHTS
            for each in windows_
        )
        if taken:
            return f"a window has more than {MOST_TAPS} rows or columns, or than {MOST_WEIGHTS} weights"
        return super().why_not(problem, target)


class Channels(Pixels, _Stack):
    """A vector is channels of one place."""

    name = "channels"
    last = True

    def why_not(self, problem: Any, target: Any) -> str | None:
        if any(steps[1] != 1 and problem.c > 1 for steps in images(problem)):
            return "the channels of a place are not contiguous"
        return super().why_not(problem, target)


class Naive(Pixels, _Stack):
    """An element after the other, wherever it lies."""

    name = "naive"
    last = one_by_one = True

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def channels(self, problem: Any, target: Any) -> int:
        return 1


class Elements(Solver):
    """No window: one pass of the reduce engine, by a formula without a reduction."""

    name = "elements"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if any(step.window is not None for step in problem.parsed):
            return "an operation is a window"
        if problem.backward:
            arrays = arrays_of(gradients.whole_gradient(problem))
        else:
            arrays = 2 + problem.numbers + sum(step.arrays for step in problem.parsed)
        return None if arrays <= MOST_ARRAYS else f"{arrays} parameters and arrays; it takes at most {MOST_ARRAYS}"

    def estimate(self, problem: Any, target: Any) -> float:
        if problem.backward:
            return gradients.Way.whole(problem).seconds(target)
        return self.posed(self.turned(problem)).estimate(target)

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        if problem.backward:
            return gradients.boxed(problem, target, gradients.Way.whole(problem))
        p, own, parts = problem, self.turned(problem), list[Part]()
        compute, copied = DTYPES[p.dtype].accumulate, own is not p
        item = DTYPES[compute].itemsize
        if copied:
            made = gradients.copy(compute, (p.numbers, p.c), (p.c, 1), p.strides[2][::-1], target)
            parts.append(Part(made, [Region("parameters"), array(2)], []))
        step = own.strides[2][1] * item
        numbers = (Region("parameters", k * step) if copied else array(2, k * step) for k in range(p.numbers))
        added = (array(k) for k in range(ADDED, len(p.strides)))
        parts.append(Part(self.posed(own).program(target), [array(0), array(1), *numbers, *added], []))
        return join(parts, shared={"parameters": item * p.c * p.numbers if copied else 0})

    def turned(self, problem: Any) -> Any:
        """The problem with the channels' values of a parameter side by side: else they are taken one by one."""
        p = problem
        if p.layout != "channels_last" or p.numbers == 0 or p.c == 1 or p.strides[2][0] == 1:
            return p
        return dataclasses.replace(p, strides=(*p.strides[:2], (1, p.c), *p.strides[3:]))

    def posed(self, problem: Any) -> PosedReduction:
        p, last = problem, problem.layout == "channels_last" and problem.c > 1
        compute = DTYPES[p.dtype].accumulate
        (step,) = p.parsed
        name = name_of([each.text for each in step.operations], "along" if last else "one")
        out, x, (c_step, _), *added = p.strides
        strides = [out, x, *[(0, c_step, 0, 0)] * p.numbers, *added]
        dtypes = [p.dtype, p.dtype, *[compute] * p.numbers, *[p.dtype] * len(added)]
        # rows are what one parameter is for, or the channels where they lie side by side
        axes = (1,) if last else (2, 3)
        return PosedReduction(posed(name, dtypes, (p.n, p.c, *p.size), axes, strides, in_place=p.in_place))


SOLVERS = (Elements(), Planes(), Channels(), Naive())
