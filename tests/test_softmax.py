"""softmax and its losses beside the contract suite: ONNX's and torch's rules, long rows, refusals."""

import numpy as np
import pytest
from helpers import has_module

import numbaprims
from numbaprims.reference import softmax as reference

needs_torch = pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")


def test_onnx_softmax_is_stable_and_takes_any_axis():
    """The standard's cases: [-1, 0, 1], large numbers that differ by units, every axis and the default one."""
    x = np.float32([[-1, 0, 1]])
    np.testing.assert_allclose(numbaprims.softmax(x), [[0.09003058, 0.24472848, 0.66524094]], rtol=2e-7)
    np.testing.assert_allclose(numbaprims.log_softmax(x), [[-2.4076059, -1.407606, -0.407606]], rtol=2e-7)
    large = np.float32([[0, 1, 2, 3], [10000, 10001, 10002, 10003]])
    for function in (numbaprims.softmax, numbaprims.log_softmax):
        y = function(large)
        np.testing.assert_array_equal(y[0], y[1])
    x = np.abs(np.random.default_rng(0).standard_normal((3, 4, 5), np.float32))
    for axis in (0, 1, 2, -1, -2, -3):
        np.testing.assert_allclose(numbaprims.softmax(x, axis=axis).sum(axis), 1, rtol=1e-6)
    np.testing.assert_array_equal(numbaprims.softmax(x), numbaprims.softmax(x, axis=2))


@pytest.mark.parametrize("function", ["softmax", "log_softmax"])
def test_rows_without_a_sum(function):
    inf, nan = np.inf, np.nan
    x = np.float32([[-inf] * 40, [nan] + [0.0] * 39, [inf] + [0.0] * 39, [-inf] + [0.0] * 39, [inf] * 40])
    for axis, rows in ((1, x), (0, np.ascontiguousarray(x.T))):
        y = getattr(numbaprims, function)(rows, axis=axis)
        y = y if axis == 1 else y.T
        assert np.isnan(y[[0, 1, 4]]).all() and np.isnan(y[2, 0])
        np.testing.assert_allclose(y[3, 1:], 1 / 39 if function == "softmax" else -np.log(39), rtol=1e-6)
        assert y[3, 0] == (0 if function == "softmax" else -inf)


@needs_torch
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("shape", [(6, 11), (2, 5, 3, 4)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_are_torchs(reduction, shape, soft):
    import torch

    rng = np.random.default_rng(1)
    x, weight = rng.standard_normal(shape), rng.random(shape[1])
    rows = (shape[0], *shape[2:])
    target = rng.random(shape) if soft else rng.integers(0, shape[1], rows)
    if not soft:
        target[0] = -100
    for weighted in (None, weight):
        for smoothing in (0.0, 0.3):
            words = {"reduction": reduction, "label_smoothing": smoothing}
            t = torch.from_numpy(x).requires_grad_()
            w = None if weighted is None else torch.from_numpy(weighted)
            loss = torch.nn.functional.cross_entropy(t, torch.from_numpy(target), weight=w, **words)
            dy = torch.from_numpy(np.asarray(rng.standard_normal(loss.shape)))
            loss.backward(dy)
            ours = numbaprims.softmax_cross_entropy(x, target, weight=weighted, **words)
            np.testing.assert_allclose(ours, loss.detach(), rtol=1e-12)
            dx = numbaprims.softmax_cross_entropy_backward(dy.numpy(), x, target, weight=weighted, **words)
            np.testing.assert_allclose(dx, t.grad, rtol=1e-10, atol=1e-14)
        if not soft:
            logs = numbaprims.log_softmax(x, axis=1)
            loss = torch.nn.functional.nll_loss(
                torch.from_numpy(logs), torch.from_numpy(target), weight=w, reduction=reduction
            )
            ours = numbaprims.nll_loss(logs, target, weight=weighted, reduction=reduction)
            np.testing.assert_allclose(ours, loss, rtol=1e-12)


@pytest.mark.parametrize("device", [None, "reference"])
@pytest.mark.parametrize(("dtype", "large", "rtol"), [("f4", 1e6, 1e-6), ("f8", 1e15, 1e-14)])
@pytest.mark.parametrize("smoothing", [0.0, 0.25])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("soft", [False, True])
def test_large_scores_that_differ_by_units_keep_their_digits(soft, weighted, smoothing, dtype, large, rtol, device):
    rng = np.random.default_rng(5)
    x = (large + rng.integers(-4, 5, (6, 11))).astype(dtype)
    target = (rng.random(x.shape) if soft else rng.integers(0, 11, 6)).astype(dtype if soft else "i8")
    weight = rng.random(11).astype(dtype) if weighted else None
    words = {"weight": weight, "label_smoothing": smoothing, "reduction": "sum"}
    wide = np.float64(x) - large, np.float64(target) if soft else target
    with numbaprims.config(device=device):
        loss = numbaprims.softmax_cross_entropy(x, target, **words)
        dx = numbaprims.softmax_cross_entropy_backward(np.ones((), dtype), x, target, **words)
    np.testing.assert_allclose(loss, reference.softmax_cross_entropy(*wide, **words), rtol=rtol)
    expected = reference.softmax_cross_entropy_backward(np.ones(()), *wide, **words)
    np.testing.assert_allclose(dx, expected, rtol=rtol, atol=rtol)


def test_an_impossible_class_costs_nothing_where_nobody_asks_for_it():
    """ONNX and torch: log p of -inf counts only where q is not 0."""
    x = np.array([[0.0, -np.inf, 1.0]])
    for target in (np.array([2]), np.array([[0.0, 0.0, 1.0]])):
        loss = float(numbaprims.softmax_cross_entropy(x, target))
        if target.ndim == 1:
            assert loss == pytest.approx(np.log1p(np.exp(-1.0)))
    assert float(numbaprims.softmax_cross_entropy(x, np.array([1]))) == np.inf
    assert np.isnan(numbaprims.nll_loss(np.zeros((2, 3)), np.array([-100, -100])))
    assert float(numbaprims.nll_loss(np.zeros((2, 3)), np.array([-100, -100]), reduction="sum")) == 0
    assert np.isnan(numbaprims.softmax_cross_entropy(np.zeros((0, 3)), np.zeros(0, np.int64)))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"target": np.array([0, 5])}, ValueError, "target holds 5; x has classes from 0 to 2"),
        ({"target": np.array([0, -1])}, ValueError, "target holds -1"),
        ({"target": np.array([0, 1, 2])}, ValueError, r"the classes must have shape \(2,\)"),
        ({"target": np.zeros((2, 3), np.float32)}, TypeError, "probabilities of x's shape and dtype"),
        ({"weight": np.ones(4)}, ValueError, r"it must be \(3,\) of x's dtype"),
        ({"reduction": "average"}, ValueError, "must be one of mean, sum, none"),
        ({"label_smoothing": 1.5}, ValueError, "between 0 and 1"),
        ({"x": np.zeros(3)}, ValueError, r"it must be \(N, C\)"),
        ({"x": [[0.0, 1.0, 2.0]] * 2}, TypeError, "x is a list"),
    ],
)
def test_what_is_wrong_is_said(change, error, words):
    given = {"x": np.zeros((2, 3)), "target": np.array([0, 1]), **change}
    with pytest.raises(error, match=words):
        numbaprims.softmax_cross_entropy(**given)
    for axis, raised in ((2, ValueError), (-3, ValueError), (1.0, TypeError), (True, TypeError)):
        with pytest.raises(raised, match="axis is"):
            numbaprims.softmax(np.zeros((2, 3)), axis=axis)


@pytest.mark.cpu
def test_long_rows_lose_nothing():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 300_001), np.float32) * 3
    wide = x.astype(np.float64)
    for solver in ("rows", "online", "split"):
        with numbaprims.config(algorithm={"softmax": solver}):
            np.testing.assert_allclose(numbaprims.softmax(x), reference.softmax(wide), rtol=1e-5)
            np.testing.assert_allclose(numbaprims.log_softmax(x), reference.log_softmax(wide), rtol=1e-5)


def test_gradients_of_losses_have_the_shape_of_the_loss():
    x, target = np.zeros((2, 3)), np.array([0, 1])
    for function in (numbaprims.softmax_cross_entropy_backward, numbaprims.nll_loss_backward):
        for reduction in ("mean", "sum"):
            with pytest.raises(ValueError, match=r"dy is a float64 array \(2,\); .* the loss has shape \(\)"):
                function(np.ones(2), x, target, reduction=reduction)
        with pytest.raises(ValueError, match=r"dy is a float64 array \(3,\); the loss has shape \(2,\)"):
            function(np.ones(3), x, target, reduction="none")


def test_hardmax_marks_the_first_of_equals(rng):
    for shape, axis in (((5, 33), 1), ((33, 5), 0), ((3, 4, 70), 1), ((2, 50_000), -1)):
        x = rng.integers(0, 4, shape).astype(np.float32)
        x[..., 1] = np.nan
        want = np.zeros_like(x)
        np.put_along_axis(want, x.argmax(axis, keepdims=True), 1, axis)
        np.testing.assert_array_equal(numbaprims.hardmax(x, axis=axis), want)
