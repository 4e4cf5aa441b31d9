"""The problem of a function of elements."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from numbaprims.dispatch.problem import Problem
from numbaprims.ops import reduction
from numbaprims.ops._reduction_problem import mapped
from numbaprims.ops.primitive import Given, Pose, Result
from numbaprims.shapes import element_strides


@dataclasses.dataclass(frozen=True)
class TensorProblem(reduction.Reduction):
    """A function of elements."""

    stem: ClassVar[str] = "tensor"

    def bench_command(self) -> str:
        _, word, kinds = self.formula.split(":")
        op, lies = word.partition(".")[0].replace("truth", "cast"), kinds.split(",")[: 3 if word == "where" else 2]
        alike = set(lies) <= {"row", ""}
        if op == "cast" and len({each.dtype for each in self.arrays}) == 1 and (shape := self._turned()):
            return f"numbaprims bench tensor --kind {shape} --dtype {self.dtype}"
        if self.layout == "strided":
            op += "-turned"
        elif not alike:
            op += "-" + "-".join(lies)
        m, n = (1, self.rows * self.n) if alike and self.layout != "strided" else (self.rows, self.n)
        return f"numbaprims bench tensor --kind {op} --shapes {m}x{n} --dtype {self.dtype}"

    def _turned(self) -> str:
        """The kind and shape of a copy in another order, by x's dimensions; "" of one in the same."""
        *outer, inner = self.kept
        if self.layout != "strided":
            heads = outer and self.strides[1][0][-1] > self.strides[1][0][-2] > 0
            return f"transform-heads --shapes {math.prod(outer[:-1])}x{inner}x{outer[-1]}x{self.n}" if heads else ""
        images = outer and self.strides[1][0][-1] == 1
        return "transform --shapes " + (f"{math.prod(outer)}x{self.n}x{inner}x1" if images else f"{self.n}x{self.rows}")


def broadcast(given: Given) -> tuple[int, ...]:
    shapes = [x.shape for x in given.storages if x is not None]
    try:
        return np.broadcast_shapes(*shapes)
    except (ValueError, RuntimeError) as error:
        words = "; ".join(given.words(at) for at, x in enumerate(given.storages) if x is not None)
        why = "their shapes do not broadcast" if isinstance(error, ValueError) else "at most 32 dimensions broadcast"
        raise ValueError(f"{words}: {why}") from None


def pose(
    given: Given, word: str, shape: tuple[int, ...], result: str, *, stored: Sequence[str] = (), reads: bool = True
) -> Pose:
    """A call of a formula: its inputs in their order; `stored`: how arrays are taken where not as what they are."""
    inputs = [x for x in given.storages if x is not None] if reads else []
    dtypes = list(stored or (result, *(each for each in given.dtypes if each is not None)))[: len(inputs) + 1]
    like = next((at for at, x in enumerate(given.storages) if x is not None and x.shape == shape), None)
    compute = dtypes[-1] if word == "where" else dtypes[1] if inputs else result

    def problem(outs: Sequence[Any]) -> Problem:
        steps = [element_strides(np.broadcast_to(x, shape)) for x in (*outs, *inputs)]
        shared = any(np.may_share_memory(outs[0], x) for x in inputs)
        found: Problem = mapped(TensorProblem, word, compute, dtypes, shape, steps, in_place=shared)
        return found

    return Pose((Result(shape, result, like=like),), problem, None if reads else (0, -1))
