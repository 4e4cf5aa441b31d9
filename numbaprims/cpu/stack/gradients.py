"""Gradients of stacks: element-wise ones in one pass, those with windows a block of channels of an image at a time.

In such a tile the operations run again, forwards, and every window's and every run's input stays; then the gradients of
runs (formulas) and of windows (the windows engine) follow from the last to the first.  Sums for parameters are those of
an image first, then over images: they do not depend on tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from numbaprims.cpu.program import Bind, Part, Program, array, join, scratch
from numbaprims.cpu.reduce.posed import Posed
from numbaprims.cpu.reduce.variant import MOST_ARRAYS
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.stack.tiles import over_tiles
from numbaprims.cpu.windows import SOLVERS as WINDOWS
from numbaprims.dispatch.solver import default_config
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.stacks import Gradient, name_of
from numbaprims.ops._pooling_problem import PoolingProblem
from numbaprims.ops._reduction_problem import posed
from numbaprims.ops._stack_problem import GRADIENTS, StackProblem
from numbaprims.stacks.operations import Operation, Pointwise, Size, Window

DX, DY, X, PARAMETERS, DPARAMETERS, ADDED, DADDED = map(
    GRADIENTS.index, ("dx", "dy", "x", "parameters", "dparameters", "added0", "dadded0")
)
LINE = 64
#: Tiles that are enough for any number of workers.
TILES = 64


class Place(NamedTuple):
    """An array of a tile: where it is, its strides over (n, c, height, width), its type."""

    at: Bind
    strides: tuple[int, ...]
    dtype: str


class Segment(NamedTuple):
    """A window, or none, and the element-wise operations behind it."""

    window: Window | None
    run: tuple[Pointwise, ...]
    number: int
    """Parameters in front of it, and arrays that are added there."""
    adds: int

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(each.text for each in self.run)

    def gradient(self, problem: Any, parameters: str = "one") -> Gradient:
        """That of the run."""
        numbers = range(self.number, self.number + sum(each.numbers for each in self.run))
        adds = range(self.adds, self.adds + self.texts.count("add/0"))
        return Gradient(
            self.texts, parameters, tuple(k - self.number for k in numbers if k in problem.of_parameters),
            tuple(k - self.adds for k in adds if k in problem.of_added),
        )  # fmt: skip


def segments_of(problem: Any) -> tuple[Segment, ...]:
    """The segments of a stack: as long as the reduce engine takes their arrays, and with halves at the ends only."""
    operations: list[Operation] = [each for step in problem.parsed for each in step.operations]
    if DTYPES[problem.dtype].accumulate != problem.dtype:
        end = Pointwise("identity")
        operations = [
            *[end][: isinstance(operations[0], Window)],
            *operations,
            *[end][: isinstance(operations[-1], Window)],
        ]
    found: list[Segment] = []
    number = adds = 0
    for each in operations:
        if isinstance(each, Window):
            found.append(Segment(each, (), number, adds))
            continue
        last = found.pop() if found else Segment(None, (), number, adds)
        longer = last._replace(run=(*last.run, each))
        if last.run and arrays_of(longer.gradient(problem)) > MOST_ARRAYS:
            found += [last, Segment(None, (each,), number, adds)]
        else:
            found.append(longer)
        number += each.numbers
        adds += each.kind == "add"
    return tuple(found)


def arrays_of(gradient: Gradient) -> int:
    """Of a launch."""
    return len(gradient.results) + len(gradient.operands)


class Box(NamedTuple):
    """What one program computes: all of the arrays, or a tile."""

    problem: Any
    n: int
    c: int
    last: bool
    """Whether channels lie side by side."""
    walk: Any = None
    """The solver that walks windows forwards; None where there are none."""

    @property
    def naive(self) -> bool:
        """Whether elements are computed one by one."""
        return bool(self.walk and self.walk.one_by_one)

    @property
    def compute(self) -> str:
        return DTYPES[self.problem.dtype].accumulate

    def strides(self, size: Size) -> tuple[int, ...]:
        """Of what lies between two operations."""
        h, w = size
        plane = h * w
        return (self.c * plane, 1, w * self.c, self.c) if self.last else (self.c * plane, plane, w, 1)

    # ---------------------------------------------------------------- runs

    def _own(self, segment: Segment, adds: Iterable[int]) -> tuple[list[Any], list[Any], list[Bind]]:
        """(types, strides, places) of a run's parameters and of arrays that it adds."""
        p, item = self.problem, DTYPES[self.compute].itemsize
        numbers = sum(each.numbers for each in segment.run)
        c_step, step = p.strides[PARAMETERS] or (0, 0)
        places = [array(PARAMETERS, (segment.number + k) * step * item) for k in range(numbers)]
        added = [ADDED + segment.adds + k for k in adds]
        return (
            [*[self.compute] * numbers, *[p.dtype] * len(added)],
            [*[(0, c_step, 0, 0)] * numbers, *(p.strides[k] for k in added)],
            [*places, *map(array, added)],
        )

    def forward(self, segment: Segment, x: Place, out: Place, size: Size) -> tuple[Posed, list[Bind]]:
        """A run, and the places of its arrays."""
        along = self.last and self.c > 1
        dtypes, strides, places = self._own(segment, range(segment.texts.count("add/0")))
        name = name_of(segment.texts, "along" if along else "one")
        found = posed(
            name, [out.dtype, x.dtype, *dtypes], (self.n, self.c, *size), (1,) if along else (2, 3),
            [out.strides, x.strides, *strides],
        )  # fmt: skip
        return Posed(found), [out.at, x.at, *places]

    def backward(self, segment: Segment, dy: Place, x: Place, out: Place, size: Size) -> tuple[Posed, list[Bind]]:
        """The gradient of a run: dx, sums for its parameters, dy at what it adds, in one pass."""
        p, item = self.problem, DTYPES[self.compute].itemsize
        along = self.last and self.c > 1 and not segment.gradient(p).numbers
        gradient = segment.gradient(p, "along" if along else "one")
        dtypes, strides, places = self._own(segment, gradient.seen)
        sums = [p.of_parameters.index(segment.number + k) for k in gradient.numbers]
        arrive = [DADDED + segment.adds + k for k in gradient.added]
        c_step, step = p.strides[DPARAMETERS] or (0, 0)
        axes = (1,) if along else (0, 2, 3) if sums else (2, 3)
        found = posed(
            gradient.name,
            [out.dtype, *[self.compute] * len(sums), *[p.dtype] * len(arrive), dy.dtype, x.dtype, *dtypes],
            (self.n, self.c, *size), axes,
            [
                out.strides, *[(0, c_step, 0, 0)] * len(sums), *(p.strides[k] for k in arrive), dy.strides, x.strides,
                *strides,
            ],
            in_place=out.at in (dy.at, x.at) or p.in_place,
        )  # fmt: skip
        results = [out.at, *(array(DPARAMETERS, k * step * item) for k in sums), *map(array, arrive)]
        return Posed(found), [*results, dy.at, x.at, *places]

    # ---------------------------------------------------------------- windows

    def walked(self, window: Window, size: Size, x: Place, y: Place) -> StackProblem:
        """A window of the tile, forwards."""
        layout = "channels_last" if self.last else "channels_first"
        return StackProblem(
            self.compute, self.n, self.c, size, (window.text,), layout, strides=(y.strides, x.strides, (0, 0))
        )

    def pooling(self, window: Window, size: Size, direction: str, strides: tuple[Any, ...]) -> PoolingProblem:
        """A window of the tile as the windows engine has it."""
        return PoolingProblem(
            window.op, direction, self.compute, self.n, self.c, size, window.out_size(size), *window[1:6],
            "channels_last" if self.last else "channels_first", count_include_pad=window.count_include_pad,
            strides=strides,
        )  # fmt: skip


def whole(problem: Any) -> Box:
    """All of a stack without windows."""
    return Box(problem, problem.n, problem.c, problem.layout == "channels_last")


def whole_gradient(problem: Any) -> Gradient:
    """The formula of one that has no windows."""
    run = tuple(each for each in problem.parsed[0].operations if isinstance(each, Pointwise))
    return Segment(None, run, 0, 0).gradient(problem)


class Task(NamedTuple):
    """A problem of another engine, or a window forwards, and the places of its arrays."""

    posed: Any
    arrays: list[Bind | None]

    def solver(self, target: Any, box: Box) -> Any:
        """What computes it: of the windows engine's the first; planes of one channel have nothing side by side."""
        if isinstance(self.posed, StackProblem):
            return box.walk
        able = [each for each in WINDOWS if each.why_not(self.posed, target) is None]
        if box.naive:
            return able[-1]
        return next(each for each in able if not box.last or each.name not in ("whole", "planes"))


def tasks(box: Box, target: Any) -> tuple[list[Task], int]:
    """What computes a tile, in its order, and bytes of scratch memory for what it hands on."""
    p, segments = box.problem, segments_of(box.problem)
    item, used = DTYPES[box.compute].itemsize, 0

    def room(size: Size) -> Place:
        nonlocal used
        at, used = used, used + -(-item * box.n * box.c * math.prod(size) // LINE) * LINE
        return Place(scratch(at), box.strides(size), box.compute)

    sizes = [p.size]
    for each in segments:
        sizes.append(sizes[-1] if each.window is None else each.window.out_size(sizes[-1]))
    gradients = [each.gradient(p) if each.run else None for each in segments]
    # what a run and a window are given is needed where the gradient reads it, or something behind is made of it
    of_run, of_window = [False] * len(segments), [False] * (len(segments) + 1)
    for k in reversed(range(len(segments))):
        gradient, window = gradients[k], segments[k].window
        of_run[k] = of_window[k + 1] or (gradient is not None and any(gradient.reads))
        of_window[k] = of_run[k] or (window is not None and window.op == "max")
    found: list[Task] = []
    given, between = [Place(array(X), p.strides[X], p.dtype)], list[Place]()
    for k, (each, size) in enumerate(zip(segments, sizes[1:], strict=True)):
        y = given[-1]
        if each.window is not None:
            y = room(size) if of_run[k] else y
            if of_run[k]:
                x = given[-1]
                walked = box.walked(each.window, sizes[k], x, y)
                if box.walk.why_not(walked, target) is None:
                    found.append(Task(walked, [y.at, x.at]))
                else:
                    forward = box.pooling(each.window, sizes[k], "forward", (y.strides, None, x.strides, None, None))
                    found.append(Task(forward, [y.at, None, x.at]))
        between.append(y)
        if each.run and of_window[k + 1]:
            y = room(size)
            found.append(Task(*box.forward(each, between[-1], y, size)))
        given.append(y)
    dy = Place(array(DY), p.strides[DY], p.dtype)
    dx = Place(array(DX), p.strides[DX], p.dtype)
    for k in reversed(range(len(segments))):
        each, size = segments[k], sizes[k + 1]
        if each.run:
            out = dx if k == 0 and each.window is None else dy if dy.at != array(DY) else room(size)
            found.append(Task(*box.backward(each, dy, between[k], out, size)))
            dy = out
        if each.window is not None:
            x, out = given[k], dx if k == 0 else room(sizes[k])
            needs = each.window.op == "max"
            backward = box.pooling(
                each.window, sizes[k], "backward", (out.strides, None, x.strides if needs else None, dy.strides, None)
            )
            found.append(Task(backward, [out.at, None, x.at if needs else None, dy.at]))
            dy = out
    return found, used


def seconds(box: Box, target: Any) -> float:
    """What one core takes."""
    total = 0.0
    for task in tasks(box, target)[0]:
        posed_ = task.posed
        solver = None if isinstance(posed_, Posed) else task.solver(target, box)
        total += posed_.estimate(target) if solver is None else solver.estimate(posed_, target)
    return total


def program(box: Box, target: Any) -> Program:
    """The tasks of a box, one after another."""
    parts, (found, used) = [], tasks(box, target)
    for task in found:
        posed_ = task.posed
        if isinstance(posed_, Posed):
            made = posed_.program(target, naive=box.naive)
        else:
            solver = task.solver(target, box)
            made = solver.program(posed_, target, default_config(solver, posed_, target))
        parts.append(Part(made, task.arrays, []))
    return join(parts, shared=used)


# ---------------------------------------------------------------- tiles


def box_of(problem: Any, target: Any, walk: Any) -> Box:
    """The tile of a stack: as many channels of an image as leave what it keeps in the second-level cache."""
    if walk.one_by_one:
        return Box(problem, 1, 1, True, walk)
    c, last = problem.c, walk.last
    one = lanes(DTYPES[problem.dtype].accumulate, target.vector_bytes) if last else 1
    sizes = [n for n in range(1, c + 1) if c % n == 0 and n % one == 0] or [c]
    least = max(1, problem.n * c // TILES)
    boxes = [Box(problem, 1, n, last, walk) for n in sizes]
    fitting = [box for box in boxes if box.c <= least and tasks(box, target)[1] <= target.l2 // 2]
    return max(fitting, key=lambda box: box.c, default=boxes[0])


def whole_seconds(problem: Any, target: Any, walk: Any) -> float:
    """What one core takes for all tiles."""
    box = box_of(problem, target, walk)
    return float(problem.n * (problem.c // box.c) * seconds(box, target))


def tiled(problem: Any, target: Any, walk: Any, worth: float) -> Program:
    """The gradient of a stack with windows, a tile at a time; sums of images are added up behind."""
    p, box = problem, box_of(problem, target, walk)
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
    made = over_tiles(program(box, target), p.n, blocks, apart, chunk, work > worth * target.rates.wake)
    binds: Sequence[Bind] = [scratch() if k == DPARAMETERS else array(k) for k in range(len(p.strides))]
    parts = [Part(made, binds, [])]
    if wanted:
        rows = p.c * wanted
        sums = Posed.sum("total", (compute, compute), (rows, p.n), [(1, 0), (1, rows)])
        parts.append(Part(sums.program(target, naive=box.naive), [array(DPARAMETERS), scratch()], []))
    return join(parts, shared=item * p.n * p.c * wanted)
