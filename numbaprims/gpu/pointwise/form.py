"""What the code of a pointwise kernel depends on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numbaprims.gpu.device.elements import ELEMENT, NUMBER
from numbaprims.gpu.device.emit import types

THREADS = 256
"""Of a block."""
Lanes = list[Any]
"""A Value for each element of a pack."""


class Formula(NamedTuple):
    """``function(*operands, *numbers)`` over the GPU's Values gives one Value or several, one for each result.

    It is run when a kernel is made, once for each element of a pack.
    """

    function: Callable[..., Any]
    numbers: int = 0
    """The call's numbers that it takes."""
    words: int = 0
    """Integers of 32 bits that it takes."""
    packs: bool = False
    """Whether it takes a pack at once: ``function(place, words, operands, numbers, count)`` gives the lanes of each
    result, of lanes of each operand.  `place` is that of the first element among all in the order of the loops, of 64
    bits."""

    def lanes(
        self, place: Any, words: Sequence[Any], operands: Sequence[Lanes], numbers: Sequence[Any], count: int
    ) -> list[Lanes]:
        """Of each result, of a pack of `count` elements."""
        numbers = numbers[: self.numbers]
        if self.packs:
            found: list[Lanes] = self.function(place, words, operands, numbers, count)
            return found
        rows = [self.function(*(each[lane] for each in operands), *numbers) for lane in range(count)]
        return [
            list(column) for column in zip(*(row if isinstance(row, tuple) else (row,) for row in rows), strict=True)
        ]


class Form(NamedTuple):
    """A kernel of a formula; all of it is the kernel's spec."""

    formula: str
    """Its name in the primitive's table."""
    compute: str
    """The type that is computed in, "f32" or "f64"."""
    results: str
    """Types of the arrays that are written: "f32,f32"."""
    operands: str
    """Types of those that are read; "f32:one" is one element for all of a run, where V > 1; "f32:turned" is contiguous
    along the loop before the innermost: the kernel is one of tiles (`turned`)."""
    V: int
    """Elements of a pack: V > 1 lie side by side in every array and begin at a multiple of their bytes."""
    loops: int
    """That an element is found by."""
    wide: bool
    """Indices and strides of 64 bits."""
    U: int = 1
    """Packs of a single run that a thread loads at a time."""

    @property
    def text(self) -> str:
        return " ".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Form:
        formula, compute, results, operands, V, loops, wide, U = text.split(" ")
        return cls(formula, compute, results, operands, int(V), int(loops), wide == "True", int(U))

    @property
    def arrays(self) -> list[tuple[str, str]]:
        """(type, "one" or "turned" or "") of each, results first."""
        words = [word.partition(":") for word in (*self.results.split(","), *self.operands.split(",")) if word]
        return [(dtype, kind) for dtype, _, kind in words]

    @property
    def turned(self) -> bool:
        """Whether an operand is."""
        return ":turned" in self.operands

    @property
    def steps(self) -> int:
        """Strides of each array: that of the innermost loop is known where V > 1."""
        return self.loops - (self.V > 1 and not self.turned)

    def parameters(self, formula: Formula) -> Any:
        """The type of a kernel's parameters, one tuple: pointers, numbers, words, what is divided by to find the loops'
        indices (sizes, of the innermost the items of a run, each with its reciprocal unless indices are wide), strides
        array by array, elements of a run, items of all.

        An item is a pack, or an element of what is left behind the packs of a run.  Of tiles: sizes are those of the
        loops, counted in tiles of the two innermost, and the last two numbers the lengths of the innermost and of the
        one before."""
        index, arrays = types.int64 if self.wide else types.int32, self.arrays
        pointers = [types.CPointer(ELEMENT[dtype]) for dtype, _ in arrays]
        numbers = [NUMBER[self.compute]] * formula.numbers + [types.uint32] * formula.words
        sizes = [index] if self.wide else [index, types.uint32, types.uint32]
        integers = sizes * (self.loops - 1) + [index] * (self.steps * len(arrays) + 2)
        return types.Tuple((*pointers, *numbers, *integers))


def tile_of(form: Form) -> int:
    """Elements of a tile along both loops."""
    return tile_size(max(ELEMENT[dtype].bitwidth // 8 for dtype, _ in form.arrays))


def tile_size(itemsize: int) -> int:
    """As `tile_of`, of the largest elements: 17 KiB of shared memory for an operand at most."""
    return 32 if itemsize > 4 else 64
