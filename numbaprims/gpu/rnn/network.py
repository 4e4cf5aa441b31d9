"""What programs of recurrent networks have in common: regions, rows, products."""

from __future__ import annotations

import dataclasses
from typing import Any

from numbaprims.dispatch.solver import default_config
from numbaprims.dtypes import DTYPES
from numbaprims.gpu.gemm import SOLVERS as PRODUCTS
from numbaprims.gpu.launch import Loop, Nested, Part, Program, Step, Together, Values, step
from numbaprims.gpu.rnn.dropout import blocks_of, least_and_factor, make_dropout
from numbaprims.gpu.rnn.rows import MOST_BLOCKS, THREADS, make_rows
from numbaprims.ops._gemm_problem import GemmProblem, Strides
from numbaprims.ops._rnn_problem import B_RANDOM, PEEPHOLE, RANDOM, TABLES, RnnProblem, table_parts
from numbaprims.ops.epilogue import Activation

#: The floats of a product that is neither scaled nor added to anything, and of one that is added to its result.
ONE, ADDED = (1.0, 0.0, 0.0, 0.0, 0.0, 0.0), (1.0, 1.0, 0.0, 0.0, 0.0, 0.0)
FAR = 1 << 40


def gemm_problem(
    sizes: tuple[int, int, int], dtypes: tuple[str, str], a: tuple[int, int], b: tuple[int, int], out: int, *,
    bias: bool = False, adds: bool = False,
) -> GemmProblem:  # fmt: skip
    """out (m, n, rows `out` apart) = a b, plus a bias of each column, plus out."""
    (m, n, k), (dtype, out_dtype) = sizes, dtypes
    steps = Strides(a, b, (out, 1), (out, 1) if adds else (0, 0), int(bias), ((),) * 4)
    return GemmProblem(
        m, n, k, 1, dtype, dtype, out_dtype, _order(a, m, k), _order(b, k, n), "row", adds, "n" if bias else "none",
        Activation("identity", ()), False, (), steps,
    )  # fmt: skip


def best_product(problem: GemmProblem, target: Any) -> Any:
    """gemm's solver of the least estimated time."""
    able = [solver for solver in PRODUCTS if solver.why_not(problem, target) is None]
    return min(able, key=lambda solver: solver.estimate(problem, target))


def _order(strides: tuple[int, int], rows: int, columns: int) -> str:
    if strides[1] == 1 or columns == 1:
        return "row"
    return "column" if strides[0] == 1 or rows == 1 else "strided"


@dataclasses.dataclass
class Matrix:
    """Rows in an array of the call or in a region."""

    place: Part
    dtype: str
    row: int
    step: int
    """Elements from one time to the next, or from one packed row to the next."""
    column: int = 1


class Network:
    """Makes the program of a problem."""

    tables_at = TABLES

    def __init__(self, problem: RnnProblem, target: Any) -> None:
        self.p, self.target = problem, target
        self.compute = DTYPES[problem.dtype].accumulate
        self.item, self.small = DTYPES[self.compute].itemsize, DTYPES[problem.dtype].itemsize
        self.steps: list[Step | Nested | Loop | Together] = []
        self.regions: dict[str, int] = {}
        self.tables = table_parts(problem.rows, problem.steps, problem.batch)

    def program(self) -> Program:
        raise AssertionError("a network says its program")

    # ---------------------------------------------------------------- places

    def region(self, name: str, elements: int, dtype: str = "") -> Part:
        """A region, as long as the longest that has the name."""
        nbytes = elements * DTYPES[dtype or self.compute].itemsize
        self.regions[name] = max(self.regions.get(name, 0), nbytes)
        return Part(name)

    def given(self, number: int) -> Part | None:
        return Part(number) if number in self.p.lies.given else None

    def table(self, name: str) -> Part | None:
        return Part(self.tables_at, 8 * self.tables[name]) if self.p.lengths else None

    def packed(self, place: Part, dtype: str, width: int) -> Matrix:
        """Rows that are packed: those of one time follow one another."""
        return Matrix(place, dtype, width, width if self.p.lengths else width * self.p.batch)

    # ---------------------------------------------------------------- steps

    def product(
        self, sizes: tuple[int, int, int], dtypes: tuple[str, str], a: tuple[int, int], b: tuple[int, int], out: int,
        places: tuple[Part, Part, Part], bias: Part | None = None, adds: bool = False,
    ) -> Nested:  # fmt: skip
        """A product into the first of its places."""
        problem = gemm_problem(sizes, dtypes, a, b, out, bias=bias is not None, adds=adds)
        solver = best_product(problem, self.target)
        launch = solver.bind(problem, self.target, default_config(solver, problem, self.target))
        return Nested(launch, (*places, places[0] if adds else None, bias), ADDED if adds else ONE)

    def rows(
        self, count: int, width: int, out: Part, x: Part | None, dtypes: tuple[str, str], table: Part | None = None, *,
        added: Part | None = None, planes: int = 1, **ints: int,
    ) -> None:  # fmt: skip
        """Rows into others; what `ints` leaves out has neither inner rows nor other columns."""
        if count * width == 0:
            return
        values = {
            "out_plane": 0, "out_inner": FAR, "out_outer": 0, "out_row": width, "x_plane": 0, "x_inner": FAR,
            "x_outer": 0, "x_row": width, "x_column": 1, "second": 0, "adds": 0,
        } | ints  # fmt: skip
        adds = values.pop("adds")
        flags = (table is not None) + 2 * (x is None) + 4 * (added is not None) + 8 * adds
        numbers = (count * width, width, *values.values(), flags)
        blocks = min(MOST_BLOCKS, -(-count * width // THREADS))
        made = values_of((out, x, added, table), *numbers)
        self.steps.append(step(make_rows(*dtypes), (blocks, planes), made))

    def dropped(self, layer: int, to: Part, x: Matrix, dtype: str, width: int) -> None:
        """Rows behind a layer with elements dropped, in `dtype`; they may go where they came from."""
        p, each = self.p, blocks_of(width)
        random = Part(B_RANDOM if p.way == "backward" else RANDOM)
        numbers = (p.rows * each, each, width, width, x.row, layer)
        made = values_of((to, x.place, self.table("gather"), random), *numbers)
        blocks = min(MOST_BLOCKS, -(-p.rows * each // THREADS))
        kernel = make_dropout(x.dtype, dtype, p.lengths)
        self.steps.append(step(kernel, blocks, joined(made, lambda arrays, floats, at: least_and_factor(floats[0]))))

    @property
    def adds(self) -> bool:
        """Whether the outputs of two directions are added."""
        return self.p.merge == "sum" and self.p.directions == 2

    def peepholes(self, layer: int) -> list[Part | None]:
        """Of each direction."""
        found = [self.given(self.p.number(layer, d, PEEPHOLE)) for d in range(self.p.directions)]
        return [*found, None][:2]

    def unpacked(self, out: Part, lies: tuple[int, int], x: Matrix, width: int, second: int) -> None:
        """Packed rows where a call has them, zeros behind a sequence's end."""
        p, (t, n), dtypes = self.p, lies, (x.dtype, self.p.dtype)
        if p.order == "packed":
            self.rows(p.rows, width, out, x.place, dtypes, x_row=x.row, out_row=t, second=second)
        else:
            self.rows(
                p.steps * p.batch, width, out, x.place, dtypes, self.table("scatter"), x_row=x.row, out_inner=p.batch,
                out_outer=t, out_row=n, second=second,
            )  # fmt: skip


def behind(place: Part, offset: int) -> Part:
    return place._replace(offset=place.offset + offset)


def values_of(places: tuple[Part | None, ...], *numbers: Any) -> Values:
    """A step's values: pointers (0 where an array is not there), numbers."""

    def values(arrays: tuple[Any, ...], floats: tuple[float, ...], at: Any) -> tuple[Any, ...]:
        found = [
            0 if p is None else (at[p.of] if isinstance(p.of, str) else arrays[p.of].pointer) + p.offset for p in places
        ]
        return (*found, *numbers)

    return values


def joined(*parts: Values) -> Values:
    """The values of several, one behind the other."""

    def values(arrays: tuple[Any, ...], floats: tuple[float, ...], at: Any) -> tuple[Any, ...]:
        return tuple(value for part in parts for value in part(arrays, floats, at))

    return values
