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
from numbaprims.gpu.launch import Step, by_alignment, make_launcher, step
from numbaprims.gpu.pointwise.walk import MOST_BLOCKS, divisor, wide_places
from numbaprims.gpu.solver import Solver

LAUNCH = 3e-6


def _grid(elements: int) -> int:
    return max(1, min(-(-elements // THREADS), MOST_BLOCKS))


class _Elements(Solver):
    kinds: tuple[str, ...] = ()
    launches = 1

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None if problem.kind in self.kinds else f"it is for {' and '.join(self.kinds)}"

    def estimate(self, problem: Any, target: Any) -> float:
        return float(self.launches * LAUNCH + problem.bytes_moved() / (0.5 * target.bandwidth))


def _pad_step(p: Any, target: Any, out: int, x: int, packs: bool) -> Step:
    """A launch of a pad or its gradient, between two arrays of a call; `packs`: these are aligned."""
    axes = []
    for axis in p.axes:
        unit = axis.unit
        padded_step, taken = (unit, unit) if unit > 1 else (axis.padded_step, axis.step)
        axes.append((axis.size, axis.first, axis.before, axis.kept, axis.padded, padded_step, taken))
        if unit > 1:
            axes.append((unit, 0, 0, unit, unit, 1, 1))
    count = len(axes)
    axes = [(1, 0, 0, 1, 1, 0, 0)] * (AXES - count) + axes
    size, first, before, kept, padded, to, of = zip(*axes, strict=True)
    bytes_of = DTYPES[p.dtype].itemsize
    far = [
        sum(n * abs(step) for n, step in zip(sizes, steps, strict=True)) for sizes, steps in ((padded, to), (size, of))
    ]
    wide = wide_places(p.padded, *far)
    if p.kind == "fold":
        kernel, elements = make_fold(p.dtype, p.mode, wide), p.elements
        sizes = [each for n in size for each in divisor(n, wide)]
        fixed = (elements, *sizes, *first, *before, *kept, *padded, *of, *to)
        return step(kernel, _grid(elements), lambda a, f, _: (a[out].pointer, a[x].pointer, *fixed))
    W = _pad_width(p) if packs else 1
    kernel = make_pad(bytes_of, p.mode, count, W, wide)
    sizes = [each for n in (*padded[1:-1], padded[-1] // W) for each in divisor(n, wide)]
    kept = (*kept[:-1], kept[-1] // W)
    to, of = ((*(each // W for each in steps[:-1]), steps[-1]) for steps in (to, of))
    offset = bytes_of * sum(a * b for a, b in zip(first, (*(W * each for each in of[:-1]), of[-1]), strict=True))
    fixed = (p.padded // W, *sizes, *before, *kept, *to, *of)

    def values(arrays: Any, floats: Any, _: Any) -> tuple[Any, ...]:
        return (arrays[out].pointer, arrays[x].pointer + offset, p.value, *fixed)

    return step(kernel, _grid(p.padded // W), values)


def _pad_width(p: Any) -> int:
    """Elements of 16 bytes that lie side by side in both arrays, wherever a pack begins; else 1."""
    inner, W = p.axes[-1], 16 // DTYPES[p.dtype].itemsize
    run = inner.unit if inner.unit > 1 else inner.size * (inner.plain and inner.padded_step == inner.step == 1)
    if p.kind == "fold" or run % W or not run:
        return 1
    rest = p.axes if inner.unit > 1 else p.axes[:-1]
    steps = [each for axis in rest for each in ((axis.padded_step, axis.step) if axis.unit == 1 else ())]
    firsts = [axis.first * axis.step for axis in rest if axis.unit == 1]
    return 1 if any(each % W for each in (*steps, *firsts)) else W


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
        split = problem.kind == "split"
        x = len(problem.sizes[1]) if split else 1
        parts = list(zip(problem.places, problem.parts, strict=True) if split else [(0, problem)])

        def launcher(packs: bool) -> Launcher:
            return make_launcher([_pad_step(part, target, at, x, packs) for at, part in parts])

        if all(_pad_width(part) == 1 for _, part in parts):
            return launcher(False)
        return by_alignment(launcher, dict.fromkeys((*(at for at, _ in parts), x), 16))


class Gather(_Elements):
    """Elements by indices, once all of these were checked."""

    name = "gather"
    kinds = ("gather",)
    launches = 2

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        p = problem
        bytes_of = DTYPES[p.dtype].itemsize
        W = 16 // bytes_of
        while p.inner % W:
            W //= 2

        def launcher(whole: bool) -> Launcher:
            lanes = W if whole else 1
            packs, inner = p.written // lanes, p.inner // lanes
            wide = wide_places(packs)
            fixed = (packs, p.size, *divisor(p.count, wide), *divisor(inner, wide))
            steps = [step(make_check(p.index), 1, lambda a, f, _: (a[1].pointer, a[3].pointer, p.count, p.size))]
            if p.size:  # else no index is in range
                kernel = make_gather(bytes_of, lanes, p.index, wide)
                values = lambda a, f, _: (*(each.pointer for each in a[:4]), *fixed)  # noqa: E731
                steps.append(step(kernel, _grid(packs), values))
            return make_launcher(steps)

        return launcher(False) if W == 1 else by_alignment(launcher, {0: W * bytes_of, 2: W * bytes_of})


class Scatter(_Elements):
    """The gradient of elements by indices: sums along chains of equal indices, in their order."""

    name = "scatter"
    kinds = ("scatter",)
    launches = 3

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        p = problem
        elements = p.written
        wide = wide_places(elements)
        last = (elements, *divisor(p.size, wide), p.count, *divisor(p.inner, wide), p.skip, int(p.mean))
        return make_launcher(
            [
                step(make_check(p.index), 1, lambda a, f, _: (a[1].pointer, a[3].pointer, p.count, p.size)),
                step(
                    make_chains(p.index), _grid(p.size + p.count),
                    lambda a, f, at: (at["first"], at["following"], a[3].pointer, p.size, p.count),
                ),
                step(
                    make_sums(p.dtype, wide), _grid(elements),
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
        wide = wide_places(elements)
        kernel = make_one_hot(DTYPES[p.dtype].itemsize, p.index, wide)
        sizes = (*divisor(p.size, wide), *divisor(p.inner, wide))
        return make_launcher([
            step(
                kernel, _grid(elements),
                lambda a, f, _: (a[0].pointer, a[1].pointer, *p.bits, elements, *sizes),
            )
        ])  # fmt: skip


SOLVERS = (Pad(), Gather(), Scatter(), OneHot())
