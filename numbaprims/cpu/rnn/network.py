"""What programs of recurrent networks and of their gradients have in common: memory, rows, products."""

from __future__ import annotations

import dataclasses
from typing import Any

from numbaprims.cpu.gemm import PREPARED as PACKED, SOLVERS as PRODUCTS
from numbaprims.cpu.gemm.amx import plan_kind
from numbaprims.cpu.program import Bind, Part, Program, array, join, scratch
from numbaprims.cpu.random.kernels import form_of, make_kernel
from numbaprims.cpu.rnn.arguments import DROPOUT, NUMBERS, ROWS
from numbaprims.cpu.rnn.kernels import make_dropout, make_numbers, make_rows
from numbaprims.cpu.simd import lanes
from numbaprims.dispatch.solver import Config, default_config
from numbaprims.dtypes import DTYPES
from numbaprims.ops._gemm_problem import GemmProblem, Strides
from numbaprims.ops._rnn_problem import (
    B_HH,
    B_IH,
    B_RANDOM,
    PEEPHOLE,
    PREPARED,
    RANDOM,
    TABLES,
    W_HH,
    W_HR,
    W_IH,
    RnnProblem,
    table_parts,
)
from numbaprims.ops.epilogue import Activation

LINE = 64
#: Bytes that rows of a copy move at a time, about, and how many of these are worth waking other threads for.
CHUNK, WORTH = 1 << 15, 4
#: Bytes of k in a block of the solvers of products that pack.
KC = 4096
PACKING = ("blocked", "private", "direct", "prepacked")
#: The same of those by tiles, for which a plan packs what they multiply.
TILES = ("amx", "amx_x4")
#: How much longer, by estimate, a call may take for what saves a plan more.
WASTE = 2.0
#: Phases of one worker that a step has to be longer than for several.
WAKING = 10.0
#: The floats of a product: alpha, beta, and none of an activation.
ONE = (1.0, 0.0, 0.0, 0.0, 0.0)


def posed(
    m: int, n: int, k: int, dtypes: tuple[str, str], a: tuple[int, int], b: tuple[int, int], out: int, adds: bool
) -> GemmProblem:  # fmt: skip
    dtype, out_dtype = dtypes
    return GemmProblem(
        m, n, k, 1, dtype, dtype, out_dtype, _order(a, m, k), _order(b, k, n), "row", adds, "none",
        Activation("identity", ()), False, (), Strides(a, b, (out, 1), (out, 1) if adds else (0, 0), 0, ((),) * 4),
    )  # fmt: skip


def best_product(problem: GemmProblem, target: Any) -> Any:
    """The solver of the least estimated time."""
    able = [solver for solver in PRODUCTS if solver.why_not(problem, target) is None]
    return min(able, key=lambda solver: solver.estimate(problem, target))


def input_solver(problem: GemmProblem, target: Any) -> Any:
    """The solver of a product of inputs, the same in a call and in a plan, which has packed the weights.

    Where they lie `inner` reads them once for four rows.  With five and more a plan would take two to three times as
    long by it, a call about as long (GRU of 256 units, 5 to 8 rows, Zen 4: 65 us, 63 with packing, 20 packed).
    """
    solver, names = best_product(problem, target), TILES if plan_kind(problem) else PACKING
    # vectors round otherwise than tiles
    other = packs(solver) and solver.name not in names
    if solver.name in names or problem.m <= 4 and not other:
        return solver
    able = [each for each in PRODUCTS if each.name in names and each.why_not(problem, target) is None]
    best = min(able, key=lambda each: each.estimate(problem, target), default=solver)
    return best if other or best.estimate(problem, target) < WASTE * solver.estimate(problem, target) else solver


def packs(solver: Any) -> bool:
    """Whether a plan packs what a solver of products reads."""
    return solver.name in PACKING or solver.name in TILES


def product(
    target: Any, m: int, n: int, k: int, dtypes: tuple[str, str], a: tuple[int, int], b: tuple[int, int], out: int,
    *, adds: bool = False,
) -> Program:  # fmt: skip
    """The program of out (m, n, rows `out` apart) = a b, where `adds` += ."""
    problem = posed(m, n, k, dtypes, a, b, out, adds)
    return _program(best_product(problem, target), problem, target)


def _program(solver: Any, problem: GemmProblem, target: Any) -> Program:
    program: Program = solver.program(problem, target, _config(solver, problem, target))
    return program


def _config(solver: Any, problem: GemmProblem, target: Any) -> Config:
    """With blocks of k that are the same in all solvers that pack, so that a plan gives the bits of a call."""
    config = default_config(solver, problem, target)
    if solver.name not in PACKING or solver is PACKED and plan_kind(problem):
        return config
    return {**config, "kc": KC // DTYPES[problem.accumulate].itemsize}


def product_time(target: Any, m: int, n: int, k: int, dtypes: tuple[str, str]) -> float:
    """Seconds that such a product by a weight of rows of k is estimated to take."""
    problem = posed(m, n, k, dtypes, (k, 1), (1, k), n, False)
    return float(best_product(problem, target).estimate(problem, target))


def _order(strides: tuple[int, int], rows: int, columns: int) -> str:
    if strides[1] == 1 or columns == 1:
        return "row"
    return "column" if strides[0] == 1 or rows == 1 else "strided"


@dataclasses.dataclass
class Matrix:
    """Rows in an array of the call or in scratch memory."""

    place: Bind
    dtype: str
    row: int
    step: int
    """Elements from one time to the next, or from one packed row to the next."""
    column: int = 1


class Network:
    """Makes the program of a problem."""

    tables_at = TABLES
    #: Whether its programs read what a plan has made of the weights.
    reads_prepared = False

    def __init__(self, problem: RnnProblem, target: Any) -> None:
        self.p, self.target = problem, target
        self.compute = DTYPES[problem.dtype].accumulate
        self.item = DTYPES[self.compute].itemsize
        self.W = lanes(self.compute, target.vector_bytes)
        self.parts: list[Part] = []
        #: Scratch memory that is taken, and was at most.
        self.used = self.most = 0
        #: With a plan, what is run once, and the bytes of what it leaves.
        self.prepared = problem.weights != "given" and self.reads_prepared
        self.packing: list[Part] = []
        self.kept = 0
        self.widened: dict[int, Bind] = {}
        p = problem
        self.tables = table_parts(p.rows, p.steps, p.batch)

    # ---------------------------------------------------------------- memory and small phases

    def region(self, elements: int, dtype: str = "", *, once: bool = False) -> Bind:
        """Scratch memory; of what is made `once` of the weights a plan's."""
        size = -(-elements * DTYPES[dtype or self.compute].itemsize // LINE) * LINE + LINE
        if once and self.prepared:
            self.kept += size
            return array(PREPARED, self.kept - size)
        self.used += size
        self.most = max(self.most, self.used)
        return scratch(self.used - size)

    def table(self, name: str) -> Bind | None:
        return array(self.tables_at, 8 * self.tables[name]) if self.p.lengths else None

    def given(self, number: int) -> Bind | None:
        return array(number) if number in self.p.lies.given else None

    def add(self, program: Program, *arrays: Bind | None, floats: tuple[Any, ...] = (), once: bool = False) -> None:
        (self.packing if once and self.prepared else self.parts).append(Part(program, arrays, floats))

    def prepacked(self, problem: GemmProblem, w: Bind, *, anyway: bool = False) -> Bind | None:
        """Where a plan has packed a weight; `anyway`: where a call does, for several products."""
        if not (self.prepared or anyway) or PACKED.why_not(problem, self.target) is not None:
            return None
        packing, size = PACKED.packing(problem, self.target, _config(PACKED, problem, self.target))
        packed = self.region(size, "u8", once=True)
        self.add(packing, packed, None, w, None, None, packed, once=True)
        return packed

    def multiply(
        self, out: Bind, x: Bind, w: Bind, m: int, n: int, k: int, dtypes: tuple[str, str], a: tuple[int, int]
    ) -> None:  # fmt: skip
        """out (m, n) = x times the rows of a weight, which a plan has packed where the best solver would."""
        problem = posed(m, n, k, dtypes, a, (1, k), n, False)
        solver, packed = input_solver(problem, self.target), self.prepacked(problem, w)
        if packed is not None and packs(solver):
            solver = PACKED
        self.multiplied(solver, problem, out, x, w, packed)

    def multiplied(self, solver: Any, problem: GemmProblem, out: Bind, x: Bind, w: Bind, packed: Bind | None) -> None:
        """The product of a problem, by a solver."""
        self.add(_program(solver, problem, self.target), out, x, w, None, None, packed, floats=ONE)

    def rows(
        self, count: int, width: int, out: Bind | None, x: Bind | None, dtypes: tuple[str, str],
        table: Bind | None = None, **ints: int,
    ) -> None:  # fmt: skip
        """A phase of rows; what `ints` leaves out has neither inner rows nor other columns."""
        values = {
            "width": width, "out_inner": 1 << 40, "x_inner": 1 << 40, "out_row": width, "x_row": width, "out_column": 1,
            "x_column": 1, "missing": int(x is None),
        } | ints  # fmt: skip
        W = lanes("f64" if "f64" in dtypes else "f32", self.target.vector_bytes)
        each = max(1, CHUNK // (1 + width * self.item))
        program = Program.of(ROWS, values, [(make_rows(*dtypes, W), count, each)], parallel=count > WORTH * each)
        self.add(program, out, x or out, table)

    def numbers(self, layer: int, row: int) -> tuple[Bind, int]:
        """Biases and peepholes in rows of `row`, and how many rows a direction has."""
        p = self.p
        apart = p.cell == "gru" and p.reset_after
        count = p.gates + apart + (3 if p.cell == "lstm" else 0)
        place = self.region(p.directions * count * row, once=True)
        kernel = make_numbers(p.dtype, self.compute, p.gates, apart, self.W)
        for d in range(p.directions):
            program = Program.of(NUMBERS, {"hidden": p.hidden, "row": row}, [(kernel, 1, 1)], parallel=False)
            given = (self.given(p.number(layer, d, which)) for which in (B_IH, B_HH, PEEPHOLE))
            self.add(program, behind(place, d * count * row * self.item), *given, once=True)
        return place, count

    def packed(self, place: Bind, dtype: str, width: int) -> Matrix:
        """Rows that are packed: those of one time follow one another."""
        return Matrix(place, dtype, width, width if self.p.lengths else width * self.p.batch)

    def dropped(self, layer: int, to: Bind, x: Matrix, dtype: str, width: int) -> None:
        """Rows behind a layer with elements dropped, in `dtype`; their places are those of the padded array."""
        p = self.p
        random = array(B_RANDOM if p.way == "backward" else RANDOM)
        compute = make_kernel(form_of("dropout", dtype, self.target, source=x.dtype))
        ints = {"width": width, "out_row": width, "x_row": x.row, "layer": layer, "compute": compute.address}
        phase = make_dropout(x.dtype, dtype), p.rows, max(1, p.rows // 32)
        program = Program.of(DROPOUT, ints, [phase], keep=(compute,))
        self.add(program, to, x.place, self.table("gather"), random, floats=(0,))

    def unpacked(self, out: Bind, lies: tuple[int, int, int], x: Matrix, width: int, second: int) -> None:
        """Packed rows where a call has them, zeros behind a sequence's end."""
        p, (t, n, i), dtypes = self.p, lies, (x.dtype, self.p.dtype)
        if p.order == "packed":
            self.rows(p.rows, width, out, x.place, dtypes, x_row=x.row, out_row=t, out_column=i, second=second)
        else:
            self.rows(
                p.steps * p.batch, width, out, x.place, dtypes, self.table("scatter"), x_row=x.row, out_inner=p.batch,
                out_outer=t, out_row=n, out_column=i, second=second,
            )  # fmt: skip

    def wide(self, layer: int, d: int, which: int) -> Bind:
        """A weight in the type that is computed in."""
        p, number = self.p, self.p.number(layer, d, which)
        if p.dtype == self.compute:
            return array(number)
        if number not in self.widened:
            rows = p.state if which == W_HR else p.gates * p.hidden
            width = {W_IH: p.inputs_of(layer), W_HH: p.state, W_HR: p.hidden}[which]
            self.widened[number] = self.region(rows * width)
            self.rows(rows, width, self.widened[number], array(number), (p.dtype, self.compute))
        return self.widened[number]

    def joined(self) -> Program:
        return join(self.parts, shared=self.most, parallel=self.worth_threads())

    @property
    def adds(self) -> bool:
        """Whether the outputs of two directions are added."""
        return self.p.merge == "sum" and self.p.directions == 2

    def peepholes(self, layer: int) -> bool:
        return any(self.p.has(layer, d, PEEPHOLE) for d in range(self.p.directions))

    def worth_threads(self) -> bool:
        return worth_threads(self.p, self.target)

    def chunk(self, tiles: int) -> int:
        """Groups that a worker keeps from step to step."""
        return max(1, -(-tiles // max(1, int(self.target.cores_physical))))


def step_time(p: RnnProblem, target: Any) -> float:
    """Seconds of a layer's step, by the multiply-adds alone."""
    W = lanes(DTYPES[p.dtype].accumulate, target.vector_bytes)
    return float(p.flops() / p.layers / p.steps / target.rates.flops(W))


def worth_threads(p: RnnProblem, target: Any) -> bool:
    """Whether a step is longer than it takes several workers to begin and end it.

    LSTMs of 128 units and one sequence took two threads as long as one, those of 64 and 16 sequences too; of 32 units
    threads took three times as long.
    """
    return step_time(p, target) > WAKING * float(target.rates.phase)


def behind(place: Bind, offset: int) -> Bind:
    return place._replace(offset=place.offset + offset)


def matrix(place: Bind | None, number: int, p: RnnProblem, width: int) -> Bind | None:
    """Matrix `number` of an array (layers * directions, batch, width)."""
    return None if place is None else behind(place, number * p.batch * width * DTYPES[p.dtype].itemsize)
