"""The ways to run a recurrent network, and what each is estimated to take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numbaprims.cpu.program import Bind, Phase, Program, Run, array
from numbaprims.cpu.regions import Regions
from numbaprims.cpu.rnn.forward import Forward, Stage
from numbaprims.cpu.rnn.gradient import Gradient
from numbaprims.cpu.rnn.kernels import make_cells
from numbaprims.cpu.rnn.network import ONE, Matrix, behind, product, product_time
from numbaprims.cpu.rnn.panels import Panels, wave_steps
from numbaprims.cpu.rnn.quantized import Quantized
from numbaprims.cpu.simd import lanes
from numbaprims.cpu.solver import Config, Solver
from numbaprims.dtypes import DTYPES
from numbaprims.ops._rnn_problem import W_IH


class _Products(Forward):
    """Products of the library, then a phase of cells, step by step."""

    flips = False
    once = True
    """Whether all gates are one product, and the inputs of all steps too."""
    x: Matrix

    def input_products(self, layer: int, x: Matrix) -> Matrix:
        if self.once:
            return super().input_products(layer, x)
        self.x, wide = x, self.p.gates * self.p.hidden
        return Matrix(self.region(self.p.directions * self.p.batch * wide), self.compute, wide, 0)

    def steps(self, layer: int, stages: list[Stage]) -> None:
        p = self.p
        sums = [self.region(p.directions * p.batch * each.form.gates * each.fixed["hidden"]) for each in stages]
        for step in range(p.steps):
            for stage, place in zip(stages, sums, strict=True):
                form = stage.form._replace(apart=True)
                for d in range(p.directions):
                    if not self.once and stage is stages[0]:
                        self.of_inputs(layer, step, d, stage.given["g"])
                    self.of_states(layer, d, stage, place)
                fixed = stage.fixed | {"a_d": p.batch * form.gates * stage.fixed["hidden"]}
                if not self.once:
                    fixed["g_d"] = p.batch * p.gates * p.hidden
                cells = Stage(form, 0, 0, fixed, stage.given | {"a": place})
                groups = -(-fixed["hidden"] // (form.NV * self.W))
                phase = Phase(make_cells(form), p.directions * groups, 1)
                run = Run((phase,), (cells.block(0, Regions(), groups=groups, first=step),))
                self.add(Program((run,)), *cells.given.values(), floats=(0,))

    def of_inputs(self, layer: int, step: int, d: int, g: Bind | None) -> None:
        """The input product of a step, a product for each gate."""
        p, wide, inputs = self.p, self.p.gates * self.p.hidden, self.p.inputs_of(layer)
        time = p.steps - 1 - step if d + p.reverse > 0 else step
        x = behind(self.x.place, time * self.x.step * DTYPES[p.dtype].itemsize)
        for gate in range(p.gates):
            out = behind(g, (d * p.batch * wide + gate * p.hidden) * self.item)  # type: ignore[arg-type]
            if p.skip_input and not layer:
                self.rows(
                    p.batch, p.hidden, out, x, (p.dtype, self.compute), x_row=self.x.row, x_column=self.x.column,
                    out_row=wide,
                )  # fmt: skip
                continue
            kinds, a = (p.dtype, self.compute), (self.x.row, self.x.column)
            made = product(self.target, p.batch, p.hidden, inputs, kinds, a, (1, inputs), wide)
            weight = array(p.number(layer, d, W_IH), gate * p.hidden * inputs * DTYPES[p.dtype].itemsize)
            self.add(made, out, x, weight, floats=ONE)

    def of_states(self, layer: int, d: int, stage: Stage, sums: Bind) -> None:
        """The recurrent product of a step: of all gates, or one for each."""
        p, k, gates = self.p, stage.fixed["k"], stage.form.gates
        units = stage.fixed["hidden"]
        source, start = stage.given["a"], d * stage.fixed["a_d"] * self.item
        w = self.wide(layer, d, stage.weight)
        for first in [0] if self.once else range(gates):
            some = gates if self.once else 1
            made = product(
                self.target, p.batch, some * units, k, (self.compute, self.compute), (k, 1), (1, k), gates * units
            )
            out = behind(sums, (d * p.batch * gates * units + first * units) * self.item)
            self.add(
                made, out, behind(source, start), behind(w, (stage.first + first) * units * k * self.item),  # type: ignore[arg-type]
                floats=ONE,
            )  # fmt: skip


class _StepByStep(_Products):
    once = False


class Moved:
    """What estimates count: products, and the weights that they read."""

    def __init__(self, problem: Any, target: Any) -> None:
        self.p, self.target = problem, target
        self.dtype = DTYPES[problem.dtype].accumulate
        self.states = self.weights(problem.state)
        self.all = sum(self.weights(problem.inputs_of(k) + problem.state) for k in range(problem.layers))

    def weights(self, width: int) -> float:
        """Bytes of a layer's weights of so many columns."""
        p = self.p
        return float(p.directions * p.gates * p.hidden * width * DTYPES[self.dtype].itemsize)

    def product(self, rows: int, units: int, width: int, dtype: str = "") -> float:
        return product_time(self.target, rows, units, width, (dtype or self.dtype, self.dtype))

    def inputs(self) -> float:
        """Seconds of the input products of all steps."""
        p, total = self.p, 0.0
        for layer in range(p.layers):
            once = p.directions * self.product(p.rows, p.gates * p.hidden, p.inputs_of(layer), p.dtype)
            total += max(once, self.weights(p.inputs_of(layer)) / self.target.bandwidth(self.all))
        return total

    def steps(self, work: float, weights: float) -> float:
        """Seconds of all steps of a layer, each of so much work on weights, which the first finds with all others."""
        read = weights / self.target.bandwidth(weights)
        return max(work, weights / self.target.bandwidth(self.all)) + (self.p.steps - 1) * max(work, read) + (
            self.p.steps * self.target.rates.phase
        )  # fmt: skip


class _Rnn(Solver):
    """One program for the whole sequence."""

    network: type[Forward]

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.way == "backward":
            return "it has no gradient of its own"
        if problem.weights == "int8":
            return "it multiplies weights as they were given"
        return None

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        yield {}

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        return self.network(problem, target).program()


class Persistent(_Rnn):
    """Input products of as many steps as a cache holds; recurrent weights are packed once, each worker keeps a part."""

    name = "persistent"
    network: type[Forward] = Panels
    gradient: type[Gradient] = Gradient

    def why_not(self, problem: Any, target: Any) -> str | None:
        return None

    def estimate(self, problem: Any, target: Any) -> float:
        p, rates, moved = problem, target.rates, Moved(problem, target)
        flops, weights = 0.9 * rates.flops(lanes(DTYPES[p.dtype].accumulate, target.vector_bytes)), moved.states
        if p.weights == "int8":  # four products a lane, a byte for four
            flops, weights = 4.0 * flops, weights / 4.0
        else:  # half precisions stay so in the panels
            weights *= DTYPES[p.dtype].itemsize / DTYPES[moved.dtype].itemsize
        work = 2.0 * p.batch * p.directions * p.gates * p.hidden * p.state / flops
        pack = 0.0
        if p.weights == "given":  # packing reads each weight, and fetches and writes its line of the panels
            pack = 3.0 * weights / target.bandwidth(moved.all + weights * p.layers)
        step = max(work, weights / target.bandwidth(weights)) + rates.phase
        return float(rates.call + moved.inputs() + p.layers * (pack + p.steps * step))

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        """many: steps of a tile of the wavefront; 0 for layer by layer."""
        chosen, able = (0, 0) if problem.weights == "int8" else wave_steps(problem, target)
        yield {"many": chosen} if able else {}
        if able:
            yield {"many": 0 if chosen else able}

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        if problem.way == "backward":
            return self.gradient(problem, target).program()
        made = self.made(problem, target)
        made.many = int(config.get("many", 0))
        return made.program()

    def made(self, problem: Any, target: Any) -> Forward:
        return (Quantized if problem.weights == "int8" else self.network)(problem, target)

    def prepare(self, problem: Any, target: Any, config: Config, weights: Any) -> Any:
        return self.made(problem, target).prepare(weights)


class SingleGemm(_Rnn):
    """One product for the inputs of all steps, one a step for all gates of the states (MIOpen, equations 11, 12)."""

    name = "single_gemm"
    network = _Products

    def estimate(self, problem: Any, target: Any) -> float:
        p, moved = problem, Moved(problem, target)
        step = p.directions * moved.product(p.batch, p.gates * p.hidden, p.state)
        return float(moved.inputs() + p.layers * moved.steps(step, moved.states))


class StepByStep(_Rnn):
    """A product for each gate of each step, of the inputs and of the states: what single products are measured by."""

    name = "step_by_step"
    network = _StepByStep

    def why_not(self, problem: Any, target: Any) -> str | None:
        if problem.lengths:
            return "sequences differ in length, and a step has other rows than the one before"
        if problem.way == "train":
            return "it keeps nothing for the gradient"
        return super().why_not(problem, target)

    def estimate(self, problem: Any, target: Any) -> float:
        p, moved, total = problem, Moved(problem, target), 0.0
        for layer in range(p.layers):
            widths = (p.inputs_of(layer), p.state)
            each = sum(moved.product(p.batch, p.hidden, width) for width in widths)
            total += moved.steps(p.directions * p.gates * each, moved.weights(sum(widths)))
        return total


class _Scalars(Panels):
    def __init__(self, problem: Any, target: Any) -> None:
        super().__init__(problem, target)
        self.W, self.prepared = 1, False


class _ScalarGradient(Gradient):
    def __init__(self, problem: Any, target: Any) -> None:
        super().__init__(problem, target)
        self.W = 1


class Naive(Persistent):
    """A unit after the other."""

    name = "naive"
    network, gradient = _Scalars, _ScalarGradient

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        yield {}

    def why_not(self, problem: Any, target: Any) -> str | None:
        return "it multiplies weights as they were given" if problem.weights == "int8" else None

    def estimate(self, problem: Any, target: Any) -> float:
        weights = problem.gates * problem.hidden * problem.state * 8
        time = problem.flops() / target.rates.clock + weights / target.rates.memory
        return float(time + super().estimate(problem, target))


SOLVERS = (Persistent(), SingleGemm(), StepByStep(), Naive())
PREPARED = SOLVERS[0]
