"""Gradients of stacks on a GPU: the tasks of `numbaprims.ops._stack_gradient`, one after another in a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from numbaprims.dispatch.solver import Launcher, default_config
from numbaprims.gpu.conv import SOLVERS as CONVOLUTIONS
from numbaprims.gpu.conv.im2col import ONE
from numbaprims.gpu.launch import Nested, Part, make_launcher
from numbaprims.gpu.reduce.posed import solver_of
from numbaprims.gpu.windows import SOLVERS as WINDOWS
from numbaprims.ops._reduction_problem import Reduction
from numbaprims.ops._stack_gradient import At, Box, Task, tasks
from numbaprims.ops._stack_problem import StackProblem


class Gradient:
    """All of a problem's arrays; `walk` is the solver that runs windows forwards, `large` takes windows of any size."""

    def __init__(self, problem: Any, target: Any, walk: Any, large: bool) -> None:
        self.target, self.walk, self.large = target, walk, large
        self.tasks, self.nbytes = tasks(Box(problem, problem.n, problem.c, problem.layout == "channels_last"))

    def _solvers(self) -> Iterator[tuple[Any, Task]]:
        for task in self.tasks:
            if isinstance(task.problem, Reduction):
                yield solver_of(task.problem), task
            elif isinstance(task.problem, StackProblem):
                yield self.walk, task
            elif task.convolves:
                p = task.problem
                takers = [each for each in CONVOLUTIONS if each.why_not(p, self.target) is None]
                one = takers[-1] if self.large else min(takers, key=lambda one: one.estimate(p, self.target))
                yield one, task
            else:
                able = [each for each in WINDOWS if each.why_not(task.problem, self.target) is None]
                yield able[-1 if self.large else 0], task

    def seconds(self) -> float:
        """By the formulas of those who compute the tasks."""
        return float(sum(solver.estimate(task.problem, self.target) for solver, task in self._solvers()))

    def launcher(self) -> Launcher:
        """Their launchers, and a region for what they hand on."""
        steps = []
        for solver, task in self._solvers():
            launch = solver.bind(task.problem, self.target, default_config(solver, task.problem, self.target))
            floats = ONE if task.convolves else None
            steps.append(Nested(launch, tuple(map(_part, task.arrays)), floats))
        return make_launcher(steps, {"between": self.nbytes} if self.nbytes else {})


def _part(at: At | None) -> Part | None:
    if at is None:
        return None
    return Part("between" if at.array < 0 else at.array, at.offset)
