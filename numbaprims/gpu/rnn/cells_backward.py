"""The cell kernel of a step of the gradient: what becomes of the error of a unit of a sequence.

Kinds are those of the way forward.  A projected LSTM ("project", then "lstm") and a GRU that resets h before the
product ("gru_gates", then "gru_new") take two products a step here too.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numbaprims.formulas import recurrent
from numbaprims.formulas.recurrent import slope_of_tanh
from numbaprims.formulas.value import mad, select
from numbaprims.gpu.device.emit import intrinsic, string_literal, void
from numbaprims.gpu.device.tile import quotient
from numbaprims.gpu.device.value import Value
from numbaprims.gpu.jit import STORAGE, GpuKernel, block_index, block_index_y, gpu_kernel, thread_index, types
from numbaprims.gpu.rnn.cells import GPU, THREADS, Place

#: Arrays of a step.  s: the recurrent product of the step after; dy: the error from above; carry: what a cell hands on
#: beside its gates, and dh_n; dc: the same of c; gates, saved, states: the reserve; dg: errors of the gates before
#: their activation on the side of the inputs, dgh on that of the states, of all packed rows; now: the latter of each
#: sequence's last step, for the next product; dm, now_m: of a projected state; m: what was projected, or r h; dp: of
#: peepholes.
ARRAYS = (
    "s", "dy", "carry", "dc", "gates", "saved", "states", "dg", "dgh", "now", "dm", "now_m", "m", "dp", "p0", "p1",
)  # fmt: skip
INTS = (
    "s_d", "hidden", "units", "state", "dy_d", "dy_row", "gates_d", "gates_row", "saved_d", "states_row", "now_d",
    "carry_d", "dc_d", "dm_d", "m_d", "batch",
)  # fmt: skip


class BackForm(NamedTuple):
    """A kernel of a step of the gradient."""

    kind: str
    dtype: str
    compute: str
    peephole: bool = False
    projected: bool = False

    @property
    def text(self) -> str:
        return "|".join(str(int(x)) if isinstance(x, bool) else str(x) for x in self)

    @classmethod
    def parse(cls, text: str) -> BackForm:
        """The form of a text."""
        kind, dtype, compute, *flags = text.split("|")
        return cls(kind, dtype, compute, *(flag == "1" for flag in flags))

    @property
    def types(self) -> tuple[str, ...]:
        """Of the arrays."""
        return tuple(self.dtype if name in ("states", "p0", "p1") else self.compute for name in ARRAYS)


class BackEnd(Place):
    """The end of a step of the gradient."""

    arrays, ints = ARRAYS, INTS

    def run(self, form: BackForm, row: Value, unit: Value, at: Value, came: Value) -> None:
        """`at`: the time's first packed row; `came`: the row of states that the step began with."""
        kind, d, word = form.kind, self.d, self.word
        item, hidden = at + row, word("hidden")
        dh = self.load("s", d * word("s_d") + row * word("units") + unit)
        zero = dh.like(0.0)
        carry_at = d * word("carry_d") + row * word("state") + unit
        if kind != "gru_new" and not (kind == "lstm" and form.projected):
            from_above = self.load("dy", d * word("dy_d") + item * word("dy_row") + unit)
            dh = dh + (from_above + self.load("carry", carry_at))
        gates_at = d * word("gates_d") + item * word("gates_row") + unit
        now_at = d * word("now_d") + row * word("gates_row") + unit
        saved_d = d * word("saved_d") + unit

        def gates(count: int) -> list[Value]:
            return [self.load("gates", gates_at + hidden * k) for k in range(count)]

        def keep(k: int, value: Value, recurring: Value | None = None) -> None:
            """The error of gate k, on both sides."""
            self.store("dg", gates_at + hidden * k, value)
            if kind == "gru":
                self.store("dgh", gates_at + hidden * k, recurring or value)
            self.store("now", now_at + hidden * k, recurring or value)

        def state(of: Value) -> Value:
            return self.load("states", of * word("states_row") + d * word("state") + unit)

        if kind == "project":
            self.store("dm", d * word("dm_d") + item * word("units") + unit, dh)
            self.store("now_m", carry_at, dh)
            self.store("carry", carry_at, zero)
        elif kind == "lstm":
            c = self.load("saved", saved_d + (item + word("batch")) * hidden)
            c_before = self.load("saved", saved_d + came * hidden)
            dc_at = d * word("dc_d") + row * hidden + unit
            peepholes = self.peepholes(unit) if form.peephole else []
            found, dc = recurrent.lstm_backward(
                dh, self.load("dc", dc_at), made := gates(4), c, c_before, peepholes, GPU
            )  # fmt: skip
            self.store("dc", dc_at, dc)
            for k, value in enumerate(found):
                keep(k, value)
            if form.projected:
                self.store("m", d * word("m_d") + item * hidden + unit, made[3] * recurrent.tanh(c, GPU))
            else:
                self.store("carry", carry_at, zero)
            if peepholes:
                di, df, _, do = found
                dp_at = d * word("m_d") * 3 + item * (hidden * 3) + unit
                for k, value in enumerate((di * c_before, df * c_before, do * c)):
                    self.store("dp", dp_at + hidden * k, value)
        elif kind == "gru":
            recurring = self.load("saved", saved_d + (item + word("batch")) * hidden)
            found, dn, carry = recurrent.gru_backward(dh, gates(3), recurring, state(came))
            for k, value in enumerate(found):
                keep(k, value, dn if k == 2 else None)
            self.store("carry", carry_at, carry)
        elif kind == "gru_gates":
            _, z, n_gate = gates(3)
            keep(1, (dh * (state(came) - n_gate)) * (z * (1.0 - z)))
            keep(2, (dh * (1.0 - z)) * slope_of_tanh(n_gate))
            self.store("carry", carry_at, dh * z)
        elif kind == "gru_new":
            reset, before = gates(1)[0], state(came)
            keep(0, (dh * before) * (reset * (1.0 - reset)))
            self.store("carry", carry_at, mad(dh, reset, self.load("carry", carry_at)))
            self.store("m", d * word("m_d") + item * hidden + unit, reset * before)
        else:
            y = state(item + word("batch"))
            keep(0, dh * slope_of_tanh(y) if kind == "rnn_tanh" else select(y > 0.0, dh, zero))
            self.store("carry", carry_at, zero)


@intrinsic
def end_of_back_step(typingctx, text, pointers, ints, d, row, unit, at, came):  # type: ignore[no-untyped-def]
    """The end of one unit of a step of the gradient."""
    known = string_literal(text)
    if known is None:
        return None
    form, far = BackForm.parse(known), types.int64

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        pointers, ints = [
            [builder.extract_value(args[k], at) for at in range(len(names))] for k, names in ((1, ARRAYS), (2, INTS))
        ]
        row, unit, at, came = (Value(builder, value) for value in args[4:])
        BackEnd(context, builder, form.types, pointers, ints, args[3]).run(form, row, unit, at, came)
        return void(context)

    return types.void(text, pointers, ints, far, far, far, far, far), codegen


@functools.cache
def make_back_cell(form: BackForm, lengths: bool) -> GpuKernel:
    """All units of all directions (the grid's second dimension) of a step of the gradient."""
    text, I64, U32 = form.text, types.int64, types.uint32
    pointers = types.Tuple(tuple(types.CPointer(STORAGE[dtype]) for dtype in form.types))
    signature = types.void(
        pointers, types.UniTuple(I64, len(INTS)), types.CPointer(I64), U32, U32, types.int32, types.int32, types.int32
    )

    @gpu_kernel("rnn_back_cell", signature, spec=(*form, lengths), threads=THREADS, registers=96)
    def rnn_back_cell(pointers, ints, offsets, batch, units, steps, reverse, step):  # type: ignore[no-untyped-def]
        i = U32(block_index() * THREADS + thread_index())
        row = quotient(i, units)
        unit = U32(i - row * units)
        d = I64(block_index_y())
        t, earlier = I64(steps - 1 - step), I64(steps - 2 - step)
        if d + reverse > 0:
            t, earlier = I64(step), I64(step + 1)
        n, at, behind, before = I64(batch), t * I64(batch), I64(batch), earlier * I64(batch)
        there = earlier >= 0 and earlier < I64(steps)
        if lengths:
            at = offsets[t]
            n = offsets[t + 1] - at
            if there:
                before = offsets[earlier]
                behind = offsets[earlier + 1] - before
        came = I64(row)
        if there and came < behind:
            came = came + before + I64(batch)
        if I64(row) < n:
            end_of_back_step(text, pointers, ints, d, I64(row), I64(unit), at, came)

    return rnn_back_cell


#: (factory, its arguments, opcodes that the code must have): what the compile gates look at.
GATES: list[tuple[Any, tuple[Any, ...], tuple[str, ...]]] = [
    (make_back_cell, (BackForm("lstm", "f32", "f32"), False), ("FFMA", "LDG.E")),
    (make_back_cell, (BackForm("lstm", "bf16", "f32", True, True), True), ("FFMA", "LDG.E.U16")),
    (make_back_cell, (BackForm("gru", "f16", "f32"), True), ("FFMA", "LDG.E.U16")),
]
