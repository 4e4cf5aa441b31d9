"""`gemm_1x1`: a convolution with a kernel of one element is a matrix product, and gemm's solvers compute it.

========  ==========================  ====================================================
forward   channels first              y[n] (k, pixels) = w (k, c) x[n] (c, pixels), a batch of n
          channels last               y (pixels, k) = x (pixels, c) w^T (c, k)
data      the same with w^T in the place of w, dy in that of x
weight    channels last, or n = 1     dw (k, c) = dy (k, pixels) x^T (pixels, c)
========  ==========================  ====================================================

Groups are a batch.  A stride of the convolution is one of x; where it leaves the pixels of an image unevenly spaced,
its rows are a batch too, and the solver's estimate tells whether products of one row are worth it.

Nothing is moved: strides say where rows and columns lie.  Its bytes and operations are gemm's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from numbaprims.dispatch.solver import Config, Launcher, default_config
from numbaprims.gpu.gemm import SOLVERS
from numbaprims.gpu.launch import program_of
from numbaprims.gpu.solver import Solver
from numbaprims.ops._gemm_problem import GemmProblem, Strides, _order


def merged(steps: tuple[int, ...], sizes: tuple[int, ...]) -> int | None:
    """The one step between the elements of nested dimensions, None where there is none."""
    kept = [(step, size) for step, size in zip(steps, sizes, strict=True) if size > 1]
    for (outer, _), (inner, size) in zip(kept, kept[1:], strict=False):
        if outer != inner * size:
            return None
    return kept[-1][0] if kept else 0


class Inner(NamedTuple):
    """The product that a convolution is."""

    problem: GemmProblem
    swapped: bool
    """Whether A is the convolution's second operand."""


def inner_problem(problem: Any) -> Inner | str:
    """The product that a convolution is, or a sentence that says why it is none."""
    p, s = problem, problem.strides
    if p.direction == "bias" or p.taps != 1 or p.padding != (0, 0, 0):
        return "the kernel has more than one element, or there is padding"
    if any((outputs - 1) * step >= size for outputs, step, size in zip(p.y_size, p.stride, p.x_size, strict=True)):
        return "padding behind the last pixel makes y larger than x"
    if p.direction == "data" and p.x_size != p.y_size:
        return "a gradient by x with a stride has zeros between its pixels, which no product writes"
    if p.zeros != "none" or p.requantized:
        return "a product knows no zero points and no rescaled integers"
    if p.groups > 1 and p.bias:
        return "the products of a batch share one bias, groups do not"
    x = (*s.x[:2], *(step * stride for step, stride in zip(s.x[2:], p.stride, strict=True)))
    every = (p.n, *p.y_size)
    if p.direction == "weight":
        y_pixel, x_pixel = merged((s.y[0], *s.y[2:]), every), merged((x[0], *x[2:]), every)
        if y_pixel is None or x_pixel is None:
            return "the pixels of all images are not evenly spaced, so that their sum is not one product"
        sizes = (p.group_k, p.group_c, p.n * p.pixels)
        groups = (p.groups, (p.group_k * s.y[1], p.group_c * x[1], p.group_k * s.w[0], p.group_k * s.c[0]))
        return Inner(_problem(p, sizes, (s.y[1], y_pixel), (x_pixel, x[1]), s.w[:2], s.c[:2], "none", [groups]), False)
    forward = p.direction == "forward"
    channels, depth = (p.group_k, p.group_c) if forward else (p.group_c, p.group_k)
    given, result = (x, s.y) if forward else (s.y, s.x)
    w = s.w[:2] if forward else (s.w[1], s.w[0])
    last = result[1] == 1 and channels > 1
    if not last and p.x_dtype == "u8":
        return "of a product of bytes the first matrix is the unsigned one; channels must come last for that"
    # Leading dimensions are the batch until what is left is evenly spaced: images alone, with a stride the rows too.
    arrays = [(steps[0], *steps[2:]) for steps in ((given, result, s.c) if p.has_c else (given, result))]
    cut = next(
        cut
        for cut in range(0 if last else 1, 4)
        if all(merged(steps[cut:], every[cut:]) is not None for steps in arrays)
    )
    source_pixel, out_pixel, c_pixel = (*(merged(steps[cut:], every[cut:]) or 0 for steps in arrays), 0)[:3]
    pixels = math.prod(every[cut:])
    c_steps = (s.c[0], *s.c[2:])
    batch = [(every[i], (arrays[0][i], 0, arrays[1][i], c_steps[i])) for i in range(cut)]
    batch.append((p.groups, (depth * given[1], p.group_k * s.w[0], channels * result[1], channels * s.c[1])))
    if last:
        return Inner(
            _problem(
                p, (pixels, channels, depth), (source_pixel, given[1]), (w[1], w[0]), (out_pixel, result[1]),
                (c_pixel, s.c[1]), "n" if p.bias else "none", batch,
            ),
            False,
        )  # fmt: skip
    swapped = [(size, (steps[1], steps[0], *steps[2:])) for size, steps in batch]
    return Inner(
        _problem(
            p, (channels, pixels, depth), w, (given[1], source_pixel), (result[1], out_pixel), (s.c[1], c_pixel),
            "m" if p.bias else "none", swapped,
        ),
        True,
    )  # fmt: skip


def _problem(
    p: Any, sizes: tuple[int, int, int], a: Any, b: Any, out: Any, c: Any, bias: str,
    batch: Sequence[tuple[int, tuple[int, ...]]],
) -> GemmProblem:  # fmt: skip
    """`batch`: how many, and the steps in a, b, out and c, of each dimension of it; those of one element go."""
    m, n, k = sizes
    kept = [(size, steps) for size, steps in batch if size > 1]
    shape = tuple(size for size, _ in kept)
    steps = tuple(tuple(step[i] for _, step in kept) for i in range(4))
    a_dtype, b_dtype = (p.in_dtype, p.in_dtype) if p.accumulate != "i32" else (p.x_dtype, p.w_dtype)
    return GemmProblem(
        m=m, n=n, k=k, batch=math.prod(shape), a_dtype=a_dtype, b_dtype=b_dtype, out_dtype=p.out_dtype,
        a_order=_order(a[0], a[1], m, k), b_order=_order(b[0], b[1], k, n), out_order=_order(out[0], out[1], m, n),
        has_c=p.has_c, bias=bias, activation=p.activation, scaled=p.scaled, batch_shape=shape,
        strides=Strides(tuple(a), tuple(b), tuple(out), tuple(c), p.strides.bias, steps),
    )  # fmt: skip


def ranked(inner: GemmProblem, target: Any) -> list[Solver]:
    """gemm's solvers that take the product, the quickest by its own estimate first."""
    able = [solver for solver in SOLVERS if solver.why_not(inner, target) is None]
    return sorted(able, key=lambda solver: solver.estimate(inner, target))


class Gemm1x1(Solver):
    """A kernel of one element: a matrix product, by the solver that gemm would choose."""

    name = "gemm_1x1"

    def why_not(self, problem: Any, target: Any) -> str | None:
        found = inner_problem(problem)
        return found if isinstance(found, str) else None

    def _inner(self, problem: Any) -> Inner:
        found = inner_problem(problem)
        assert isinstance(found, Inner)
        return found

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        return tuple({"gemm": solver.name} for solver in ranked(self._inner(problem).problem, target))

    def _solver(self, problem: Any, target: Any, config: Config) -> Solver:
        of_name = {solver.name: solver for solver in ranked(self._inner(problem).problem, target)}
        return of_name[str(config["gemm"])]

    def estimate(self, problem: Any, target: Any) -> float:
        inner = self._inner(problem).problem
        return ranked(inner, target)[0].estimate(inner, target)

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        return None

    def bind(self, problem: Any, target: Any, config: Config) -> Launcher:
        inner, swapped = self._inner(problem)
        solver = self._solver(problem, target, config)
        product = solver.bind(inner, target, default_config(solver, inner, target))

        def launch(out, first, second, c=None, bias=None, packed=None, extra=None, **floats):  # type: ignore[no-untyped-def]
            a, b = (second, first) if swapped else (first, second)
            product(out, a, b, c, bias, **floats)

        launch.program = lambda: program_of(product)  # type: ignore[attr-defined]
        return launch
