"""The ways to run a stack, and what each is estimated to take."""

from __future__ import annotations

from typing import Any

from numbaprims.cpu.program import Bind, Part, Program, array, join
from numbaprims.cpu.reduce.variant import MOST_ARRAYS
from numbaprims.cpu.solver import Config, Solver
from numbaprims.cpu.stack import gradients
from numbaprims.cpu.stack.channels import MOST_TAPS
from numbaprims.cpu.stack.emit import MOST_WEIGHTS
from numbaprims.cpu.stack.forward import Pixels, Walk
from numbaprims.ops._stack_gradient import DPARAMETERS, FORWARDS, PARAMETERS, arrays_of, placed, tasks, whole_gradient
from numbaprims.ops._stack_problem import GRADIENTS


def images(problem: Any) -> list[tuple[int, ...]]:
    """Strides of the arrays that are images."""
    others = (PARAMETERS, DPARAMETERS) if problem.backward else (2,)
    return [steps for k, steps in enumerate(problem.strides) if k not in others and steps is not None]


class _Stack(Walk, Solver):
    """A walk through sequences."""

    last, one_by_one = False, False
    """Whether a gradient's tiles have channels side by side, and whether they are computed by an element each."""

    def why_not(self, problem: Any, target: Any) -> str | None:
        if any(step.window is not None for step in problem.parsed):
            return None
        if problem.backward:
            arrays = arrays_of(whole_gradient(problem))
        else:
            arrays = 2 + problem.numbers + sum(step.arrays for step in problem.parsed)
        # tiles of planes and of channels took 1.1 to 5 times as long (Zen 4)
        return None if arrays > MOST_ARRAYS else "without a window, elements are walked as they lie"

    def estimate(self, problem: Any, target: Any) -> float:
        p = problem
        if p.backward:
            return float(target.rates.call + gradients.whole_seconds(p, target, self))
        return self.seconds(p, target)

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        p = problem
        return gradients.tiled(p, target, self) if p.backward else self.sequences(p, target)


class Planes(_Stack):
    """A vector is a part of a row of a plane."""

    name = "planes"

    def why_not(self, problem: Any, target: Any) -> str | None:
        widest = max(w for _, w in problem.sizes)  # not that of x: padding may make a row of one pixel
        if widest > 1 and any(steps[3] != 1 for steps in images(problem)):
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


class Layers(Solver):
    """Each run of element-wise operations in one pass of the reduce engine, each window by an engine of its own."""

    name = "layers"

    def why_not(self, problem: Any, target: Any) -> str | None:
        windows = {step.window.op for step in problem.parsed if step.window is not None}
        # pools of small planes forwards 0.4 to 0.9; depthwise windows, channels last and gradients 1.0 to 2.7 of the
        # time, but for 3 of 126 (Zen 5)
        pools = problem.layout == "channels_first" and not problem.backward and "depthwise" not in windows
        if windows and not pools and problem.layout != "strided":
            return "a part of an image at a time leaves what windows hand on in a nearer cache"
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        way = gradients.Way.whole(problem)
        found, handed = tasks(way.box)
        # what is handed on goes through the caches once more than each engine counts for itself
        between = handed / target.bandwidth(handed + problem.bytes_moved()) if handed else 0.0
        return float(target.rates.call + way.seconds(target, found) + between)

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        p, way = problem, gradients.Way.whole(problem)
        if p.backward:
            return gradients.boxed(p, target, way)
        places: list[Bind | None] = [None] * len(GRADIENTS)
        for number, place in enumerate(FORWARDS[: len(p.strides)]):
            places[place] = array(number)
        return join([Part(gradients.boxed(placed(p), target, way), places, [])])


SOLVERS = (Layers(), Planes(), Channels(), Naive())
