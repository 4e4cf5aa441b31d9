"""The problem of dropout and of random numbers: a function of where an element stands."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import DTYPES


@dataclasses.dataclass(frozen=True)
class RandomProblem(Problem):
    """An array of numbers each of which depends on its place, or a dropout of one."""

    stem: ClassVar[str] = "random"
    kind: str
    """"dropout", "uniform" or "normal"."""
    dtype: str
    n: int
    layout: str
    """"contiguous"; "rows": the innermost loop is contiguous in every array; "strided"."""
    inner: int
    """Length of the innermost loop."""
    in_place: bool
    loops: tuple[int, ...] = dataclasses.field(compare=False)
    """Of all elements, in C order of their places."""
    strides: tuple[tuple[int, ...], ...] = dataclasses.field(compare=False)
    """Of the result and, for dropout, x, in elements."""
    scale: tuple[float, float] = dataclasses.field(compare=False)
    """(start, size) of start + size u, u being uniform between 0 and 1 or normal."""

    @property
    def empty(self) -> bool:
        return self.n == 0

    def flops(self) -> float:
        return float(self.n)

    def bytes_moved(self) -> float:
        return float(self.n * len(self.strides) * DTYPES[self.dtype].itemsize)

    def roundings(self) -> int:
        return 8 if self.kind == "normal" else 2

    def bench_command(self) -> str:
        return f"numbaprims bench random --kind {self.kind} --shapes {self.n} --dtype {self.dtype}"


def in_order(
    shape: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """The fewest loops that walk arrays of one shape in C order, and the strides of each array along them.

    >>> in_order((2, 3, 4), [(12, 4, 1), (24, 8, 2)])
    ((24,), ((1,), (2,)))
    >>> in_order((3, 1, 4), [(1, 9, 3)])
    ((3, 4), ((1, 3),))
    """
    loops: list[tuple[int, tuple[int, ...]]] = []
    for length, *steps in zip(shape, *strides, strict=True):
        if length == 1:
            continue
        if loops and all(outer == step * length for outer, step in zip(loops[-1][1], steps, strict=True)):
            loops[-1] = loops[-1][0] * length, tuple(steps)
        else:
            loops.append((length, tuple(steps)))
    loops = loops or [(1, (1,) * len(strides))]
    return tuple(length for length, _ in loops), tuple(zip(*(steps for _, steps in loops), strict=True))
