"""What MIOpen fuses, as its paper says it (Khan et al., MIOpen, 2019, tables I and II): data, and what they ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from numbaprims.fusion.operators import Operator
from numbaprims.ops.activation_kinds import KINDS
from numbaprims.ops.epilogue import NOT_FUSED

#: MIOpen's activation modes, by our names; softplus is its SOFTRELU.
MODES = (
    "identity", "sigmoid", "tanh", "relu", "softplus", "abs", "power", "clipped_relu", "leaky_relu", "elu",
)  # fmt: skip
#: What an epilogue of ours takes.
OURS = tuple(kind for kind in KINDS if kind not in NOT_FUSED)
_RELUS = ("relu", "leaky_relu")


class Row(NamedTuple):
    """A row of a table."""

    combination: str
    """C convolution, B bias, N batch normalisation, A activation."""
    algorithm: str = "-"
    strides: tuple[int, ...] = ()
    paddings: tuple[int, ...] = ()
    """Empty where any will do."""
    filters: tuple[int, int] = (1, 0)
    """The smallest and the largest filter; 0 for no largest."""
    odd: bool = False
    modes: tuple[str, ...] = ()
    activations: tuple[str, ...] = MODES
    factor: int = 0
    """``factor * c >= 18`` is asked of the channels."""
    even: bool = False

    def cells(self) -> list[str]:
        """As the paper prints it."""
        low, high = self.filters
        sizes = range(low, high + 1, 2 if self.odd else 1)
        filters = ", ".join(f"{size}x{size}" for size in sizes) if high else "larger"
        asks = [f"{'' if self.factor == 1 else f'{self.factor} x '}c >= 18"] if self.factor else []
        asks += ["c is even"] if self.even else []
        if self.paddings == (1, 2):
            asks = ["stride and padding must be either 1 or 2"]
        elif self.paddings == (0,):
            asks = ["stride and padding not supported" if self.combination != "NA" else "padding not supported"]
        convolves = "C" in self.combination
        return [
            self.combination, self.algorithm, " and ".join(map(str, self.strides)) if convolves else "-",
            filters if convolves else "-", "All" if self.modes else "N/A",
            "All" if self.activations == MODES else ", ".join(self.activations), " and ".join(asks) or "none",
        ]  # fmt: skip


_BOTH = ("spatial", "per_activation")
_CBNA = Row("CBNA", "Direct", (1, 2), (1, 2), (3, 11), odd=True, modes=_BOTH)
_CBA = Row("CBA", "Direct", (1,), (0,), (1, 1))
_WINOGRAD = tuple(
    Row("CBA", "Winograd", (stride,), (), filters, activations=_RELUS, factor=factor, even=even)
    for stride, filters, factor, even in (
        (1, (1, 2), 1, False), (1, (3, 3), 1, True), (1, (4, 6), 4, False), (1, (7, 9), 12, False),
        (1, (10, 12), 16, False), (1, (13, 0), 0, False),
        (2, (1, 1), 2, False), (2, (2, 6), 4, False), (2, (7, 7), 12, False), (2, (8, 12), 16, False),
        (2, (13, 0), 0, False),
    )
)  # fmt: skip
#: dtype -> rows: table I is that of single precision, table II of half precision.
TABLES = {
    "f32": (_CBNA, _CBA, *_WINOGRAD, Row("NA", modes=_BOTH, paddings=(0,))),
    "f16": (_CBNA, _CBA),
}
HEADINGS = ("Combination", "Conv algorithm", "Stride", "Filters", "Batch norm", "Activations", "Other constraints")


def combination(operators: Sequence[Operator]) -> str:
    """The letters of operators, a question mark for those that MIOpen's combinations do not have."""
    return "".join(operator.letter or "?" for operator in operators)


def _misses(row: Row, operators: Sequence[Any]) -> list[str]:
    """What a row asks for and operators of its combination do not have."""
    wrong = []
    for it in operators:
        if it.kind == "conv":
            stride, kernel = it.geometry.stride[3 - it.geometry.rank :], it.weight_shape[2:]
            low, high = row.filters
            sizes = [size >= low and (not high or size <= high) and (not row.odd or size % 2) for size in kernel]
            if len(kernel) != 2 or len(set(kernel)) > 1 or not all(sizes):
                wrong.append(f"filters {row.cells()[3]}")
            if not set(stride) <= set(row.strides) or len(set(stride)) > 1:
                wrong.append(f"stride {row.cells()[2]}")
            if row.paddings and not {each for pair in it.padding for each in pair} <= set(row.paddings):
                wrong.append(f"padding {' or '.join(map(str, row.paddings))}")
            if set(it.geometry.dilation) > {1} or it.geometry.groups > 1:
                wrong.append("dilation 1 and one group")
            c = it.geometry.c
            if row.factor and row.factor * c < 18 or row.even and c % 2:
                wrong.append(f"{row.cells()[6]} (c is {c})")
        if it.kind == "batch_norm" and (it.mode not in row.modes or it.training):
            wrong.append("batch norm at inference")
        if it.kind == "activation" and it.name not in row.activations:
            wrong.append(f"an activation of {', '.join(row.activations)}")
    return wrong


def verdict(operators: Sequence[Operator]) -> tuple[bool, list[str]]:
    """Whether MIOpen's tables have a plan, and for each row of its combination what it asks for."""
    x = operators[0].x
    letters = combination(operators)
    rows = [row for row in TABLES.get(x.dtype, ()) if row.combination == letters]
    if not rows:
        table = {"f32": "table I", "f16": "table II"}.get(x.dtype, "a table")
        return False, [f"{table} of MIOpen has no {letters} of {x}"]
    found, lines = False, []
    for row in rows:
        wrong = _misses(row, operators)
        if x.layout not in ("NCHW", "NCW", "NCDHW"):
            wrong.append("NCHW")
        found = found or not wrong
        said = f"asks for {'; '.join(wrong)}" if wrong else "takes it"
        lines.append(f"{' '.join(row.cells()[:4])}, {row.cells()[6]}: {said}")
    return found, lines
