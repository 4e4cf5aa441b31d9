"""Problems of the reduce engine: a formula with reductions over some axes of its operands."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import DTYPES
from numbaprims.formulas.maps import MAP
from numbaprims.formulas.reductions import graph_of, named

#: Strides of one array in elements: along the kept dimensions, along the reduced ones.
Strides = tuple[tuple[int, ...], tuple[int, ...]]


class Operand(NamedTuple):
    """An array of a formula."""

    name: str
    kind: str
    """"row": an element for each element of x; "one": a value for each row, "flat" if neighbouring rows (along the
    innermost kept dimension) have the same; "along": the same row for all rows; "run": a value for each run of
    the innermost reduced dimension; "column", of results: a sum over the rows of a block for each element of a row."""
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
    def compute(self) -> str:
        """The type that is computed in: float32 for 16 bits and fewer, unless a position needs more digits."""
        return "f64" if (self.formula == "hardmax" or self.places) and self.n > 1 << 24 else self.numbers

    @property
    def places(self) -> bool:
        """Whether results are the places of elements."""
        return any(word.endswith(":i64") for word in self.results)

    @property
    def numbers(self) -> str:
        """The type in which elements are computed."""
        return "f64" if self.dtype in ("f64", "i32", "i64") else "f32"

    @property
    def empty(self) -> bool:
        return self.rows * self.n == 0

    def flops(self) -> float:
        return float(graph_of(self.formula).operations * self.rows * self.n)

    def bytes_moved(self) -> float:
        counts = {"one": self.rows, "flat": 1, "along": self.n}
        counts["run"] = self.rows * self.n // max(1, self.reduced[-1])
        counts["column"] = -(-self.rows // block_rows(self.rows)) * self.n
        sizes = (*self.kept, *self.reduced)

        def count(kind: str, lies: Strides) -> int:
            if kind in counts:
                return counts[kind]
            # one row may stand for many
            steps = (*lies[0], *lies[1])
            return math.prod(size for size, step in zip(sizes, steps, strict=True) if step or size < 2)

        return float(
            sum(
                count(array.kind, lies) * DTYPES[array.dtype].itemsize
                for array, lies in zip(self.arrays, self.strides, strict=True)
            )
        )

    def roundings(self) -> int:
        return self.n + 8


def block_rows(rows: int) -> int:
    """Rows of a block, whose columns are summed up: enough blocks for every worker, and few of them to add up then."""
    return max(8, min(64, -(-rows // 16)))


def collapse(
    shape: Sequence[int],
    axes: Sequence[int],
    strides: Sequence[Sequence[int]],
    lead: int,
    ordered: bool = False,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Strides, ...]]:
    """(kept, reduced, strides) of arrays that were broadcast to one shape, reduced over `axes`.

    Dimensions are walked in the order of the memory of array number `lead`, those that it is broadcast over right
    outside of the one whose elements lie side by side; neighbours that every array walks evenly become one.
    `ordered`: the reduced ones keep their order, which positions count in.

    >>> collapse((2, 3, 4, 5), (2, 3), [(60, 20, 5, 1), (3, 1, 0, 0)], 0)
    ((6,), (20,), (((20,), (1,)), ((1,), (0,))))
    >>> collapse((4, 5), (0, 1), [(1, 0)], 0)
    ((1,), (5, 4), (((0,), (0, 1)),))
    """
    sizes, steps = [], [([], []) for _ in strides]  # type: ignore[var-annotated]
    for which in (0, 1):
        dims = [
            (shape[axis], [each[axis] for each in strides])
            for axis in range(len(shape))
            if (axis in axes) == bool(which) and shape[axis] != 1
        ]
        if not (which and ordered):
            dims.sort(key=lambda dim: -(abs(dim[1][lead]) or 1.5))
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


#: Of the same size, for elements that are moved: the bits are those.
BITS = {"i64": "f64", "i32": "f32", "bool": "u8"}


def mapped(
    cls: type[Any], word: str, dtype: str, dtypes: Sequence[str], shape: Sequence[int],
    strides: Sequence[Sequence[int]], *, in_place: bool = False,
) -> Any:  # fmt: skip
    """The problem of a formula of `numbaprims.formulas.maps`: rows are the innermost run of the result.

    Arrays, the result first, have a stride of 0 along what they broadcast over; `dtype` is computed in.
    """
    sizes, _, steps = collapse(shape, (), strides, 0)
    kept, reduced = sizes[:-1] or (1,), sizes[-1:]
    lies = tuple((each[0][:-1] or (0,), each[0][-1:]) for each in steps)
    kinds = ["one" if inner == (0,) else "along" if not any(own) else "row" for own, inner in lies]
    kinds[0] = "row"
    if set(kinds[1:]) == {"one"}:
        kinds[1] = "row"  # a row of equal elements
    kinds = ["row" if kind == "along" and math.prod(kept) == 1 else kind for kind in kinds]
    names = ("y", *"abcdef")
    arrays = [Operand(name, kind, each) for name, kind, each in zip(names, kinds, dtypes, strict=False)]
    layout = layout_of(kept, reduced, arrays, lies)
    words = tuple(":".join(each) for each in flattened(arrays, kept, lies))
    formula = f"{MAP}{word}:{','.join(kinds[1:])}"
    return cls(formula, dtype, kept, reduced, layout, words[:1], words[1:], lies, in_place)


def posed(
    formula: str, dtypes: Sequence[str], shape: Sequence[int], axes: Sequence[int], strides: Sequence[Sequence[int]],
    *, in_place: bool = False,
) -> Reduction:  # fmt: skip
    """The problem of a formula that another primitive poses, its results first in `dtypes` and `strides`.

    An array has a stride of 0 along what it broadcasts over; memory is walked as the first operand lies.
    """
    known = named(formula)
    outs = len(known.results)
    arrays = [Operand(*each, dtype) for each, dtype in zip((*known.results, *known.operands), dtypes, strict=True)]
    kept, reduced, steps = collapse(shape, axes, strides, outs)
    arrays = flattened(arrays, kept, steps)
    words = tuple(":".join(each) for each in arrays)
    layout = layout_of(kept, reduced, arrays, steps)
    return Reduction(formula, dtypes[outs], kept, reduced, layout, words[:outs], words[outs:], steps, in_place)


def flattened(arrays: Sequence[Operand], kept: tuple[int, ...], strides: Sequence[Strides]) -> list[Operand]:
    """The arrays, of which those that neighbouring rows share are "flat"."""
    return [
        each._replace(kind="flat") if each.kind == "one" and not lies[0][-1] and kept[-1] > 1 else each
        for each, lies in zip(arrays, strides, strict=True)
    ]
