"""Activations: what single solvers and formulas promise beyond the definition."""

import argparse

import numpy as np
import pytest

import numbaprims
from numbaprims.cpu.activation import kernels
from numbaprims.dispatch.call import forget


@pytest.fixture(params=[None, 8])
def lanes(request, monkeypatch):
    """Of a step: this CPU's, and so few that a step is shorter than a cache line, as they are with SSE."""
    if request.param:
        monkeypatch.setattr(kernels, "compute_lanes", lambda dtype, target, registers: request.param)
    forget()
    yield request.param
    forget()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("begin", [0, 1, 5, 31])
def test_streams_may_begin_and_end_inside_of_a_cache_line(dtype, begin, lanes, rng):
    def gelu(x, dy, out):
        numbaprims.gelu(x, out=out)

    def silu_backward(x, dy, out):
        numbaprims.silu_backward(dy, x, out=out)

    # 16384 elements are a tile; the rest of a line, whole steps, and what is left
    for n in (3, 100, 16384 + 77, 2 * 16384):
        x, dy = rng.standard_normal((2, n)).astype(dtype)
        for call in (gelu, silu_backward):
            results = []
            for solver in ("vector", "stream"):
                room = np.full(n + 2 * 64, 7.0, dtype)
                with numbaprims.config(algorithm={"activation": solver}):
                    call(x, dy, room[begin : begin + n])
                results.append(room)
            np.testing.assert_array_equal(*results)
            assert (results[1][:begin] == 7).all() and (results[1][begin + n :] == 7).all()


def test_log_of_every_part_and_of_what_has_none():
    patterns = np.concatenate([np.arange(0x3F3F0000, 0x3FC10000, 7), np.arange(1, 0x7F800000, 54321)])
    x = patterns.astype(np.int32).view(np.float32)
    want = np.log(x.astype(np.float64))
    error = np.abs(numbaprims.log(x) - want) / np.spacing(np.abs(want).astype(np.float32) + np.float32(2.0**-126))
    assert error.max() < 1.3
    special = np.array([0.0, -0.0, np.inf, np.nan, -np.inf, -1.0, -1e-40, 1.0], np.float32)
    want = [-np.inf, -np.inf, np.inf, np.nan, np.nan, np.nan, np.nan, 0.0]
    np.testing.assert_array_equal(numbaprims.log(special), np.float32(want))


def test_celu_that_is_turned_round_grows_to_infinity():
    x = -np.linspace(0, 100, 20001).astype(np.float32)
    with np.errstate(over="ignore"):
        want = -np.expm1(-x.astype(np.float64))
        stored = want.astype(np.float32)
    y = numbaprims.celu(x, -1.0)
    finite = want > -np.finfo(np.float32).max
    np.testing.assert_array_less(np.abs(y[finite] - want[finite]), 6 * np.spacing(np.abs(stored[finite])) + 1e-38)
    assert (y[want < -3.41e38] == -np.inf).all()


def test_a_forced_solver_is_for_one_of_the_two_problems_of_prelu(rng):
    x, dy = rng.standard_normal((2, 4, 3, 50))
    w = np.array([0.25, -0.5, 2.0])
    want = numbaprims.prelu_backward(dy, x, w)
    for solver in ("rows", "naive", "channel_sums"):
        with numbaprims.config(algorithm={"activation": solver}):
            got = numbaprims.prelu_backward(dy, x, w)
            np.testing.assert_array_equal(got[0], want[0])
            np.testing.assert_allclose(got[1], want[1], rtol=1e-12)
    with numbaprims.config(algorithm={"activation": "nonsense"}), pytest.raises(ValueError, match="nonsense"):
        numbaprims.prelu_backward(dy, x, w)
    with numbaprims.config(algorithm={"activation": "channel_sums"}), pytest.raises(ValueError, match="sum"):
        numbaprims.relu(x)
    rows = {row.solver: row for row in numbaprims.explain("prelu_backward", dy, x, w, measure=True)}
    assert rows["rows"].measured > 0 and rows["naive"].measured > 0 and rows["channel_sums"].measured is None


def test_arrays_that_run_backwards_together_are_one_run(rng):
    x, dy = (a[::-1, ::-1] for a in rng.standard_normal((2, 40, 50)).astype(np.float32))
    for solver in ("vector", "stream", "rows"):
        out, dx = (np.zeros((40, 50), np.float32)[::-1, ::-1] for _ in range(2))
        with numbaprims.config(algorithm={"activation": solver}):
            numbaprims.gelu(x, out=out)
            numbaprims.leaky_relu_backward(dy, x, 0.25, out=dx)
        np.testing.assert_array_equal(out, numbaprims.gelu(x.copy()))
        np.testing.assert_array_equal(dx, np.where(x > 0, dy, dy / 4))
    assert numbaprims.explain("gelu", x, out=out).chosen.solver == "vector"
    assert numbaprims.explain("gelu", x, out=np.zeros_like(x)[::-1]).chosen.solver == "rows"


def test_halves_of_glu_that_are_contiguous_need_no_blocks(rng):
    for shape, axis in (((100,), 0), ((2 * 7, 30), 0), ((3, 40), -1)):
        x = rng.standard_normal(shape).astype(np.float32)
        chosen = numbaprims.explain("glu", x, axis).chosen.solver
        assert chosen == ("rows" if axis else "vector")
        a, b = np.split(x, 2, axis)
        want = a / (1 + np.exp(-b.astype(np.float64)))
        out = np.empty_like(a)
        for _ in range(4):
            np.testing.assert_allclose(numbaprims.glu(x, axis), want, rtol=1e-6)
            out[:] = 9
            assert numbaprims.glu(x, axis, out=out) is out
            np.testing.assert_allclose(out, want, rtol=1e-6)
    for solver in ("vector", "stream"):
        with numbaprims.config(algorithm={"activation": solver}):
            x = rng.standard_normal(70000).astype(np.float32)
            want = numbaprims.glu(x)
            np.testing.assert_array_equal(numbaprims.glu(x.reshape(2, -1), 0), want[None])


@pytest.mark.parametrize("name", ["glu", "prelu", "relu", "softplus"])
def test_logged_commands_are_cases_of_the_benchmark(name, capfd, rng):
    from numbaprims.bench.command import add_arguments
    from numbaprims.bench.stems import activation as stem

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    x = rng.standard_normal((4, 6)).astype(np.float32)
    extra = [np.float32([0.5])] if name == "prelu" else []
    dy = x[:, :3] if name == "glu" else x
    with numbaprims.config(verbose=1):
        getattr(numbaprims, name)(x, *extra)
        getattr(numbaprims, f"{name}_backward")(dy, x, *extra)
    lines = [line.partition("numbaprims bench ")[2].partition("  #")[0] for line in capfd.readouterr().err.splitlines()]
    assert len(lines) == (3 if name == "prelu" else 2)
    for line in lines:
        (case,) = stem.cases(parser.parse_args(line.split()))
        work = stem.workload(case, 1)
        assert case["n"] == x.size
        for contender in work.contenders.values():
            contender.call()
            assert work.check(contender.result()) is None


def test_explain_names_the_reference_where_it_is_asked_for():
    x = np.ones(5, np.float32)
    with numbaprims.config(device="reference"):
        explained = numbaprims.explain("relu", x)
        assert explained.chosen.solver == "reference" and explained.chosen.source.endswith("activation.py")
        assert sum(row.chosen for row in explained) == 1 and "definition" in str(explained)
    assert numbaprims.explain("relu", x).chosen.solver == "vector"
