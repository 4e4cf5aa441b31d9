"""The program of a network, layer by layer: input products of all steps, the states, the time loop, the last states.

The state stays in its place: a product reads all of it before the cell kernel writes it, so every step launches the
same product, and a sequence that has ended leaves its state where it is.
"""

from __future__ import annotations

from typing import Any

from numbaprims.gpu.launch import Loop, Nested, Part, Program, Step, step
from numbaprims.gpu.rnn.cells import INTS, THREADS, Form, make_cell
from numbaprims.gpu.rnn.network import Matrix, Network, behind, joined, values_of
from numbaprims.ops._rnn_problem import B_HH, B_IH, C0, C_N, GATES_SAVED, H0, H_N, SAVED, STATES, W_HH, W_HR, W_IH, X, Y


class Forward(Network):
    """Of inference, and of training's way forward."""

    def program(self) -> Program:
        x = self.inputs()
        for layer in range(self.p.layers):
            x = self.layer(layer, x)
        return Program(self.steps, self.regions)

    def inputs(self) -> Matrix:
        """x as one matrix: its own rows where they are evenly apart, else a copy of them, packed."""
        p = self.p
        t, n, i = p.lies.x
        if p.order == "packed" or (not p.lengths and p.order == "time"):
            return Matrix(Part(X), p.dtype, n if p.batch > 1 else t, t, i)
        if self.batch_major(0):
            return Matrix(Part(X), p.dtype, n, t, i)
        place = self.region("x", p.rows * p.inputs, p.dtype)
        self.rows(
            p.rows, p.inputs, place, Part(X), (p.dtype, p.dtype), self.table("gather"), x_inner=p.batch, x_outer=t,
            x_row=n, x_column=i,
        )  # fmt: skip
        return self.packed(place, p.dtype, p.inputs)

    def batch_major(self, layer: int) -> bool:
        """Whether the input product has the steps of a sequence side by side, as x has."""
        p = self.p
        return not p.lengths and not layer and p.order == "batch" and p.way == "inference"

    def layer(self, layer: int, x: Matrix) -> Matrix:
        p, train, D = self.p, self.p.way == "train", self.p.directions
        g = self.input_products(layer, x)
        h = self.region("h", D * p.batch * p.state)
        c = self.region("c", D * p.batch * p.hidden)
        y, order, first = self.outputs(layer), self.table("order"), layer * D * p.batch
        h0, c0 = self.given(H0), self.given(C0)
        h0 = h0 and behind(h0, first * p.state * self.small)
        c0 = c0 and behind(c0, first * p.hidden * self.small)
        each: dict[str, Any] = {"planes": D, "x_plane": p.batch * p.state, "out_plane": p.batch * p.state}
        self.rows(p.batch, p.state, h, h0, (p.dtype, self.compute), order, **each)
        hx = self.operand(h, h0, each)
        if train:
            to = behind(y.place, -p.batch * y.row * self.small)
            each |= {"out_plane": p.state, "out_row": y.row}
            self.rows(p.batch, p.state, to, h0, (p.dtype, p.dtype), order, **each)
        each = {"planes": D, "x_plane": p.batch * p.hidden, "out_plane": p.batch * p.hidden}
        if p.cell == "lstm":
            self.rows(p.batch, p.hidden, c, c0, (p.dtype, self.compute), order, **each)
        if train and SAVED in p.lies.given:
            each["out_plane"] = (p.batch + p.rows) * p.hidden
            head = c0 if p.cell == "lstm" else None
            self.rows(p.batch, p.hidden, self.saved(layer), head, (p.dtype, self.compute), order, **each)
        self.loop(layer, g, h, hx, c, y)
        self.ends(first, h, c)
        last = layer == p.layers - 1
        if self.adds or (last and self.copies):
            y = self.merged(layer, y, last)
        if p.dropout and not last:
            place = self.region("dropped", p.rows * p.width, p.dtype)
            self.dropped(layer, place, y, p.dtype, p.width)
            y = self.packed(place, p.dtype, p.width)
        return y

    def operand(self, h: Part, h0: Part | None, each: dict[str, Any]) -> Part:
        """Where the states lie that a step's product takes."""
        p = self.p
        if p.dtype == self.compute:
            return h
        hx = self.region("hx", p.directions * p.batch * p.state, p.dtype)
        self.rows(p.batch, p.state, hx, h0, (p.dtype, p.dtype), self.table("order"), **each)
        return hx

    @property
    def copies(self) -> bool:
        """Whether the last layer's outputs are not y itself."""
        return self.adds or self.p.way == "train" or (self.p.lengths and self.p.order != "packed")

    def saved(self, layer: int) -> Part:
        """Of a layer's cell states, or recurrent sums, in training."""
        p = self.p
        return Part(SAVED, layer * p.directions * (p.batch + p.rows) * p.hidden * self.item)

    def outputs(self, layer: int) -> Matrix:
        """Where a layer's loop writes."""
        p = self.p
        wide = p.state * p.directions
        if p.way == "train":
            first = (layer * (p.batch + p.rows) + p.batch) * wide * self.small
            return self.packed(Part(STATES, first), p.dtype, wide)
        if layer == p.layers - 1 and not self.copies:
            return Matrix(Part(Y), p.dtype, p.lies.y[1], p.lies.y[0])
        return self.packed(self.region(f"y{layer % 2}", p.rows * wide, p.dtype), p.dtype, wide)

    def input_products(self, layer: int, x: Matrix) -> Matrix:
        """The input product of all steps with its bias, one matrix a direction, one behind the other."""
        p = self.p
        wide, inputs = p.gates * p.hidden, p.inputs_of(layer)
        size = p.rows * wide
        kept = p.way == "train" and p.gates > 1
        place = self.region("g", p.directions * size) if not kept else Part(
            GATES_SAVED, layer * p.directions * size * self.item
        )  # fmt: skip
        major = self.batch_major(layer)
        # from one row of x as a matrix to the next
        row = x.step if p.lengths or major or p.batch == 1 else x.row
        for d in range(p.directions):
            out, bias = behind(place, d * size * self.item), self.given(p.number(layer, d, B_IH))
            if p.skip_input and not layer:
                for gate in range(p.gates):
                    own = bias and behind(bias, gate * p.hidden * self.small)
                    self.rows(
                        p.rows, p.hidden, behind(out, gate * p.hidden * self.item), x.place, (x.dtype, self.compute),
                        added=own, x_row=row, x_column=x.column, out_row=wide,
                    )  # fmt: skip
            else:
                self.steps.append(self.product(
                    (p.rows, wide, inputs), (p.dtype, self.compute), (row, x.column), (1, inputs), wide,
                    (out, x.place, Part(p.number(layer, d, W_IH))), bias,
                ))  # fmt: skip
        if major:
            return Matrix(place, self.compute, p.steps * wide, wide)
        return self.packed(place, self.compute, wide)

    def loop(self, layer: int, g: Matrix, h: Part, hx: Part, c: Part, y: Matrix) -> None:
        """The time loop: a product a direction, a cell kernel for all directions."""
        p = self.p
        D, H, P, N, wide = p.directions, p.hidden, p.state, p.batch, p.gates * p.hidden
        # kind, units, operand and its width, gates of the weight from one on, the weight
        if p.projected:
            m = self.region("m", D * N * H, p.dtype)
            kinds = [("lstm", H, hx, P, 0, 4, W_HH), ("project", P, m, H, 0, 1, W_HR)]
        elif p.cell == "gru" and not p.reset_after:
            m = self.region("m", D * N * H, p.dtype)
            kinds = [("gru_gates", H, hx, P, 0, 2, W_HH), ("gru_new", H, m, H, 2, 1, W_HH)]
        else:
            m, kinds = hx, [(p.cell, H, hx, P, 0, p.gates, W_HH)]
        if m is not hx and p.lengths:
            # the second product takes all rows, those too of sequences that have not begun
            self.rows(D * N, H, m, None, (p.dtype, p.dtype))
        steps: list[Step | Nested] = []
        peepholes = self.peepholes(layer)
        saved = h
        if p.way == "train" and SAVED in p.lies.given:
            saved = behind(self.saved(layer), N * H * self.item)
        for number, (kind, units, operand, k, gate, gates, which) in enumerate(kinds):
            s = self.region(f"s{number}", D * N * gates * units)
            for d in range(D):
                bias = self.given(p.number(layer, d, B_HH)) if which == W_HH else None
                w = Part(p.number(layer, d, which), gate * units * k * self.small)
                places = behind(s, d * N * gates * units * self.item), behind(operand, d * N * k * self.small), w
                steps.append(self.product(
                    (N, gates * units, k), (p.dtype, self.compute), (k, 1), (1, k), gates * units, places,
                    bias and behind(bias, gate * units * self.small),
                ))  # fmt: skip
            form = Form(
                kind, p.dtype, self.compute, kind == "lstm" and any(peepholes), p.clipped, p.way == "train",
                number == len(kinds) - 1,
            )  # fmt: skip
            ints = {
                "s_d": N * gates * units, "s_row": gates * units, "s_gate": units, "hidden": H,
                "g_d": p.rows * wide, "g_row": g.row,
                "g_step": g.step, "h_d": N * P, "h_row": P, "c_d": N * H, "y_d": P, "y_row": y.row, "y_step": y.step,
                "saved_d": (N + p.rows) * H, "saved_step": H * (1 if p.lengths else N), "m_d": N * H,
                "given": 0,
            }  # fmt: skip
            pointers = (s, g.place, h, hx, c, y.place, m, saved, *peepholes)
            values = values_of(pointers, *(ints[name] for name in INTS))
            table = values_of((self.table("offsets"),), N, units, p.steps, int(p.reverse))
            steps.append(step(
                make_cell(form, p.lengths), (-(-N * units // THREADS), D),
                joined(values, table, lambda arrays, floats, at: (floats[0],)),
            ))  # fmt: skip
        self.steps.append(Loop(tuple(steps), p.steps))

    def ends(self, first: int, h: Part, c: Part) -> None:
        """h_n and c_n of a layer, whose matrices begin at row `first` of all."""
        p = self.p
        for number, source, width in ((H_N, h, p.state), (C_N, c, p.hidden)):
            if number in p.lies.given:
                self.rows(
                    p.batch, width, Part(number, first * width * self.small), source, (self.compute, p.dtype),
                    self.table("inverse"), planes=p.directions, x_plane=p.batch * width, out_plane=p.batch * width,
                )  # fmt: skip

    def merged(self, layer: int, y: Matrix, last: bool) -> Matrix:
        """The sum of two directions, and packed rows where they belong."""
        p = self.p
        second = p.state if self.adds else 0
        if last:
            t, n, _ = p.lies.y
            self.unpacked(Part(Y), (t, n), y, p.width, second)
            return Matrix(Part(Y), p.dtype, n, t)
        place = self.region(f"merged{layer % 2}", p.rows * p.width, p.dtype)
        self.rows(p.rows, p.width, place, y.place, (p.dtype, p.dtype), x_row=y.row, second=second)
        return self.packed(place, p.dtype, p.width)
