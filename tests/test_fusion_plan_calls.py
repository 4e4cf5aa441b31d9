"""FusionPlan beyond MIOpen's tables: what else is one call, folding, counts, values, threads, pickling."""

import doctest
import itertools
import pickle
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from fusion_plan_cases import (
    F32,
    HALVES,
    MODES,
    Data,
    behind,
    check,
    complete,
    convolved,
    real,
    small,
    table_plan,
    without_transforms,
)
from helpers import assert_close, assert_exact, assert_near, to_float64

import numbaprims
from numbaprims import FusionPlan, arrays
from numbaprims.dtypes import LONG_NAMES
from numbaprims.fusion import calls, metadata

# ---------------------------------------------------------------- beyond


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_residual_block(layout, library):
    """conv + batch norm + add + relu is one program; with the activation in front of the sum it is two."""
    torch = pytest.importorskip("torch") if library == "torch" else None
    rng = np.random.default_rng(0)
    shape = (2, 8, 9, 7) if layout == "NCHW" else (2, 9, 7, 8)
    x, weight, added = real(rng, *shape), real(rng, 8, 8, 3, 3), real(rng, *shape)
    s = {name: rng.random(8).astype(np.float32) + 0.5 for name in ("scale", "shift", "mean", "var")}
    for front, programs in ((False, 1), (True, 2)):
        plan = FusionPlan(shape, layout=layout)
        conv, norm = plan.conv(weight.shape, padding=1), plan.batch_norm()
        operators = [plan.activation("relu"), plan.add()] if front else [plan.add(), plan.activation("relu")]
        assert plan.compile(calls=1) and plan.launches == 1 and len(plan._calls) == programs
        assert plan.result.shape == shape
        give = torch.from_numpy if torch else np.asarray
        plan.set_args(conv, weight=give(weight))
        plan.set_args(norm, **{name: give(value) for name, value in s.items()})
        plan.set_args(operators[1 if front else 0], added=give(added))
        y = plan(give(x))
        assert isinstance(y, torch.Tensor if torch else np.ndarray)
        want = numbaprims.batch_norm(
            numbaprims.conv(x, weight, padding=1, layout=layout).astype(np.float64),
            *(s[name].astype(np.float64) for name in ("scale", "shift", "mean", "var")), layout=layout,
        )  # fmt: skip
        want = np.maximum(want, 0) + added if front else np.maximum(want + added, 0)
        assert_close(np.asarray(y), want, k=100)


@pytest.mark.parametrize("operators", [["clip"], ["leaky_relu", "softmax", "elu"]])
def test_a_plan_without_arrays_takes_those_of_any_library(operators):
    torch = pytest.importorskip("torch")
    x, plan = real(np.random.default_rng(2), 3, 20, 2, 1), FusionPlan((3, 20, 2, 1))
    for each in operators:
        plan.softmax(axis=np.int64(1)) if each == "softmax" else plan.activation(each)
    assert plan.compile()
    want = x
    for each in operators:
        want = numbaprims.softmax(want, axis=1) if each == "softmax" else numbaprims.activation(want, each)
    for _ in range(4):
        for given in (torch.from_numpy(x), x):
            y = plan(given)
            assert type(y) is type(given)
            np.testing.assert_array_equal(np.asarray(y), want)


def test_bfloat16_is_explained_before_arguments_are_set(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # NumPy then has no bfloat16
    plan = small(dtype="bfloat16")
    plan.bias(), plan.activation("relu")
    assert plan.compile() and "1 native call" in plan.explain(phases=True)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_conv_and_pooling(layout):
    rng = np.random.default_rng(1)
    shape = (2, 3, 11, 12) if layout == "NCHW" else (2, 11, 12, 3)
    x, weight = real(rng, *shape), real(rng, 5, 3, 3, 3)
    for op, words in itertools.product(("max", "avg"), ({"stride": 2, "padding": 1}, {"ceil_mode": True})):
        plan = FusionPlan(shape, layout=layout)
        plan.set_args(plan.conv(weight.shape, algorithm=without_transforms()), weight=weight)
        plan.activation("tanh")
        plan.pool(op, 3, **words)
        assert plan.compile(calls=1) and "a program of its own: conv takes no pool" in plan.explain()
        pool = numbaprims.max_pool if op == "max" else numbaprims.avg_pool
        want = pool(numbaprims.conv(x, weight, activation="tanh", layout=layout), 3, layout=layout, **words)
        out = np.full(plan.result.shape, np.nan, np.float32)
        assert plan(x, out=out) is out
        assert_close(out, want, k=12)


def test_products_with_their_epilogue():
    rng = np.random.default_rng(2)
    x, weight, bias, added = real(rng, 7, 20), real(rng, 5, 20), real(rng, 5), real(rng, 7, 5)
    s = {name: rng.random(5).astype(np.float32) + 0.5 for name in ("scale", "shift", "mean", "var")}
    plan = FusionPlan(x.shape)
    plan.set_args(plan.gemm(weight.shape), weight=weight)
    plan.set_args(plan.bias(), bias=bias)
    assert plan.compile() and "call 1: gemm, solver" in plan.explain()
    assert_close(plan(x), numbaprims.linear(x, weight, bias), k=20)
    plan.set_args(plan.batch_norm(), **s)
    plan.set_args(plan.add(), added=added)
    plan.activation("gelu")
    assert plan.compile(calls=1) and plan.launches_saved == 4
    want = numbaprims.batch_norm(numbaprims.linear(x, weight, bias), *(s[n] for n in ("scale", "shift", "mean", "var")))
    assert_close(plan(x), numbaprims.gelu(want + added), k=60)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_integers_with_scales(dtype):
    rng = np.random.default_rng(3)
    x = rng.integers(0, 100, (2, 8, 9, 9)).astype(dtype)
    weight = rng.integers(-99, 99, (6, 8, 3, 3)).astype(np.int8)
    bias, scale = rng.integers(-999, 999, 6, np.int32), (rng.random(6) * 1e-3 + 1e-3).astype(np.float32)
    plan = FusionPlan(x.shape, dtype)
    conv, add, factor, cast = plan.conv(weight.shape, padding=1), plan.bias(), plan.scale(), plan.cast("uint8")
    assert plan.compile(calls=1) and plan.result.dtype == "u8" and "qlinear_conv" in plan.explain()
    plan.set_args(conv, weight=weight, x_zero_point=3, weight_zero_point=-2)
    plan.set_args(add, bias=bias)
    plan.set_args(factor, scale=scale)
    plan.set_args(cast, scale=0.25, zero_point=128)
    want = numbaprims.qlinear_conv(x, 1.0, 3, weight, scale, -2, 0.25, np.uint8(128), bias, padding=1)
    np.testing.assert_array_equal(plan(x), want)
    assert 20 < len(np.unique(want))
    plain = FusionPlan(x.shape, dtype)
    conv, add = plain.conv(weight.shape), plain.bias()
    plain.activation("relu")
    assert plain.compile() and plain.launches == 1
    plain.set_args(conv, weight=weight)
    plain.set_args(add, bias=bias)
    np.testing.assert_array_equal(plain(x), numbaprims.conv(x, weight, bias, activation="relu"))
    rows, matrix = x.reshape(18, 72), weight.reshape(6, 72)
    dense = FusionPlan(rows.shape, dtype)
    dense.set_args(dense.gemm(matrix.shape), weight=matrix)
    dense.set_args(dense.bias(), bias=bias)
    dense.activation("relu")
    assert dense.compile(calls=1)
    np.testing.assert_array_equal(dense(rows), np.maximum(rows.astype(np.int64) @ matrix.T.astype(np.int64) + bias, 0))
    plain.set_args(conv, x_zero_point=3)
    with pytest.raises(ValueError, match=re.escape("conv (operator 1): zero points need a scale and a cast")):
        plain(x)


def test_training_gives_statistics():
    rng = np.random.default_rng(4)
    x, scale, shift, mean, var = real(rng, 4, 3, 6, 5), *(rng.random(3).astype(np.float32) + 0.5 for _ in range(4))
    plan = FusionPlan(x.shape)
    norm = plan.batch_norm(training=True, momentum=0.3)
    plan.activation("silu")
    assert plan.compile(calls=1) and plan.launches_saved == 1
    plan.set_args(norm, scale=scale, shift=shift)
    before = x.copy()
    assert len(plan(x)) == 3
    plan.set_args(norm, running_mean=mean, running_var=var)
    y, *statistics = plan(x)
    want, *expected = numbaprims.batch_norm_train(x, scale, shift, mean, var, momentum=0.3)
    assert_close(y, numbaprims.silu(want), k=8)
    for have, of in zip(statistics, expected, strict=True):
        np.testing.assert_array_equal(have, of)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("shape", [(6, 5), (3, 4, 7), (2, 3, 4, 2, 5), (0, 3, 4, 4)])
def test_other_ranks(shape):
    rng = np.random.default_rng(5)
    for layout, mode in itertools.product(("NCHW", "NHWC"), MODES):
        channel = 1 if layout == "NCHW" else len(shape) - 1
        x, slope = real(rng, *shape), rng.random(shape[channel]).astype(np.float32)
        size = shape[channel : channel + 1] if mode == "spatial" else (1, *shape[1:])
        s = {name: rng.random(size).astype(np.float32) + 0.5 for name in ("scale", "shift", "mean", "var")}
        plan = FusionPlan(shape, layout=layout)
        plan.set_args(plan.batch_norm(mode=mode), **s)
        plan.set_args(plan.activation("prelu"), weight=slope)
        assert plan.compile(calls=1)
        y = numbaprims.batch_norm(x, *(s[n] for n in ("scale", "shift", "mean", "var")), mode=mode, layout=layout)
        view = [1] * len(shape)
        view[channel] = -1
        want = np.where(y > 0, y, y * slope.reshape(view))
        assert_close(plan(x), want, k=8, vacuous=not x.size)
        wide = np.empty((*shape[:-1], 2 * shape[-1]), np.float32)[..., ::2]
        assert plan(x, out=wide) is wide
        np.testing.assert_array_equal(wide, plan(x))


def test_half_results_of_float32():
    data = Data("f16")
    x, weight = data.images((1, 2, 6, 6)), data.images((3, 2, 3, 3))
    plan = FusionPlan(x.shape, "float16")
    data.set(plan, plan.conv(weight.shape), weight=weight)
    plan.activation("tanh")
    plan.cast("float32")
    assert plan.compile(calls=1)
    y = plan(data.array(x))
    assert y.dtype == np.float32
    assert_near(y, np.tanh(convolved(x, weight, 1, 0)), "f32", 4)


# ---------------------------------------------------------------- folding


@pytest.mark.parametrize("dtype", HALVES)
def test_a_fold_is_rounded_once(dtype):
    """Weight and bias that the convolution sees are those of float64, rounded to the dtype, and nothing else."""
    rng = np.random.default_rng(6)
    weight, bias = rng.standard_normal((3, 2, 3, 3)), rng.standard_normal(3)
    s = {name: rng.random(3) + 0.5 for name in ("scale", "shift", "mean", "var")}
    plan, data = FusionPlan((1, 2, 5, 5), LONG_NAMES[dtype]), Data(dtype)
    data.set(plan, plan.conv(weight.shape), weight=weight)
    data.set(plan, plan.bias(), bias=bias)
    norm = plan.batch_norm(eps=1e-3)
    plan.set_args(norm, **{name: value.astype(np.float32) for name, value in s.items()})
    assert plan.compile()
    given = {each: plan._arguments[each] for each in plan.operators}
    folded = plan._calls[0].folded(given, arrays.NUMPY)
    w, b = (to_float64(data.array(each)) for each in (weight, bias))
    s = {name: value.astype(np.float32).astype(np.float64) for name, value in s.items()}
    factor = s["scale"] / np.sqrt(s["var"] + 1e-3)
    assert_exact(folded[0], w * factor[:, None, None, None])
    assert_exact(folded[1], (b - s["mean"]) * factor + s["shift"])


# ---------------------------------------------------------------- counted


def run_logged(plan, x, capsys):
    plan(x)
    capsys.readouterr()
    with numbaprims.config(verbose=1):
        plan(x)
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("numbaprims: ")]


@pytest.mark.cpu
@pytest.mark.parametrize("mode", MODES)
def test_calls_are_those_that_run(mode, capsys):
    """Launches and solvers are what the dispatcher logs."""
    plan, x, _ = table_plan(Data("f32"), "CBNA", filter=3, mode=mode)
    lines = run_logged(plan, x, capsys)
    solvers = [re.search(r"# (\w+),", line)[1] for line in lines]
    assert len(lines) == len(plan._calls) == (1 if mode == "spatial" else 2)
    assert plan.launches == 1 == 4 - plan.launches_saved
    assert re.findall(r"solver (\w+)", plan.explain()) == solvers


def test_bytes_are_those_of_the_arrays(monkeypatch):
    """What the convolution and the stack are given, and what they give."""
    seen = []

    def spy(function):
        def spied(*args, **words):
            y = function(*args, **words)
            words["out"] = y
            given = [*args, *words.values(), *words.get("added", ())]
            seen.append(sum(each.nbytes for each in given if isinstance(each, np.ndarray)))
            return y

        return spied

    monkeypatch.setattr(calls.convs, "conv", spy(numbaprims.conv))
    monkeypatch.setattr(calls.stacks, "stack", spy(calls.stacks.stack))
    data = Data("f32")
    x, weight, added = data.images((2, 3, 8, 8)), data.images((4, 3, 3, 3)), data.images((2, 4, 6, 6))
    plan = FusionPlan(x.shape)
    data.set(plan, plan.conv(weight.shape), weight=weight)
    data.set(plan, plan.bias(), bias=np.ones(4))
    data.set(plan, plan.add(), added=added)
    plan.activation("relu")
    data.set(plan, plan.batch_norm(mode="per_activation"), **data.statistics((1, 4, 6, 6)))
    data.set(plan, plan.add(), added=added)
    assert plan.compile() and len(plan._calls) == 2
    plan(data.array(x), out=np.empty(plan.result.shape, np.float32))
    assert [call.bytes_moved() for call in plan._calls] == seen and sum(seen) == plan.bytes_moved
    y, item = 2 * 4 * 36, 4
    assert plan.bytes_moved + plan.bytes_saved == item * (
        (x.size + weight.size + y) + (y + 4 + y) + (3 * y) + (2 * y) + (y + 4 * 144 + y) + 3 * y
    )


def test_the_graph_is_whole():
    """Every edge comes from a node, every node can be reached, and no two have one name."""
    names = [node.name for node in metadata.NODES]
    assert len(set(names)) == len(names)
    assert {edge for node in metadata.NODES for edge in node.after} <= {*names, metadata.START, metadata.END}
    reached = {metadata.START, metadata.END}
    while more := {node.name for node in metadata.NODES if set(node.after) & reached} - reached:
        reached |= more
    assert reached >= set(names)


# ---------------------------------------------------------------- values


def test_arguments_may_change_between_runs():
    """What is set is copied; what is added is read at each run."""
    plan, (conv, norm, add, act), x = complete()
    first = plan(x)
    weight, added = np.ones((3, 4, 3, 3), F32), np.zeros((2, 3, 4, 4), F32)
    plan.set_args(conv, weight=weight)
    plan.set_args(norm, **{"scale": np.ones(3, F32), "shift": np.zeros(3, F32)})
    plan.set_args(norm, mean=np.zeros(3, F32), var=np.full(3, 1 - 1e-5, F32))
    plan.set_args(add, added=added)
    plan.set_args(act, negative_slope=0.5)
    sums = numbaprims.conv(x.astype(np.float64), weight.astype(np.float64))
    assert_close(plan(x), np.where(sums > 0, sums, 0.5 * sums), k=72)
    weight[:] = 7
    added[:] = 1
    assert_close(plan(x), np.where(sums + 1 > 0, sums + 1, 0.5 * (sums + 1)), k=72)
    assert (first != plan(x)).any()


def test_results_between_calls_lie_in_out(monkeypatch):
    """The convolution writes where the plan's result goes; not where an array lies that is read later."""
    places, conv = [], numbaprims.conv.plan

    def noted(*args, **words):
        plan = conv(*args, **words)
        return lambda x, out: places.append(out) or plan(x, out=out)

    monkeypatch.setattr(calls.convs.conv, "plan", noted)
    plan, x, before = table_plan(Data("f32"), "CBNA", filter=3, fold=False)
    out = np.empty(before.shape, F32)
    assert len(plan._calls) == 2 and plan(x, out=out) is out and [place.shape for place in places] == [out.shape]
    check(out, before, "relu", "f32")
    plan.set_args(plan.add(), added=out)
    assert plan.compile() and len(plan._calls) == 2
    with pytest.raises(ValueError, match="shares memory"):
        plan(x, out=out)
    check(out, before, "relu", "f32")
    assert places[1] is None


def test_nan_goes_through():
    for mode in MODES:
        plan, x, before = table_plan(Data("f32"), "CBNA", filter=3, mode=mode, kind="relu")
        x[1, 0, 5, 5] = np.nan
        x[0, 1, 0, 0] = np.inf
        y, touched = plan(x), np.zeros(before.shape, bool)
        touched[1, :, 3:6, 3:6] = touched[0, :, 0, 0] = True
        assert np.isnan(y[1, :, 3:6, 3:6]).all() and (~np.isfinite(y[0, :, 0, 0]) | (y[0, :, 0, 0] == 0)).all()
        np.testing.assert_array_equal(y[~touched], np.maximum(before, 0)[~touched])
    plan, x, before = table_plan(Data("f32"), "NA", mode="spatial")
    plan.set_args(plan.operators[0], var=F32([-1, 1]))
    y = plan(x)
    assert np.isnan(y[:, 0]).all() and np.isfinite(y[:, 1]).all()


def test_a_plan_pickles_with_its_arguments():
    for plan, x in ((complete()[0], complete()[2]), table_plan(Data("f32"), "NA", mode="per_activation")[:2]):
        again, handles = pickle.loads(pickle.dumps((plan, plan.operators)))
        np.testing.assert_array_equal(again(x), plan(x))
        assert again.explain() == plan.explain() and repr(again) == repr(plan)
        assert handles == again.operators and not set(handles) & set(plan.operators)
        with pytest.raises(ValueError, match="is of another plan"):
            plan.set_args(handles[0])
    plan = small()
    plan.bias()
    again = pickle.loads(pickle.dumps(plan))
    with pytest.raises(ValueError, match="not compiled"):
        again(np.zeros((2, 4, 6, 6), F32))
    limited = behind(lambda plan: plan.pool("max", 2))
    assert not limited.compile(calls=0) and pickle.loads(pickle.dumps(limited)).reason == limited.reason


def test_threads_share_a_plan():
    """Runs see the arguments that they began with, all old or all new, while another thread sets them."""
    plan, (conv, *_), x = complete()
    weights = [np.full((3, 4, 3, 3), value, F32) for value in (0, 1)]
    allowed = []
    for weight in weights:
        plan.set_args(conv, weight=weight)
        allowed.append(plan(x))
    stop = threading.Event()

    def change():
        while not stop.is_set():
            for weight in weights:
                plan.set_args(conv, weight=weight)

    setter = threading.Thread(target=change)
    setter.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda _: plan(x), range(200)))
    finally:
        stop.set()
        setter.join()
    assert all(any((y == good).all() for good in allowed) for y in results)


@pytest.mark.parametrize("shape", [(0, 4), (0, 4, 6, 6)])
def test_a_plan_of_no_samples_is_explained(shape):
    plan = FusionPlan(shape)
    weight = np.ones((3, 4) if len(shape) == 2 else (3, 4, 1, 1), F32)
    product = (plan.gemm if len(shape) == 2 else plan.conv)(weight.shape)
    plan.softmax()
    assert plan.compile() and "solver none, there is nothing to compute" in plan.explain()
    plan.set_args(product, weight=weight)
    assert plan(np.ones(shape, F32)).shape == (0, 3, *shape[2:])
    assert "nothing to compute" in plan.explain(phases=True)


def test_the_page_runs():
    """Every example of docs/fusion-plan.md prints what it says."""
    page = Path(__file__).resolve().parent.parent / "docs" / "fusion-plan.md"
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert tried > 20 and not failed
