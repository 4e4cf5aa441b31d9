"""The reduce engine: every formula, layout, type and solver against definitions in float64."""

import dataclasses
import re

import numpy as np
import pytest
from assembly import kernel_assembly, named
from helpers import assert_near, forced, to_float64
from reduce_cases import FLOATING, able, case, check, kernel_of, launched, solver

import numbaprims
from numbaprims.cpu import target
from numbaprims.cpu.launch import make_launcher
from numbaprims.cpu.rates import CpuRates
from numbaprims.formulas.reductions import FORMULAS, graph_of
from numbaprims.ops.batch_norm import PROBLEMS
from numbaprims.ops.reduce import PROBLEMS as REDUCE
from numbaprims.ops.softmax import PROBLEMS as SOFTMAX

#: (shape, reduced axes, layout of rows) -> the solvers that can.
LAYOUTS = {
    "short": ((9, 10), (1,), "C"),
    "registers": ((5, 83), (1,), "C"),
    "tails": ((7, 331), (1,), "C"),
    "long": ((3, 20011), (1,), "C"),
    "gaps": ((4, 5, 77), (2,), "gaps"),
    "planes": ((3, 5, 7, 11), (0, 2, 3), "C"),
    "planes with gaps": ((3, 4, 9, 70), (0, 2, 3), "gaps"),
    "between": ((3, 21, 130), (1,), "C"),
    "channels last": ((40, 37, 9, 3), (0, 2, 3), "last"),
    "channels last, long": ((300, 70), (0,), "C"),
    "few columns": ((301, 3), (0,), "C"),
    "few columns of several": ((3, 50, 7), (1,), "C"),
    "apart": ((3, 50, 4), (1,), "apart"),
    "one element": ((6, 1), (1,), "C"),
    "everything": ((3, 50), (0, 1), "C"),
}


# ---------------------------------------------------------------- the sweep: layouts and types


SWEPT = ("softmax", "batch_norm_train_running", "batch_norm_backward", "batch_norm_backward+silu")
#: The unbiased variance of one element is not defined.
SWEEP = [
    *((name, layout, dtype) for name in SWEPT for dtype in ("f32", "bf16")
      for layout in (LAYOUTS if dtype == "f32" else list(LAYOUTS)[::2])
      if (name, layout) != ("batch_norm_train_running", "one element")),
    *((name, layout, dtype) for name in SWEPT[:2] for layout in ("tails", "between", "planes")
      for dtype in ("f64", "f16")),
]  # fmt: skip


@pytest.mark.parametrize("name, layout, dtype", SWEEP)
def test_layouts(name, layout, dtype):
    shape, axes, memory = LAYOUTS[layout]
    of = case(name, shape, axes, dtype, memory)
    expected = {"rows": {"rows", "split"}, "across": {"across", "split_across"}, "strided": set()}[of.problem.layout]
    assert expected < set(able(of.problem))
    check(of)


def test_layout_words():
    """The layouts above are of all three kinds."""
    found = {
        layout: case("softmax", *LAYOUTS[layout][:2], "f32", LAYOUTS[layout][2]).problem.layout for layout in LAYOUTS
    }
    assert found["between"] == found["channels last"] == found["channels last, long"] == "across"
    assert found["apart"] == "strided" and found["planes"] == found["short"] == "rows"


@pytest.mark.parametrize("dtype", ("bf16", pytest.param("f32", marks=pytest.mark.slow)))  # test_contract.py has f32
@pytest.mark.parametrize("layout", ("tails", "between"))
@pytest.mark.parametrize("name", FLOATING)
def test_formulas(name, layout, dtype, request):
    """By the default stores: those past the caches and by way of a buffer are the sweep's, whatever the formula."""
    shape, axes, memory = LAYOUTS[layout]
    check(case(name, shape, axes, dtype, memory), configs=None if request.config.option.slow else 1)


@pytest.mark.parametrize("name", [name for name in FORMULAS if "smoothing" in dict(FORMULAS[name].operands)])
def test_no_smoothing(name):
    check(case(name, (5, 40), (1,), "f32", smoothing=0.0), ["rows"])


@pytest.mark.parametrize("name", ("softmax", "log_softmax", "softmax_backward", "cross_entropy"))
def test_long_rows_by_the_narrowest_vectors(name, as_cpu):
    """Of 300,000 elements, sums are those of chunks: sixteen, of four registers of 16 bytes, would lose digits."""
    as_cpu(dataclasses.replace(target.current(), vector_bytes=16))
    check(case(name, (2, 300_001), (1,), "f32"), ["rows"], units=40.0, results=1)


# ---------------------------------------------------------------- special values


def special_rows(n: int) -> np.ndarray:
    x = np.random.default_rng(3).normal(0, 3, (8, n))
    x[1, n // 2], x[2], x[3, n - 1], x[4, : n - 1], x[5, 0] = np.nan, -np.inf, np.inf, -np.inf, -np.inf
    x[6] = 1000.0
    return x


@pytest.mark.parametrize("n", (5, 40, 1003, 40000))
@pytest.mark.parametrize("name", ("softmax", "log_softmax", "cross_entropy"))
def test_nan_and_infinities(name, n):
    """NaN where torch has it: rows with NaN, with inf, and of -inf alone."""
    x = special_rows(n)
    target = np.full((8, 1), n - 1)
    of = case(name, x.shape, (1,), "f32", given={"x": x, "target": target}, smoothing=0.0)
    assert np.isnan(of.wanted[0][1:4]).all() and np.isfinite(of.wanted[0][0]).all()
    check(of, results=2)  # the logarithm of no sum at all may be -inf
    swapped = case(name, (n, 8), (0,), "f32", given={"x": x.T, "target": target.T}, smoothing=0.0)
    assert swapped.problem.layout == "across"
    check(swapped, results=2)


def test_a_class_of_probability_zero_costs_nothing_without_smoothing():
    x = np.array([[1.0, -np.inf, 2.0], [1.0, 3.0, -np.inf]])
    of = case("cross_entropy", (2, 3), (1,), "f32", given={"x": x, "target": np.array([[0], [2]])}, smoothing=0.0)
    check(of, ["rows", "online", "naive"])
    loss = of.arrays[0].array
    assert loss[0, 0] == pytest.approx(np.log1p(np.e)) and loss[1, 0] == np.inf


def test_ignored_rows_do_not_count():
    target = np.array([[-100], [1], [-100]])
    of = case("cross_entropy", (3, 20), (1,), "f32", given={"target": target})
    check(of)
    assert of.arrays[0].array[0, 0] == 0.0 and of.arrays[1].array.tolist() == [[0.0], [1.0], [0.0]]


def test_max_takes_nan_and_top_drops_it():
    from numbaprims.formulas import graph, reductions

    reductions.FORMULAS["both_tops"] = reductions.Formula(
        lambda x: (graph.reduce_max(x), graph.reduce_top(x)), (("x", "row"),), (("most", "one"), ("top", "one"))
    )
    try:
        rows = np.random.default_rng(0).normal(0, 1, (4, 50))
        rows[1, 7], rows[2], rows[3, :49] = np.nan, -np.inf, np.nan
        top = [np.nanmax(row) if not np.isnan(row).all() else -np.inf for row in rows]
        import reduce_cases

        before = reduce_cases.defined
        reduce_cases.defined = lambda name, a, axes, shape: (
            np.max(a["x"], axes, keepdims=True), np.nanmax(a["x"], axes, keepdims=True)
        )  # fmt: skip
        try:
            for x, axes in ((rows, (1,)), (rows.T.copy(), (0,))):
                of = case("both_tops", x.shape, axes, "f64", given={"x": x})
                assert np.array_equal(of.wanted[1].ravel(), top)
                check(of)
        finally:
            reduce_cases.defined = before
    finally:
        del reductions.FORMULAS["both_tops"]
        graph_of.cache_clear()


# ---------------------------------------------------------------- accuracy


@pytest.mark.parametrize("shape, axes, layout", (
    ((5, 3000), (1,), "C"), ((8, 6, 23, 29), (0, 2, 3), "C"), ((60, 6, 5, 9), (0, 2, 3), "last"),
    ((2, 100000), (1,), "C"),
))  # fmt: skip
def test_moments_far_from_zero(shape, axes, layout):
    """A mean of 1e4 and a standard deviation of 1 in float32."""
    rng = np.random.default_rng(5)
    x = rng.normal(1e4, 1, shape)
    of = case("batch_norm_train", shape, axes, "f32", layout, given={"x": x})
    check(of, [name for name in able(of.problem)], units=32.0)
    variance = (1 / to_float64(of.arrays[2].array, "f32")) ** 2 - 1e-5
    want = (1 / of.wanted[2]) ** 2 - 1e-5
    np.testing.assert_allclose(variance, want, rtol=3e-6)


@pytest.mark.parametrize("shape, axis, outlier, rtol", (((2, 200000), 1, 1000.0, 1e-4), ((128, 40), 0, 8.0, 2e-6)))
def test_moments_with_an_outlier_in_front(shape, axis, outlier, rtol):
    """The anchor is then away from the mean: chunks bound what cancels, and the elements that are its mean."""
    x = np.random.default_rng(6).normal(0, 1, shape)
    x[(slice(None),) * axis + (0,)] = outlier
    of = case("batch_norm_train", x.shape, (axis,), "f32", given={"x": x})
    for name in able(of.problem):
        launched(name, of)
        np.testing.assert_allclose(to_float64(of.arrays[2].array, "f32"), of.wanted[2], rtol=rtol)


def test_the_variance_of_equal_elements_is_zero():
    for value in (0.1, 1e4, 3.3e-20):
        of = case("batch_norm_train", (3, 77), (1,), "f32", given={"x": np.full((3, 77), value)}, eps=0.0625)
        launched("rows", of)
        assert np.all(of.arrays[2].array == 4.0)


# ---------------------------------------------------------------- bits, places


@pytest.mark.parametrize("layout", ("tails", "long", "planes with gaps", "channels last, long", "between", "apart"))
@pytest.mark.parametrize("name", ("softmax", "batch_norm_along", "batch_norm_train_running", "softmax_backward"))
def test_bits_do_not_depend_on_the_number_of_workers(name, layout, monkeypatch):
    shape, axes, memory = LAYOUTS[layout]
    of = case(name, shape, axes, "f32", memory)
    monkeypatch.setattr(CpuRates, "worth", lambda self, seconds: 2.0)  # small work is handed out too
    monkeypatch.setattr(CpuRates, "grain", lambda self, tiles, seconds, parts=8: 1)
    for solver_name in able(of.problem):
        for config in solver(solver_name).configs(of.problem, target.current()):
            found = []
            for threads in (1, 2, 3):
                with numbaprims.config(threads=threads):
                    launched(solver_name, of, config=config)
                found.append([array.tobytes() for array, _ in of.results()])
            assert found[0] == found[1] == found[2], (solver_name, config)


@pytest.mark.parametrize(
    "name", ("softmax", "log_softmax", "softmax_backward", "batch_norm", "batch_norm_train_running")
)
@pytest.mark.parametrize("layout", ("short", "tails", "long", "planes", "between", "channels last, long", "apart"))
def test_in_place(name, layout):
    """The result where the first input lies, the running statistics where they were."""
    shape, axes, memory = LAYOUTS[layout]
    of = case(name, shape, axes, "f32", memory)
    outs = len(of.wanted)
    for solver_name in able(of.problem):
        inputs = [each.array.copy(order="K") for each in of.arrays[outs:]]
        arrays = [each.array for each in of.arrays]
        for to, source in zip(arrays[outs:], inputs, strict=True):
            to[...] = source
        arrays[0] = arrays[outs]
        if name == "batch_norm_train_running":
            arrays[3:5] = arrays[outs + 3 : outs + 5]
        launched(solver_name, of, arrays, config={"stores": "plain"})
        for have, want in zip(arrays, of.wanted, strict=False):
            assert_near(have, want, "f32", 64.0, max(1.0, np.abs(want).max()))
        for to, source in zip(arrays[outs:], inputs, strict=True):
            to[...] = source


@pytest.mark.parametrize("offset", range(0, 16, 5))
@pytest.mark.parametrize("dtype", ("f32", "bf16", "f64"))
def test_streamed_wherever_the_result_begins(dtype, offset):
    for name, shape, axes in (
        ("softmax", (6, 200), (1,)),
        ("softmax", (3, 700), (1,)),
        ("softmax", (9, 39), (1,)),
        ("batch_norm", (5, 64, 3, 8), (0, 2, 3)),
        ("batch_norm_along", (19, 200), (1,)),  # rows side by side that begin at different places of a line, or alike
        ("batch_norm_along", (9, 208), (1,)),
        ("softmax", (3, 64, 64), (1,)),
    ):
        check(case(name, shape, axes, dtype, offset=offset))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("shape", [(16, 992, 14, 14), (16, 2048, 7, 7), (16, 256, 28, 28), (16, 64, 56, 56)])
def test_no_sum_depends_on_the_number_of_threads(shape, layout):
    """One thread has less of the third level, which decides how results leave; but where they do otherwise sums may
    be taken in another order, and then it decides nothing."""
    where = dataclasses.replace(named("znver4"), l2=1 << 20, l3=32 << 20, cores_logical=2)
    x = np.empty([shape[k] for k in ((0, 1, 2, 3) if layout == "NCHW" else (0, 2, 3, 1))], np.float32)
    p, rows = np.ones(shape[1], np.float32), x.reshape(-1, shape[-1] * 4)
    stored = set()
    for problem in (
        PROBLEMS["batch_norm"](x, p, p, p, p, layout=layout),
        PROBLEMS["batch_norm_train"](x, p, p, None, None, layout=layout),
        PROBLEMS["batch_norm_backward"](x, x, p, p, p, layout=layout),
        SOFTMAX["softmax_backward"](rows, rows),
        SOFTMAX["softmax"](rows),
    ):
        for name in able(problem):
            forms = []
            for threads in (1, 2):
                with numbaprims.config(threads=threads):
                    config = next(iter(solver(name).configs(problem, where)))
                    form = solver(name).variant(problem, where, config, "rows")
                    forms.append((form.W, form.U, form.registers, form.together, form.run))
                    stored.add((threads, config["stores"] != "plain"))
                    forms[-1] += (solver(name).estimate(problem, where),)
            assert forms[0] == forms[1] or graph_of(problem.formula).is_map, (problem.formula, name)
    assert (2, False) in stored and (shape[-1] == 7 or (1, True) in stored), "runs of 196 bytes are never streamed"


def test_the_buffer_of_a_row_begins_a_page():
    """No store of a short row crosses two, whose line would be read again 100 ns later."""
    x, p = np.zeros((64, 100), np.float32), np.ones(100, np.float32)
    problem = PROBLEMS["batch_norm"](x, p, p, p, p)
    variant = solver("rows").variant(problem, named("znver4"), {"stores": "stage"}, "rows")
    assert "andq\t$-4096, %rsp" in kernel_assembly("znver4", kernel_of, variant.text)


@pytest.mark.parametrize(
    ("cpu", "across", "most", "stack"),
    [("znver4", False, 19, 0), ("x86-64-v3", False, 23, 0), ("x86-64-v3", True, 78, 8)],
)
def test_the_loop_of_the_first_largest(cpu, across, most, stack):
    """Of four vectors along a row; of two elements of four vectors of rows, which took 38 words of the stack."""
    problem = REDUCE["reduce"](np.zeros((64, 128) if across else (8, 768), np.float32), "argmax", 1 - across)
    variant = solver("across" if across else "rows").variant(problem, named(cpu), {"stores": "plain"}, "rows")
    found = []
    for block in re.split(r"^(?=\.LBB)", kernel_assembly(cpu, kernel_of, variant.text), flags=re.MULTILINE):
        loop = re.match(rf".*?\sj\w+\s+{re.escape(block.partition(':')[0])}\b", block, re.DOTALL)
        if loop and len(re.findall(r"\bvcmpnle" if across else r"\bvmax", loop[0])) >= (8 if across else 4):
            found.append(re.findall(r"^\t[a-z].*", loop[0], re.MULTILINE))
    body = min(found, key=len)
    assert len(body) <= most and sum("(%rsp)" in line for line in body) <= stack, body


@pytest.mark.parametrize("run", [9, 49, 196])
def test_channels_of_short_runs_have_the_same_bits_wherever_they_stand(rng, run):
    """Four are walked side by side, and what is left one by one."""
    x, one = rng.standard_normal((5, 11, run)).astype(np.float32), np.ones(11, np.float32)
    found = numbaprims.batch_norm_train(np.roll(x, 1, 1), one, one)
    want = numbaprims.batch_norm_train(x, one, one)
    for k, axis in enumerate((1, 0, 0)):
        np.testing.assert_array_equal(found[k], np.roll(want[k], 1, axis))
    problem = PROBLEMS["batch_norm_train"](x, one, one, None, None)
    assert solver("rows").variant(problem, target.current(), {"stores": "plain"}, "rows").together == 4


@pytest.mark.parametrize("op", ["sum", "max", "norm2"])
def test_long_rows_side_by_side_have_the_bits_of_rows_alone(op, rng):
    """Four from memory on a core that reads them faster so, and those that are left."""
    x = rng.standard_normal((11, 2500)).astype(np.float32)
    problem, here = REDUCE["reduce"](x, op, 1), target.current()
    rates = here.rates._replace(beside=True, share=1.0)
    machines = [dataclasses.replace(here, l2=1 << 10, l3=l3, measured=rates) for l3 in (64 << 20, 16 << 10)]
    variants = [solver("rows").variant(problem, each, {"stores": "plain"}, "rows") for each in machines]
    assert [each.together for each in variants] == [1, 4] and not variants[1].ahead
    found = []
    for machine in machines:
        found.append(np.empty(11, np.float32))
        make_launcher(solver("rows").program(problem, machine, {"stores": "plain"}))(found[-1], x, *[None] * 5)
    np.testing.assert_array_equal(*found)
    for other in (REDUCE["reduce"](x, "var", 1), REDUCE["reduce"](x[:, :1000].copy(), op, 1)):
        assert solver("rows").variant(other, machines[1], {"stores": "plain"}, "rows").together == 1


def test_exponentials_are_taken_twice_where_results_leave_past_the_caches():
    """1.7 ms for 2.6 on a Zen 5, on a Zen 4 they take twice as long; in the caches, and in registers, they wait."""
    for name, shape, chosen in (
        ("znver5", (64, 128256), "online"), ("znver4", (64, 128256), "rows"), ("znver5", (8, 128256), "rows"),
        ("znver5", (49152, 128), "rows"), ("znver3", (64, 128256), "online"), ("znver3", (8, 128256), "rows"),
    ):  # fmt: skip
        width = 32 if name == "znver3" else 64
        machine = dataclasses.replace(target.current(), name=name, vector_bytes=width, l2=1 << 20, l3=32 << 20)
        problem = SOFTMAX["softmax"](np.empty(shape, np.float32))
        estimates = {each: solver(each).estimate(problem, machine) for each in ("rows", "online", "split")}
        assert min(estimates, key=lambda each: estimates[each]) == chosen, (name, shape, estimates)


@pytest.mark.parametrize("name", ["znver4", "znver5", "sapphirerapids", "graniterapids"])
def test_sums_of_few_exponentials_are_not_merged_lane_by_lane(name):
    """Cross entropy of ten classes is one pass either way; `online` merges 16 lanes of which most are 0."""
    machine = dataclasses.replace(target.current(), name=name, vector_bytes=64, measured=None)
    given = np.empty((256, 10), np.float32), np.zeros(256, np.int64)
    problem = numbaprims.explain("softmax_cross_entropy", *given).problem
    assert solver("rows").estimate(problem, machine) < 0.9 * solver("online").estimate(problem, machine)


def test_nothing():
    """No rows, and sums of no elements."""
    for shape, sums in (((0, 5), []), ((4, 0), [0.0] * 4)):
        of = case("total", shape, (1,), "f32")
        assert of.problem.empty
        launched("naive", of)
        assert of.arrays[0].array.ravel().tolist() == sums and of.arrays[0].untouched()
        launched("naive", case("softmax", shape, (1,), "f32"))


# ---------------------------------------------------------------- graphs


def test_graphs():
    """Passes, what is kept between them, how sums of exponentials are traced."""
    two, one = graph_of("softmax"), graph_of("softmax", True)
    assert [[node.op for node in each.reductions] for each in two.passes] == [["top"], ["sum"], []]
    assert [[node.op for node in each.reductions] for each in one.passes] == [["exp_sum"], []]
    assert [node.op for node in two.kept(4)] == ["exp_of_negative"] and not graph_of("log_softmax").kept(4)
    assert two.digest != one.digest and graph_of("softmax").digest == two.digest
    assert graph_of("batch_norm").passes[0].outputs == (0,) and graph_of("total").operations == 1
    assert len({graph_of(name).digest for name in FORMULAS}) == len(FORMULAS)


def test_a_product_is_no_operand_of_a_sum():
    from numbaprims.formulas.graph import Graph

    for text in (lambda x: x * x + 1.0, lambda x: 1.0 - x * x):
        with pytest.raises(TypeError, match="write mad"):
            Graph(text, (("x", "row"),), (("y", "row"),), False)
    with pytest.raises(TypeError, match="y is of kind 'one'"):
        Graph(lambda x: x * x, (("x", "row"),), (("y", "one"),), False)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [10, 49, 130])
def test_logarithms_have_the_same_bits_wherever_rows_stand(rng, n, dtype):
    """A vector holds those of several rows, a lane each, and what is left is one by one; infinities, zeros and NaN stay
    where they are."""
    x = rng.random((11, n)).astype(dtype)
    x[2], x[5], x[7, 3] = 0.0, np.inf, np.nan
    target_of = rng.integers(0, n, 11)

    def results(x, y):
        return [
            numbaprims.reduce(x, "log_sum", 1), numbaprims.reduce(x, "logsumexp", 1), numbaprims.log_softmax(x),
            numbaprims.softmax_cross_entropy(x, y, reduction="none"),
        ]  # fmt: skip

    with forced("reduce", "rows"), forced("softmax", "rows"):
        whole = results(x, target_of)
        for by in (1, 3, 6):
            for mine, moved in zip(whole, results(np.roll(x, by, 0), np.roll(target_of, by)), strict=True):
                np.testing.assert_array_equal(np.roll(mine, by, 0), moved)
    np.testing.assert_allclose(whole[0][[0, 10]], np.log(x[[0, 10]].sum(1)), rtol=1e-5)
    assert whole[0][2] == -np.inf and whole[0][5] == np.inf and np.isnan(whole[0][7])
