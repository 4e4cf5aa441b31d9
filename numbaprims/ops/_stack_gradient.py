"""A stack, or its gradient, as problems of other engines, in their order.

Windows and runs of operations forwards, for a gradient as far as it reads what they give; then the gradients of runs
(one formula each) and of windows, from the last to the first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from numbaprims.dtypes import DTYPES
from numbaprims.formulas.stacks import Gradient, name_of
from numbaprims.ops._conv_problem import ConvProblem, ConvStrides, Steps, Triple, order_of
from numbaprims.ops._pooling_problem import PoolingProblem
from numbaprims.ops._reduction_problem import posed
from numbaprims.ops._stack_problem import GRADIENTS, StackProblem
from numbaprims.ops.epilogue import IDENTITY
from numbaprims.stacks.operations import Operation, Pointwise, Size, Window, relu_behind_maxima

DX, DY, X, PARAMETERS, DPARAMETERS, ADDED, DADDED = map(
    GRADIENTS.index, ("dx", "dy", "x", "parameters", "dparameters", "added0", "dadded0")
)
FORWARDS = (DY, X, PARAMETERS, *range(ADDED, DADDED))
"""Where the arrays of a stack forwards are among them."""
LINE = 256
"""Bytes that what is handed on begins at multiples of."""
MOST_ARRAYS = 15
"""Of a formula: what the reduce engine takes on a CPU."""


class At(NamedTuple):
    """Bytes into an array of the launch, or with -1 into the scratch memory."""

    array: int
    offset: int = 0


class Place(NamedTuple):
    """An array: where it is, its strides over (n, c, height, width), its type."""

    at: At
    strides: tuple[int, ...]
    dtype: str


class Segment(NamedTuple):
    """A window, or none, and the element-wise operations behind it."""

    window: Window | None
    run: tuple[Pointwise, ...]
    number: int
    """Parameters in front of the run, a window's own among them, and arrays that are added there."""
    adds: int

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(each.text for each in self.run)

    @property
    def weights(self) -> range:
        """Parameters of the window."""
        return range(self.number - (self.window.numbers if self.window else 0), self.number)

    def of_weights(self, problem: Any) -> bool:
        """Whether the gradients of its weights are wanted: all of them, or none."""
        return any(k in problem.of_parameters for k in self.weights)

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
    if not problem.backward:
        operations = relu_behind_maxima(operations)
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
            number += each.numbers
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
    """What is computed by the tasks: all of a problem's arrays, or a tile, some channels of an image."""

    problem: Any
    n: int
    c: int
    last: bool
    """Whether channels lie side by side in what is handed on."""

    @property
    def compute(self) -> str:
        return DTYPES[self.problem.dtype].accumulate

    def strides(self, size: Size) -> tuple[int, ...]:
        """Of what lies between two operations."""
        h, w = size
        plane = h * w
        return (self.c * plane, 1, w * self.c, self.c) if self.last else (self.c * plane, plane, w, 1)

    # ---------------------------------------------------------------- runs

    def _own(self, segment: Segment, adds: Iterable[int]) -> tuple[list[Any], list[Any], list[At]]:
        """(types, strides, places) of a run's parameters and of arrays that it adds."""
        p, item = self.problem, DTYPES[self.compute].itemsize
        numbers = sum(each.numbers for each in segment.run)
        c_step, step = p.strides[PARAMETERS] or (0, 0)
        places = [At(PARAMETERS, (segment.number + k) * step * item) for k in range(numbers)]
        added = [ADDED + segment.adds + k for k in adds]
        return (
            [*[self.compute] * numbers, *[p.dtype] * len(added)],
            [*[(0, c_step, 0, 0)] * numbers, *(p.strides[k] for k in added)],
            [*places, *map(At, added)],
        )

    def forward(self, segment: Segment, x: Place, out: Place, size: Size) -> Task:
        """A run, and the places of its arrays."""
        p, along = self.problem, self.last and self.c > 1
        dtypes, strides, places = self._own(segment, range(segment.texts.count("add/0")))
        name = name_of(segment.texts, "along" if along else "one")
        # a row is what one parameter is for, or the channels where they lie side by side
        axes = (0, 1, 2, 3) if not strides else (1,) if along else (2, 3)
        found = posed(
            name, [out.dtype, x.dtype, *dtypes], (self.n, self.c, *size), axes,
            [out.strides, x.strides, *strides], in_place=out.at == x.at or (not p.backward and p.in_place),
        )  # fmt: skip
        return Task(found, [out.at, x.at, *places])

    def backward(self, segment: Segment, dy: Place, x: Place, out: Place, size: Size) -> Task:
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
        results = [out.at, *(At(DPARAMETERS, k * step * item) for k in sums), *map(At, arrive)]
        return Task(found, [*results, dy.at, x.at, *places])

    # ---------------------------------------------------------------- windows

    def walked(self, segment: Segment, x: Place, y: Place, size: Size) -> Task:
        """A window forwards."""
        window, weights = segment.window, None
        assert window is not None
        if window.numbers:
            c_step, step = self.problem.strides[PARAMETERS]
            weights = Place(self._weights(segment, PARAMETERS, step), (c_step, step), self.compute)
        layout = "channels_last" if self.last else "channels_first"
        strides = (y.strides, x.strides, weights.strides if weights else (0, 0))
        problem = StackProblem(self.compute, self.n, self.c, size, (window.text,), layout, strides=strides)
        return Task(problem, [y.at, x.at, weights.at if weights else None])

    def window(self, segment: Segment, dy: Place, x: Place, out: Place, size: Size) -> Iterator[Task]:
        """The gradient of a window: by its weights, where they are wanted, and by x."""
        window = segment.window
        assert window is not None
        if window.numbers:
            if segment.of_weights(self.problem):
                c_step, step = self.problem.strides[DPARAMETERS]
                at = self._weights(segment, DPARAMETERS, step)
                made = self.convolution(window, size, "weight", x.strides, (c_step, step), dy.strides)
                yield Task(made, [at, dy.at, x.at])
            c_step, step = self.problem.strides[PARAMETERS]
            at = self._weights(segment, PARAMETERS, step)
            made = self.convolution(window, size, "data", out.strides, (c_step, step), dy.strides)
            yield Task(made, [out.at, dy.at, at])
            return
        needs = window.op == "max"
        strides = (out.strides, None, x.strides if needs else None, dy.strides, None)
        yield Task(
            self.pooling(window, size, "backward", strides), [out.at, None, x.at if needs else None, dy.at, None]
        )

    def _weights(self, segment: Segment, array: int, step: int) -> At:
        """Where a window's weights, or their gradients, begin."""
        first = segment.weights[0]
        if array == DPARAMETERS:
            first = self.problem.of_parameters.index(first)
        return At(array, first * step * DTYPES[self.compute].itemsize)

    def convolution(
        self, window: Window, size: Size, direction: str, x: tuple[int, ...], w: tuple[int, int], y: tuple[int, ...]
    ) -> ConvProblem:
        """A depthwise window as the convolutions have it; the strides of x, of weights (c, number) and of y."""
        c, compute = self.c, self.compute

        def three(values: Size, first: int) -> Triple:
            return (first, *values)

        x_size, y_size, kernel = three(size, 1), three(window.out_size(size), 1), three(window.kernel, 1)
        x_steps, y_steps = (x[0], x[1], 0, x[2], x[3]), (y[0], y[1], 0, y[2], y[3])
        w_steps: Steps = (w[0], 0, 0, w[1] * window.kernel[1], w[1])
        x_order, w_order, y_order = (
            order_of(steps, (*first, *place))
            for steps, first, place in (
                (x_steps, (self.n, c), x_size), (w_steps, (c, 1), kernel), (y_steps, (self.n, c), y_size)
            )
        )  # fmt: skip
        return ConvProblem(
            direction, self.n, c, c, c, x_size, kernel, y_size, three(window.stride, 1), three(window.dilation, 1),
            three(window.before, 0), compute, compute, compute, x_order, w_order, y_order, False, False, IDENTITY,
            False, strides=ConvStrides(x_steps, w_steps, y_steps, (0,) * 5, 0),
        )  # fmt: skip

    def pooling(self, window: Window, size: Size, direction: str, strides: tuple[Any, ...]) -> PoolingProblem:
        """A window as the windows engine has it."""
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


def placed(problem: Any) -> Any:
    """A stack forwards whose arrays have the places of a gradient's, y that of dy: what `tasks` takes."""
    strides = dict(zip(FORWARDS, problem.strides, strict=False))
    if not problem.numbers:
        del strides[PARAMETERS]
    return dataclasses.replace(problem, strides=tuple(map(strides.get, range(len(GRADIENTS)))))


class Task(NamedTuple):
    """A problem: of the reduce engine, of the windows engine, of a convolution, or a stack of one window forwards."""

    problem: Any
    arrays: list[At | None]
    """Of its launch."""

    @property
    def convolves(self) -> bool:
        return isinstance(self.problem, ConvProblem)


def tasks(box: Box) -> tuple[list[Task], int]:
    """What computes a box, in its order, and bytes of scratch memory for what it hands on."""
    p, segments = box.problem, segments_of(box.problem)
    item, used = DTYPES[box.compute].itemsize, 0

    def room(size: Size) -> Place:
        nonlocal used
        at, used = used, used + -(-item * box.n * box.c * math.prod(size) // LINE) * LINE
        return Place(At(-1, at), box.strides(size), box.compute)

    sizes = [p.size]
    for each in segments:
        sizes.append(sizes[-1] if each.window is None else each.window.out_size(sizes[-1]))
    swapped = list[At]()

    def buffer(size: Size, before: Place) -> Place:
        """Of what is handed on, in two buffers that are swapped."""
        other = int(bool(swapped) and before.at == swapped[0])
        if other == len(swapped):
            swapped.append(room(max(sizes, key=math.prod)).at)
        return Place(swapped[other], box.strides(size), box.compute)

    dy = Place(At(DY), p.strides[DY], p.dtype)
    if not p.backward:
        found = _forwards(box, segments, sizes, dy, buffer)
        return found, used
    gradients = [each.gradient(p) if each.run else None for each in segments]
    # what a run and a window are given is needed where the gradient reads it, or something behind is made of it
    of_run, of_window = [False] * len(segments), [False] * (len(segments) + 1)
    for k in reversed(range(len(segments))):
        gradient, window = gradients[k], segments[k].window
        of_run[k] = of_window[k + 1] or (gradient is not None and any(gradient.reads))
        read = window is not None and (window.op == "max" or segments[k].of_weights(p))
        of_window[k] = of_run[k] or read
    found = []
    given, between = [Place(At(X), p.strides[X], p.dtype)], list[Place]()
    for k, (each, size) in enumerate(zip(segments, sizes[1:], strict=True)):
        y = given[-1]
        if each.window is not None and of_run[k]:
            y = room(size)
            found.append(box.walked(each, given[-1], y, sizes[k]))
        between.append(y)
        if each.run and of_window[k + 1]:
            y = room(size)
            found.append(box.forward(each, between[-1], y, size))
        given.append(y)
    dx = Place(At(DX), p.strides[DX], p.dtype)
    for k in reversed(range(len(segments))):
        each, size = segments[k], sizes[k + 1]
        if each.run:
            out = dx if k == 0 and each.window is None else dy if dy.at.array < 0 else buffer(size, dy)
            found.append(box.backward(each, dy, between[k], out, size))
            dy = out
        if each.window is not None:
            out = dx if k == 0 else buffer(sizes[k], dy)
            found += box.window(each, dy, given[k], out, sizes[k])
            dy = out
    return found, used


def _forwards(
    box: Box, segments: Sequence[Segment], sizes: Sequence[Size], y: Place, buffer: Callable[[Size, Place], Place]
) -> list[Task]:
    """Each window, and each run, over the whole box."""
    found, given = list[Task](), Place(At(X), box.problem.strides[X], box.problem.dtype)
    for k, each in enumerate(segments):
        last = k + 1 == len(segments)
        if each.window is not None:
            direct = last and (not each.run or y.dtype == box.compute)
            out = y if direct else buffer(sizes[k + 1], given)
            found.append(box.walked(each, given, out, sizes[k]))
            given = out
        if each.run:
            out = y if last else given if given.at.array < 0 else buffer(sizes[k + 1], given)
            found.append(box.forward(each, given, out, sizes[k + 1]))
            given = out
    return found
