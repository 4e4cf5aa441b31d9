"""Problems of the reduce engine: a formula with reductions over some axes of its operands."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from numbaprims import arrays
from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.reductions import FORMULAS, graph_of
from numbaprims.ops import examples
from numbaprims.ops.primitive import Given, Pose, Result
from numbaprims.shapes import element_strides

#: Strides of one array in elements: along the kept dimensions, along the reduced ones.
Strides = tuple[tuple[int, ...], tuple[int, ...]]


class Operand(NamedTuple):
    """An array of a formula."""

    name: str
    kind: str
    """"row": an element for each element of x; "one": a value for each row, "flat" if neighbouring rows (along the
    innermost kept dimension) have the same; "along": the same row for all rows."""
    dtype: str


@dataclasses.dataclass(frozen=True)
class Reduction(Problem):
    """A formula over rows: each index of the kept dimensions is a row, whose elements the reduced ones count."""

    formula: str
    """Its name in `numbaprims.formulas.reductions`."""
    dtype: str
    kept: tuple[int, ...]
    """Sizes, the outermost first; neighbours that every array walks evenly are one dimension, and there is one at
    least.  Walked in the order of x's memory."""
    reduced: tuple[int, ...]
    layout: str
    """"rows": the innermost reduced dimension is contiguous in every array that has it; "across": the innermost kept
    one is; "strided"."""
    results: tuple[str, ...]
    """"name:kind:dtype" of each array that is written, in the order of a launch and of what the formula returns."""
    inputs: tuple[str, ...]
    """The same of those that are read, in the order of the formula's operands; its numbers follow."""
    strides: tuple[Strides, ...] = dataclasses.field(compare=False)
    """Of each array of a launch, results first."""
    in_place: bool = dataclasses.field(default=False, compare=False)
    """Whether a result lies where an input does (element for element: all of a row is read before its results are
    written only where the formula's passes say so)."""

    @property
    def arrays(self) -> tuple[Operand, ...]:
        """Of a launch, results first."""
        return tuple(Operand(*word.split(":")) for word in (*self.results, *self.inputs))

    @property
    def rows(self) -> int:
        return math.prod(self.kept)

    @property
    def n(self) -> int:
        """Elements of a row."""
        return math.prod(self.reduced)

    @property
    def empty(self) -> bool:
        return self.rows * self.n == 0

    def flops(self) -> float:
        return float(graph_of(self.formula).operations * self.rows * self.n)

    def bytes_moved(self) -> float:
        counts = {"row": self.rows * self.n, "one": self.rows, "flat": 1, "along": self.n}
        return float(sum(counts[array.kind] * DTYPES[array.dtype].itemsize for array in self.arrays))

    def roundings(self) -> int:
        return self.n + 8


def collapse(
    shape: Sequence[int], axes: Sequence[int], strides: Sequence[Sequence[int]], lead: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Strides, ...]]:
    """(kept, reduced, strides) of arrays that were broadcast to one shape, reduced over `axes`.

    Dimensions are walked in the order of the memory of array number `lead`; neighbours that every array walks evenly
    become one.

    >>> collapse((2, 3, 4, 5), (2, 3), [(60, 20, 5, 1), (3, 1, 0, 0)], 0)
    ((6,), (20,), (((20,), (1,)), ((1,), (0,))))
    """
    sizes, steps = [], [([], []) for _ in strides]  # type: ignore[var-annotated]
    for which in (0, 1):
        dims = [
            (shape[axis], [each[axis] for each in strides])
            for axis in range(len(shape))
            if (axis in axes) == bool(which) and shape[axis] != 1
        ]
        dims.sort(key=lambda dim: -abs(dim[1][lead]))
        merged: list[tuple[int, list[int]]] = []
        for length, step in dims:
            if merged and all(outer == inner * length for outer, inner in zip(merged[-1][1], step, strict=True)):
                merged[-1] = (merged[-1][0] * length, step)
            else:
                merged.append((length, step))
        merged = merged or [(1, [0] * len(strides))]
        sizes.append(tuple(length for length, _ in merged))
        for array, own in enumerate(zip(*(step for _, step in merged), strict=True)):
            steps[array][which].extend(own)
    return sizes[0], sizes[1], tuple((tuple(kept), tuple(reduced)) for kept, reduced in steps)


def layout_of(
    kept: tuple[int, ...], reduced: tuple[int, ...], arrays: Sequence[Operand], strides: Sequence[Strides]
) -> str:
    """The layout word of a reduction."""
    n, rows = math.prod(reduced), math.prod(kept)
    long = [each[1][-1] for each, array in zip(strides, arrays, strict=True) if array.kind in ("row", "along")]
    if n == 1 or all(step == 1 for step in long):
        # of one element each, rows lie across where they lie side by side
        if n > 1 or rows == 1:
            return "rows"
    wide = [each[0][-1] for each, array in zip(strides, arrays, strict=True) if array.kind in ("row", "one")]
    if all(step == 1 for step in wide):
        return "across"
    return "rows" if n == 1 else "strided"


class Example:
    """x of a call that poses a stored problem: its shape, the axes that are reduced, arrays of that shape."""

    def __init__(self, problem: Any) -> None:
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
        self._gaps = [
            int(axis > 0 and dims[axis][1] == dims[axis - 1][1] and size > 1) for axis, (size, _) in enumerate(dims)
        ]

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
) -> Pose:
    """What a call of a formula gives, and its problem.

    Rows are those of `shape`, of which `axes` are reduced. An array that broadcasts to it in another shape than its
    own has that in `views`, by the name of the argument or of the formula's result. Arguments are the formula's
    operands by their names; those that it does not have were looked at for their shape only.
    """
    known = FORMULAS[formula]
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
            steps.append(element_strides(np.broadcast_to(x if view is None else x.reshape(view), shape)))
        kept, reduced, strides = collapse(shape, axes, steps, lead)
        operands = [
            each._replace(kind="flat") if each.kind == "one" and not lies[0][-1] and kept[-1] > 1 else each
            for each, lies in zip(everything, strides, strict=True)
        ]
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
