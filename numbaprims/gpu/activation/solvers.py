"""The solvers of activations on a GPU.  Every one is bound by the bytes that it moves (see `kernels`)."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.activation.dispatch import BACKWARD_CODES, FORWARD_CODES, SWITCH
from numbaprims.gpu.activation.kernels import LOOPS, THREADS, lanes, make_contiguous, make_loops
from numbaprims.gpu.launch import aligned, make_launcher, step
from numbaprims.gpu.reduce.posed import solver_of
from numbaprims.gpu.solver import Solver
from numbaprims.ops._reduction_problem import posed
from numbaprims.ops.activation_kinds import KINDS, SPECIAL

#: Operands by name -> the place of their array in a launch; glu's gate is the second half of x, and dgate of out.
PLACES = {"out": 0, "x": 1, "dy": 2, "y": 3, "weight": 4, "gate": 1, "dgate": 0}
#: Elements of one launch: indices are 32 bits, and a thread's last step must not wrap around.
MOST = 1 << 30
LAUNCH = 3e-6
BLOCKS = 8
"""Blocks a multiprocessor: its 2048 threads."""


class Form:
    """Which kernel a problem takes, and which of the launch's arrays are its operands."""

    def __init__(self, problem: Any) -> None:
        kind, operands = problem.kind, problem.operands
        self.kernel, self.code = kind, 0
        outs = ["out", "out"]
        if problem.direction == "forward":
            other = [name for name in ("gate", "weight") if name in operands]
            self.operation, inputs = ("binary", ["x", *other]) if other else ("forward", ["x"])
            codes = {} if other else FORWARD_CODES
        elif kind == "glu":
            self.operation, inputs, codes = "glu_backward", ["dy", "x", "gate"], {}
            outs = ["out", "dgate"]
        elif "weight" in operands:
            self.operation, inputs, codes = "prelu_backward", ["dy", "x", "weight"], {}
        else:
            reads = KINDS[SPECIAL.get(kind, kind)].reads or "dy"
            self.operation, inputs, codes = "backward", ["dy", reads], BACKWARD_CODES
        if kind in codes:
            self.kernel, self.code = SWITCH, codes[kind]
        self.names = outs + inputs
        """The five operands of a kernel; those that it does not use are repetitions."""
        self.names += inputs[-1:] * (5 - len(self.names))
        self.places = [PLACES[name] for name in self.names]
        self.used = len(inputs)


def grid_of(threads: int, target: Any) -> int:
    """Blocks for so many threads; those beyond what is resident take a turn more instead."""
    return max(1, min(-(-threads // THREADS), BLOCKS * target.multiprocessors))


def seconds(problem: Any, target: Any, efficiency: float) -> float:
    """A launch, and the bytes at a part of the memory's speed."""
    return float(LAUNCH + problem.bytes_moved() / (efficiency * target.bandwidth))


class _Elementwise(Solver):
    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.direction == "weight":
            return "it computes one result for each element, and this is a sum"
        return None


class Vector(_Elementwise):
    """Contiguous arrays: 16 bytes a thread and access."""

    name = "vector"

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.layout != "contiguous":
            return super().why_not(problem, target) or "the arrays are not contiguous in one order of dimensions"
        return super().why_not(problem, target)

    def estimate(self, problem: Any, target: Any) -> float:
        return seconds(problem, target, 0.9)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        form = Form(problem)
        size = DTYPES[problem.dtype].itemsize

        def launcher(V: int) -> Launcher:
            kernel = make_contiguous(form.operation, form.kernel, problem.dtype, V)
            steps = []
            for start in range(0, problem.n, MOST):
                n = min(MOST, problem.n - start)
                steps.append(step(kernel, grid_of(-(-n // V), target), _contiguous_values(form, start * size, n)))
            return make_launcher(steps)

        return _by_alignment(form, launcher, lanes(problem.dtype))


def _contiguous_values(form: Form, offset: int, n: int) -> Callable[..., tuple[Any, ...]]:
    o, d, a, b, c = form.places
    code = form.code

    def values(arrays: Any, floats: Any, _: Any) -> tuple[Any, ...]:
        return (
            arrays[o].pointer + offset, arrays[d].pointer + offset, arrays[a].pointer + offset,
            arrays[b].pointer + offset, arrays[c].pointer + offset, n, code, floats[0], floats[1], floats[2],
        )  # fmt: skip

    return values


def _by_alignment(form: Form, launcher: Callable[[int], Launcher], V: int) -> Launcher:
    """A launcher of 16-byte accesses where the arrays of a call allow them, else of single elements."""
    make = functools.cache(launcher)
    make(V)
    o, d, a, b, c = form.places

    def launch(a0, a1=None, a2=None, a3=None, a4=None, a5=None, a6=None, f0=0.0, f1=0.0, f2=0.0):  # type: ignore[no-untyped-def]
        given = (a0, a1, a2, a3, a4, a5, a6)
        whole = aligned(16, given[o], given[d], given[a], given[b], given[c])
        make(V if whole else 1)(a0, a1, a2, a3, a4, a5, a6, f0, f1, f2)

    launch.program = make(V).program  # type: ignore[attr-defined]
    return launch


class Rows(_Elementwise):
    """Runs of contiguous elements: 16 bytes an access where every run begins at a multiple of them.

    The last operand may have one value a run, as prelu's slope of a channel has.
    """

    name = "rows"

    def why_not(self, problem: Any, target: Any) -> str | None:
        refusal = super().why_not(problem, target)
        if refusal is None and row_width(problem, Form(problem)) == 0:
            return "an array is not contiguous along the innermost loop"
        return refusal

    def estimate(self, problem: Any, target: Any) -> float:
        wide = row_width(problem, Form(problem)) > 1
        return seconds(problem, target, 0.8 if wide else 0.5 if DTYPES[problem.dtype].itemsize > 2 else 0.3)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        form = Form(problem)
        make = functools.partial(loops_launcher, problem, target, form)
        width = row_width(problem, form)
        return make(1) if width == 1 else _by_alignment(form, make, width)


class Naive(_Elementwise):
    """One element at a time, wherever it lies; refuses nothing."""

    name = "naive"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        # a sector of 32 bytes for each element of each operand
        moved = 32.0 * problem.n * len(problem.operands)
        return float(2 * LAUNCH + max(moved, problem.bytes_moved()) / (0.8 * target.bandwidth))

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        if problem.direction == "weight":
            return CHANNEL_SUMS.bind(problem, target, config)
        return loops_launcher(problem, target, Form(problem), 1)


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


def _operand_loops(problem: Any, form: Form) -> list[tuple[tuple[int, ...], int]]:
    """(strides, offset) of the five operands of a kernel."""
    loops = problem.loops
    return [(loops.strides[which], loops.offsets[which]) for which in map(problem.operands.index, form.names)]


def row_width(problem: Any, form: Form) -> int:
    """Elements of an access along the innermost loop: 16 bytes, or 1, or 0 where a run is not contiguous."""
    V = lanes(problem.dtype)
    wide = True
    last = 1 + form.used
    for place, (strides, offset) in enumerate(_operand_loops(problem, form)):
        if place == last and form.used > 1 and strides[-1] == 0:
            continue
        if strides[-1] != 1:
            return 0
        wide &= offset % V == 0 and all(stride % V == 0 for stride in strides[:-1])
    return V if wide and problem.inner >= V else 1


def loops_launcher(problem: Any, target: Any, form: Form, V: int) -> Launcher:
    """A launcher of the kernel over loops; loops that it does not walk are walked here."""
    operands = _operand_loops(problem, form)
    size = DTYPES[problem.dtype].itemsize
    shape = problem.loops.shape
    last = operands[1 + form.used][0]
    broadcast = V > 1 and form.used > 1 and last[-1] == 0
    kernel = make_loops(form.operation, form.kernel, problem.dtype, V, broadcast)
    outside = max(0, len(shape) - LOOPS)
    # the loop in which a launch begins: cut where there are more elements than one takes
    length, rest = shape[outside], math.prod(shape[outside + 1 :])
    piece = min(length, max(1, MOST // rest))
    steps = []
    for index in itertools.product(*map(range, shape[:outside]), range(0, length, piece)):
        starts = [
            size * (offset + sum(i * stride for i, stride in zip(index, strides, strict=False)))
            for strides, offset in operands
        ]
        inside = (min(piece, length - index[-1]), *shape[outside + 1 :])
        ones = LOOPS - len(inside)
        inside = (1,) * ones + inside
        across = -(-inside[-1] // V)
        total = math.prod(inside[:-1]) * across
        steps_of = (s for strides, _ in operands for s in ((0,) * ones + strides[outside:]))
        fixed = (total, across, *inside[1:], *steps_of)
        steps.append(step(kernel, grid_of(total, target), _loops_values(form, starts, fixed)))
    return make_launcher(steps)


def _loops_values(form: Form, starts: list[int], fixed: tuple[int, ...]) -> Callable[..., tuple[Any, ...]]:
    code, places = form.code, list(zip(form.places, starts, strict=True))

    def values(arrays: Any, floats: Any, _: Any) -> tuple[Any, ...]:
        pointers = [arrays[place].pointer + start for place, start in places]
        return (*pointers, code, floats[0], floats[1], floats[2], *fixed)

    return values


CHANNEL_SUMS = ChannelSums()
SOLVERS = (Vector(), Rows(), CHANNEL_SUMS, Naive())
