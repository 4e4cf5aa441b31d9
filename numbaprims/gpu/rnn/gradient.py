"""The program of a network's gradient: from the last layer to the first, each a time loop and then single products.

A step's cell kernel comes before its product: errors of gates lie in one place, where the product takes them from, so
that every step launches the same.  Rows that have not begun are zeros there; those that have ended stay, and the last
product gives their dh0.
"""

from __future__ import annotations

from typing import Any

from numbaprims.gpu.launch import Loop, Nested, Part, Program, Step, step
from numbaprims.gpu.reduce.posed import solver_of
from numbaprims.gpu.rnn.cells import THREADS
from numbaprims.gpu.rnn.cells_backward import INTS, BackForm, make_back_cell
from numbaprims.gpu.rnn.network import Matrix, Network, behind, joined, values_of
from numbaprims.ops._reduction_problem import posed
from numbaprims.ops._rnn_problem import (
    B_GATES,
    B_HH,
    B_IH,
    B_SAVED,
    B_STATES,
    B_TABLES,
    B_X,
    DC0,
    DC_N,
    DH0,
    DH_N,
    DX,
    DY,
    PEEPHOLE,
    W_HH,
    W_HR,
    W_IH,
)  # fmt: skip


class Gradient(Network):
    """Of the gradient."""

    tables_at = B_TABLES

    def program(self) -> Program:
        p = self.p
        if DY in p.lies.given:
            dy = self.packed_wide("dy", Part(DY), p.lies.dy, p.width)
        else:
            dy = self.packed(self.region("dy", p.rows * p.width), self.compute, p.width)
            self.rows(p.rows, p.width, dy.place, None, (self.compute, self.compute))
        for layer in range(p.layers - 1, -1, -1):
            if p.dropout and layer < p.layers - 1:
                self.dropped(layer, dy.place, dy, self.compute, p.width)
            dy = self.back(layer, dy)
        self.unpacked(Part(DX), p.lies.y[:2], dy, p.inputs, 0)
        return Program(self.steps, self.regions)

    def packed_wide(self, name: str, place: Part, lies: tuple[int, int, int], width: int) -> Matrix:
        """An array over (time, batch, features) as packed rows in the type that is computed in."""
        p, (t, n, i) = self.p, lies
        to, dtypes = self.region(name, p.rows * width), (p.dtype, self.compute)
        if p.order == "packed":
            self.rows(p.rows, width, to, place, dtypes, x_row=t, x_column=i)
        else:
            table = self.table("gather")
            self.rows(p.rows, width, to, place, dtypes, table, x_inner=p.batch, x_outer=t, x_row=n, x_column=i)
        return self.packed(to, self.compute, width)

    def wide(self, layer: int, d: int, which: int, count: int, width: int) -> Part:
        """A weight in the type that is computed in."""
        source = Part(self.p.number(layer, d, which))
        if self.p.dtype == self.compute:
            return source
        place = self.region(f"weight {which} {d}", count * width)
        self.rows(count, width, place, source, (self.p.dtype, self.compute))
        return place

    def states(self, layer: int) -> Matrix:
        """h of a layer at all times, behind those of the start."""
        p = self.p
        wide = p.directions * p.state
        return self.packed(Part(B_STATES, layer * (p.batch + p.rows) * wide * self.small), p.dtype, wide)

    def before(self, layer: int, d: int) -> Matrix:
        """h of the step before, of all rows."""
        p, states = self.p, self.states(layer)
        source, back, row = behind(states.place, d * p.state * self.small), d + p.reverse > 0, states.row
        if not back and not p.lengths and p.dtype == self.compute:
            return Matrix(source, p.dtype, row, 0)
        place, dtypes = self.region("before", p.rows * p.state), (p.dtype, self.compute)
        if p.lengths:
            self.rows(p.rows, p.state, place, source, dtypes, self.table(f"before_{int(back)}"), x_row=row)
        elif back:
            most = p.rows - p.batch
            self.rows(most, p.state, place, behind(source, 2 * p.batch * row * self.small), dtypes, x_row=row)
            self.rows(p.batch, p.state, behind(place, most * p.state * self.item), source, dtypes, x_row=row)
        else:
            self.rows(p.rows, p.state, place, source, dtypes, x_row=row)
        return Matrix(place, self.compute, p.state, 0)

    def inputs_of(self, layer: int) -> Matrix:
        """What a layer took, in packed rows of the type that is computed in."""
        p = self.p
        if not layer:
            return self.packed_wide("x", Part(B_X), p.lies.x, p.inputs)
        states = self.states(layer - 1)
        source = behind(states.place, p.batch * states.row * self.small)
        if p.dtype == self.compute and not self.adds and not p.dropout:
            return Matrix(source, p.dtype, states.row, 0)
        place = self.region("x", p.rows * p.width)
        second = p.state if self.adds else 0
        self.rows(p.rows, p.width, place, source, (p.dtype, self.compute), x_row=states.row, second=second)
        x = Matrix(place, self.compute, p.width, 0)
        if p.dropout:
            self.dropped(layer - 1, place, x, self.compute, p.width)
        return x

    def multiply(
        self, sizes: tuple[int, int, int], a: tuple[int, int], b: tuple[int, int], places: tuple[Part, Part, Part],
        adds: bool = False,
    ) -> Nested:  # fmt: skip
        return self.product(sizes, (self.compute, self.compute), a, b, sizes[1], places, None, adds)

    # ---------------------------------------------------------------- a layer

    def back(self, layer: int, dy: Matrix) -> Matrix:
        """The gradients of a layer's weights; dy of the layer below."""
        p, D, N, H, P, R, item = (
            self.p,
            self.p.directions,
            self.p.batch,
            self.p.hidden,
            self.p.state,
            self.p.rows,
            self.item,
        )
        wide, order, kinds = p.gates * H, self.table("order"), (p.dtype, self.compute)
        # behind the product of the last step what the cell hands on
        s = self.region("s", 2 * D * N * P)
        carry, dc = behind(s, D * N * P * item), self.region("dc", D * N * H)
        self.rows(D * N, P, s, None, (self.compute, self.compute))
        for place, number, width in ((carry, DH_N, P), (dc, DC_N, H)):
            source = self.given(number)
            source = source and behind(source, layer * D * N * width * self.small)
            if number == DH_N or p.cell == "lstm":
                each: dict[str, Any] = {"planes": D, "x_plane": N * width, "out_plane": N * width}
                self.rows(N, width, place, source, kinds, order, **each)
        dg, now = self.region("dg", D * R * wide), self.region("now", D * N * wide)
        self.rows(D * N, wide, now, None, (self.compute, self.compute))
        dgh = self.region("dgh", D * R * wide) if p.cell == "gru" and p.reset_after else dg
        before_product = p.cell == "gru" and not p.reset_after
        m = self.region("m", D * R * H) if p.projected or before_product else s
        dm, now_m = (self.region("dm", D * R * P), self.region("now_m", D * N * P)) if p.projected else (s, s)
        if p.projected and p.lengths:
            self.rows(D * N, P, now_m, None, (self.compute, self.compute))
        dp = self.region("dp", D * R * 3 * H) if any(self.peepholes(layer)) else s
        places = {
            "dy": dy.place, "carry": carry, "dc": dc, "gates": Part(B_GATES, layer * D * R * wide * item),
            "saved": Part(B_SAVED, layer * D * (N + R) * H * item), "states": self.states(layer).place, "dg": dg,
            "dgh": dgh, "now": now, "dm": dm, "now_m": now_m, "m": m, "dp": dp,
        }  # fmt: skip
        self.time(layer, dy, s, places)
        dx = self.packed(self.region(f"dx{layer % 2}", R * p.inputs_of(layer)), self.compute, p.inputs_of(layer))
        x = None if p.skip_input and not layer else self.inputs_of(layer)
        for d in range(D):
            own, recurrent = (behind(each, d * R * wide * item) for each in (dg, dgh))
            self.of_inputs(layer, d, own, x, dx)
            before, second = self.before(layer, d), behind(m, d * R * H * item)
            if before_product:
                self.weight(layer, d, W_HH, own, wide, 2 * H, before, P)
                last = behind(own, 2 * H * item)
                self.weight(layer, d, W_HH, last, wide, H, Matrix(second, self.compute, H, 0), P, first=2 * H)
            else:
                self.weight(layer, d, W_HH, recurrent, wide, wide, before, P)
            if p.projected:
                errors = behind(dm, d * R * P * item)
                self.weight(layer, d, W_HR, errors, P, P, Matrix(second, self.compute, H, 0), H)
            for which, errors, width in ((B_IH, own, wide), (B_HH, recurrent, wide), (PEEPHOLE, dp, 3 * H)):
                if p.has(layer, d, which):
                    source = behind(errors, d * R * width * item) if which == PEEPHOLE else errors
                    self.total(Part(p.gradient(layer, d, which)), source, width)
        first = layer * D * N
        each = {"planes": D, "x_plane": N * P, "out_plane": N * P, "second": D * N * P}
        to, back = Part(DH0, first * P * self.small), (self.compute, p.dtype)
        self.rows(N, P, to, s, back, self.table("inverse"), **each)
        if p.cell == "lstm":
            each = {"planes": D, "x_plane": N * H, "out_plane": N * H}
            self.rows(N, H, Part(DC0, first * H * self.small), dc, back, self.table("inverse"), **each)
        return dx

    def of_inputs(self, layer: int, d: int, dg: Part, x: Matrix | None, dx: Matrix) -> None:
        p = self.p
        wide, inputs = p.gates * p.hidden, p.inputs_of(layer)
        if x is None:  # every gate takes x as it is
            for k in range(p.gates):
                source, dtypes = behind(dg, k * p.hidden * self.item), (self.compute, self.compute)
                self.rows(p.rows, p.hidden, dx.place, source, dtypes, x_row=wide, adds=int(k + d > 0))
            return
        if not inputs:
            return
        w = self.wide(layer, d, W_IH, wide, inputs)
        self.steps.append(self.multiply((p.rows, inputs, wide), (wide, 1), (inputs, 1), (dx.place, dg, w), d > 0))
        self.weight(layer, d, W_IH, dg, wide, wide, x, inputs)

    def weight(
        self, layer: int, d: int, which: int, errors: Part, row: int, m: int, x: Matrix, n: int, first: int = 0
    ) -> None:  # fmt: skip
        """Rows from `first` on of a weight's gradient (m, n): errors' x over all packed rows."""
        p = self.p
        to = Part(p.gradient(layer, d, which), first * n * self.small)
        out = to if p.dtype == self.compute else self.region("gradient", m * n)
        self.steps.append(self.multiply((m, n, p.rows), (1, row), (x.row, 1), (out, errors, x.place)))
        if p.dtype != self.compute:
            self.rows(m, n, to, out, (self.compute, p.dtype))

    def total(self, out: Part, errors: Part, width: int) -> None:
        """The sum of all rows, by the reduce engine."""
        p = self.p
        sums = posed("total", (p.dtype, self.compute), (width, p.rows), (1,), ((1, 0), (1, width)))
        solver = solver_of(sums)
        self.steps.append(Nested(solver.bind(sums, self.target, {}), (out, errors), (0.0,) * 6))

    # ---------------------------------------------------------------- the time loop

    def time(self, layer: int, dy: Matrix, s: Part, places: dict[str, Part]) -> None:
        """Cell kernels, each before the product of its errors."""
        p, item = self.p, self.item
        D, H, P, N, R, wide = p.directions, p.hidden, p.state, p.batch, p.rows, p.gates * p.hidden
        now, s2 = places["now"], self.region("s2", D * N * H)
        # kind, units, sums that it reads; the product behind it: width of the errors, where they lie, their row and
        # plane, first row and columns of the weight, the weight, where the sums go
        last = (wide, now, wide, N * wide, 0, P, W_HH, s)
        if p.projected:
            kinds = [
                ("project", P, s, (P, places["now_m"], P, N * P, 0, H, W_HR, s2)), ("lstm", H, s2, last),
            ]  # fmt: skip
        elif p.cell == "gru" and not p.reset_after:
            kinds = [
                ("gru_gates", H, s, (H, behind(now, 2 * H * item), wide, N * wide, 2 * H, P, W_HH, s2)),
                ("gru_new", H, s2, (2 * H, now, wide, N * wide, 0, P, W_HH, s)),
            ]  # fmt: skip
        else:
            kinds = [(p.cell, H, s, last)]
        weights = {
            (which, d): self.wide(layer, d, which, *((wide, P) if which == W_HH else (P, H)))
            for which in {each[-1][-2] for each in kinds} for d in range(D)
        }  # fmt: skip
        steps: list[Step | Nested] = []
        peepholes = self.peepholes(layer)
        for kind, units, sums, (k, errors, row, plane, first, n, which, to) in kinds:
            form = BackForm(
                kind, p.dtype, self.compute, kind == "lstm" and any(peepholes), kind == "lstm" and bool(p.projected)
            )
            ints = {
                "s_d": N * units, "hidden": H, "units": units, "state": P, "dy_d": 0 if self.adds else P,
                "dy_row": dy.row, "gates_d": R * wide, "gates_row": wide, "saved_d": (N + R) * H,
                "states_row": D * P, "now_d": N * wide, "carry_d": N * P, "dc_d": N * H, "dm_d": R * P, "m_d": R * H,
                "batch": N,
            }  # fmt: skip
            # what the reserve lacks a kernel of this kind does not read
            given = {
                name: None if isinstance(x.of, int) and x.of not in p.lies.given else x for name, x in places.items()
            }
            values = values_of((sums, *given.values(), *peepholes), *(ints[name] for name in INTS))
            table = values_of((self.table("offsets"),), N, units, p.steps, int(p.reverse))
            steps.append(step(
                make_back_cell(form, p.lengths), (-(-N * units // THREADS), D),
                joined(values, table),
            ))  # fmt: skip
            for d in range(D):
                w = behind(weights[which, d], first * n * item)
                out = behind(to, d * N * n * item)
                steps.append(self.multiply((N, n, k), (row, 1), (n, 1), (out, behind(errors, d * plane * item), w)))
        self.steps.append(Loop(tuple(steps), p.steps))
