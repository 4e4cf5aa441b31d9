"""Gradients of stacks: element-wise ones in one pass, those with windows a block of channels of an image at a time.

In such a tile the operations run again, forwards, and every window's and every run's input stays; then the gradients of
runs (formulas) and of windows (the windows engine) follow from the last to the first.  Sums for parameters are those of
an image first, then over images: they do not depend on tiles.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from numbaprims.cpu.program import Bind, Part, Program, Region, array, join, scratch
from numbaprims.cpu.reduce.posed import PosedReduction
from numbaprims.cpu.stack.tiles import over_tiles
from numbaprims.dispatch.solver import default_config
from numbaprims.dtypes import DTYPES
from numbaprims.ops._reduction_problem import Reduction, mapped
from numbaprims.ops._stack_gradient import DPARAMETERS, PARAMETERS, At, Box, Task, placed, tasks
from numbaprims.ops._stack_problem import StackProblem

#: Tiles that are enough for any number of workers.
TILES = 64
#: Boxes of whole images for each worker.
GRAIN = 4


class Way(NamedTuple):
    """A box, and how what is in it is computed."""

    box: Box
    walk: Any = None
    """The solver that walks windows forwards; None where there are none."""

    @classmethod
    def whole(cls, problem: Any) -> Way:
        """All of a stack: each run and each window for all images before the next."""
        p = problem if problem.backward else placed(problem)
        last = p.layout == "channels_last" and p.c > 1
        return cls(Box(side_by_side(p, last), p.n, p.c, last))

    @property
    def tiles(self) -> int:
        """Boxes of the problem."""
        return int(self.box.problem.n * self.box.problem.c // (self.box.n * self.box.c))

    @property
    def naive(self) -> bool:
        """Whether elements are computed one by one."""
        return bool(self.walk and self.walk.one_by_one)

    def _solver(self, task: Task, target: Any) -> tuple[Any, Any, list[At | None]]:
        """(solver, problem, places of its arrays)"""
        p, arrays = task
        if isinstance(p, StackProblem):
            if self.walk is not None and self.walk.why_not(p, target) is None:
                # of a tile planes are whole: one worker has them
                return self.walk, dataclasses.replace(p, limit=0 if self.tiles == 1 else -1), arrays
            # a large window, or layer by layer
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
        from numbaprims.cpu.windows import SOLVERS as WINDOWS  # likewise

        able = [each for each in WINDOWS if each.why_not(p, target) is None]
        if not self.naive and self.box.last:  # planes of one channel have nothing side by side
            able = [each for each in able if each.name not in ("whole", "planes")]
        if self.walk is None:
            return min(able, key=lambda one: one.estimate(p, target)), p, arrays
        return able[-1 if self.naive else 0], p, arrays

    def seconds(self, target: Any, found: Sequence[Task] | None = None) -> float:
        """What one core takes for its tasks inside of a program; an element alone takes as long as a call."""
        total, entered = 0.0, 0.0 if self.naive else target.rates.call
        for task in tasks(self.box)[0] if found is None else found:
            if isinstance(task.problem, Reduction):
                each = PosedReduction(task.problem).estimate(target)
            else:
                solver, problem, _ = self._solver(task, target)
                each = solver.estimate(problem, target)
            total += max(0.0, each - entered)
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
    """The box of a stack: as many channels of an image as leave what it keeps in the second-level cache.

    Of channels that lie side by side it is whole images, or all of them where they are fewer than workers: some
    channels alone would be lines of 64 bytes that lie apart, for which kernels that follow the order of memory take 2
    to 15 times as long (4 x 64 x 56 x 56, Zen 4).
    """
    p = problem
    if walk.one_by_one:
        return Way(Box(p, 1, 1, True), walk)
    if walk.last:
        workers = max(1, target.cores_logical)
        least = min(p.n, GRAIN * workers) if p.n >= workers else 1
        boxes = [Box(p, n, p.c, True) for n in range(1, p.n + 1) if p.n % n == 0 and p.n // n >= least]
        fitting = [box for box in boxes if tasks(box)[1] <= target.l2 // 2]
        return Way(fitting[-1] if fitting else boxes[0 if p.n >= workers else -1], walk)
    sizes = [n for n in range(1, p.c + 1) if p.c % n == 0]
    least = max(1, p.n * p.c // TILES)
    boxes = [Box(p, 1, n, False) for n in sizes]
    fitting = [box for box in boxes if box.c <= least and tasks(box)[1] <= target.l2 // 2]
    return Way(max(fitting, key=lambda box: box.c, default=boxes[0]), walk)


def side_by_side(problem: Any, last: bool) -> Any:
    """The gradient with parameters, and sums for them, that lie as channels do: else they are taken one by one."""
    p, strides = problem, list(problem.strides)
    if strides[PARAMETERS] is not None and last and strides[PARAMETERS][0] != 1:
        strides[PARAMETERS] = (1, p.c)
    if p.of_parameters:
        strides[DPARAMETERS] = (1, p.c) if last else (len(p.of_parameters), 1)
    return dataclasses.replace(p, strides=tuple(strides))


def whole_seconds(problem: Any, target: Any, walk: Any) -> float:
    """What one core takes for all boxes."""
    way = way_of(side_by_side(problem, walk.last and not walk.one_by_one), target, walk)
    return float(way.tiles * way.seconds(target))


def tiled(problem: Any, target: Any, walk: Any) -> Program:
    """The gradient of a stack with windows, a box at a time."""
    way = way_of(side_by_side(problem, walk.last and not walk.one_by_one), target, walk)
    return boxed(problem, target, way)


def boxed(problem: Any, target: Any, way: Way) -> Program:
    """The gradient of a stack, a box at a time; sums of boxes are added up behind."""
    p, own, box = problem, way.box.problem, way.box
    compute, wanted, images = DTYPES[p.dtype].accumulate, len(p.of_parameters), p.n // box.n
    item, of_sums = DTYPES[compute].itemsize, own.strides[DPARAMETERS]
    copied = own.strides[PARAMETERS] != p.strides[PARAMETERS]
    row = item * p.c * wanted
    shared = {"parameters": item * p.c * p.numbers if copied else 0, "of_boxes": images * row, "of_all": row}
    parameters = Region("parameters")
    of_boxes: Bind | Region = Region("of_boxes")
    binds: list[Bind | Region] = [array(k) for k in range(len(p.strides))]
    parts: list[Part] = []
    if copied:
        binds[PARAMETERS] = parameters
        made = copy(compute, (p.numbers, p.c), (p.c, 1), p.strides[PARAMETERS][::-1], target)
        parts.append(Part(made, [parameters, array(PARAMETERS)], []))
    turns = wanted > 0 and of_sums != p.strides[DPARAMETERS]
    if images > 1 or turns:
        binds[DPARAMETERS] = of_boxes
    made = way.program(target)
    if way.tiles > 1:
        apart: dict[int, tuple[int, int]] = {}
        for k, steps in enumerate(own.strides):
            if steps is None:
                continue
            if k == DPARAMETERS:  # of each box of images its own
                apart[k] = (p.c * wanted * item, box.c * steps[0] * item)
            elif k == PARAMETERS:
                apart[k] = (0, box.c * steps[0] * item)
            else:
                size = DTYPES[p.dtype].itemsize
                apart[k] = (box.n * steps[0] * size, box.c * steps[1] * size)
        work = way.tiles * way.seconds(target)
        made = over_tiles(made, images, p.c // box.c, apart, target.rates, work)
    parts.append(Part(made, binds, []))
    rows, end = p.c * wanted, of_boxes
    if wanted and images > 1:
        end = Region("of_all") if turns else array(DPARAMETERS)
        every = PosedReduction.sum("total", (compute, compute), (rows, images), [(1, 0), (1, rows)])
        parts.append(Part(every.program(target, naive=way.naive), [end, of_boxes], []))
    if turns:
        back = copy(compute, (p.c, wanted), p.strides[DPARAMETERS], of_sums, target)
        parts.append(Part(back, [array(DPARAMETERS), end], []))
    return join(parts, shared=shared)


def copy(dtype: str, shape: Sequence[int], to: Sequence[int], source: Sequence[int], target: Any) -> Program:
    """Elements to where they lie otherwise."""
    return PosedReduction(mapped(Reduction, "cast", dtype, (dtype, dtype), shape, (to, source))).program(target)
