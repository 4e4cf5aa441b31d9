"""The problem of a recurrent network: layers and directions over a batch of sequences."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

from numbaprims.dispatch.problem import Problem
from numbaprims.dtypes import DTYPES

#: Gates of each cell.
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
#: Arrays of a launch before those of the parts, and of each part.
Y, H_N, C_N, GATES_SAVED, SAVED, STATES, X, H0, C0, TABLES, RANDOM, PREPARED, PARTS = range(13)
#: Arrays of a launch of the gradient before those of the parts, which are weights and then their gradients.
DX, DH0, DC0, DY, DH_N, DC_N, B_X, B_GATES, B_SAVED, B_STATES, B_TABLES, B_RANDOM, B_PARTS = range(13)
W_IH, W_HH, B_IH, B_HH, W_HR, PEEPHOLE, PART = range(7)


class Lies(NamedTuple):
    """How the arrays of one call lie, in elements; what `program` needs beyond the problem."""

    x: tuple[int, int, int] = (0, 0, 0)
    """Strides of x over (time, batch, features)."""
    y: tuple[int, int, int] = (0, 0, 1)
    """Of y, of the gradient dx."""
    dy: tuple[int, int, int] = (0, 0, 0)
    """Of dy over (time, batch, features)."""
    given: tuple[int, ...] = ()
    """The arrays of a launch that the call has."""


@dataclasses.dataclass(frozen=True)
class RnnProblem(Problem):
    """``y, h_n(, c_n) = cell(x, weights, h0(, c0))``.

    Arrays of a launch: y (time, batch, width), h_n and c_n (layers * directions, batch, ...); in training what the
    gradient reads, in the type that is computed in but for the states: gates (layers, directions, rows, gates *
    hidden), of an LSTM c and of a GRU the recurrent sum of n (layers, directions, batch + rows, hidden), states
    (layers, batch + rows, directions * state), the first rows of the last two being c0 and h0; x (time, batch, inputs),
    h0, c0, the tables of lengths (`table_parts`), the seed and offset of dropout, what a plan has made of the weights,
    then of each layer and direction w_ih, w_hh, b_ih, b_hh, w_hr and the peepholes.
    """

    stem: ClassVar[str] = "rnn"
    cell: str
    dtype: str
    steps: int
    batch: int
    rows: int
    """The sum of the lengths."""
    inputs: int
    hidden: int
    projected: int
    """The state's width where it is projected, else 0."""
    layers: int
    directions: int
    reverse: bool
    merge: str
    """"concat" or "sum" of two directions."""
    lengths: bool
    """Whether sequences differ in length."""
    reset_after: bool
    skip_input: bool
    clipped: bool
    dropout: bool
    """Whether elements are dropped between layers."""
    way: str
    """"inference", "train" (with what the gradient reads) or "backward"."""
    order: str
    """How x lies: "time" or "batch" is its slowest dimension, "strided", or "packed" rows."""
    weights: str = "given"
    """"given" with the call; "prepared" by a plan, or by one that made them "int8"."""
    lies: Lies = dataclasses.field(compare=False, default=Lies())

    @property
    def gates(self) -> int:
        return GATES[self.cell]

    @property
    def state(self) -> int:
        """The width of h."""
        return self.projected or self.hidden

    @property
    def width(self) -> int:
        """Of y, and of the inputs of all layers but the first."""
        return self.state * (self.directions if self.merge == "concat" else 1)

    def inputs_of(self, layer: int) -> int:
        return self.width if layer else self.inputs

    def has(self, layer: int, direction: int, which: int) -> bool:
        """Whether a part has an array (`W_IH` ...)."""
        return self.number(layer, direction, which) in self.lies.given

    def number(self, layer: int, direction: int, which: int) -> int:
        """The array of a launch."""
        start = B_PARTS if self.way == "backward" else PARTS
        return start + PART * (layer * self.directions + direction) + which

    def gradient(self, layer: int, direction: int, which: int) -> int:
        """The array of a launch of the gradient that holds that of a weight."""
        return self.number(layer, direction, which) + PART * self.layers * self.directions

    @property
    def empty(self) -> bool:
        return 0 in (self.rows, self.hidden)

    def flops(self) -> float:
        """Of the products."""
        h, p, g, total = self.hidden, self.state, self.gates, 0.0
        for layer in range(self.layers):
            inputs = 0 if self.skip_input and not layer else self.inputs_of(layer)
            total += 2.0 * self.directions * self.rows * h * (g * (inputs + p) + self.projected)
        return total * (2.0 if self.way == "backward" else 1.0)

    def bytes_moved(self) -> float:
        item = DTYPES[self.dtype].itemsize
        weights = sum(self.gates * self.hidden * (self.inputs_of(k) + self.state) for k in range(self.layers))
        return float(item * (self.directions * weights + self.rows * (self.inputs + self.width)))

    def roundings(self) -> int:
        found = self.layers * (self.inputs + self.state + 16 * max(1, min(self.steps, 64)))
        # half a step of 127 for half an ulp of 24 bits
        return found << 17 if self.weights == "int8" else found

    def bench_command(self) -> str:
        words = f"numbaprims bench rnn --kind {self.cell} --dtype {self.dtype}"
        words += f" --shapes {self.steps}x{self.batch}x{self.inputs}x{self.hidden}"
        words += "".join(f" --{name} {n}" for name in ("layers", "directions") if (n := getattr(self, name)) > 1)
        return words + " --lengths" * self.lengths + " --backward" * (self.way != "inference")


def table_parts(rows: int, steps: int, batch: int) -> dict[str, int]:
    """Where each table of lengths begins in their array of int64.

    gather: of each packed row its row of x, time * batch + sequence.  scatter: of each such row its packed one, -1
    behind a sequence's end.  offsets: packed rows before each time.  order: sequences, the longest first; inverse:
    their places in it.  last: that place, `batch` further where the forward direction ends in the second of two states.
     before_0 and before_1: of each packed row of a direction the row of states that it came from; first_0 and first_1:
     the packed row
    of each sorted sequence's first step, -1 for none.
    """
    counts = {
        "gather": rows, "scatter": steps * batch, "offsets": steps + 1, "order": batch, "inverse": batch, "last": batch,
        "before_0": rows, "before_1": rows, "first_0": batch, "first_1": batch,
    }  # fmt: skip
    found, at = {}, 0
    for name, count in counts.items():
        found[name] = at
        at += count
    return found | {"": at}
