"""Gradients of stacks: element-wise ones in one pass, those with windows a block of channels of an image at a time.

In such a tile the operations run again, forwards, and every window's and every run's input stays; then the gradients of
runs (formulas) and of windows (the windows engine) follow from the last to the first.  Sums for parameters are those of
an image first, then over images: they do not depend on tiles.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from numbaprims.cpu.program import Bind, Part, Program, Region, array, join, scratch
from numbaprims.cpu.reduce.posed import PosedReduction
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.stack.tiles import over_tiles
from numbaprims.cpu.windows import SOLVERS as WINDOWS
from numbaprims.dispatch.solver import default_config
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.stacks import Gradient
from numbaprims.ops._reduction_problem import Reduction
from numbaprims.ops._stack_gradient import DPARAMETERS, PARAMETERS, At, Box, Segment, Task, tasks
from numbaprims.ops._stack_problem import StackProblem
from numbaprims.stacks.operations import Pointwise

#: Tiles that are enough for any number of workers.
TILES = 64


def whole_gradient(problem: Any) -> Gradient:
    """The formula of one that has no windows."""
    run = tuple(each for each in problem.parsed[0].operations if isinstance(each, Pointwise))
    return Segment(None, run, 0, 0).gradient(problem)


class Way(NamedTuple):
    """A box, and how what is in it is computed."""

    box: Box
    walk: Any = None
    """The solver that walks windows forwards; None where there are none."""

    @classmethod
    def whole(cls, problem: Any) -> Way:
        """All of a stack without windows."""
        return cls(Box(problem, problem.n, problem.c, problem.layout == "channels_last"))

    @property
    def naive(self) -> bool:
        """Whether elements are computed one by one."""
        return bool(self.walk and self.walk.one_by_one)

    def _solver(self, task: Task, target: Any) -> tuple[Any, Any, list[At | None]]:
        """(solver, problem, places of its arrays)"""
        p, arrays = task
        if isinstance(p, StackProblem):
            if self.walk.why_not(p, target) is None:
                return self.walk, dataclasses.replace(p, limit=-1), arrays  # planes are whole: one worker has them
            # a large window
            (y, x, w), (out, source, weights) = p.strides, arrays
            (step,) = p.parsed
            window = step.window
            assert window is not None
            if window.numbers:
                p = self.box.convolution(window, p.size, "forward", x, w, y)
            else:
                p = self.box.pooling(window, p.size, "forward", (y, None, x, None, None))
                arrays = [out, weights, source]
        if Task(p, arrays).convolves:
            from numbaprims.cpu.conv import SOLVERS as CONVOLUTIONS  # one of them is a walk of this package

            takers = [each for each in CONVOLUTIONS if each.why_not(p, target) is None]
            return takers[-1] if self.naive else min(takers, key=lambda one: one.estimate(p, target)), p, arrays
        able = [each for each in WINDOWS if each.why_not(p, target) is None]
        if not self.naive and self.box.last:  # planes of one channel have nothing side by side
            able = [each for each in able if each.name not in ("whole", "planes")]
        return able[-1 if self.naive else 0], p, arrays

    def seconds(self, target: Any) -> float:
        """What one core takes."""
        total = 0.0
        for task in tasks(self.box)[0]:
            if isinstance(task.problem, Reduction):
                total += PosedReduction(task.problem).estimate(target)
            else:
                solver, problem, _ = self._solver(task, target)
                total += solver.estimate(problem, target)
        return total

    def program(self, target: Any) -> Program:
        """The tasks, one after another."""
        parts, (found, used) = [], tasks(self.box)
        for task in found:
            arrays = task.arrays
            if isinstance(task.problem, Reduction):
                made = PosedReduction(task.problem).program(target, naive=self.naive)
            else:
                solver, problem, arrays = self._solver(task, target)
                made = solver.program(problem, target, default_config(solver, problem, target))
            parts.append(Part(made, [_bind(at) for at in arrays], [1.0]))  # a convolution's alpha
        return join(parts, shared=used)


def _bind(at: At | None) -> Bind | None:
    if at is None:
        return None
    return scratch(at.offset) if at.array < 0 else array(*at)


# ---------------------------------------------------------------- tiles


def way_of(problem: Any, target: Any, walk: Any) -> Way:
    """The tile of a stack: as many channels of an image as leave what it keeps in the second-level cache."""
    if walk.one_by_one:
        return Way(Box(problem, 1, 1, True), walk)
    c, last = problem.c, walk.last
    one = lanes(DTYPES[problem.dtype].accumulate, target.vector_bytes) if last else 1
    sizes = [n for n in range(1, c + 1) if c % n == 0 and n % one == 0] or [c]
    least = max(1, problem.n * c // TILES)
    boxes = [Box(problem, 1, n, last) for n in sizes]
    fitting = [box for box in boxes if box.c <= least and tasks(box)[1] <= target.l2 // 2]
    return Way(max(fitting, key=lambda box: box.c, default=boxes[0]), walk)


def whole_seconds(problem: Any, target: Any, walk: Any) -> float:
    """What one core takes for all tiles."""
    way = way_of(problem, target, walk)
    return float(problem.n * (problem.c // way.box.c) * way.seconds(target))


def tiled(problem: Any, target: Any, walk: Any, worth: float) -> Program:
    """The gradient of a stack with windows, a tile at a time; sums of images are added up behind."""
    p, way = problem, way_of(problem, target, walk)
    box = way.box
    compute, wanted = box.compute, len(problem.of_parameters)
    item, blocks = DTYPES[compute].itemsize, p.c // box.c
    apart: dict[int, tuple[int, int]] = {}
    for k, strides in enumerate(p.strides):
        if strides is None:
            continue
        if k == DPARAMETERS:  # of each image its own
            apart[k] = (p.c * wanted * item, box.c * wanted * item)
        elif k == PARAMETERS:
            apart[k] = (0, box.c * strides[0] * item)
        else:
            apart[k] = (strides[0] * DTYPES[p.dtype].itemsize, box.c * strides[1] * DTYPES[p.dtype].itemsize)
    tiles, work = p.n * blocks, whole_seconds(p, target, walk)
    chunk = max(1, min(tiles // 8, int(target.rates.wake * tiles / work)))
    made = over_tiles(way.program(target), p.n, blocks, apart, chunk, work > worth * target.rates.wake)
    of_images = Region("of_images")
    parts = [Part(made, [of_images if k == DPARAMETERS else array(k) for k in range(len(p.strides))], [])]
    if wanted:
        rows = p.c * wanted
        sums = PosedReduction.sum("total", (compute, compute), (rows, p.n), [(1, 0), (1, rows)])
        parts.append(Part(sums.program(target, naive=way.naive), [array(DPARAMETERS), of_images], []))
    return join(parts, shared={"of_images": item * p.n * p.c * wanted})
