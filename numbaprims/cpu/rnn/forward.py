"""The program of a network, layer by layer: what all solvers have in common.

For each layer: the input product of all steps and each direction, the states, the time loop, the last states.
Sequences of different lengths are sorted and packed, so that each step takes rows from the first on; a state of which
nothing is computed stays where it is.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import numpy as np

from numbaprims.cpu.launch import make_launcher
from numbaprims.cpu.program import Bind, Block, Program, array, join
from numbaprims.cpu.program_words import ARRAYS
from numbaprims.cpu.regions import Regions
from numbaprims.cpu.rnn.arguments import STEP
from numbaprims.cpu.rnn.cells import GATES, Form
from numbaprims.cpu.rnn.network import LINE, Matrix, Network, behind, matrix
from numbaprims.cpu.simd import FLOAT_SLOT
from numbaprims.dtypes import DTYPES
from numbaprims.ops._rnn_problem import C0, C_N, GATES_SAVED, H0, H_N, PREPARED, SAVED, STATES, W_HH, W_HR, W_IH, X, Y


@dataclasses.dataclass
class Stage:
    """A product of a step with its end."""

    form: Form
    weight: int
    first: int
    """The first gate of the weight that it takes."""
    fixed: dict[str, int]
    given: dict[str, Bind | None]
    """Arrays of the block of arguments."""

    def block(self, start: int, regions: Regions, **more: int) -> Block:
        """The arguments, for arrays of a program from `start` on."""
        there = (name for name, place in self.given.items() if place is not None)
        names = list(self.given)
        binds = {name: array(start + names.index(name)) for name in there}
        if self.form.clip:
            binds["clip"] = Bind(FLOAT_SLOT)
        return Block.of(STEP, self.fixed | more, binds, regions)


class Forward(Network, abc.ABC):
    """Makes the program of inference, or of training's way forward."""

    #: Whether a step reads one state and writes another.
    flips = True
    turns: list[Bind]
    #: Steps of a tile of the wavefront; 0 for layer by layer.
    many = 0

    def program(self) -> Program:
        p, inference = self.p, self.p.way == "inference"
        #: What the next layer reads; everything else of a layer is free behind it.
        count = min(2, p.layers - 1) if inference else 0
        self.turns = [self.region(p.rows * p.width, p.dtype) for _ in range(count)]
        x = self.inputs()
        start, layer = self.used, 0
        while layer < p.layers:
            count = self.overlap(layer)
            x = self.layers(range(layer, layer + count), x)
            layer += count
            if inference:
                self.used = start
        return self.joined()

    def overlap(self, layer: int) -> int:
        """How many layers from this one on are run at the same time."""
        return 1

    def layers(self, which: range, x: Matrix) -> Matrix:
        """The program of layers; what the next one reads."""
        (layer,) = which
        g = self.input_products(layer, x)
        h, c, y = self.states(layer)
        self.steps(layer, self.stages(layer, g, h, c, y))
        return self.ended(layer, h, c, y)

    def prepare(self, weights: list[Any]) -> np.ndarray:
        """What programs of these weights read, made once."""
        self.program()
        memory = np.zeros(self.kept + LINE, np.uint8)
        memory = memory[-memory.ctypes.data % LINE :]
        arrays = [*[None] * PREPARED, memory, *weights]
        make_launcher(join(self.packing))(*arrays[:ARRAYS], more=arrays[ARRAYS:])
        return memory

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

    def states(self, layer: int) -> tuple[Bind, Bind | None, Matrix]:
        """A layer's h, c and y, with what they start from."""
        p, train = self.p, self.p.way == "train"
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
        return h, c, y

    def ended(self, layer: int, h: Bind, c: Bind | None, y: Matrix) -> Matrix:
        """What comes behind a layer's loop; the outputs as the next one reads them."""
        p = self.p
        self.ends(layer, h, c)
        last = layer == p.layers - 1
        if self.adds or (last and self.copies):
            y = self.merged(layer, y, last)
        if p.dropout and not last:
            place = self.region(p.rows * p.width, p.dtype)
            self.dropped(layer, place, y, p.dtype, p.width)
            y = self.packed(place, p.dtype, p.width)
        return y

    @property
    def copies(self) -> bool:
        """Whether the last layer's outputs are not y itself."""
        p = self.p
        return self.adds or p.way == "train" or p.lies.y[2] != 1 or (p.lengths and p.order != "packed")

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
        read_next = layer < p.layers - 1 and not self.adds
        return self.packed(self.turns[layer % 2] if read_next else self.region(p.rows * wide, p.dtype), p.dtype, wide)

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
                kinds, weight = (p.dtype, self.compute), array(p.number(layer, d, W_IH))
                self.multiply(out, x.place, weight, p.rows, wide, inputs, kinds, (row, x.column))
        if batch_major:
            return Matrix(place, self.compute, p.steps * wide, wide)
        return self.packed(place, self.compute, wide)

    def stages(self, layer: int, g: Matrix, h: Bind, c: Bind | None, y: Matrix) -> list[Stage]:
        """The products of a step of a layer."""
        p, item = self.p, self.item
        m, stages = None, [(p.cell, W_HH, 0)]
        if p.cell == "lstm" and p.projected:
            m = self.region(p.directions * p.batch * p.hidden)
            stages = [("lstm", W_HH, 0), ("project", W_HR, 0)]
        elif p.cell == "gru" and not p.reset_after:
            m, c = self.region(p.directions * p.batch * p.hidden), self.region(p.directions * p.batch * p.hidden)
            stages = [("gru_gates", W_HH, 0), ("gru_new", W_HH, 2)]
        row = -(-p.hidden // (4 * self.W)) * 4 * self.W
        numbers, count = self.numbers(layer, row)
        found = []
        for number, (kind, weight, first) in enumerate(stages):
            k = p.hidden if number else p.state
            fixed = {
                "k": k, "n": p.batch, "hidden": p.state if kind == "project" else p.hidden, "steps": p.steps,
                "reverse": int(p.reverse), "a_row": k, "numbers_d": count * row, "numbers_row": row,
                "a_d": p.batch * k if number else 2 * p.batch * k, "a_flip": 0 if number else p.batch * k,
                "g_d": p.rows * p.gates * p.hidden, "g_row": g.row, "g_step": g.step, "h_d": 2 * p.batch * p.state,
                "h_row": p.state, "h_flip": p.batch * p.state if self.flips else 0, "c_d": p.batch * p.hidden,
                "c_row": p.hidden, "y_d": p.state, "y_row": y.row, "y_step": y.step, "m_d": p.batch * p.hidden,
                "m_row": p.hidden, "saved_d": (p.batch + p.rows) * p.hidden, "saved_row": p.hidden,
                "saved_step": p.hidden * (1 if p.lengths else p.batch),
            }  # fmt: skip
            saved = None
            if p.way == "train" and kind in ("lstm", "gru"):
                saved = behind(self.saved(layer), p.batch * p.hidden * item)
            given = {
                "a": m if number else h, "numbers": numbers, "g": g.place, "h": h, "c": c, "y": y.place, "m": m,
                "offsets": self.table("offsets"), "saved": saved,
            }  # fmt: skip
            form = Form(
                kind, p.dtype, self.compute, 1, max(1, 4 // GATES[kind]), self.W,
                kind == "lstm" and self.peepholes(layer), p.clipped, p.way == "train", number == len(stages) - 1,
            )  # fmt: skip
            found.append(Stage(form, weight, first, fixed, given))
        return found

    @abc.abstractmethod
    def steps(self, layer: int, stages: list[Stage]) -> None:
        """All steps of a layer's loop."""

    def ends(self, layer: int, h: Bind, c: Bind | None) -> None:
        """h_n and c_n of a layer."""
        p = self.p
        for d in range(p.directions):
            number, back = layer * p.directions + d, d + p.reverse > 0
            state = behind(h, d * 2 * p.batch * p.state * self.item)
            if self.flips and (back or not p.lengths):
                state = behind(state, p.steps % 2 * p.batch * p.state * self.item)
            self.rows(
                p.batch, p.state, matrix(array(H_N), number, p, p.state), state, (self.compute, p.dtype),
                self.table("inverse" if back or not self.flips else "last"),
            )  # fmt: skip
            if c is not None:
                self.rows(
                    p.batch, p.hidden, matrix(array(C_N), number, p, p.hidden),
                    behind(c, d * p.batch * p.hidden * self.item), (self.compute, p.dtype), self.table("inverse"),
                )  # fmt: skip

    def merged(self, layer: int, y: Matrix, last: bool) -> Matrix:
        """The sum of two directions, and packed rows where they belong."""
        p = self.p
        second = p.state if self.adds else 0
        if last:
            t, n, _ = p.lies.y
            self.unpacked(array(Y), p.lies.y, y, p.width, second)
            return Matrix(array(Y), p.dtype, n, t)
        place = self.turns[layer % 2] if self.turns else self.region(p.rows * p.width, p.dtype)
        self.rows(p.rows, p.width, place, y.place, (p.dtype, p.dtype), x_row=y.row, second=second)
        return self.packed(place, p.dtype, p.width)
