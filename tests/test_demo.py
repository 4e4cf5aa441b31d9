"""The main job: a perceptron learns real digits on the public functions, on nothing of NumPy's instead."""

import ast
import doctest
import inspect
import re
import subprocess
import sys

import numpy as np
import pytest
from helpers import has_module

import numbaprims
from numbaprims.datasets import load_digits
from numbaprims.nn import demo, losses, mlp
from numbaprims.nn.demo import main
from numbaprims.nn.losses import softmax_cross_entropy
from numbaprims.nn.mlp import ACTIVATIONS, MLP
from numbaprims.nn.numpy_models import NumpyMLP
from numbaprims.nn.training import accuracy, split, train

# All of NumPy that could do the work of a training step.
MATHEMATICS = (
    "matmul", "dot", "vdot", "inner", "outer", "tensordot", "einsum", "vecdot", "matvec", "vecmat", "kron",
    "convolve", "exp", "expm1", "exp2", "log", "log1p", "log2", "tanh", "sinh", "cosh", "logaddexp",
)  # fmt: skip
PRODUCTS = ("gemm", "linear", "gemv", "ger")


def a_batch(rng, count=6, sizes=(7, 5, 4), dtype=np.float64):
    return rng.standard_normal((count, sizes[0])).astype(dtype), rng.integers(0, sizes[-1], count)


# ---------------------------------------------------------------- loss and gradients


def test_softmax_cross_entropy_by_finite_differences(rng):
    logits, labels = rng.standard_normal((5, 4)) * 3, np.array([0, 3, 1, 1, 2])
    loss, gradient = softmax_cross_entropy(logits, labels)
    odds = np.exp(logits)
    chosen = odds[np.arange(5), labels] / odds.sum(axis=1)
    np.testing.assert_allclose(loss, -np.log(chosen).mean(), 1e-12)
    for index in np.ndindex(logits.shape):
        step = np.zeros_like(logits)
        step[index] = 1e-6
        slope = (
            softmax_cross_entropy(logits + step, labels)[0] - softmax_cross_entropy(logits - step, labels)[0]
        ) / 2e-6
        np.testing.assert_allclose(gradient[index], slope, 1e-6, 1e-9)


def test_softmax_cross_entropy_does_not_overflow():
    logits = np.array([[1e4, 0.0, -1e4], [3e38, 3e38, 0.0]], np.float32)
    loss, gradient = softmax_cross_entropy(logits, np.array([0, 1]))
    np.testing.assert_allclose(loss, np.log(2) / 2, 1e-6)
    np.testing.assert_allclose(gradient, [[0, 0, 0], [0.25, -0.25, 0]], atol=1e-7)


@pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")
def test_softmax_cross_entropy_is_torchs(rng):
    import torch

    logits, labels = rng.standard_normal((32, 10)).astype(np.float32), rng.integers(0, 10, 32)
    theirs = torch.tensor(logits, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(theirs, torch.tensor(labels))
    expected.backward()
    loss, gradient = softmax_cross_entropy(logits, labels)
    np.testing.assert_allclose(loss, expected.item(), 1e-6)
    np.testing.assert_allclose(gradient, theirs.grad.numpy(), 1e-5, 1e-8)


@pytest.mark.parametrize(
    ("logits", "labels", "words"),
    [
        ((2, 3), [0, 1, 2], r"logits are \(2, 3\) and labels \(3,\)"),
        ((3,), [0, 1, 2], r"logits are \(3,\)"),
        ((0, 3), [], "one row or more"),
        ((2, 3), [0, 3], "labels go from 0 to 3; they must be 0 to 2"),
        ((2, 3), [-1, 0], "labels go from -1 to 0"),
    ],
)
def test_softmax_cross_entropy_refuses_in_words(logits, labels, words):
    with pytest.raises(ValueError, match=words):
        softmax_cross_entropy(np.zeros(logits), np.array(labels, np.int64))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("count", [1, 6])
def test_a_step_follows_the_gradient(count, activation, rng):
    sizes, rate = (7, 5, 6, 4), 1e-3
    x, labels = a_batch(rng, count, sizes)
    model = MLP(sizes, activation, seed=3, dtype=np.float64)
    for bias in model.biases:
        bias[...] = rng.standard_normal(bias.shape)
    before = [p.copy() for p in (*model.weights, *model.biases)]

    def loss_at(parameters):
        probe = NumpyMLP(model)
        probe.weights, probe.biases = parameters[: len(model.weights)], parameters[len(model.weights) :]
        return probe.train_step(x, labels, 0.0)

    loss = model.train_step(x, labels, rate)
    np.testing.assert_allclose(loss, loss_at([p.copy() for p in before]), 1e-12)
    moved = 0.0
    for which, (old, new) in enumerate(zip(before, (*model.weights, *model.biases), strict=True)):
        for index in rng.permutation(list(np.ndindex(old.shape)))[:6]:
            ends = []
            for step in (1e-6, -1e-6):
                shifted = [p.copy() for p in before]
                shifted[which][tuple(index)] += step
                ends.append(loss_at(shifted))
            slope = (ends[0] - ends[1]) / 2e-6
            np.testing.assert_allclose((old - new)[tuple(index)] / rate, slope, 1e-4, 1e-7)
            moved += abs(slope)
    assert moved > 0.1


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("batch", [1, 5, 32])
def test_training_is_that_of_numpy(batch, activation, rng):
    x, labels = a_batch(rng, 64, (9, 12, 4), np.float32)
    ours = MLP((9, 12, 4), activation, seed=1)
    theirs = NumpyMLP(ours)
    start = ours.weights[0].copy()
    histories = train([ours, theirs], x, labels, epochs=3, batch=batch, rate=0.05, seed=2)
    for mine, numpys in zip((*ours.weights, *ours.biases), (*theirs.weights, *theirs.biases), strict=True):
        np.testing.assert_allclose(mine, numpys, 1e-4, 1e-5)
    np.testing.assert_allclose(histories[0].losses, histories[1].losses, 1e-5)
    assert histories[0].losses[-1] < histories[0].losses[0] and len(histories[0].seconds) == 3
    assert np.abs(ours.weights[0] - start).max() > 1e-3


# ---------------------------------------------------------------- what it runs on


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("count", [1, 8])
def test_no_mathematics_of_numpy_in_a_step(count, activation, monkeypatch, rng):
    x, labels = a_batch(rng, count, dtype=np.float32)
    model = MLP((7, 5, 4), activation)
    model.train_step(x, labels, 0.1)  # compiling may use what it likes

    def refuse(*args, **kwargs):
        raise AssertionError("the step uses NumPy's mathematics")

    for name in MATHEMATICS:
        if hasattr(np, name):
            monkeypatch.setattr(np, name, refuse)
    with pytest.raises(AssertionError, match="NumPy's"):
        np.exp(1.0)
    first = model.train_step(x, labels, 0.1)
    assert model.train_step(x, labels, 0.1) < first
    model.predict(x)


@pytest.mark.parametrize("module", [mlp, losses])
def test_no_products_by_operator_or_method(module):
    # what replacing functions of the numpy module does not see
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        assert not isinstance(node, ast.MatMult)
        assert not (isinstance(node, ast.Attribute) and node.attr in ("dot", "matmul", "einsum"))


@pytest.mark.parametrize(("count", "allowed"), [(1, {"gemv", "ger"}), (8, {"gemm", "linear", "gemv"})])
def test_products_of_a_step(count, allowed, monkeypatch, rng):
    x, labels = a_batch(rng, count, dtype=np.float32)
    model, used, transposed = MLP((7, 5, 4)), set(), []
    for name in PRODUCTS:
        real = getattr(numbaprims, name)

        def counted(*args, _name=name, _real=real, **kwargs):
            used.add(_name)
            transposed.append(kwargs.get("trans", False))
            return _real(*args, **kwargs)

        monkeypatch.setattr(numbaprims, name, counted)
    model.train_step(x, labels, 0.1)
    assert used == allowed and any(transposed)


def test_models_and_training_refuse_in_words(rng):
    with pytest.raises(ValueError, match=r"sizes is \(4,\)"):
        MLP((4,))
    with pytest.raises(ValueError, match="activation is 'gelu'; it must be one of sigmoid, relu, tanh"):
        MLP((4, 3), "gelu")
    x, labels = a_batch(rng)
    with pytest.raises(ValueError, match="epochs is 0 and batch 4"):
        train([], x, labels, epochs=0, batch=4, rate=0.1)


def test_split_is_a_partition():
    trained, tested = split(1797, 0.2, 5)
    assert len(tested) == 359 and sorted([*trained, *tested]) == list(range(1797))
    assert tested.tolist() == split(1797, 0.2, 5)[1].tolist() != split(1797, 0.2, 6)[1].tolist()


@pytest.mark.parametrize("module", [mlp, losses])
def test_examples_run(module):
    failed, tried = doctest.testmod(module)
    assert failed == 0 < tried


# ---------------------------------------------------------------- the command


def reached(printed: str) -> float:
    return float(re.search(r"^held-out accuracy: (\d+\.\d) %$", printed, re.M).group(1))


@pytest.mark.parametrize(
    "words",
    [
        ["--hidden", "128", "--activation", "sigmoid", "--batch", "32"],
        ["--activation", "relu", "--epochs", "20", "--batch", "64", "--seed", "1"],
        ["--batch", "1", "--hidden", "32", "--epochs", "8"],
    ],
)
def test_demo_learns_the_digits_as_numpy_does(words, capsys):
    assert main(words) == 0
    printed, bar = capsys.readouterr()
    assert reached(printed) >= 95.0
    ours, numpys = map(float, re.search(r"^held-out accuracy +([\d.]+) % +([\d.]+) %$", printed, re.M).groups())
    assert abs(ours - numpys) <= 1.0  # 359 images: three of them
    assert re.search(r"^seconds per epoch +\d+\.\d+ +\d+\.\d+$", printed, re.M)
    assert "1,438 images to train on, 359 held out" in printed and "100%" in bar
    assert ("gemv, gemv^T and ger" in printed) == ("1" in words[:2])


def test_demo_shows_batches_and_single_images_and_says_which_is_faster(capsys):
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert "perceptron {64, 1024, 10}, relu" in printed
    assert printed.index("\nbatch 128: 30 epochs") < printed.index("\nbatch 1: 3 epochs")
    assert printed.splitlines()[-1] == f"held-out accuracy: {reached(printed)} %" and reached(printed) >= 95.0
    rows = re.findall(r"^seconds per epoch +(\d+\.\d+) +(\d+\.\d+)$", printed, re.M)
    said = re.findall(r"^an epoch .*$", printed, re.M)
    assert len(rows) == len(said) == 2
    for (ours, numpys), words in zip(rows, said, strict=True):
        if "times as fast" in words:
            ratio = float(re.search(r"[\d.]+", words)[0])
            fast, slow = sorted((float(ours), float(numpys)))
            assert slow / fast == pytest.approx(ratio, rel=0.05)
            assert words.endswith("numbaprims" if float(ours) < float(numpys) else "NumPy")


def test_the_verdict_is_that_of_the_times():
    assert demo._verdict(1.0, 2.5) == "an epoch is 2.50 times as fast on numbaprims"
    assert demo._verdict(2.5, 1.0) == "an epoch is 2.50 times as fast on NumPy"
    assert demo._verdict(1.0, 1.04) == demo._verdict(1.04, 1.0) == "an epoch takes both as long"


def test_numpys_twin_computes_no_gradient_that_nobody_reads(rng):
    """The gradient by the images is the cnn's to ask for; in the perceptron it was a tenth of NumPy's step."""
    x, labels = a_batch(rng)
    ours = MLP((7, 5, 4), dtype=np.float64)
    assert NumpyMLP(ours).step(x, labels, 0.1)[1] is None
    dx, expected = NumpyMLP(ours).step(x, labels, 0.1, dx=True)[1], np.empty_like(x)
    ours.step_of_batch(x, labels, 0.1, dx=expected)
    np.testing.assert_allclose(dx, expected, 1e-10)


def test_demo_reads_mnist_from_a_file(tmp_path, capsys):
    # the digits again, in the form of MNIST: images enlarged to 16 x 16, uint8
    x, y = load_digits()
    images = (255 * x).astype(np.uint8).reshape(-1, 8, 8).repeat(2, 1).repeat(2, 2)
    path = tmp_path / "mnist.npz"
    np.savez(path, x_train=images[:1500], y_train=y[:1500], x_test=images[1500:], y_test=y[1500:])
    assert main(["--data", str(path), "--hidden", "32", "--epochs", "4", "--no-numpy"]) == 0
    printed = capsys.readouterr().out
    assert reached(printed) > 80 and "1,500 images to train on, 297 held out, 256 pixels" in printed
    assert "NumPy" not in printed


def test_demo_says_what_is_wrong(tmp_path, capsys):
    assert main(["--data", str(tmp_path / "none.npz")]) == 2
    assert "none.npz does not exist" in capsys.readouterr().err
    for words in (["--hidden", "0"], ["--lr", "-1"], ["--seed", "-1"], ["--activation", "gelu"]):
        with pytest.raises(SystemExit):
            main(words)
        assert f"argument {words[0]}" in capsys.readouterr().err


def test_demo_is_a_command():
    run = subprocess.run(
        [sys.executable, "-m", "numbaprims", "demo", "--epochs", "6", "--hidden", "32", "--no-numpy"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert reached(run.stdout) > 85


def test_prediction_on_held_out_digits_is_not_by_chance():
    x, y = load_digits()
    trained, tested = split(len(x), 0.2, 0)
    model = MLP((64, 32, 10))
    assert accuracy(model, x[tested], y[tested]) < 0.4
    train([model], x[trained], y[trained], epochs=10, batch=16, rate=1.0)
    assert accuracy(model, x[tested], y[tested]) > 0.9
