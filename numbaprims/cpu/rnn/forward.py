"""The program of a network, layer by layer: what all solvers have in common.

For each layer: the input product of all steps and each direction, the states, the time loop, the last states.
Sequences of different lengths are sorted and packed, so that each step takes rows from the first on; a state of which
nothing is computed stays where it is.
"""

from __future__ import annotations

import abc

from numbaprims.cpu.program import Bind, Program, array
from numbaprims.cpu.rnn.network import ONE, Matrix, Network, behind, matrix, product
from numbaprims.dtypes import DTYPES
from numbaprims.ops._rnn_problem import C0, C_N, GATES_SAVED, H0, H_N, SAVED, STATES, W_IH, X, Y


class Forward(Network, abc.ABC):
    """Makes the program of inference, or of training's way forward."""

    def program(self) -> Program:
        p, x = self.p, self.inputs()
        for layer in range(p.layers):
            x = self.layer(layer, x)
        return self.joined()

    def inputs(self) -> Matrix:
        """x as one matrix: its own rows where they are evenly apart, else a copy of them, packed."""
        p = self.p
        t, n, i = p.lies.x
        if p.order == "packed" or (not p.lengths and p.order == "time"):
            return Matrix(array(X), p.dtype, n if p.batch > 1 else t, t, i)
        if not p.lengths and p.order == "batch" and p.way == "inference":
            return Matrix(array(X), p.dtype, n, t, i)
        place = self.region(p.rows * p.inputs, p.dtype)
        self.rows(
            p.rows, p.inputs, place, array(X), (p.dtype, p.dtype), self.table("gather"),
            x_inner=p.batch, x_outer=t, x_row=n, x_column=i,
        )  # fmt: skip
        return self.packed(place, p.dtype, p.inputs)

    def layer(self, layer: int, x: Matrix) -> Matrix:
        p, train = self.p, self.p.way == "train"
        g = self.input_products(layer, x)
        states = p.directions * 2 * p.batch * p.state
        h, c = self.region(states), self.region(p.directions * p.batch * p.hidden) if p.cell == "lstm" else None
        y = self.outputs(layer)
        order = self.table("order")
        for d in range(p.directions):
            h0 = matrix(self.given(H0), layer * p.directions + d, p, p.state)
            c0 = matrix(self.given(C0), layer * p.directions + d, p, p.hidden)
            to = behind(h, d * 2 * p.batch * p.state * self.item)
            self.rows(p.batch, p.state, to, h0, (p.dtype, self.compute), order, again=p.batch * p.state)
            if train:
                to = behind(y.place, (d * p.state - p.batch * y.row) * DTYPES[p.dtype].itemsize)
                self.rows(p.batch, p.state, to, h0, (p.dtype, p.dtype), order, out_row=y.row)
            if train and p.cell == "gru" and p.reset_after:
                to = behind(self.saved(layer), d * (p.batch + p.rows) * p.hidden * self.item)
                self.rows(p.batch, p.hidden, to, None, (self.compute, self.compute))
            if c is not None:
                to = behind(c, d * p.batch * p.hidden * self.item)
                self.rows(p.batch, p.hidden, to, c0, (p.dtype, self.compute), order)
                if train:
                    to = behind(self.saved(layer), d * (p.batch + p.rows) * p.hidden * self.item)
                    self.rows(p.batch, p.hidden, to, c0, (p.dtype, self.compute), order)
        self.loop(layer, g, h, c, y)
        self.ends(layer, h, c)
        last = layer == p.layers - 1
        if self.adds or (last and self.copies):
            y = self.merged(y, last)
        return y

    @property
    def copies(self) -> bool:
        """Whether the last layer's outputs are not y itself."""
        return self.adds or self.p.way == "train" or (self.p.lengths and self.p.order != "packed")

    def saved(self, layer: int) -> Bind:
        """Of a layer's cell states, or recurrent sums, in training."""
        p = self.p
        return array(SAVED, layer * p.directions * (p.batch + p.rows) * p.hidden * self.item)

    def outputs(self, layer: int) -> Matrix:
        """Where a layer's loop writes."""
        p = self.p
        wide = p.state * p.directions
        if p.way == "train":
            first = (layer * (p.batch + p.rows) + p.batch) * wide * DTYPES[p.dtype].itemsize
            return self.packed(array(STATES, first), p.dtype, wide)
        if layer == p.layers - 1 and not self.copies:
            return Matrix(array(Y), p.dtype, p.lies.y[1], p.lies.y[0])
        return self.packed(self.region(p.rows * wide, p.dtype), p.dtype, wide)

    def input_products(self, layer: int, x: Matrix) -> Matrix:
        """The input product of all steps, one matrix a direction, one behind the other."""
        p = self.p
        wide, inputs = p.gates * p.hidden, p.inputs_of(layer)
        size = p.directions * p.rows * wide
        kept = p.way == "train" and p.gates > 1
        place = array(GATES_SAVED, layer * size * self.item) if kept else self.region(size)
        batch_major = not p.lengths and not layer and p.order == "batch" and p.way == "inference"
        # from one row of x as a matrix to the next
        row = x.step if p.lengths or batch_major or p.batch == 1 else x.row
        for d in range(p.directions):
            out = behind(place, d * p.rows * wide * self.item)
            if p.skip_input and not layer:
                for gate in range(p.gates):
                    self.rows(
                        p.rows, p.hidden, behind(out, gate * p.hidden * self.item), x.place, (x.dtype, self.compute),
                        x_row=row, x_column=x.column, out_row=wide,
                    )  # fmt: skip
            else:
                made = product(
                    self.target, p.rows, wide, inputs, (p.dtype, self.compute), (row, x.column), (1, inputs), wide
                )
                self.add(made, out, x.place, array(p.number(layer, d, W_IH)), floats=ONE)
        if batch_major:
            return Matrix(place, self.compute, p.steps * wide, wide)
        return self.packed(place, self.compute, wide)

    @abc.abstractmethod
    def loop(self, layer: int, g: Matrix, h: Bind, c: Bind | None, y: Matrix) -> None:
        """The time loop of a layer, with all that it needs of weights."""

    def ends(self, layer: int, h: Bind, c: Bind | None) -> None:
        """h_n and c_n of a layer."""
        p = self.p
        for d in range(p.directions):
            number, back = layer * p.directions + d, d + p.reverse > 0
            state = behind(h, d * 2 * p.batch * p.state * self.item)
            if back or not p.lengths:
                state = behind(state, p.steps % 2 * p.batch * p.state * self.item)
            self.rows(
                p.batch, p.state, matrix(array(H_N), number, p, p.state), state, (self.compute, p.dtype),
                self.table("inverse" if back else "last"),
            )  # fmt: skip
            if c is not None:
                self.rows(
                    p.batch, p.hidden, matrix(array(C_N), number, p, p.hidden),
                    behind(c, d * p.batch * p.hidden * self.item), (self.compute, p.dtype), self.table("inverse"),
                )  # fmt: skip

    def merged(self, y: Matrix, last: bool) -> Matrix:
        """The sum of two directions, and packed rows where they belong."""
        p = self.p
        second = p.state if self.adds else 0
        if last:
            t, n = p.lies.y
            self.unpacked(array(Y), (t, n), y, p.width, second)
            return Matrix(array(Y), p.dtype, n, t)
        place = self.region(p.rows * p.width, p.dtype)
        self.rows(p.rows, p.width, place, y.place, (p.dtype, p.dtype), x_row=y.row, second=second)
        return self.packed(place, p.dtype, p.width)
