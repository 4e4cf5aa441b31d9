"""The reduce engine on a GPU: formulas, layouts, types and solvers against definitions in float64, in the emulator."""

import dataclasses

import numpy as np
import pytest
from gpu.mutants import hunt
from helpers import assert_near
from ptx_emulator import launch
from reduce_cases import FLOATING, case

from numbaprims.device_views import DeviceView
from numbaprims.formulas.graph import COSTS
from numbaprims.formulas.reductions import graph_of
from numbaprims.gpu.memory import to_device
from numbaprims.gpu.reduce import SOLVERS, plans
from numbaprims.gpu.reduce.kernels import Form, make_part
from numbaprims.gpu.target import H200

SOLVER = {solver.name: solver for solver in SOLVERS}


def run(solver, of, share=False):
    """The results of a solver for a case's arrays on the emulated GPU, as far from multiples of 64 bytes as here.

    `share`: the first result lies where the first operand does.
    """
    count = len(of.wanted)
    for guard in of.arrays[:count]:
        guard.array[...] = guard.blank()
    memories, views = [], []
    for guard in of.arrays:
        base, at = (a.__array_interface__["data"][0] for a in (guard.base, guard.array))
        lead = base % 64
        memory = to_device(np.concatenate([np.zeros(lead, np.uint8), guard.base]))
        memories.append((memory, lead))
        a, library = guard.array, memory.numbaprims_library
        views.append(DeviceView(memory.pointer + lead + at - base, a.shape, a.strides, a.dtype, library))
    if share:
        views[0] = views[count]
    assert SOLVER[solver].why_not(of.problem, H200) is None
    assert SOLVER[solver].estimate(of.problem, H200) > 0
    floats = {f"f{k}": number for k, number in enumerate(of.numbers)}
    SOLVER[solver].bind(of.problem, H200, {})(*views[:7], more=tuple(views[7:]), **floats)
    for (memory, lead), guard in zip(memories, of.arrays, strict=True):
        guard.base[...] = memory.to_host()[lead:]
    if share:
        of.arrays[0].array[...] = of.arrays[count].array
    return [array for array, _ in of.results()]


def check(solver, of, units=64.0, results=9, **how):
    run(solver, of, **how)
    for k, ((have, dtype), want) in enumerate(zip(of.results()[:results], of.wanted, strict=False)):
        finite = np.abs(np.where(np.isfinite(want), want, 0.0))
        # means are as exact as elements are large
        least = 1.0 if "mean" in of.problem.arrays[k].name else 0.0
        assert_near(have, want, dtype, units, max(least, finite.max()))
    assert all(guard.untouched() for guard in of.arrays)


@pytest.fixture
def short(monkeypatch):
    """Chunks short enough for small arrays to have some."""
    from numbaprims.gpu.reduce import solvers

    monkeypatch.setattr(solvers, "CHUNK", 64)


#: -> (shape, reduced axes, layout of rows)
LAYOUTS = {
    "short": ((13, 10), (1,), "C"),
    "tails": ((7, 331), (1,), "C"),
    "warp": ((3, 1000), (1,), "C"),
    "block": ((2, 4104), (1,), "C"),
    "long": ((2, 20003), (1,), "C"),
    "gaps": ((4, 5, 77), (2,), "gaps"),
    "planes": ((3, 5, 4, 10), (0, 2, 3), "C"),
    "planes with gaps": ((2, 3, 5, 8), (0, 2, 3), "gaps"),
    "between": ((3, 21, 50), (1,), "C"),
    "channels last": ((20, 37, 5, 3), (0, 2, 3), "last"),
    "channels last, long": ((700, 40), (0,), "C"),
    "side by side": ((2, 37, 260), (1,), "C"),
    "side by side, long": ((700, 128), (0,), "C"),
    "apart": ((3, 50, 4), (1,), "apart"),
    "one element": ((6, 1), (1,), "C"),
}
#: (formula, layout, type, solver): together each layout, solver, reduction and way to have a row.
FIRST = [
    ("softmax", "short", "f32", "rows"),
    ("softmax", "warp", "bf16", "rows"),
    ("log_softmax", "block", "f32", "rows"),
    ("softmax", "long", "f32", "rows"),
    ("softmax_backward", "between", "f16", "across"),
    ("softmax", "apart", "f64", "naive"),
    ("batch_norm", "planes", "bf16", "split"),
    ("batch_norm_train_running", "planes", "f32", "rows"),
    ("batch_norm_train_running", "channels last, long", "f32", "split"),
    ("batch_norm_backward", "planes with gaps", "bf16", "split"),
    ("batch_norm_backward_fixed", "channels last", "f32", "across"),
    ("batch_norm_backward+tanh", "planes", "f32", "rows"),
    ("batch_norm_backward+gelu", "planes with gaps", "f16", "split"),
    ("batch_norm_backward+relu", "channels last", "f32", "across"),
    ("batch_norm_backward+silu", "between", "f64", "naive"),
    ("cross_entropy", "warp", "bf16", "rows"),
    ("cross_entropy_weighted", "apart", "f32", "naive"),
    ("cross_entropy_soft_weighted_backward", "between", "f32", "across"),
    ("cross_entropy_backward", "gaps", "f32", "rows"),
    ("nll_loss_backward", "tails", "f32", "rows"),
    ("nll_loss_weighted_backward", "tails", "f32", "rows"),
    ("softmax", "side by side", "f32", "across"),
    ("softmax_backward", "side by side, long", "f16", "across"),
    ("batch_norm_train_running", "side by side, long", "f32", "split"),
    ("batch_norm_backward", "side by side, long", "bf16", "split"),
    ("cross_entropy_weighted", "side by side", "f32", "across"),
]
DTYPES = ("f32", "bf16", "f64", "f16")
MORE = [
    (name, layout, DTYPES[(i + j + k) % 4], solver)
    for i, name in enumerate(FLOATING)
    for j, layout in enumerate(LAYOUTS)
    for k, solver in enumerate(SOLVER)
    # of one element gradients are what cancelling leaves
    if (i + j) % 3 == 0 and not (layout == "one element" and ("running" in name or "backward" in name))
]


@pytest.mark.parametrize(("name", "layout", "dtype", "solver"), FIRST)
def test_results(gpu, short, name, layout, dtype, solver):
    shape, axes, memory = LAYOUTS[layout]
    check(solver, case(name, shape, axes, dtype, memory, offset=0))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout", "dtype", "solver"), MORE)
def test_more_results(gpu, short, name, layout, dtype, solver):
    shape, axes, memory = LAYOUTS[layout]
    of = case(name, shape, axes, dtype, memory, offset=0)
    if SOLVER[solver].why_not(of.problem, H200) is None:
        check(solver, of)


def special_rows(n):
    x = np.random.default_rng(3).normal(0, 3, (8, n))
    x[1, n // 2], x[2], x[3, n - 1], x[4, : n - 1], x[5, 0] = np.nan, -np.inf, np.inf, -np.inf, -np.inf
    x[6] = 1000.0
    return x


@pytest.mark.parametrize(
    ("name", "n", "solver"),
    [("softmax", 10, "rows"), ("log_softmax", 1003, "split"), ("cross_entropy", 40, "across")],
)
def test_nan_and_infinities(gpu, short, name, n, solver):
    """NaN where torch has it: rows with NaN, with inf, and of -inf alone."""
    x, target = special_rows(n), np.full((8, 1), n - 1)
    given, axis = {"x": x, "target": target}, 1
    if solver == "across":
        given, axis = {"x": x.T, "target": target.T}, 0
    of = case(name, given["x"].shape, (axis,), "f32", given=given, smoothing=0.0, offset=0)
    assert np.isnan(of.wanted[0]).any(axis).sum() == 3
    check(solver, of, results=2)  # the logarithm of no sum at all may be -inf


@pytest.mark.parametrize(("solver", "shape", "axis"), [("split", (3000, 33), 0), ("split", (1, 30_000), 1)])
def test_large_means(gpu, short, solver, shape, axis):
    """The variance of elements whose mean is 1e4 times their deviation."""
    x = np.random.default_rng(5).normal(1e4, 1.0, shape)
    of = case("batch_norm_train", shape, (axis,), "f32", given={"x": x}, offset=0)
    y, mean, inv = run(solver, of)
    np.testing.assert_allclose(inv, of.wanted[2], rtol=2e-5)
    np.testing.assert_allclose(mean, of.wanted[1], rtol=1e-7)
    np.testing.assert_allclose(y, of.wanted[0], atol=2e-4)


@pytest.mark.parametrize(
    ("shape", "axis", "solver"),
    [((2, 20003), 1, "rows"), ((30, 70), 0, "across"), ((2, 900), 1, "split")],
)
def test_in_place(gpu, short, shape, axis, solver):
    """A result where an input lies: all of a row is read before any of it is written."""
    check(solver, case("softmax", shape, (axis,), "f32", offset=0), share=True)


def test_between_multiples_of_16_bytes(gpu):
    """Arrays that do not begin at one take a kernel of single elements, which adds up in the same order."""
    x, found = np.random.default_rng(2).normal(0, 3, (13, 250)), []
    for offset in (0, 1):
        of = case("softmax", x.shape, (1,), "f32", given={"x": x}, offset=offset)
        check("rows", of)
        found.append(of.arrays[0].array.copy())
    np.testing.assert_array_equal(*found)
    first, second = (launched.entry for launched in gpu.launches)
    # the last but two: elements of an access
    assert first.endswith("_False_32_2_4_True_1_1_2_False_1") and second.endswith("_False_32_2_4_True_1_1_1_False_1")


def test_rows_between_multiples_of_16_bytes(gpu):
    """The same of rows side by side."""
    x, found = np.random.default_rng(2).normal(0, 3, (40, 128)), []
    for offset in (0, 1):
        of = case("softmax", x.shape, (0,), "f32", given={"x": x}, offset=offset)
        check("across", of)
        found.append(of.arrays[0].array.copy())
    np.testing.assert_array_equal(*found)
    first, second = (launched.entry for launched in gpu.launches)
    assert first.endswith("_4_False_4") and second.endswith("_1_False_4")


@pytest.mark.parametrize("solver", ["split", "naive"])
def test_sums_of_nothing(gpu, solver):
    assert (run(solver, case("total", (3, 0), (1,), "f32", offset=0))[0] == 0).all()


def test_far_and_long_rows_are_split_in_64_bits(gpu, short, monkeypatch):
    """Where indices or strides pass 32 bits, and no accumulator adds more than so many terms in order."""
    from numbaprims.gpu import parts
    from numbaprims.gpu.reduce import solvers

    monkeypatch.setattr(solvers, "_LIMIT", 10_000)
    monkeypatch.setattr(parts, "TERMS", 8)
    for shape, axis, layout in (((2, 20_003), 1, "C"), ((20_003, 2), 0, "C"), ((3, 7000, 4), 1, "apart")):
        of = case("total", shape, (axis,), "f32", layout, offset=0)
        names = [name for name, solver in SOLVER.items() if solver.why_not(of.problem, H200) is None]
        assert names == ["split", "naive"], layout
        threads = 8 if axis == 0 else solvers.THREADS
        assert SOLVER["split"].chunks(of.problem) >= of.problem.n / (8 * threads)
        check("split", of)
    assert all("_True_1_0" in launched.entry for launched in gpu.launches)


def test_a_last_chunk_that_would_end_beyond_32_bits():
    """The other chunks are as long as it would be, had the row more elements; x is 1 everywhere."""
    length, count, most = 1 << 21, 1024, (1 << 31) - (1 << 21) + 5
    x, result, chunks, states = (np.ones(size, np.float32) for size in (1, 1, 2 * count, 1))
    kernel = make_part("total|f32,f32", Form(False, 256, 1, 4, False, 1, 1, 0, False), 0)
    given = (result, x, 0.0, 1, 0, 0, most, 0, 0, 1, most, length, chunks, states)
    launch(kernel, (1, count), kernel.threads, *given, only=count - 1)
    assert chunks[2 * count - 2 :].tolist() == [5, 5]  # the sum, and how many elements it is of


def test_more_rows_than_blocks():
    for layout, inner in (("rows", ((3,), (1,))), ("across", ((1,), (1 << 31,)))):
        problem = case("softmax", (2, 3), (1,), "f32").problem
        problem = dataclasses.replace(problem, strides=(inner, inner), layout=layout, kept=(1 << 31,), reduced=(3,))
        able = [solver for solver in SOLVERS if solver.why_not(problem, H200) is None]
        assert [solver.name for solver in able] == ["split", "naive"][layout == "rows" :]
        assert all(solver.bind(problem, H200, {}).program.steps for solver in able)
    problem = dataclasses.replace(problem, kept=(1 << 34,))
    assert all("no room" in (solver.why_not(problem, H200) or "") for solver in (SOLVER["split"], SOLVER["naive"]))


def test_choice():
    """Few long rows are split, short ones are not, and what lies anywhere is the naive solver's."""

    def chosen(name, layout, rows, n):
        problem = case(name, (2, 3), (1,), "f32").problem
        steps = ((n,), (1,)) if layout == "rows" else ((1,), (rows,))
        strides = tuple(steps if array.kind == "row" else ((1,), (0,)) for array in problem.arrays)
        problem = dataclasses.replace(problem, strides=strides, layout=layout, kept=(rows,), reduced=(n,))
        able = [solver for solver in SOLVERS if solver.why_not(problem, H200) is None]
        return min(able, key=lambda solver: solver.estimate(problem, H200)).name

    assert chosen("softmax", "rows", 4096, 1000) == "rows"
    assert chosen("softmax", "rows", 1, 10_000_000) == "split"
    assert chosen("softmax", "across", 100_000, 64) == "across"
    assert chosen("batch_norm_train", "across", 64, 200_000) == "split"
    apart = case("softmax", (3, 50, 4), (1,), "f32", "apart").problem
    assert [solver.name for solver in SOLVERS if solver.why_not(apart, H200) is None] == ["split", "naive"]
    assert chosen("total", "strided", 1, 10_000_000) == "split" and chosen("total", "strided", 4096, 100) == "naive"


def test_mutants():
    """Mistakes planted in a kernel whose block merges states through shared memory."""
    of = case("softmax", (2, 1500), (1,), "f32", offset=0)

    def same(results):
        assert_near(results[0], of.wanted[0], "f32", 40, 1.0)

    caught, missed = hunt(lambda: run("rows", of), same, most=2)
    assert len(caught) >= 8
    # of a warp's first merge lane 0 alone is asked, and no row is beyond the last
    assert {mutant.kind for mutant in missed} <= {"bound off by one", "half a warp"}


def test_every_function_has_code():
    """Whatever a formula may name, kinds of activation among them once one has."""
    graph_of("layer_norm+relu")
    assert "kind:relu" in COSTS and all(callable(plans.function_of(op)) for op in COSTS)
