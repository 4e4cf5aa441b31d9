"""The program of `persistent`: recurrent weights are packed once, and each worker keeps a part of them.

Layer by layer a step is a phase, in which workers share the units.  In a wavefront (`wave`) they share layers, or
directions, and need no phase.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numbaprims.cpu.gemm import PREPARED as PACKED
from numbaprims.cpu.jit import RangeKernel
from numbaprims.cpu.program import Bind, Block, Phase, Program, Run, array
from numbaprims.cpu.regions import Regions
from numbaprims.cpu.rnn.arguments import PACK, WAVE
from numbaprims.cpu.rnn.forward import Forward, Stage
from numbaprims.cpu.rnn.kernels import BLOCK, make_pack, make_step
from numbaprims.cpu.rnn.network import CHUNK, WORTH, Matrix, behind, input_solver, packs, posed, worth_threads
from numbaprims.cpu.rnn.tiles import best_height, kc_of
from numbaprims.cpu.rnn.wave import APART, make_product, make_wave
from numbaprims.cpu.simd import lanes, short_able
from numbaprims.dtypes import DTYPES
from numbaprims.ops._gemm_problem import GemmProblem
from numbaprims.ops._rnn_problem import PEEPHOLE, W_IH

#: Layers of a wavefront: the arguments of as many fit on a worker's stack (four with one product a step).
MOST_LAYERS = 4
#: Vectors of a row of the input product's panels.
WIDE = 2


class Step(NamedTuple):
    """A product of a layer's steps."""

    kernel: RangeKernel
    groups: int
    """Of a direction's units."""
    stage: Stage
    ints: dict[str, int]
    regions: Regions


class Panels(Forward):
    """Recurrent weights are packed once, and each worker keeps its groups of units from step to step."""

    reads_prepared = True

    def step(self, layer: int, stage: Stage) -> Step:
        """Packs a product's weights."""
        p, item, stored = self.p, self.item, DTYPES[self.p.dtype].itemsize
        units, k, nv, gates = stage.fixed["hidden"], stage.fixed["k"], stage.form.NV, stage.form.gates
        # states of relu and of projections may be any; those of the others stay below that of their start or 1
        bounded = p.cell != "rnn_relu" and (stage.form.kind == "project" or not p.projected)
        short = p.dtype == "f16" and bounded and short_able(self.W)
        # the order of bits and a mask
        mr, wide = best_height(gates * nv, p.batch, self.target, 2 * short), gates * nv * self.W
        groups = -(-units // (nv * self.W))
        # behind the panels a number for each, in whole lines
        size = groups * k * wide + short * -(-groups // 32) * 32
        panels = self.region(p.directions * size, p.dtype, once=True)
        for d in range(p.directions):
            weight = array(p.number(layer, d, stage.weight))
            self.pack(behind(panels, d * size * stored), weight, groups, k, units, stage.first, gates, nv, short)
        stage.given["r"] = panels
        kc = kc_of(self.target, k, mr, p.batch, wide * stored)
        own = {"sums": BLOCK * wide * item} | ({"scaled": min(p.batch, BLOCK) * k * item} if short else {})
        ints = {"groups": groups, "kc": kc, "r_d": size}
        return Step(make_step(stage.form._replace(MR=mr), p.dtype, short), groups, stage, ints, Regions(own=own))

    def pack(
        self, to: Bind, weight: Bind, groups: int, k: int, units: int, first: int, gates: int, nv: int,
        short: bool = False,
    ) -> None:  # fmt: skip
        """The panels of a weight (gates * units, k), from gate `first` on."""
        kernel = make_pack(self.p.dtype, self.compute, self.p.dtype, gates, nv, self.W, short)
        ints = {"k": k, "hidden": units, "first": first, "w_row": k}
        size = groups * k * gates * nv * self.W * DTYPES[self.p.dtype].itemsize
        phases = [(kernel, groups, max(1, groups // 8))]
        self.add(Program.of(PACK, ints, phases, parallel=size > WORTH * CHUNK), to, weight, once=True)

    def steps(self, layer: int, stages: list[Stage]) -> None:
        p, made = self.p, [self.step(layer, stage) for stage in stages]
        if self.many and p.directions == 2:
            return self.run_wave([made], p.steps)
        self.run_steps(made, 0, p.steps)

    def run_steps(self, made: list[Step], first: int, count: int) -> None:
        """So many steps from `first` on."""
        phases, blocks, places = [], list[Block](), list[Bind | None]()
        for number, each in enumerate(made):
            blocks.append(each.stage.block(len(places), each.regions, first=first, **each.ints))
            places += each.stage.given.values()
            tiles = each.groups * self.p.directions
            phases.append(Phase(each.kernel, tiles, self.chunk(tiles), block=number))
        run = Run(tuple(phases), tuple(blocks), count)
        self.add(Program((run,), worker=max(each.regions.own_bytes for each in made)), *places, floats=(0,))

    # ---------------------------------------------------------------- inputs a block of steps at a time

    def block_steps(self, layer: int, x: Matrix) -> int:
        """Steps of one input product: all of them, where their sums lie in the last cache beside the recurrent weights.

        Else sums of all steps go to memory and come back.  A block's are read while they are in a cache; it reads the
        input weights again, as long as a 64th of its multiply-adds takes one core, and has rows for every core.
        """
        p, target, stored = self.p, self.target, DTYPES[self.p.dtype].itemsize
        wide, cache = p.gates * p.hidden, max(target.l2, target.l3)
        weights = wide * p.state * stored
        if p.rows * wide * self.item + weights <= cache:
            return p.steps
        apart = p.lengths or p.directions == 2 or (p.order == "batch" and not layer and p.batch > 1)
        if p.way != "inference" or apart or (p.skip_input and not layer):
            return p.steps
        problem = self.input_problem(layer, p.steps, x)
        if not packs(input_solver(problem, target)) or PACKED.why_not(problem, target) is not None:
            return p.steps
        read = target.bandwidth(weights + wide * p.inputs_of(layer) * stored)
        alone = 32.0 * stored * target.rates.flops(self.W) / read
        rows = max(alone, min(alone * target.cores_physical, cache / 2 / (wide * self.item)))
        return min(p.steps, math.ceil(rows / p.batch))

    def input_problem(self, layer: int, steps: int, x: Matrix) -> GemmProblem:
        """The input product of so many steps."""
        p, row = self.p, x.step if self.p.batch == 1 else x.row
        wide, k = p.gates * p.hidden, p.inputs_of(layer)
        return posed(steps * p.batch, wide, k, (p.dtype, self.compute), (row, x.column), (1, k), wide, False)

    def in_blocks(self, layer: int, x: Matrix, many: int) -> Matrix:
        """A layer whose inputs are multiplied `many` steps at a time."""
        p, w, wide = self.p, array(self.p.number(layer, 0, W_IH)), self.p.gates * self.p.hidden
        if layer and self.prepared and wave_able(p):
            self.input_panels(layer)
        packed = self.prepacked(self.input_problem(layer, many, x), w, anyway=True)
        place = self.region(many * p.batch * wide)
        h, c, y = self.states(layer)
        made = [self.step(layer, each) for each in self.stages(layer, self.packed(place, self.compute, wide), h, c, y)]
        for first in range(0, p.steps, many):
            count = min(many, p.steps - first)
            early = p.steps - first - count if p.reverse else first
            source = behind(x.place, early * x.step * DTYPES[p.dtype].itemsize)
            self.multiplied(PACKED, self.input_problem(layer, count, x), place, source, w, packed)
            for each in made:
                each.stage.given["g"] = behind(place, -early * p.batch * wide * self.item)
            self.run_steps(made, first, count)
        return self.ended(layer, h, c, y)

    # ---------------------------------------------------------------- the wavefront

    def worth_threads(self) -> bool:
        return bool(self.many) or super().worth_threads()

    def overlap(self, layer: int) -> int:
        """Layers are shared out evenly among waves."""
        p = self.p
        if not self.many or p.directions == 2:
            return 1
        most = min(MOST_LAYERS, max(2, int(self.target.cores_physical)))
        waves = -(-p.layers // most)
        return -(-(p.layers - layer) // (waves - layer * waves // p.layers))

    def input_panels(self, layer: int) -> Bind:
        """A plan keeps them whatever runs: what it has packed lies in one order."""
        p = self.p
        units, k = p.gates * p.hidden, p.inputs_of(layer)
        groups = -(-units // (WIDE * self.W))
        place = self.region(groups * k * WIDE * self.W, once=True)
        self.pack(place, array(p.number(layer, 0, W_IH)), groups, k, units, 0, 1, WIDE)
        return place

    def input_products(self, layer: int, x: Matrix) -> Matrix:
        if layer and self.prepared and wave_able(self.p):
            self.input_panels(layer)
        return super().input_products(layer, x)

    def layers(self, which: range, x: Matrix) -> Matrix:
        if len(which) == 1:
            many = self.block_steps(which[0], x)
            return super().layers(which, x) if many == self.p.steps else self.in_blocks(which[0], x, many)
        p, parts, ends = self.p, list[list[Step]](), []
        for layer in which:
            g, more = self.tile_inputs(layer, x) if layer > which[0] else (self.input_products(layer, x), {})
            h, c, y = self.states(layer)
            made = [self.step(layer, stage) for stage in self.stages(layer, g, h, c, y)]
            for each in made:
                each.stage.given |= more
                each.ints.update(inputs=p.width, x_row=x.row)
            parts.append(made)
            ends.append((layer, h, c, y))
            x = y
        self.run_wave(parts, self.many)
        for end in ends:
            x = self.ended(*end)
        return x

    def tile_inputs(self, layer: int, x: Matrix) -> tuple[Matrix, dict[str, Bind | None]]:
        """Where a layer makes the input product of one tile."""
        p, wide = self.p, WIDE * self.W
        panels, wide_row, k = self.input_panels(layer), p.gates * p.hidden, p.inputs_of(layer)
        kinds = (p.dtype, self.compute)
        problem = posed(p.rows, wide_row, k, kinds, (x.row, 1), (1, k), wide_row, False)
        self.prepacked(problem, array(p.number(layer, 0, W_IH)))
        row = -(-p.gates * p.hidden // wide) * wide
        place = self.region((self.many * p.batch + self.product_rows) * row)
        return self.packed(place, self.compute, row), {"tile": place, "x": x.place, "w": panels}

    @property
    def product_rows(self) -> int:
        """Rows of a register tile of the input product."""
        return best_height(WIDE, self.many * self.p.batch, self.target)

    def run_wave(self, parts: list[list[Step]], many: int) -> None:
        """Lanes are layers, or the directions of one."""
        p = self.p
        count = p.directions if p.directions == 2 else len(parts)
        ended = self.region(count * APART // self.item)
        self.rows(1, count * APART // self.item, ended, None, (self.compute, self.compute))
        blocks, places = list[Block](), list[Bind | None]([ended])
        for part in parts:
            for each in part:
                blocks.append(each.stage.block(len(places), each.regions, **each.ints))
                places += each.stage.given.values()
        first, *second = parts[0]
        product = make_product(self.compute, self.product_rows, WIDE, self.W)
        size = 8 * blocks[0].words
        ints = {
            "lanes": count, "steps": p.steps, "many": many, "layers": int(p.directions == 1),
            "first": first.kernel.address, "second": second[0].kernel.address if second else 0,
            "product": product.address if len(parts) > 1 else 0,
            "size": size * len(parts[0]) if len(parts) > 1 else 0,
        }  # fmt: skip
        head = Block(WAVE, ints, {"ended": array(0)})
        head = head._replace(fixed=ints | {"blocks": 8 * head.words})
        tiles = count * -(-p.steps // many)
        run = Run((Phase(make_wave(self.compute), tiles, 1, one_queue=True),), (head, *blocks))
        kept = tuple(each.kernel for each in parts[0])
        room = max(each.regions.own_bytes for part in parts for each in part)
        self.add(Program((run,), worker=room, keep=(*kept, product)), *places, floats=(0,))


def wave_able(p: Any) -> bool:
    """Whether layers, or directions, of a network may overlap, whatever its steps and batch."""
    if p.way != "inference" or p.dtype != DTYPES[p.dtype].accumulate or p.directions * p.layers < 2:
        return False
    if p.directions == 2:
        return True
    peepholes = {p.has(layer, 0, PEEPHOLE) for layer in range(p.layers)}
    # sums of more terms would be cut as those of the input product of all steps are
    return len(peepholes) == 1 and p.width <= 1024


def wave_steps(p: Any, target: Any) -> tuple[int, int]:
    """(steps of a tile that a call takes, those that it could take); 0 for layer by layer."""
    if p.empty or p.steps < 2 or not wave_able(p):
        return 0, 0
    many = p.steps
    if p.directions == 1:
        wide = p.gates * p.hidden
        product = posed(p.rows, wide, p.width, (p.dtype, p.dtype), (p.width, 1), (1, p.width), wide, False)
        if not packs(input_solver(product, target)):
            return 0, 0  # tiny; its sums have another order than those of tiles
        # a register tile's rows for the input product of a tile
        many = min(p.steps, max(4, -(-8 // p.batch)))
    return (many if _faster(p, target, many) else 0), many


def _faster(p: Any, target: Any, many: int) -> bool:
    """Whether a wavefront is estimated to take less time than layer by layer."""
    rates, cores, W = target.rates, max(1, int(target.cores_physical)), lanes(p.dtype, target.vector_bytes)
    both = p.directions == 2
    count = min(cores, 2 if both else min(p.layers, MOST_LAYERS))
    if count < 2:
        return False
    weights = p.gates * p.hidden * p.state * DTYPES[p.dtype].itemsize
    # an LSTM's cell takes some 160 cycles for a vector of units
    work = p.flops() / p.layers / p.steps / 2.0 / rates.flops(W)
    cells = rates.cycles(40.0 * p.batch * p.gates * p.directions * -(-p.hidden // W))

    def step(nbytes: float) -> float:
        """Seconds of a layer's step in one thread, that reads so many bytes a worker."""
        return max(work, p.directions * weights / target.bandwidth(nbytes)) + cells

    if both:
        wave = step(weights) / count
    else:
        # the first layer's inputs are there, those of the others are made in its tiles
        wave = 1.15 * step(2.0 * weights) / count * (1.0 + (count - 1) * many / p.steps)
    if worth_threads(p, target):
        return wave < step(p.directions * weights / cores) / cores + rates.phase
    waking = rates.wake + 10.0 * p.layers * rates.phase
    return p.layers * p.steps * (step(p.directions * weights) - wave) > waking
