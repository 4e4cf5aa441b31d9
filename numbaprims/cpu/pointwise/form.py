"""What the code of a pointwise kernel depends on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numbaprims.cpu.simd import Arguments

# n: elements of a run; tile: elements of a tile. plan, compute: see blocks.py. first: the place of a run's first
# element among all, in the order of its plan's loops.
ARGS = Arguments(
    arrays=tuple(f"a{i}" for i in range(7)),
    floats=tuple(f"f{i}" for i in range(6)),
    ints=("n", "tile", "plan", "compute", "first"),
)


class Formula(NamedTuple):
    """``function(*operands, *numbers)`` over the CPU's Values gives one Value or several, one for each result.

    It is run once, when a kernel is made: nothing ends a pass, so nothing of it need be a graph.
    """

    function: Callable[..., Any]
    numbers: int = 0
    """The call's floats that it takes."""
    groups: int = 0
    """Where its elements come in groups of so many, counted from the first of all: it then takes, before the operands,
    the form, the place of a step's first element, which begins a group, and the floats as they were given."""


class Operand(NamedTuple):
    """An array of a kernel."""

    slot: int
    """Which of the arrays of a launch."""
    dtype: str
    kind: str = "row"
    """"row": an element for each; "one": one element for all of a run."""


class Form(NamedTuple):
    """A kernel of a formula."""

    formula: str
    """Its name in the primitive's table."""
    compute: str
    """The type that is computed in."""
    results: tuple[Operand, ...]
    operands: tuple[Operand, ...]
    W: int
    """Lanes of a step, which may be several registers: their instructions stand side by side, so that the latency of
    one register's arithmetic hides behind the others'."""
    stream: bool = False
    """Whether the result is written past the caches."""

    @property
    def text(self) -> str:
        arrays = (",".join(":".join(map(str, array)) for array in each) for each in (self.results, self.operands))
        return " ".join((self.formula, self.compute, *arrays, str(self.W), str(int(self.stream))))

    @classmethod
    def parse(cls, text: str) -> Form:
        formula, compute, results, operands, W, stream = text.split(" ")

        def arrays(words: str) -> tuple[Operand, ...]:
            parts = (word.split(":") for word in words.split(",") if word)
            return tuple(Operand(int(slot), dtype, kind) for slot, dtype, kind in parts)

        return cls(formula, compute, arrays(results), arrays(operands), int(W), stream == "1")
