"""The end of a step: what becomes of the sums of a group's gates.

A *kind* is a product of the time loop with its end.  "lstm", "gru" and "rnn_*" give the new state; a GRU that resets h
before the product has two, "gru_gates" (r h goes on, z is kept) and "gru_new"; "project" is an LSTM's second product.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.rnn.arguments import STEP
from numbaprims.cpu.simd import Arguments
from numbaprims.cpu.simd.convert import floats_value, narrow_value, widen_value
from numbaprims.cpu.simd.emit import (
    argument,
    first_lanes_value,
    llvm_vector,
    load_value,
    number,
    splat_value,
    store_value,
)
from numbaprims.cpu.simd.loops import repeat
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.math.exponential import exp, expm1
from numbaprims.cpu.simd.types import Pointer, llvm_element
from numbaprims.formulas import recurrent
from numbaprims.formulas.recurrent import Machine
from numbaprims.formulas.value import at_least, at_most, mad

#: Gates whose sums a kind takes.
GATES = {"lstm": 4, "gru": 3, "gru_gates": 2, "gru_new": 1, "rnn_tanh": 1, "rnn_relu": 1, "project": 1}
CPU = Machine(exp, expm1, Value.__truediv__)


class Form(NamedTuple):
    """A kernel of a step."""

    kind: str
    dtype: str
    """Of y."""
    compute: str
    MR: int
    NV: int
    W: int
    peephole: bool = False
    clip: bool = False
    saves: bool = False
    """Whether the gradient's reserve is written."""
    ends: bool = True
    """Whether the result is the state; else it goes on to another product."""
    backward: bool = False
    apart: bool = False
    """Whether sums are whole rows of gates, of another kernel; else those of a group."""

    @property
    def text(self) -> str:
        return "|".join(str(int(x)) if isinstance(x, bool) else str(x) for x in self)

    @classmethod
    def parse(cls, text: str) -> Form:
        """The form of a text."""
        kind, dtype, compute, *numbers = text.split("|")
        sizes = [int(each) for each in numbers]
        MR, NV, W = sizes[:3]
        return cls(kind, dtype, compute, MR, NV, W, *(bool(each) for each in sizes[3:]))

    @property
    def gates(self) -> int:
        return 1 if self.backward else GATES[self.kind]


class Group:
    """Vectors of a group's units in the arrays of a block of arguments."""

    names: Arguments

    def __init__(self, builder: Any, form: Form, args: Any, sums: Any, d: Value, first: Value, unit: Value) -> None:
        self.b, self.form, self.args = builder, form, args
        self.sums, self.d, self.first, self.unit = sums, d, first, unit
        self.vector = llvm_vector(form.compute, form.W)
        self.mask: Any = None

    def word(self, name: str) -> Value:
        return Value(self.b, argument(self.b, self.args, self.names.slot(name)))

    def pointer(self, name: str, elem: str) -> Any:
        return argument(self.b, self.args, self.names.slot(name), llvm_element(elem).as_pointer())

    def load(self, name: str, index: Value, elem: str = "") -> Value:
        elem = elem or self.form.compute
        stored = load_value(self.b, self.pointer(name, elem), index, llvm_vector(elem, self.form.W), self.mask)
        return Value(self.b, widen_value(self.b, stored, elem))

    def store(self, name: str, index: Value, value: Value, elem: str = "") -> None:
        elem = elem or self.form.compute
        stored = narrow_value(self.b, value.value, elem)
        store_value(self.b, self.pointer(name, elem), index, stored, self.mask)

    def sum(self, k: int, r: Value, v: int) -> Value:
        """Vector v of row r's sums of gate k."""
        form = self.form
        if form.apart:
            at = (r * form.gates + k) * self.word("hidden") + self.unit + v * form.W
            return Value(self.b, load_value(self.b, self.sums, at, self.vector, self.mask))
        at = (r * form.gates + k) * (form.NV * form.W) + v * form.W
        return Value(self.b, load_value(self.b, self.sums, at, self.vector))

    def number(self, row: int, unit: Value) -> Value:
        """A bias or peephole."""
        return self.load("numbers", self.d * self.word("numbers_d") + self.word("numbers_row") * row + unit)


class End(Group):
    """Emits the end of rows of a group: vector v of the units of row r."""

    names = STEP

    def __init__(self, *place: Any, at: Value, parity: Value) -> None:
        super().__init__(*place)
        self.at, self.parity = at, parity

    def run(self, rows: Value) -> None:
        """All vectors of rows `first` ... `first` + rows - 1."""
        form = self.form
        for v in range(form.NV):
            unit = self.unit + v * form.W
            self.mask = first_lanes_value(self.b, self.word("hidden") - unit, form.W)
            # what does not depend on the row is loaded once
            numbers = [self.number(row, unit) for row in range(self.numbers)]

            def step(at: list[Any], v: int = v, unit: Value = unit, numbers: list[Value] = numbers) -> list[Any]:
                (r,) = at
                self.row(r, v, unit, numbers)
                return [r + 1]

            repeat(self.b, rows, [rows.new(number(0))], step, "rows", rolled=True)

    @property
    def numbers(self) -> int:
        """Rows of biases and peepholes."""
        if self.form.kind in ("project", "gru_new"):
            return 0 if self.form.kind == "project" else 3
        return {"lstm": 4, "gru": 4, "gru_gates": 2}.get(self.form.kind, 1) + (3 if self.form.peephole else 0)

    def gate(self, k: int, inputs: int, r: Value, v: int, unit: Value, number: Value | None) -> Value:
        """Gate k's sum with gate `inputs` of the input product, before its activation."""
        x = self.sum(k, r, v)
        if number is not None:
            x = x + (self.load("g", self.in_g(inputs, r, unit)) + number)
        return x

    def clipped(self, x: Value) -> Value:
        if self.form.clip:
            limit = argument(self.b, self.args, STEP.slot("clip"), llvm_element("f64"))
            limit = floats_value(self.b, limit, llvm_element(self.form.compute))
            most = Value(self.b, splat_value(self.b, limit, self.form.W))
            x = at_most(at_least(x, 0.0 - most), most)
        return x

    def in_g(self, gate: int, r: Value, unit: Value) -> Value:
        row = self.first + r
        start = self.d * self.word("g_d") + self.at * self.word("g_step") + row * self.word("g_row")
        return start + self.word("hidden") * gate + unit

    def state(self, parity: Value, r: Value, unit: Value) -> Value:
        row = (self.first + r) * self.word("h_row")
        return parity * self.word("h_flip") + self.d * self.word("h_d") + row + unit

    def row(self, r: Value, v: int, unit: Value, numbers: list[Value]) -> None:
        form, kind = self.form, self.form.kind
        row = self.first + r
        c_at = self.d * self.word("c_d") + row * self.word("c_row") + unit
        saved_at = (
            self.d * self.word("saved_d") + self.at * self.word("saved_step") + row * self.word("saved_row") + unit
        )
        kept: list[Value] = []
        if kind == "lstm":
            gates = [self.gate(k, k, r, v, unit, numbers[k]) for k in range(4)]
            c = self.load("c", c_at)
            if form.saves:
                h, c, kept = recurrent.lstm_saved(gates, c, numbers[4:], CPU)
                self.store("saved", saved_at, c)
            else:
                h, c = recurrent.lstm(gates, c, numbers[4:], CPU, self.clipped)
            self.store("c", c_at, c)
        elif kind == "gru":
            before = self.load("h", self.state(self.parity, r, unit))
            reset, z = (recurrent.sigmoid(self.clipped(self.gate(k, k, r, v, unit, numbers[k])), CPU) for k in (0, 1))
            recurring = self.sum(2, r, v) + numbers[3]
            n = mad(reset, recurring, self.load("g", self.in_g(2, r, unit)) + numbers[2])
            n = recurrent.tanh(self.clipped(n), CPU)
            h = recurrent.gru_new(z, n, before)
            if form.saves:
                kept = [reset, z, n]
                self.store("saved", saved_at, recurring)
        elif kind == "gru_gates":
            before = self.load("h", self.state(self.parity, r, unit))
            reset, z = (recurrent.sigmoid(self.clipped(self.gate(k, k, r, v, unit, numbers[k])), CPU) for k in (0, 1))
            self.store("c", c_at, z)
            h = reset * before
            kept = [reset, z] if form.saves else []
        elif kind == "gru_new":
            before = self.load("h", self.state(self.parity, r, unit))
            n = recurrent.tanh(self.clipped(self.gate(0, 2, r, v, unit, numbers[2])), CPU)
            h = recurrent.gru_new(self.load("c", c_at), n, before)
        elif kind == "project":
            h = self.sum(0, r, v)
        else:
            x = self.clipped(self.gate(0, 0, r, v, unit, numbers[0]))
            h = recurrent.tanh(x, CPU) if kind == "rnn_tanh" else at_least(x, 0.0)
        for k, value in enumerate(kept):
            self.store("g", self.in_g(k, r, unit), value)
        if kind == "gru_new" and form.saves:
            self.store("g", self.in_g(2, r, unit), n)
        if form.ends:
            self.store("h", self.state(1 - self.parity, r, unit), h)
            y_at = self.d * self.word("y_d") + self.at * self.word("y_step") + row * self.word("y_row") + unit
            self.store("y", y_at, h, form.dtype)
        else:
            self.store("m", self.d * self.word("m_d") + row * self.word("m_row") + unit, h)


@intrinsic(prefer_literal=True)
def end_rows(typingctx, form, args, sums, rows, d, at, parity, first, unit):  # type: ignore[no-untyped-def]
    """The end of `rows` rows from `first` on, whose sums are (row, gate, units of a group) at `sums`.

    d: the direction; at: the time, or the first of its packed rows; parity: which of the two states is read; unit: the
    group's first.
    """
    if not (isinstance(form, types.StringLiteral) and isinstance(sums, Pointer)):
        return None
    chosen = Form.parse(form.literal_value)

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        count, d, at, parity, first, unit = (Value(builder, value) for value in values[3:])
        End(builder, chosen, values[1], values[2], d, first, unit, at=at, parity=parity).run(count)
        return context.get_dummy_value()

    return types.void(form, args, sums, *[types.int64] * 6), codegen
