"""Calls that pose problems of the reduce engine: a formula with reductions over some axes of its operands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from numbaprims import arrays
from numbaprims.dispatch.problem import Problem
from numbaprims.formulas.reductions import named
from numbaprims.ops import examples
from numbaprims.ops._reduction_problem import (
    Operand,
    Reduction as Reduction,
    block_rows as block_rows,
    collapse,
    flattened,
    layout_of,
)
from numbaprims.ops.primitive import Given, Pose, Result
from numbaprims.shapes import element_strides


class Example:
    """x of a call that poses a stored problem: its shape, the axes that are reduced, arrays of that shape."""

    def __init__(self, problem: Any, *, apart: bool = False) -> None:
        """`apart`: rows lie with gaps between them."""
        kept, reduced = tuple(problem.kept), tuple(problem.reduced)
        self.layout: str = problem.layout
        inner, outer = (kept, reduced) if self.layout == "across" else (reduced, kept)
        depth = max(len(inner), len(outer))
        dims: list[tuple[int, bool]] = []
        # outer and inner dimensions by turns, so that they do not lie side by side where that can be helped
        for at in range(depth):
            for sizes, is_inner in ((outer, False), (inner, True)):
                place = at - depth + len(sizes)
                if place >= 0:
                    dims.append((sizes[place], is_inner == (self.layout != "across")))
        self.shape = tuple(size for size, _ in dims)
        self.axes = tuple(axis for axis, (_, is_reduced) in enumerate(dims) if is_reduced)
        # two of a kind side by side would be one without a gap behind the second
        self._gaps, before = [0] * len(dims), None
        for axis, (size, which) in enumerate(dims):
            if size > 1:
                self._gaps[axis], before = int(which == before or (apart and before is not None)), which

        if self.layout == "rows" and math.prod(reduced) == 1 and math.prod(kept) > 1:
            self._gaps[-1] = 1  # rows of one element lie apart, or they would lie across

    def array(self, dtype: str, **bounds: float) -> Any:
        """An array that lies as the problem's rows do."""
        shape = [size + gap for size, gap in zip(self.shape, self._gaps, strict=True)]
        index = [slice(0, size) for size in self.shape]
        if self.layout == "strided":
            shape[-1], index[-1] = 2 * self.shape[-1] + 2, slice(0, 2 * self.shape[-1], 2)
        return examples.array(tuple(shape), dtype, **bounds)[tuple(index)]

    def permuted(self, order: Sequence[int], dtype: str, **bounds: float) -> Any:
        """The same with its axes in another order."""
        x = self.array(dtype, **bounds)
        return x.permute(order) if hasattr(x, "permute") else x.transpose(order)


def pose(
    cls: type[Reduction],
    given: Given,
    formula: str,
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    results: Sequence[Result],
    views: Mapping[str, tuple[int, ...]],
    ordered: bool = False,
) -> Pose:
    """What a call of a formula gives, and its problem.

    Rows are those of `shape`, of which `axes` are reduced. An array that broadcasts to it in another shape than its
    own has that in `views`, by the name of the argument or of the formula's result. Arguments are the formula's
    operands by their names; those that it does not have were looked at for their shape only.
    `ordered`: positions count the reduced axes in their order.
    """
    known = named(formula)
    operands = [(name, kind) for name, kind in known.operands if kind != "number"]
    places = {name: at for at, name in enumerate(given.names) if given.storages[at] is not None}
    for name, _ in operands:
        if name not in places:
            arrays.enter(None, name)  # says what it must be
    inputs = [given.storages[places[name]] for name, _ in operands]
    everything = [Operand(name, kind, made.dtype) for (name, kind), made in zip(known.results, results, strict=True)]
    everything += [Operand(name, kind, given.dtypes[places[name]]) for name, kind in operands]  # type: ignore[arg-type]
    rows = [at for at, array in enumerate(everything) if array.kind == "row"]
    # memory is walked as what is read lies
    lead = next((at for at in rows if at >= len(results)), rows[0])

    def problem(outs: Sequence[Any]) -> Problem:
        steps = []
        for array, x in zip(everything, (*outs, *inputs), strict=True):
            view = views.get(array.name)
            if array.kind == "column":
                x, view = x[0], None
            steps.append(element_strides(np.broadcast_to(x if view is None else x.reshape(view), shape)))
        kept, reduced, strides = collapse(shape, axes, steps, lead, ordered)
        operands = flattened(everything, kept, strides)
        words = tuple(":".join(each) for each in operands)
        return cls(
            formula=formula,
            dtype=everything[lead].dtype,
            kept=kept,
            reduced=reduced,
            layout=layout_of(kept, reduced, operands, strides),
            results=words[: len(results)],
            inputs=words[len(results) :],
            strides=strides,
            in_place=any(np.may_share_memory(out, x) for out in outs for x in inputs),
        )

    order = [name for name, _ in operands]
    slots = tuple(len(results) + order.index(name) if name in order else -1 for name in places)
    every = (*range(len(results)), *slots)
    return Pose(tuple(results), problem, None if every == tuple(range(len(every))) else every)
