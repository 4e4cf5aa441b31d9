"""The end of a step of the gradient: what becomes of the error of a group's units.

Kinds are those of the forward step.  A projected LSTM ("project", then "lstm") and a GRU that resets h before the
product ("gru_gates", then "gru_new") take two products a step here too.
"""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.extending import intrinsic

from numbaprims.cpu.rnn.arguments import BACK
from numbaprims.cpu.rnn.cells import CPU, Form, Group
from numbaprims.cpu.simd.emit import constant, first_lanes_value, number
from numbaprims.cpu.simd.loops import repeat
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.types import Pointer
from numbaprims.formulas import recurrent
from numbaprims.formulas.recurrent import slope_of_tanh
from numbaprims.formulas.value import mad, select

#: Of a kind, the rows of biases' and peepholes' gradients that it adds to: first, count.
SUMS = {"lstm": (0, 4), "gru": (0, 4), "gru_gates": (1, 2), "gru_new": (0, 1), "project": (0, 0)}


class BackwardEnd(Group):
    """Emits the end of rows of a group."""

    names = BACK

    def __init__(self, *place: Any, at: Value, have: Value, before: Value, behind: Value) -> None:
        super().__init__(*place)
        #: The first packed row of the time; rows that have a step after it; where the states of the step before begin,
        #: and how many rows have one: the others have those of the start.
        self.at, self.have, self.before, self.behind = at, have, before, behind

    def run(self, rows: Value) -> None:
        form = self.form
        first, count = SUMS.get(form.kind, (0, 1))
        added = [first + k for k in range(count)] + ([4, 5, 6] if form.peephole else [])
        for v in range(form.NV):
            unit = self.unit + v * form.W
            self.mask = first_lanes_value(self.b, self.word("hidden") - unit, form.W)
            peepholes = [self.number(4 + k, unit) for k in range(3)] if form.peephole else []
            zero = Value(self.b, constant(self.vector, 0.0))

            def step(
                state: list[Any], v: int = v, unit: Value = unit, peepholes: list[Value] = peepholes
            ) -> list[Any]:  # fmt: skip
                r, *sums = state
                more = self.row(r, v, unit, peepholes)
                return [r + 1, *(each + new for each, new in zip(sums, more, strict=True))]

            start = [rows.new(number(0)), *[zero] * len(added)]
            _, *sums = repeat(self.b, rows, start, step, "rows", rolled=True)
            for row, total in zip(added, sums, strict=True):
                at = self.d * self.word("numbers_d") + self.word("numbers_row") * row + unit
                self.store("dnumbers", at, self.load("dnumbers", at) + total)

    def place(self, name: str, row: Value, unit: Value) -> Value:
        return self.d * self.word(name + "_d") + row * self.word(name + "_row") + unit

    def row(self, r: Value, v: int, unit: Value, peepholes: list[Value]) -> list[Value]:
        """What the row adds to the gradients of biases and peepholes."""
        form, kind = self.form, self.form.kind
        n, item = self.first + r, self.first + r + self.at
        dh = self.sum(0, r, v)
        zero = dh.like(0.0)
        dh = dh.new(self.b.select((n < self.have).value, dh.value, zero.value))
        if kind != "gru_new" and not (kind == "lstm" and not form.ends):
            carry_at = self.place("carry", n, unit)
            dh = dh + (self.load("dy", self.place("dy", item, unit)) + self.load("carry", carry_at))
        came = dh.new(self.b.select((n < self.behind).value, (self.before + n).value, n.value))  # of the states
        hidden = self.word("hidden")

        def gates(count: int) -> list[Value]:
            return [self.load("gates", self.place("gates", item, unit + hidden * k)) for k in range(count)]

        def keep(name: str, k: int, value: Value) -> None:
            self.store(name, self.place(name, item, unit + hidden * k), value)

        if kind == "project":
            self.store("dm", self.place("dm", item, unit), dh)
            self.store("carry", carry_at, zero)
            return []
        if kind == "lstm":
            c = self.load("saved", self.place("saved", item + self.word("n"), unit))
            c_before = self.load("saved", self.place("saved", came, unit))
            dc_at = self.place("dc", n, unit)
            found, dc = recurrent.lstm_backward(
                dh, self.load("dc", dc_at), made := gates(4), c, c_before, peepholes, CPU
            )  # fmt: skip
            self.store("dc", dc_at, dc)
            for k, value in enumerate(found):
                keep("dg", k, value)
            if form.ends:
                self.store("carry", carry_at, zero)
            else:
                self.store("m", self.place("m", item, unit), made[3] * recurrent.tanh(c, CPU))
            di, df, _, do = found
            return [*found, di * c_before, df * c_before, do * c] if peepholes else found
        before = self.load("states", self.place("states", came, unit), form.dtype)
        if kind == "gru":
            recurring = self.load("saved", self.place("saved", item + self.word("n"), unit))
            found, dn, carry = recurrent.gru_backward(dh, gates(3), recurring, before)
            for k, value in enumerate(found):
                keep("dg", k, value)
                keep("dgh", k, value if k < 2 else dn)
            self.store("carry", carry_at, carry)
            return [*found, dn]
        if kind == "gru_gates":
            _, z, n_gate = gates(3)
            dz = (dh * (before - n_gate)) * (z * (1.0 - z))
            dn = (dh * (1.0 - z)) * slope_of_tanh(n_gate)
            keep("dg", 1, dz)
            keep("dg", 2, dn)
            self.store("carry", carry_at, dh * z)
            return [dz, dn]
        if kind == "gru_new":
            reset = gates(1)[0]
            dr = (dh * before) * (reset * (1.0 - reset))
            keep("dg", 0, dr)
            carry_at = self.place("carry", n, unit)
            self.store("carry", carry_at, mad(dh, reset, self.load("carry", carry_at)))
            self.store("m", self.place("m", item, unit), reset * before)
            return [dr]
        y = self.load("states", self.place("states", item + self.word("n"), unit), form.dtype)
        dg = dh * slope_of_tanh(y) if kind == "rnn_tanh" else select(y > 0.0, dh, zero)
        keep("dg", 0, dg)
        self.store("carry", carry_at, zero)
        return [dg]


@intrinsic(prefer_literal=True)
def end_backward(  # type: ignore[no-untyped-def]
    typingctx, form, args, sums, rows, d, at, have, before, behind, first, unit
):  # fmt: skip
    """The end of `rows` rows from `first` on, whose sums are (row, units of a group) at `sums`."""
    if not (isinstance(form, types.StringLiteral) and isinstance(sums, Pointer)):
        return None
    chosen = Form.parse(form.literal_value)

    def codegen(context, builder, signature, values):  # type: ignore[no-untyped-def]
        count, d, at, have, before, behind, first, unit = (Value(builder, value) for value in values[3:])
        end = BackwardEnd(
            builder, chosen, values[1], values[2], d, first, unit, at=at, have=have, before=before, behind=behind
        )
        end.run(count)
        return context.get_dummy_value()

    return types.void(form, args, sums, *[types.int64] * 8), codegen
