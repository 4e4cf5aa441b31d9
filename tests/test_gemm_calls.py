"""What gemm does around the kernels: checks, short ways, settings, explanations."""

import os

import numpy as np
import pytest
from helpers import KNOWN
from test_gemm import SOLVERS, forced

import numbaprims
from numbaprims.reference import gemm as reference


def test_bad_input_is_refused_before_anything_is_written():
    a, b = np.ones((4, 5), np.float32), np.ones((5, 6), np.float32)
    out = np.full((4, 6), 7, np.float32)
    cases = [
        (ValueError, "columns of op", lambda: numbaprims.gemm(a, b, trans_b=True, out=out)),
        (TypeError, "one dtype", lambda: numbaprims.gemm(a, b.astype(np.float64), out=out)),
        (TypeError, "list", lambda: numbaprims.gemm([[1.0]], b, out=out)),
        (ValueError, "gemv", lambda: numbaprims.gemm(a[0], b, out=out)),
        (ValueError, "beta", lambda: numbaprims.gemm(a, b, beta=1.0, out=out)),
        (ValueError, "bias", lambda: numbaprims.gemm(a, b, bias=np.ones(5, np.float32), out=out)),
        (TypeError, "bias", lambda: numbaprims.gemm(a, b, bias=np.ones(6), out=out)),
        (ValueError, "shape", lambda: numbaprims.gemm(a, b, out=np.ones((4, 7), np.float32))),
        (TypeError, "float64", lambda: numbaprims.gemm(a, b, out=np.ones((4, 6)))),
        (ValueError, "shares memory", lambda: numbaprims.gemm(out, np.ones((6, 6), np.float32), out=out)),
        (ValueError, "kind", lambda: numbaprims.gemm(a, b, activation="rellu", out=out)),
        (ValueError, "fused", lambda: numbaprims.gemm(a, b, activation="glu", out=out)),
        (TypeError, "endian", lambda: numbaprims.gemm(a.astype(">f4"), b, out=out)),
        (TypeError, "alpha", lambda: numbaprims.gemm(a, b, alpha="x", out=out)),
        (ValueError, "broadcast", lambda: numbaprims.gemm(np.stack([a, a]), np.stack([b, b, b]))),
    ]  # fmt: skip
    for error, message, call in cases:
        with pytest.raises(error, match=message):
            call()
    assert (out == 7).all()
    read_only = np.ones((4, 6), np.float32)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        numbaprims.gemm(a, b, out=read_only)


def test_fast_path_checks_out_too():
    """The second call of a kind takes the short way; it must refuse what the first does."""
    a, b = np.ones((8, 8), np.float32), np.ones((8, 8), np.float32)
    out = np.empty((8, 8), np.float32)
    for _ in range(2):
        numbaprims.gemm(a, b, out=out)
    with pytest.raises(ValueError, match="shares memory"):
        numbaprims.gemm(a, b, out=a)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        numbaprims.gemm(a, b, out=out)
    packed = np.zeros((8, 8), np.dtype([("pad", "u1"), ("x", "<f4")]))
    packed["x"] = 1
    np.testing.assert_array_equal(numbaprims.gemm(packed["x"], b), np.full((8, 8), 8, np.float32))


def test_calls_that_repeat_are_checked_all_the_same():
    """Native code recognises a call by its arrays: another alpha, other arrays, a bad `out` are seen as ever."""
    rng = np.random.default_rng(20)
    a, b = (rng.integers(-4, 5, (6, 6)).astype(np.float32) for _ in range(2))
    out = np.empty((6, 6), np.float32)
    for _ in range(4):
        assert numbaprims.gemm(a, b, out=out) is out
        np.testing.assert_array_equal(out, a @ b)
        np.testing.assert_array_equal(numbaprims.gemm(a, b), a @ b)
        np.testing.assert_array_equal(numbaprims.gemm(a, b, trans_b=True), a @ b.T)
        np.testing.assert_array_equal(numbaprims.gemm(a, b, alpha=-2.0), -2 * (a @ b))
        np.testing.assert_array_equal(numbaprims.gemm(a, a, out=out), a @ a)
        np.testing.assert_array_equal(numbaprims.gemm(a[::-1], b.T), a[::-1] @ b.T)
        np.testing.assert_array_equal(numbaprims.gemm(a[:, :5], b[:5]), a[:, :5] @ b[:5])
    for bad in (a, b):
        with pytest.raises(ValueError, match="shares memory"):
            numbaprims.gemm(a, b, out=bad)
    room = np.empty(72, np.float32)
    with pytest.raises(ValueError, match="shares memory"):
        numbaprims.gemm(room[:36].reshape(6, 6), b, out=room[18:54].reshape(6, 6))
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        numbaprims.gemm(a, b, out=out)


@pytest.mark.cpu
def test_forced_algorithms_are_named():
    a = np.ones((4, 4), np.float32)
    with pytest.raises(ValueError, match="no solver 'fastest'"), forced("fastest"):
        numbaprims.gemm(a, a)
    with pytest.raises(ValueError, match="was asked for"), forced("inner"):
        numbaprims.gemm(np.ones((100, 100), np.float32), np.ones((100, 100), np.float32))


@pytest.mark.cpu
def test_explain_says_why_without_running():
    a, b = np.ones((100, 100), np.float32), np.ones((100, 100), np.float32)
    out = np.full((100, 100), 7, np.float32)
    table = numbaprims.explain("gemm", a, b, out=out)
    assert (out == 7).all()
    assert {row.solver for row in table} == set(SOLVERS)
    assert table.chosen.refusal is None and table["inner"].refusal
    assert os.path.exists(table.chosen.source) and table.chosen.line > 0
    assert table.chosen.solver in str(table) and "<table>" in table._repr_html_()
    assert all(row.measured is None for row in table)
    measured = numbaprims.explain(numbaprims.gemm, a, b, out=out, measure=True)
    assert (out == 7).all() and measured.chosen.measured > 0


def test_verbose_prints_a_command(capfd):
    a = np.ones((4, 4), np.float32)
    with numbaprims.config(verbose=1):
        for _ in range(2):
            numbaprims.gemm(a, a, trans_b=True)
    lines = [line for line in capfd.readouterr().err.splitlines() if "bench gemm" in line]
    assert len(lines) == 2 and "--shapes 4x4x4" in lines[0] and "--trans-b" in lines[0]


def test_reference_device():
    rng = np.random.default_rng(9)
    a, b = rng.standard_normal((20, 30)).astype(np.float32), rng.standard_normal((30, 10)).astype(np.float32)
    with numbaprims.config(device="reference"):
        out = numbaprims.gemm(a, b)
    np.testing.assert_array_equal(out, reference.gemm(a, b).astype(np.float32))
    for kind in ("gelu", ("gelu", {"approximate": "tanh"}), ("elu", {"alpha": 2.0})):
        with numbaprims.config(device="reference"):
            out = numbaprims.gemm(a, b, activation=kind)
        np.testing.assert_array_equal(out, reference.gemm(a, b, activation=kind).astype(np.float32))


def test_out_is_c_whatever_has_one_element():
    """c of one row or column is out itself: the strides of such a dimension mean nothing."""
    for shape in ((1, 5), (5, 1), (1, 1)):
        out = np.ones(shape, np.float32)
        a, b = np.ones((shape[0], 3), np.float32), np.ones((3, shape[1]), np.float32)
        assert numbaprims.gemm(a, b, c=out, beta=1.0, out=out) is out
        np.testing.assert_array_equal(out, np.full(shape, 4.0))


def test_a_stack_and_the_matrix_of_its_rows_keep_their_shapes():
    """They pose one problem, whose launcher they share."""
    stack, b = np.ones((2, 3, 5), np.float32), np.ones((7, 5), np.float32)
    for _ in range(3):
        assert numbaprims.gemm(stack, b, trans_b=True).shape == (2, 3, 7)
        assert numbaprims.gemm(stack.reshape(6, 5), b, trans_b=True).shape == (6, 7)


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_repeated_call_with_more_than_a_product_takes_the_short_way(dtype, monkeypatch):
    """A dense layer and an update in place find their launcher as a plain product does, and are checked as it is."""
    from numbaprims.ops import product as module

    rng = np.random.default_rng(21)
    a, b, c = (rng.integers(-4, 5, (6, 6)).astype(dtype) for _ in range(3))
    bias, out = np.arange(6, dtype=dtype), np.empty((6, 6), dtype)

    def calls():
        relu = np.maximum(a @ b.T + bias, 0)
        np.testing.assert_array_equal(numbaprims.linear(a, b, bias, activation="relu"), relu)
        np.testing.assert_array_equal(numbaprims.linear(a, b, bias, out=out), a @ b.T + bias)
        np.testing.assert_array_equal(numbaprims.gemm(a, b, c=c, beta=2.0), a @ b + 2 * c)
        np.testing.assert_array_equal(
            numbaprims.gemm(a, b, c=c, beta=0.5, bias=bias[:, None]), a @ b + c / 2 + bias[:, None]
        )
        np.testing.assert_array_equal(numbaprims.gemm(a, b, c=c[0], beta=1.0, out=out), a @ b + c[0])
        np.testing.assert_array_equal(numbaprims.gemm(a, b, c="not read", activation="abs"), np.abs(a @ b))
        np.copyto(out, c)
        np.testing.assert_array_equal(numbaprims.gemm(a, b, alpha=-1.0, c=out, beta=1.0, out=out), c - a @ b)

    for _ in range(KNOWN):
        calls()
    monkeypatch.setattr(module, "_enter", lambda *given: pytest.fail("the long way"))
    calls()
    monkeypatch.undo()
    for words in ({"out": bias}, {"out": c}, {"out": out, "bias": out[0]}):
        with pytest.raises(ValueError, match="shares memory|shape"):
            numbaprims.gemm(a, b, **{"c": c[::-1], "beta": 1.0, "bias": bias, **words})
    leaky = [numbaprims.linear(a, b, bias, activation=("leaky_relu", {"negative_slope": s})) for s in (0.5, 0.25)]
    np.testing.assert_array_equal(leaky[1], np.where(leaky[0] < 0, leaky[0] / 2, leaky[0]))
