"""The ways to run a recurrent network, and what each is estimated to take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numbaprims.cpu.program import SCRATCH, Bind, Block, Phase, Program, Run, array
from numbaprims.cpu.rnn.arguments import PACK, STEP
from numbaprims.cpu.rnn.cells import GATES, Form
from numbaprims.cpu.rnn.forward import Forward
from numbaprims.cpu.rnn.gradient import Gradient
from numbaprims.cpu.rnn.kernels import BLOCK, make_pack, make_step
from numbaprims.cpu.rnn.network import Matrix, behind
from numbaprims.cpu.rnn.tiles import best_height, kc_of
from numbaprims.cpu.solver import Config, Solver
from numbaprims.dtypes import DTYPES
from numbaprims.ops._rnn_problem import W_HH, W_HR


class _Persistent(Forward):
    """Each worker keeps its groups of units and their weights from step to step."""

    def loop(self, layer: int, g: Matrix, h: Bind, c: Bind | None, y: Matrix) -> None:
        p = self.p
        m = None
        if p.cell == "lstm" and p.projected:
            m = self.region(p.directions * p.batch * p.hidden)
            kinds = ["lstm", "project"]
        elif p.cell == "gru" and not p.reset_after:
            m, c = self.region(p.directions * p.batch * p.hidden), self.region(p.directions * p.batch * p.hidden)
            kinds = ["gru_gates", "gru_new"]
        else:
            kinds = [p.cell]
        self.steps(layer, kinds, g, h, c, m, y)

    def steps(
        self, layer: int, kinds: list[str], g: Matrix, h: Bind, c: Bind | None, m: Bind | None, y: Matrix
    ) -> None:  # fmt: skip
        p, item = self.p, self.item
        row = -(-p.hidden // (4 * self.W)) * 4 * self.W
        numbers, count = self.numbers(layer, row)
        phases, blocks, room = [], [], 0
        for number, kind in enumerate(kinds):
            nv = max(1, 4 // GATES[kind])
            mr = best_height(GATES[kind] * nv, p.batch, self.target)
            wide = GATES[kind] * nv * self.W
            units = p.state if kind == "project" else p.hidden
            k = p.hidden if number else p.state
            groups = -(-units // (nv * self.W))
            ends = number == len(kinds) - 1
            form = Form(
                kind, p.dtype, self.compute, mr, nv, self.W, kind == "lstm" and self.peepholes(layer), p.clipped,
                p.way == "train", ends,
            )  # fmt: skip
            size = groups * k * wide
            panels = self.region(p.directions * size)
            for d in range(p.directions):
                source = array(p.number(layer, d, W_HR if kind == "project" else W_HH))
                ints = {"k": k, "hidden": units, "first": 2 if kind == "gru_new" else 0, "w_row": k}
                kernel = make_pack(p.dtype, self.compute, GATES[kind], nv, self.W)
                to = panels._replace(offset=panels.offset + d * size * item)
                self.add(Program.of(PACK, ints, [(kernel, groups, max(1, groups // 8))]), to, source)
            second = number > 0
            room_size = BLOCK * wide
            room = max(room, room_size * item)
            fixed = {
                "k": k, "n": p.batch, "hidden": units, "groups": groups, "steps": p.steps, "reverse": int(p.reverse),
                "kc": kc_of(self.target, k, mr, p.batch, wide * item), "a_row": k, "r_d": size,
                "a_d": p.batch * k if second else 2 * p.batch * k, "a_flip": 0 if second else p.batch * k,
                "numbers_d": count * row, "numbers_row": row, "g_d": p.rows * p.gates * p.hidden, "g_row": g.row,
                "g_step": g.step, "h_d": 2 * p.batch * p.state, "h_row": p.state, "h_flip": p.batch * p.state,
                "c_d": p.batch * p.hidden, "c_row": p.hidden, "y_d": p.state, "y_row": y.row, "y_step": y.step,
                "m_d": p.batch * p.hidden, "m_row": p.hidden, "saved_d": (p.batch + p.rows) * p.hidden,
                "saved_row": p.hidden, "saved_step": p.hidden * (1 if p.lengths else p.batch), "room_size": room_size,
            }  # fmt: skip
            saved = None
            if p.way == "train" and kind in ("lstm", "gru"):
                saved = behind(self.saved(layer), p.batch * p.hidden * item)
            given = {
                "a": m if second else h, "r": panels, "numbers": numbers, "g": g.place, "h": h, "c": c, "y": y.place,
                "m": m, "offsets": self.table("offsets"), "saved": saved,
            }  # fmt: skip
            names = [name for name, place in given.items() if place is not None]
            start = number * len(given)
            binds = {name: array(start + list(given).index(name)) for name in names}
            binds["room"] = Bind(SCRATCH)
            if p.clipped:
                binds["clip"] = Bind(8)
            blocks.append((Block(STEP, fixed, binds), list(given.values())))
            tiles = groups * p.directions
            phases.append(Phase(make_step(form), tiles, self.chunk(tiles), block=number))
        program = Program(
            (Run(tuple(phases), tuple(block for block, _ in blocks), p.steps),), worker=room,
            parallel=self.worth_threads(),
        )  # fmt: skip
        self.add(program, *(place for _, places in blocks for place in places), floats=(0,))


class Persistent(Solver):
    """One input product for all steps; recurrent weights packed once, a part of them for each worker; one phase a
    step."""

    name = "persistent"

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        yield {}

    def estimate(self, problem: Any, target: Any) -> float:
        p = problem
        return float(p.flops() / (target.rates.clock * 2 * target.vector_bytes / DTYPES[p.dtype].itemsize))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        if problem.way == "backward":
            return Gradient(problem, target).program()
        return _Persistent(problem, target).program()


SOLVERS = (Persistent(),)
