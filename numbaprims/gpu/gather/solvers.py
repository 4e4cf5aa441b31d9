"""The ways to put elements elsewhere on a GPU, bound by the bytes that they move."""

from __future__ import annotations

import math
from typing import Any

from numbaprims.dispatch.solver import Config, Launcher
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.gather.kernels import (
    AXES,
    THREADS,
    make_chains,
    make_check,
    make_fold,
    make_gather,
    make_one_hot,
    make_pad,
    make_sums,
)
from numbaprims.gpu.launch import Step, make_launcher, step
from numbaprims.gpu.solver import Solver

LAUNCH = 3e-6
BLOCKS = 8
"""Blocks a multiprocessor: its 2048 threads."""


def _grid(elements: int, target: Any) -> int:
    return max(1, min(-(-elements // THREADS), BLOCKS * target.multiprocessors * 16))


class _Elements(Solver):
    kinds: tuple[str, ...] = ()
    launches = 1

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None if problem.kind in self.kinds else f"it is for {' and '.join(self.kinds)}"

    def estimate(self, problem: Any, target: Any) -> float:
        return float(self.launches * LAUNCH + problem.bytes_moved() / (0.5 * target.bandwidth))


def _pad_step(p: Any, target: Any, out: int, x: int) -> Step:
    """A launch of a pad or its gradient, between two arrays of a call."""
    axes = []
    for axis in p.axes:
        unit = axis.unit
        padded_step, taken = (unit, unit) if unit > 1 else (axis.padded_step, axis.step)
        axes.append((axis.size, axis.first, axis.before, axis.kept, axis.padded, padded_step, taken))
        if unit > 1:
            axes.append((unit, 0, 0, unit, unit, 1, 1))
    axes = [(1, 0, 0, 1, 1, 0, 0)] * (AXES - len(axes)) + axes
    size, first, before, kept, padded, to, of = zip(*axes, strict=True)
    bytes_of = DTYPES[p.dtype].itemsize
    if p.kind == "fold":
        kernel, elements = make_fold(p.dtype, p.mode), p.elements
        fixed = (elements, *size, *first, *before, *kept, *padded, *of, *to)
        return step(kernel, _grid(elements, target), lambda a, f, _: (a[out].pointer, a[x].pointer, *fixed))
    kernel, elements = make_pad(bytes_of, p.mode), p.padded
    offset = bytes_of * sum(a * b for a, b in zip(first, of, strict=True))
    fixed = (elements, *padded, *before, *kept, *to, *of)

    def values(arrays: Any, floats: Any, _: Any) -> tuple[Any, ...]:
        return (arrays[out].pointer, arrays[x].pointer + offset, p.value, *fixed)

    return step(kernel, _grid(elements, target), values)


class Pad(_Elements):
    """Pads, their gradients and parts of an array: each element from its place."""

    name = "elements"
    kinds = ("pad", "fold", "split")

    def why_not(self, problem: Any, target: Any) -> str | None:
        parts = problem.parts if problem.kind == "split" else (problem,)
        if problem.kind in self.kinds and any(len(p.axes) + (p.axes[-1].unit > 1) > AXES for p in parts):
            return f"more than {AXES} axes that do not lie one behind the other"
        return super().why_not(problem, target)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        if problem.kind != "split":
            return make_launcher([_pad_step(problem, target, 0, 1)])
        x = len(problem.sizes[1])
        parts = zip(problem.places, problem.parts, strict=True)
        return make_launcher([_pad_step(part, target, at, x) for at, part in parts])


class Gather(_Elements):
    """Elements by indices, once all of these were checked."""

    name = "gather"
    kinds = ("gather",)
    launches = 2

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        p = problem
        kernel, elements = make_gather(DTYPES[p.dtype].itemsize, p.index), p.written
        return make_launcher([
            step(make_check(p.index), 1, lambda a, f, _: (a[1].pointer, a[3].pointer, p.count, p.size)),
            step(
                kernel, _grid(elements, target),
                lambda a, f, _: (*(each.pointer for each in a[:4]), elements, p.size, p.count, p.inner),
            ),
        ])  # fmt: skip


class Scatter(_Elements):
    """The gradient of elements by indices: sums along chains of equal indices, in their order."""

    name = "scatter"
    kinds = ("scatter",)
    launches = 3

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        p = problem
        elements = p.written
        last = (elements, p.size, p.count, p.inner, p.skip, int(p.mean))
        return make_launcher(
            [
                step(make_check(p.index), 1, lambda a, f, _: (a[1].pointer, a[3].pointer, p.count, p.size)),
                step(
                    make_chains(p.index), _grid(p.size + p.count, target),
                    lambda a, f, at: (at["first"], at["following"], a[3].pointer, p.size, p.count),
                ),
                step(
                    make_sums(p.dtype), _grid(elements, target),
                    lambda a, f, at: (*(each.pointer for each in a[:3]), at["first"], at["following"], *last),
                ),
            ],
            {"first": 8 * p.size, "following": 8 * max(1, p.count)},
        )  # fmt: skip


class OneHot(_Elements):
    """Rows that are on at one place."""

    name = "one_hot"
    kinds = ("one_hot",)

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        p = problem
        elements = math.prod((p.outer, p.size, p.inner))
        kernel = make_one_hot(DTYPES[p.dtype].itemsize, p.index)
        return make_launcher([
            step(
                kernel, _grid(elements, target),
                lambda a, f, _: (a[0].pointer, a[1].pointer, *p.bits, elements, p.size, p.inner),
            )
        ])  # fmt: skip


SOLVERS = (Pad(), Gather(), Scatter(), OneHot())
