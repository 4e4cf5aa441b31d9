"""The estimate chooses well: judged by times that were measured once and stored (benchmarks/regret_conv.py)."""

import collections
import dataclasses
import json
import pathlib

import numpy as np
import pytest
from conv_cases import LARGE, arguments, operand_layouts, to_layout

import numbaprims
from numbaprims.cpu.rates import profile
from numbaprims.dispatch import registry
from numbaprims.ops._conv_problem import ConvProblem, ConvStrides
from numbaprims.ops.epilogue import Activation
from numbaprims.tuning import database, records

MACHINES = json.loads((pathlib.Path(__file__).parent / "data" / "conv_timings.json").read_text())
#: CPUs whose times ship.
SHIPPED = ("znver4", "znver5")
KINDS = ("prepared", "forward", "data", "weight")


def name_of(machine):
    """The CPU, and how many threads were timed."""
    return f"{machine['target']['name']}, {machine['target']['threads']}"


def steps(sizes, order):
    """Strides of a dense array."""
    n, c, d, h, w = sizes
    return (
        (c * d * h * w, 1, h * w * c, w * c, c) if order == "channels_last" else (c * d * h * w, d * h * w, h * w, w, 1)
    )


def problem_of_row(row):
    values = vars(records.stored(ConvProblem, row["fields"]))
    problem = ConvProblem(**{**values, "activation": Activation(values["activation"].kind)})
    x, y = (problem.n, problem.c, *problem.x_size), (problem.n, problem.k, *problem.y_size)
    w = (problem.k, problem.group_c, *problem.kernel)
    strides = ConvStrides(steps(x, problem.x_order), steps(w, problem.w_order), steps(y, problem.y_order), (0,) * 5, 0)
    return dataclasses.replace(problem, strides=strides)


def target_of(machine):
    """The facts that were stored, with the rates of the family's profile."""
    facts = machine["target"]
    rates = profile(facts["name"], facts["isa"], facts["vector_bytes"], facts["l3"])
    return collections.namedtuple("Target", (*facts, "rates"))(**facts, rates=rates)


def slowdowns(machine, kind):
    """For each stored problem: time of the chosen solver over that of the best."""
    target = target_of(machine)
    solvers = {solver.name: solver for solver in registry.solvers("conv", "cpu")}
    for row in machine["rows"]:
        problem = problem_of_row(row)
        if kind != ("prepared" if problem.prepared else problem.direction):
            continue
        seconds = {name: time for name, time in row["seconds"].items() if name in solvers}
        chosen = min(seconds, key=lambda name: solvers[name].estimate(problem, target))
        yield seconds[chosen] / min(seconds.values()), problem.bench_command(), chosen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("machine", MACHINES, ids=name_of)
def test_regret(machine, kind):
    found = sorted(slowdowns(machine, kind))
    assert len(found) >= 20
    mean = np.mean([ratio for ratio, *_ in found])
    assert mean <= 1.04, found[-8:]
    assert found[-1][0] <= 1.5, found[-3:]


@pytest.mark.parametrize("machine", MACHINES, ids=name_of)
def test_the_stored_times_can_tell(machine):
    """Taking always the same solver wherever it can is worse."""
    rows = [row["seconds"] for row in machine["rows"] if "prepared" in row["fields"]]
    for name in sorted({name for seconds in rows for name in seconds}):
        ratios = [seconds[name] / min(seconds.values()) for seconds in rows if name in seconds]
        assert len(ratios) < len(rows) or np.mean(ratios) > 1.1, name


@pytest.mark.parametrize("machine", [m for m in MACHINES if m["target"]["name"] in SHIPPED], ids=name_of)
def test_shipped_times_are_of_solvers_and_configs_that_there_are(machine):
    """A change of configs that leaves the shipped file behind would cost every user a warning, and the times."""
    target = target_of(machine)
    solvers = {solver.name: solver for solver in registry.solvers("conv", "cpu")}
    folder = pathlib.Path(database.shipped_file("x")).parent
    lines = [
        json.loads(line)
        for file in folder.glob(f"*-{target.name}-*.jsonl")
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    assert len(lines) > 100
    for line in (line for line in lines if line["stem"] == "conv"):
        solver = solvers[line["solver"]]
        assert line["version"] == solver.version
        assert solver.is_valid(problem_of_row({"fields": line["problem"]}), target, line["config"]), line


@pytest.mark.parametrize(
    "n, c, size, stride, ways",
    [
        (16, 512, 14, 2, "implicit_gemm winograd_pieces"), (16, 256, 28, 2, "implicit_gemm winograd_pieces"),
        (16, 128, 56, 2, "winograd_pieces implicit_gemm"), (1, 512, 7, 1, "winograd_2x2 winograd_4x4 winograd_fused"),
        (1, 256, 14, 1, "winograd_4x4 winograd_2x2 winograd_fused"),
    ],
)  # fmt: skip
def test_plans_whose_transformed_filters_come_from_memory_on_a_zen_3(n, c, size, stride, ways):
    """The fastest of those named, as measured there: with 16 registers no product hides the way of 10 to 105 MB."""
    facts = {"name": "znver3", "isa": "avx2", "vector_bytes": 32, "l1d": 32 << 10, "l2": 512 << 10, "l3": 32 << 20}
    target = target_of({"target": facts})
    x, weight = np.empty((n, c, size, size), np.float32), np.empty((c, c, 3, 3), np.float32)
    problem = numbaprims.explain("conv", x, weight, stride=stride, padding=1).problem
    problem = dataclasses.replace(problem, prepared=True)
    solvers = {each.name: each for each in registry.solvers("conv", "cpu")}
    seconds = {name: solvers[name].estimate(problem, target) for name in ways.split()}
    assert min(seconds, key=lambda name: seconds[name]) == ways.partition(" ")[0], seconds


def test_naive_is_never_chosen():
    """For no layer, direction, layout and type does the choice fall on the last resort."""
    for case in LARGE:
        for direction, name in (
            ("forward", "conv"),
            ("data", "conv_backward_data"),
            ("weight", "conv_backward_weight"),
        ):
            for dtype in (np.float64, np.float32, np.float16, *((np.int8,) if direction == "forward" else ())):
                first, second = (np.empty(s, dtype) for s in case.operand_shapes(direction))
                for layout in ("NCHW", "NHWC"):
                    layouts = operand_layouts(direction, layout)
                    more, window = arguments(case, direction, layout)
                    a, b = to_layout(first, layouts[0]), to_layout(second, layouts[1])
                    chosen = numbaprims.explain(name, a, b, *more, **window).chosen.solver
                    assert chosen != "naive", f"{case} {direction} {layout} {dtype.__name__}"
    for layout in ("NCHW", "NHWC"):
        chosen = numbaprims.explain("conv_backward_bias", np.empty((2, 64, 28, 28), np.float32), layout=layout).chosen
        assert chosen.solver != "naive"


@pytest.mark.cpu
def test_strided_and_channels_last_calls_allocate_only_their_workspace():
    """Gathering reads any strides: no copy of an input is made."""
    import tracemalloc

    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 64, 60, 60)).astype(np.float32)
    w = rng.standard_normal((32, 64, 3, 3)).astype(np.float32)
    for a, b, layout in (
        (x[:, :, 1:-1, 2:-2], w[:, :, ::-1], "NCHW"),
        (np.ascontiguousarray(np.moveaxis(x, 1, -1)), w, "NHWC"),
        (x[::-1, ::2, ::2], w[:, ::2], "NCHW"),
    ):
        out = numbaprims.conv(a, b, padding=1, layout=layout)  # compiles, and grows the workspace
        tracemalloc.start()
        numbaprims.conv(a, b, padding=1, layout=layout, out=out)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 30_000  # the smallest input has 73,728 bytes
