"""The cell kernel of a step: what becomes of the sums of its product, one thread a unit of a sequence.

Kinds are "lstm", "gru" and "rnn_*", which give the new state; a GRU that resets h before the product has two,
"gru_gates" (r h goes on, z is kept) and "gru_new"; "project" follows an LSTM's second product.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numbaprims.formulas import recurrent
from numbaprims.formulas.recurrent import Machine
from numbaprims.formulas.value import at_least, at_most, mad
from numbaprims.gpu.device.emit import I64, intrinsic, string_literal, void
from numbaprims.gpu.device.math import divide_value, exp_normal_value, expm1_value
from numbaprims.gpu.device.memory import REGISTER, _load, _narrow, _store, _widen
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.value import Value
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, block_index_y, gpu_kernel, thread_index, types

THREADS = 256


def _exp(x: Value, factor: float, highest: float) -> Value:
    return exp_normal_value(at_most(x * factor, highest))


def _expm1(x: Value, factor: float) -> Value:
    return expm1_value(x * factor)


GPU = Machine(_exp, _expm1, divide_value)
#: Arrays of a step.  s: sums of the recurrent product, with its bias; g: the input product with its own; h: the state;
#: hx: it in the type of the next product's operands; c: an LSTM's cell, or z; m: what the second product takes; saved:
#: c of all times, or n's recurrent sum; p0, p1: peepholes of each direction.
ARRAYS = ("s", "g", "h", "hx", "c", "y", "m", "saved", "p0", "p1")
#: Strides: `_d` from one direction to the other, `_row` from one sequence to the next, `_step` from one time to the
#: next (from one packed row to the next where there are lengths), `_gate` and hidden from one gate to the next; given:
#: from s to the input products, which a persistent kernel has beside them.
INTS = (
    "s_d", "s_row", "s_gate", "hidden", "g_d", "g_row", "g_step", "h_d", "h_row", "c_d", "y_d", "y_row", "y_step",
    "saved_d", "saved_step", "m_d", "given",
)  # fmt: skip


class Form(NamedTuple):
    """A kernel of a step."""

    kind: str
    dtype: str
    compute: str
    peephole: bool = False
    clip: bool = False
    saves: bool = False
    ends: bool = True
    """Whether the result is the state; else it goes on to another product."""
    persistent: bool = False
    """Whether other blocks take hx in the launch that writes it, so that it has a place of its own."""

    @property
    def text(self) -> str:
        return "|".join(str(int(x)) if isinstance(x, bool) else str(x) for x in self)

    @classmethod
    def parse(cls, text: str) -> Form:
        """The form of a text."""
        kind, dtype, compute, *flags = text.split("|")
        return cls(kind, dtype, compute, *(flag == "1" for flag in flags))

    @property
    def types(self) -> tuple[str, ...]:
        """Of the arrays."""
        halves = ("hx", "y", "m", "p0", "p1")
        return tuple(self.dtype if name in halves else self.compute for name in ARRAYS)


class Place:
    """A unit of a sequence in the arrays of a step."""

    arrays: tuple[str, ...] = ARRAYS
    ints: tuple[str, ...] = INTS

    def __init__(self, context: Any, builder: Any, dtypes: Any, pointers: Any, ints: Any, d: Any) -> None:
        self.context, self.b = context, builder
        self.pointers = dict(zip(self.arrays, pointers, strict=True))
        self.dtypes = dict(zip(self.arrays, dtypes, strict=True))
        self.words = {name: Value(builder, v) for name, v in zip(self.ints, ints, strict=True)}
        self.d = Value(builder, d)

    def word(self, name: str) -> Value:
        return self.words[name]

    def _at(self, name: str, index: Value) -> tuple[Any, ...]:
        return (types.CPointer(STORAGE[self.dtypes[name]]), self.pointers[name], types.int64, index.value)

    def load(self, name: str, index: Value) -> Value:
        (stored,) = _load(self.context, self.b, self._at(name, index), 1, readonly=False)
        return Value(self.b, _widen(self.b, stored, self.dtypes[name]))

    def store(self, name: str, index: Value, value: Value) -> None:
        _store(self.context, self.b, self._at(name, index), _narrow(self.b, [value.value], self.dtypes[name]))

    def peepholes(self, unit: Value) -> list[Value]:
        """Of the direction; 0 where it has none."""
        b = self.b
        chosen = b.select(b.icmp_signed("==", self.d.value, I64(0)), self.pointers["p0"], self.pointers["p1"])
        where = types.CPointer(STORAGE[self.dtypes["p0"]]), chosen, types.int64
        there = b.icmp_signed("!=", b.ptrtoint(chosen, I64), I64(0))
        before, load, after = b.basic_block, b.append_basic_block("peepholes"), b.append_basic_block("found")
        b.cbranch(there, load, after)
        b.position_at_end(load)
        loaded = []
        for k in range(3):
            at = unit + self.word("hidden") * k
            (stored,) = _load(self.context, b, (*where, at.value), 1, readonly=False)
            loaded.append(_widen(b, stored, self.dtypes["p0"]))
        end = b.basic_block
        b.branch(after)
        b.position_at_end(after)
        found = []
        for value in loaded:
            phi = b.phi(value.type)
            phi.add_incoming(value.type(0.0), before)
            phi.add_incoming(value, end)
            found.append(Value(b, phi))
        return found


class End(Place):
    """The end of a step of the way forward."""

    def run(self, form: Form, row: Value, unit: Value, at: Value, limit: Any) -> None:
        kind, d, word = form.kind, self.d, self.word
        s_at = d * word("s_d") + row * word("s_row") + unit
        g_at = d * word("g_d") + at * word("g_step") + row * word("g_row") + unit
        h_at = d * word("h_d") + row * word("h_row") + unit
        c_at = d * word("c_d") + row * word("hidden") + unit
        saved_at = d * word("saved_d") + at * word("saved_step") + row * word("hidden") + unit

        def clipped(x: Value) -> Value:
            if not form.clip:
                return x
            most = Value(self.b, limit)
            return at_most(at_least(x, 0.0 - most), most)

        def sums(k: int) -> Value:
            return self.load("s", s_at + word("s_gate") * k)

        def given(k: int) -> Value:
            if form.persistent:
                return self.load("s", s_at + word("given") + word("s_gate") * k)
            return self.load("g", g_at + word("hidden") * k)

        kept: dict[int, Value] = {}
        if kind == "lstm":
            gates = [sums(k) + given(k) for k in range(4)]
            c, peepholes = self.load("c", c_at), self.peepholes(unit) if form.peephole else []
            if form.saves:
                h, c, found = recurrent.lstm_saved(gates, c, peepholes, GPU)
                kept = dict(enumerate(found))
                self.store("saved", saved_at, c)
            else:
                h, c = recurrent.lstm(gates, c, peepholes, GPU, clipped)
            self.store("c", c_at, c)
        elif kind in ("gru", "gru_gates"):
            before = self.load("h", h_at)
            reset, z = (recurrent.sigmoid(clipped(sums(k) + given(k)), GPU) for k in (0, 1))
            kept = {0: reset, 1: z}
            if kind == "gru":
                recurring = sums(2)
                n = recurrent.tanh(clipped(mad(reset, recurring, given(2))), GPU)
                h = recurrent.gru_new(z, n, before)
                kept[2] = n
                if form.saves:
                    self.store("saved", saved_at, recurring)
            else:
                self.store("c", c_at, z)
                h = reset * before
        elif kind == "gru_new":
            n = recurrent.tanh(clipped(sums(0) + given(2)), GPU)
            h = recurrent.gru_new(self.load("c", c_at), n, self.load("h", h_at))
            kept = {2: n}
        elif kind == "project":
            h = sums(0)
        else:
            x = clipped(sums(0) + given(0))
            h = recurrent.tanh(x, GPU) if kind == "rnn_tanh" else at_least(x, 0.0)
        if form.saves:
            for k, value in kept.items():
                self.store("g", g_at + word("hidden") * k, value)
        if not form.ends:
            self.store("m", d * word("m_d") + row * word("hidden") + unit, h)
            return
        self.store("h", h_at, h)
        if form.persistent or form.dtype != form.compute:
            self.store("hx", h_at, h)
        self.store("y", d * word("y_d") + at * word("y_step") + row * word("y_row") + unit, h)


@intrinsic
def end_of_step(typingctx, text, pointers, ints, d, row, unit, at, limit):  # type: ignore[no-untyped-def]
    """The end of one unit: of row `row` of the time whose rows begin at `at`."""
    known = string_literal(text)
    if known is None:
        return None
    form, far = Form.parse(known), types.int64

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        pointers, ints = [
            [builder.extract_value(args[k], at) for at in range(len(names))] for k, names in ((1, ARRAYS), (2, INTS))
        ]
        row, unit, at = (Value(builder, value) for value in args[4:7])
        End(context, builder, form.types, pointers, ints, args[3]).run(form, row, unit, at, args[7])
        return void(context)

    return types.void(text, pointers, ints, far, far, far, far, limit), codegen


@functools.cache
def make_cell(form: Form, lengths: bool) -> GpuKernel:
    """All units of all directions (the grid's second dimension) of a step."""
    text, I64, U32, number = form.text, types.int64, types.uint32, REGISTER[form.compute]
    pointers = types.Tuple(tuple(types.CPointer(STORAGE[dtype]) for dtype in form.types))
    signature = types.void(
        pointers, types.UniTuple(I64, len(INTS)), types.CPointer(I64), U32, U32, types.int32, types.int32, number,
        types.int32,
    )  # fmt: skip

    @gpu_kernel("rnn_cell", signature, spec=(*form, lengths), threads=THREADS, registers=96)
    def rnn_cell(pointers, ints, offsets, batch, units, steps, reverse, limit, step):  # type: ignore[no-untyped-def]
        i = U32(block_index() * THREADS + thread_index())
        row = quotient(i, units)
        unit = U32(i - row * units)
        d = I64(block_index_y())
        t = I64(step)
        if d + reverse > 0:
            t = I64(steps - 1 - step)
        n, at = I64(batch), t
        if lengths:
            at = offsets[t]
            n = offsets[t + 1] - at
        if I64(row) < n:
            end_of_step(text, pointers, ints, d, I64(row), I64(unit), at, limit)

    return rnn_cell


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_cell, (Form("lstm", "f32", "f32"), False), ("FFMA", "MUFU.RCP")),
    (make_cell, (Form("lstm", "f16", "f32", True, False, True), True), ("STG.E.U16", "MUFU.RCP")),
    (make_cell, (Form("gru", "bf16", "f32"), True), ("STG.E.U16", "MUFU.RCP")),
    (make_cell, (Form("rnn_tanh", "f64", "f64", False, True), False), ("DFMA",)),
]
