"""Gradients of weights and biases that are sums over many pixels: in parts of bounded length, which are then added.

As gemm/long.py: within a part a solver adds as it does, and parts are added pairwise, so that the error does not grow
with the pixels of all images.  A part has whole images; of an image that is larger, whole slices along its first axis.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from numbaprims.cpu import parts
from numbaprims.cpu.gemm.long import end_sum
from numbaprims.cpu.program import Part, Program, Region, array, join
from numbaprims.cpu.solver import Config, Regions, Solver
from numbaprims.dispatch.solver import default_config
from numbaprims.dtypes import DTYPES

MOST = 4 * parts.TERMS
"""Pixels of a part: no solver adds all of them one after the other."""
SOLVERS: list[Solver] = []
"""All that there are, for parts that the chosen one does not take; `numbaprims.cpu.conv` fills it."""


def is_long(problem: Any) -> bool:
    """Whether the pixels that are summed are cut."""
    return problem.direction in ("weight", "bias") and problem.n * problem.pixels > MOST


def _cut(problem: Any) -> Iterator[tuple[Any, int, int]]:
    """(problem of a part, where its pixels of x and of y begin)."""
    p, s = problem, problem.strides
    if p.n > 1:
        images = max(1, MOST // p.pixels)
        for n in range(0, p.n, images):
            part = dataclasses.replace(p, n=min(images, p.n - n))
            for piece, x, y in _cut(part) if is_long(part) else [(part, 0, 0)]:
                yield piece, x + n * s.x[0], y + n * s.y[0]
        return
    axis = next(axis for axis, size in enumerate(p.y_size) if size > 1)
    lines = max(1, MOST * p.y_size[axis] // p.pixels)

    def at(sizes: tuple[int, ...], size: int) -> tuple[int, ...]:
        return (*sizes[:axis], size, *sizes[axis + 1 :])

    for line in range(0, p.y_size[axis], lines):
        count = min(lines, p.y_size[axis] - line)
        start = line * p.stride[axis] - p.padding[axis]
        first = max(0, start)
        reach = start + (count - 1) * p.stride[axis] + (p.kernel[axis] - 1) * p.dilation[axis] + 1
        size = min(reach, p.x_size[axis]) - first
        if size <= 0 and p.direction == "weight":
            continue  # padding alone
        gaps = p.x_order == "planes" and max(p.x_size[:axis], default=1) > 1
        part = dataclasses.replace(
            p, x_size=at(p.x_size, size), y_size=at(p.y_size, count), padding=at(p.padding, first - start),
            x_order="rows" if gaps else p.x_order,
        )  # fmt: skip
        for piece, x, y in _cut(part) if is_long(part) else [(part, 0, 0)]:
            yield piece, x + first * s.x[2 + axis], y + line * s.y[2 + axis]


def _as_part(problem: Any) -> Any:
    """A problem whose result, in the type of sums, lies without gaps and is not ended."""
    p = problem
    z, r, s = p.kernel
    steps = (p.group_c * z * r * s, z * r * s, r * s, s, 1) if p.direction == "weight" else (1, 0, 0, 0, 0)
    return dataclasses.replace(
        p, w_dtype=p.accumulate, w_order="planes", has_c=False, scaled=False,
        activation=dataclasses.replace(p.activation, kind="identity", parameters=()),
        strides=p.strides._replace(w=steps, c=(0,) * 5),
    )  # fmt: skip


def _sum(problem: Any) -> Any:
    """What `end_sum` is told of the result: products of r x s, or of k x 1."""
    p, w, c = problem, problem.strides.w, problem.strides.c
    batch: tuple[int, ...] = ()
    size: tuple[int, ...] = (p.k, 1)
    out, more = (w[0], 1), (c[0], 1)
    if p.direction == "weight":
        batch, size, out, more = (p.k, p.group_c, p.kernel[0]), p.kernel[1:], w[3:], c[3:]
    none = (0,) * len(batch)
    strides = types.SimpleNamespace(
        a=(0, 0), b=(0, 0), out=out, c=more, bias=0, first=(0, 0, 0, 0),
        batch=(none, none, w[: len(batch)], c[: len(batch)]),
    )  # fmt: skip
    dtype = p.in_dtype
    return types.SimpleNamespace(
        m=size[0], n=size[1], k=0, batch=int(np.prod(batch, dtype=np.int64)), batch_shape=batch, strides=strides,
        a_dtype=dtype, b_dtype=dtype, out_dtype=p.w_dtype, c_dtype=p.w_dtype, accumulate=p.accumulate, bias="none",
        has_c=p.has_c, activation=p.activation, requantized=False,
    )  # fmt: skip


def _able(solver: Solver, problem: Any, target: Any) -> Solver:
    """The solver, or the best one for a part that it does not take."""
    if solver.why_not_asked(problem, target) is None:
        return solver
    others = [other for other in SOLVERS if other.why_not(problem, target) is None]
    return min(others, key=lambda other: other.estimate(problem, target))


def _elements(problem: Any) -> int:
    """Of the result."""
    return int(problem.k * (problem.group_c * problem.taps if problem.direction == "weight" else 1))


def in_parts(cls: type[Solver]) -> type[Solver]:
    """Let a solver of gradients take any number of pixels: many in parts."""
    program, room = cls.program, cls.workspace

    @functools.wraps(room)
    def workspace_of(self: Any, problem: Any, target: Any, config: Config) -> int:
        if not is_long(problem):
            return room(self, problem, target, config)
        bytes_ = []
        for part, _, _ in _cut(_as_part(problem)):
            solver = _able(self, part, target)
            bytes_.append(solver.workspace(part, target, default_config(solver, part, target)))
        parts = len(bytes_) * _elements(problem) * DTYPES[problem.accumulate].itemsize
        return Regions({"parts": parts}).nbytes + max(bytes_, default=0)

    @functools.wraps(program)
    def in_parts(self: Any, problem: Any, target: Any, config: Config) -> Program:
        if not is_long(problem):
            return program(self, problem, target, config)
        step = _elements(problem) * DTYPES[problem.accumulate].itemsize
        steps: list[Part] = []
        made: dict[Any, Program] = {}
        for part, x, y in _cut(_as_part(problem)):
            key = part.n, part.x_size, part.y_size, part.padding
            if key not in made:
                solver = _able(self, part, target)
                made[key] = solver.program(part, target, default_config(solver, part, target))
            first = array(1, y * DTYPES[problem.y_dtype].itemsize)
            second = array(2, x * DTYPES[problem.x_dtype].itemsize)
            steps.append(Part(made[key], [Region("parts", len(steps) * step), first, second], [1.0]))
        count = len(steps)
        end = end_sum(_sum(problem), target, count)
        steps.append(Part(end, [array(0), None, None, array(3), None, Region("parts")], range(5)))
        return join(steps, shared={"parts": count * step})

    cls.workspace, cls.program = workspace_of, in_parts  # type: ignore[method-assign]
    return cls
