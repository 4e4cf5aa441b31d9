"""The program of a network's gradient: from the last layer to the first, each a time loop and then single products.

The error from above lies in `dy`, the recurrent product of a step is added to it (equation 15 of MIOpen's paper); then
one product for dx over all steps (17), one for the gradient of w_ih (19) and one for that of w_hh (21), whatever the
lengths: rows are packed, and h of the step before is a shift of what training has kept.
"""

from __future__ import annotations

from numbaprims.cpu.gemm.arguments import PACK as PANELS
from numbaprims.cpu.gemm.pack import make_pack as make_panels
from numbaprims.cpu.program import Bind, Block, Phase, Program, Run, array
from numbaprims.cpu.regions import Regions
from numbaprims.cpu.rnn.arguments import BACK
from numbaprims.cpu.rnn.cells import Form
from numbaprims.cpu.rnn.kernels import BLOCK, make_back_step
from numbaprims.cpu.rnn.network import ONE, Matrix, Network, behind, matrix, product
from numbaprims.cpu.rnn.tiles import best_height, kc_of
from numbaprims.dtypes import DTYPES
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

ADDED = (1.0, 1.0, 0.0, 0.0, 0.0)


class Gradient(Network):
    """Makes the program of the gradient."""

    tables_at = B_TABLES

    def program(self) -> Program:
        p = self.p
        dy = self.packed_wide(self.given(DY), p.lies.dy, p.width)
        for layer in range(p.layers - 1, -1, -1):
            if p.dropout and layer < p.layers - 1:
                self.dropped(layer, dy.place, dy, self.compute, p.width)
            dy = self.back(layer, dy)
        self.unpacked(array(DX), p.lies.y, dy, p.inputs, 0)
        return self.joined()

    def packed_wide(self, place: Bind | None, lies: tuple[int, int, int], width: int) -> Matrix:
        """An array over (time, batch, features) as packed rows in the type that is computed in; zeros for
        none."""
        p, (t, n, i) = self.p, lies if place is not None else (0, 0, 1)
        to = self.region(p.rows * width)
        if p.order == "packed":
            self.rows(p.rows, width, to, place, (p.dtype, self.compute), x_row=t, x_column=i)
        else:
            self.rows(
                p.rows, width, to, place, (p.dtype, self.compute), self.table("gather"), x_inner=p.batch, x_outer=t,
                x_row=n, x_column=i,
            )  # fmt: skip
        return self.packed(to, self.compute, width)

    def states(self, layer: int) -> Matrix:
        """h of a layer at all times, behind those of the start."""
        p = self.p
        wide = p.directions * p.state
        return self.packed(
            array(B_STATES, layer * (p.batch + p.rows) * wide * DTYPES[p.dtype].itemsize), p.dtype, wide
        )  # fmt: skip

    def before(self, layer: int, d: int) -> Matrix:
        """h of the step before, of all rows."""
        p, states = self.p, self.states(layer)
        size, row = DTYPES[p.dtype].itemsize, states.row
        source, back = behind(states.place, d * p.state * size), d + p.reverse > 0
        if not back and not p.lengths and p.dtype == self.compute:
            return Matrix(source, p.dtype, row, 0)
        place = self.region(p.rows * p.state)
        dtypes = (p.dtype, self.compute)
        if p.lengths:
            self.rows(p.rows, p.state, place, source, dtypes, self.table(f"before_{int(back)}"), x_row=row)
        elif back:
            most = p.rows - p.batch
            self.rows(most, p.state, place, behind(source, 2 * p.batch * row * size), dtypes, x_row=row)
            to = behind(place, most * p.state * self.item)
            self.rows(p.batch, p.state, to, source, dtypes, x_row=row)
        else:
            self.rows(p.rows, p.state, place, source, dtypes, x_row=row)
        return Matrix(place, self.compute, p.state, 0)

    def inputs_of(self, layer: int) -> Matrix:
        """What a layer took, in packed rows of the type that is computed in."""
        p = self.p
        if not layer:
            return self.packed_wide(array(B_X), p.lies.x, p.inputs)
        states = self.states(layer - 1)
        source = behind(states.place, p.batch * states.row * DTYPES[p.dtype].itemsize)
        if p.dtype == self.compute and not self.adds and not p.dropout:
            return Matrix(source, p.dtype, states.row, 0)
        place = self.region(p.rows * p.width)
        self.rows(
            p.rows, p.width, place, source, (p.dtype, self.compute), x_row=states.row,
            second=p.state if self.adds else 0,
        )  # fmt: skip
        x = Matrix(place, self.compute, p.width, 0)
        if p.dropout:
            self.dropped(layer - 1, place, x, self.compute, p.width)
        return x

    # ---------------------------------------------------------------- a layer

    def back(self, layer: int, dy: Matrix) -> Matrix:
        """The gradients of a layer's weights; dy of the layer below."""
        p, D, item = self.p, self.p.directions, self.item
        wide, order = p.gates * p.hidden, self.table("order")
        carry, dc = self.region(D * p.batch * p.state), None
        if p.cell == "lstm":
            dc = self.region(D * p.batch * p.hidden)
        for d in range(D):
            number = layer * D + d
            for place, given, width in ((carry, DH_N, p.state), (dc, DC_N, p.hidden)):
                if place is not None:
                    source = matrix(self.given(given), number, p, width)
                    to = behind(place, d * p.batch * width * item)
                    self.rows(p.batch, width, to, source, (p.dtype, self.compute), order)
        dg = self.region(D * p.rows * wide)
        dgh = self.region(D * p.rows * wide) if p.cell == "gru" and p.reset_after else dg
        dm = self.region(D * p.rows * p.state) if p.projected else None
        second = bool(p.projected) or (p.cell == "gru" and not p.reset_after)
        m = self.region(D * p.rows * p.hidden) if second else None
        row = -(-p.hidden // (4 * self.W)) * 4 * self.W
        numbers, count = self.numbers(layer, row)
        dnumbers = self.region(D * count * row)
        self.rows(D * count, row, dnumbers, None, (self.compute, self.compute))
        self.time(layer, dy, carry, dc, dg, dgh, dm, m, numbers, dnumbers, row, count)
        dx = self.packed(self.region(p.rows * p.inputs_of(layer)), self.compute, p.inputs_of(layer))
        x = None if p.skip_input and not layer else self.inputs_of(layer)
        for d in range(D):
            own_part = d * p.rows * wide * item
            side, recurrent = behind(dg, own_part), behind(dgh, own_part)
            self.of_inputs(layer, d, side, x, dx)
            own = None if m is None else behind(m, d * p.rows * p.hidden * item)
            self.of_states(layer, d, recurrent, own)
            if dm is not None and own is not None:
                errors = behind(dm, d * p.rows * p.state * item)
                self.weight(layer, d, W_HR, errors, p.state, p.state, Matrix(own, self.compute, p.hidden, 0), p.hidden)
            self.of_numbers(layer, d, behind(dnumbers, d * count * row * item), row)
            self.of_start(layer, d, recurrent, behind(carry, d * p.batch * p.state * item), dc)
        return dx

    def of_inputs(self, layer: int, d: int, dg: Bind, x: Matrix | None, dx: Matrix) -> None:
        p = self.p
        wide, inputs = p.gates * p.hidden, p.inputs_of(layer)
        if x is None:  # every gate takes x as it is
            ones = [behind(dg, gate * p.hidden * self.item) for gate in range(p.gates)]
            for k, source in enumerate(ones):
                self.rows(
                    p.rows, p.hidden, dx.place, source, (self.compute, self.compute), x_row=wide, adds=int(k + d > 0)
                )  # fmt: skip
            return
        if not inputs:
            return
        w = self.wide(layer, d, W_IH)
        kinds = (self.compute, self.compute)
        made = product(self.target, p.rows, inputs, wide, kinds, (wide, 1), (inputs, 1), inputs, adds=d > 0)
        self.add(made, dx.place, dg, w, dx.place if d else None, floats=ADDED if d else ONE)
        self.weight(layer, d, W_IH, dg, wide, wide, x, inputs)

    def of_states(self, layer: int, d: int, dg: Bind, m: Bind | None) -> None:
        p = self.p
        wide, before = p.gates * p.hidden, self.before(layer, d)
        if p.cell == "gru" and not p.reset_after:
            some = 2 * p.hidden
            self.weight(layer, d, W_HH, dg, wide, some, before, p.state)
            own = Matrix(m, self.compute, p.hidden, 0)  # type: ignore[arg-type]
            last = behind(dg, some * self.item)
            self.weight(layer, d, W_HH, last, wide, p.hidden, own, p.state, first=some)
        else:
            self.weight(layer, d, W_HH, dg, wide, wide, before, p.state)

    def weight(
        self, layer: int, d: int, which: int, errors: Bind, row: int, m: int, x: Matrix, n: int, first: int = 0
    ) -> None:  # fmt: skip
        """Rows from `first` on of a weight's gradient (m, n): errors' x over all packed rows."""
        p = self.p
        to = array(p.gradient(layer, d, which), first * n * DTYPES[p.dtype].itemsize)
        out = to if p.dtype == self.compute else self.region(m * n)
        made = product(self.target, m, n, p.rows, (self.compute, self.compute), (1, row), (x.row, 1), n)
        self.add(made, out, errors, x.place, floats=ONE)
        if p.dtype != self.compute:
            self.rows(m, n, to, out, (self.compute, p.dtype))

    def of_numbers(self, layer: int, d: int, sums: Bind, row: int) -> None:
        """Gradients of biases and peepholes."""
        p, size = self.p, DTYPES[self.p.dtype].itemsize
        apart = p.cell == "gru" and p.reset_after
        found = [(B_IH, 0, 0, p.gates), (B_HH, 0, 0, p.gates - apart)]
        if apart:
            found.append((B_HH, p.gates - 1, p.gates, 1))
        if p.cell == "lstm":
            found.append((PEEPHOLE, 0, 4, 3))
        for which, to, source, count in found:
            if p.has(layer, d, which):
                out = array(p.gradient(layer, d, which), to * p.hidden * size)
                self.rows(
                    count, p.hidden, out, behind(sums, source * row * self.item), (self.compute, p.dtype), x_row=row
                )  # fmt: skip

    def of_start(self, layer: int, d: int, dg: Bind, carry: Bind, dc: Bind | None) -> None:
        """dh0 and dc0: what the first step of each sequence hands on."""
        p, back = self.p, d + self.p.reverse > 0
        wide, number = p.gates * p.hidden, layer * p.directions + d
        gates = 2 * p.hidden if p.cell == "gru" and not p.reset_after else wide
        first = dg
        if p.lengths:
            first = self.region(p.batch * wide)
            kinds = (self.compute, self.compute)
            self.rows(p.batch, wide, first, dg, kinds, self.table(f"first_{int(back)}"))
        elif back:
            first = behind(dg, (p.rows - p.batch) * wide * self.item)
        w = self.wide(layer, d, W_HH)
        kinds = (self.compute, self.compute)
        made = product(self.target, p.batch, p.state, gates, kinds, (wide, 1), (p.state, 1), p.state, adds=True)
        self.add(made, carry, first, w, carry, floats=ADDED)
        self.rows(
            p.batch, p.state, matrix(self.given(DH0), number, p, p.state), carry, (self.compute, p.dtype),
            self.table("inverse"),
        )  # fmt: skip
        if dc is not None:
            self.rows(
                p.batch, p.hidden, matrix(self.given(DC0), number, p, p.hidden),
                behind(dc, d * p.batch * p.hidden * self.item), (self.compute, p.dtype), self.table("inverse"),
            )  # fmt: skip

    # ---------------------------------------------------------------- the time loop

    def time(
        self, layer: int, dy: Matrix, carry: Bind, dc: Bind | None, dg: Bind, dgh: Bind, dm: Bind | None, m: Bind |
        None, numbers: Bind, dnumbers: Bind, row: int, count: int,
    ) -> None:  # fmt: skip
        p, W, item = self.p, self.W, self.item
        wide, H, P = p.gates * p.hidden, p.hidden, p.state
        # kind, units, width of `a`, its place, first rows of the weight that it meets, the weight
        if p.projected:
            assert dm is not None
            kinds = [("project", P, wide, dgh, wide, 0, W_HH), ("lstm", H, P, dm, P, 0, W_HR)]
        elif p.cell == "gru" and not p.reset_after:
            last = behind(dg, 2 * H * item)
            kinds = [("gru_gates", H, 2 * H, dg, wide, 0, W_HH), ("gru_new", H, H, last, wide, 2 * H, W_HH)]
        else:
            kinds = [(p.cell, H, wide, dgh, wide, 0, W_HH)]
        phases, blocks, places, nv = [], [], list[Bind | None](), 4
        regions = Regions(own={"sums": BLOCK * nv * W * item})
        peephole = p.cell == "lstm" and self.peepholes(layer)
        saved = None
        if p.cell == "lstm" or (p.cell == "gru" and p.reset_after):
            saved = array(B_SAVED, layer * p.directions * (p.batch + p.rows) * H * item)
        for number, (kind, units, k, a, a_row, first, which) in enumerate(kinds):
            mr = best_height(nv, p.batch, self.target)
            ends = not (kind == "lstm" and p.projected)
            form = Form(kind, p.dtype, self.compute, mr, nv, W, peephole and kind == "lstm", False, False, ends, True)
            groups = -(-units // (nv * W))
            size = groups * k * nv * W
            panels = self.region(p.directions * size + 2 * W)
            weight = P if which == W_HH else H  # its columns
            for d in range(p.directions):
                ints = {"k": k, "width": units, "width_step": 1, "k_step": weight}
                source = behind(array(p.number(layer, d, which)), first * weight * DTYPES[p.dtype].itemsize)
                kernel = make_panels(p.dtype, self.compute, nv * W, W)
                # in one go: the last panel's rows may be written beyond its end
                self.add(
                    Program.of(PANELS, ints, [(kernel, groups, groups)], parallel=False),
                    behind(panels, d * size * item), source,
                )  # fmt: skip
            fixed = {
                "k": k, "n": p.batch, "hidden": units, "groups": groups, "steps": p.steps, "reverse": int(p.reverse),
                "kc": kc_of(self.target, k, mr, p.batch, nv * W * item), "now": int(number > 0), "a_d": p.rows * a_row,
                "a_row": a_row, "r_d": size, "numbers_d": count * row, "numbers_row": row, "dy_row": dy.row,
                "dy_d": 0 if self.adds else P, "carry_d": p.batch * P, "carry_row": P, "dc_d": p.batch * H, "dc_row": H,
                "gates_d": p.rows * wide, "gates_row": wide, "saved_d": (p.batch + p.rows) * H, "saved_row": H,
                "states_d": P, "states_row": p.directions * P, "dg_d": p.rows * wide, "dg_row": wide,
                "dgh_d": p.rows * wide, "dgh_row": wide, "dm_d": p.rows * P, "dm_row": P, "m_d": p.rows * H,
                "m_row": H,
            }  # fmt: skip
            given = {
                "a": a, "r": panels, "dy": dy.place, "carry": carry, "dc": dc,
                "gates": array(B_GATES, layer * p.directions * p.rows * wide * item), "saved": saved,
                "states": self.states(layer).place, "dg": dg, "dgh": dgh, "dm": dm, "m": m, "numbers": numbers,
                "dnumbers": dnumbers, "offsets": self.table("offsets"),
            }  # fmt: skip
            binds = {
                name: array(len(places) + at) for at, (name, place) in enumerate(given.items()) if place is not None
            }  # fmt: skip
            places += given.values()
            blocks.append(Block.of(BACK, fixed, binds, regions))
            tiles = groups * p.directions
            phases.append(Phase(make_back_step(form), tiles, self.chunk(tiles), block=number))
        run = Run(tuple(phases), tuple(blocks), p.steps)
        self.add(Program((run,), worker=regions.own_bytes), *places)
