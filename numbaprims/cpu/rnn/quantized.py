"""The program of a network whose weights a plan holds as 8-bit integers: `dots` has its kernels."""

from __future__ import annotations

from numbaprims.cpu.program import Bind, Block, Phase, Program, Run, array
from numbaprims.cpu.regions import Regions
from numbaprims.cpu.rnn.arguments import PACK, PRODUCT, QUANTIZE
from numbaprims.cpu.rnn.dots import (
    make_pack_bytes,
    make_product_bytes,
    make_quantize,
    make_quantize_states,
    make_step_bytes,
)
from numbaprims.cpu.rnn.forward import Forward, Stage
from numbaprims.cpu.rnn.kernels import BLOCK
from numbaprims.cpu.rnn.network import WAKING, behind, step_time
from numbaprims.cpu.rnn.tiles import best_height


def _groups(k: int) -> int:
    return -(-k // 4)


class Quantized(Forward):
    """Rows become bytes in a phase of their own, since the scale of a row takes all of it."""

    reads_prepared = True

    def panels(self, weights: list[Bind], first: int, gates: int, hidden: int, k: int, nv: int) -> tuple[Bind, int]:
        """Where the panels of one weight a direction are, and how many words each takes."""
        count = -(-hidden // (nv * self.W))
        size = count * (_groups(k) + 2) * gates * nv * self.W
        place = self.region(len(weights) * size, "i32", once=True)
        kernel = make_pack_bytes(self.p.dtype, gates, nv, self.W)
        program = Program.of(PACK, {"k": k, "hidden": hidden, "first": first, "w_row": k}, [(kernel, count, 1)])
        for d, weight in enumerate(weights):
            self.add(program, behind(place, 4 * d * size), weight, once=True)
        return place, size

    def worth_threads(self) -> bool:
        """A step is a quarter of the time, and has two phases."""
        return step_time(self.p, self.target) / 4.0 > 2.0 * WAKING * self.target.rates.phase

    def bytes_of(self, rows: int, k: int, mr: int) -> int:
        """Words of the blocks of so many rows."""
        return -(-rows // mr) * mr * (_groups(k) + 1)

    def multiply(
        self, out: Bind, x: Bind, w: Bind, m: int, n: int, k: int, dtypes: tuple[str, str], a: tuple[int, int]
    ) -> None:  # fmt: skip
        gates = self.p.gates
        hidden, nv = n // gates, max(1, 4 // gates)
        mr, wide = best_height(gates * nv, m, self.target), gates * nv * self.W
        if a[1] != 1:
            place = self.region(m * k, dtypes[0])
            self.rows(m, k, place, x, (dtypes[0], dtypes[0]), x_row=a[0], x_column=a[1])
            x, a = place, (k, 1)
        q = self.region(self.bytes_of(m, k, mr), "i32")
        made = Program.of(QUANTIZE, {"k": k, "x_row": a[0]}, [(make_quantize(dtypes[0], mr, self.W), m, 8)])
        self.add(made, q, x)
        panels, _ = self.panels([w], 0, gates, hidden, k, nv)
        ints = {"k": k, "rows": m, "hidden": hidden}
        blocks = -(-m // (BLOCK // mr * mr))
        tiles = Phase(make_product_bytes(gates, mr, nv, self.W), -(-hidden // (nv * self.W)) * blocks, blocks)
        regions = Regions(own={"sums": 4 * BLOCK * wide})
        self.add(Program.of(PRODUCT, ints, [tiles], regions=regions), out, q, panels)

    def steps(self, layer: int, stages: list[Stage]) -> None:
        p = self.p
        phases, blocks, places, room = list[Phase](), list[Block](), list[Bind | None](), 0
        for stage in stages:
            units, k, nv, gates = stage.fixed["hidden"], stage.fixed["k"], stage.form.NV, stage.form.gates
            mr, wide = best_height(gates * nv, p.batch, self.target), gates * nv * self.W
            weights = [array(p.number(layer, d, stage.weight)) for d in range(p.directions)]
            panels, size = self.panels(weights, stage.first, gates, units, k, nv)
            words = self.bytes_of(p.batch, k, mr)
            q = self.region(p.directions * words, "i32")
            form, second = stage.form._replace(MR=mr), stage is not stages[0]
            rows = p.directions * p.batch
            phases.append(Phase(make_quantize_states(form, second), rows, self.chunk(rows), block=len(blocks)))
            stage.given |= {"a": q, "r": panels}
            groups, regions = -(-units // (nv * self.W)), Regions(own={"sums": 4 * BLOCK * wide})
            tiles = groups * p.directions
            phases.append(Phase(make_step_bytes(form), tiles, self.chunk(tiles), block=len(blocks)))
            blocks.append(stage.block(len(places), regions, groups=groups, a_d=words, r_d=size))
            places += stage.given.values()
            room = max(room, regions.own_bytes)
        run = Run(tuple(phases), tuple(blocks), p.steps)
        self.add(Program((run,), worker=room), *places, floats=(0,))
