"""The problem of CTC: the loss of a batch of sequences, its gradient, and decoding."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import DTYPES


class Lies(NamedTuple):
    """How the arrays of one call lie, in elements, and what else only `program` needs."""

    x: tuple[int, int, int] = (0, 0, 0)
    """Strides of the log-probabilities over (time, batch, classes)."""
    out: tuple[int, ...] = ()
    """Of the first result."""
    dy: int = 0
    """Of the gradient of the losses; 0 where it is one number."""


@dataclasses.dataclass(frozen=True)
class CtcProblem(Problem):
    """Arrays of a launch: results, log-probabilities (T, N, C), of a gradient dy; then the table of integers.

    Results are "loss": the losses (N,); "backward": dx (T, N, C); "greedy" and "beam": labels (N, paths, T), their
    lengths and scores (N, paths).  The table is int64: steps (N,), and for "loss" and "backward" how many labels (N,)
    and these (N, labels), padded with blanks.
    """

    stem: ClassVar[str] = "ctc"
    way: str
    dtype: str
    steps: int
    batch: int
    classes: int
    labels: int
    """Columns of the table: a multiple of 16, so that batches of other targets are the same problem."""
    logits: bool = False
    """Whether the gradient is that of the scores whose log_softmax the log-probabilities are."""
    width: int = 1
    """Prefixes that a beam search keeps."""
    paths: int = 1
    order: str = "rows"
    """How log-probabilities and their gradient lie: "rows" of classes, or "strided"."""
    blank: int = dataclasses.field(compare=False, default=0)
    mean: bool = dataclasses.field(compare=False, default=False)
    """Whether a loss is divided by its labels and the batch."""
    zero_infinity: bool = dataclasses.field(compare=False, default=False)
    wide: bool = dataclasses.field(compare=False, default=False)
    """Whether losses are in the type that is computed in."""
    lies: Lies = dataclasses.field(compare=False, default=Lies())

    @property
    def empty(self) -> bool:
        return 0 in (self.steps, self.batch)

    @property
    def states(self) -> float:
        return float(self.steps * self.batch * (2 * self.labels + 1))

    def flops(self) -> float:
        if self.way == "beam":
            return float(self.steps * self.batch * (self.classes + 8 * self.width * self.width))
        if self.way == "greedy":
            return float(self.steps * self.batch * self.classes)
        return 4 * self.states if self.way == "loss" else 12 * self.states

    def bytes_moved(self) -> float:
        item, each = DTYPES[self.dtype].itemsize, self.steps * self.batch
        gathered = float(item * each * min(self.classes, self.labels + 1))
        if self.way == "loss":
            return gathered
        every = float(item * each * self.classes)
        return every if self.way != "backward" else every + (every if self.logits else gathered)

    def roundings(self) -> int:
        return 8 * self.steps + 8

    def bench_command(self) -> str:
        kind = "loss --backward" if self.way == "backward" else self.way
        command = f"numbaprims bench ctc --kind {kind} --dtype {self.dtype}"
        return f"{command} --shapes {self.steps}x{self.batch}x{self.classes}x{self.labels}"
