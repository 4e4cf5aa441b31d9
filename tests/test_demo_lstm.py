"""The demo with characters: the model's gradients through time, torch's twin, what it learns, and the command."""

import doctest
import re

import numpy as np
import pytest

import numbaprims
from numbaprims.datasets import load_text
from numbaprims.nn import lstm
from numbaprims.nn.demo import main
from numbaprims.nn.lstm import LSTM, MOMENTUM, Piece, TorchLSTM, pieces

CALLS = (
    "lstm_train", "lstm_backward", "linear", "gemm", "softmax_cross_entropy", "softmax_cross_entropy_backward",
)  # fmt: skip


def a_piece(rng, steps=5, streams=3, characters=4):
    return Piece(*rng.integers(0, characters, (2, steps, streams)))


def test_pieces_are_the_text_in_order():
    text = np.arange(100)
    found = list(pieces(text, 3, 10))
    assert [len(piece.x) for piece in found] == [10, 10, 10, 3]
    x = np.concatenate([piece.x for piece in found])
    labels = np.concatenate([piece.labels for piece in found])
    np.testing.assert_array_equal(x.T.reshape(-1), text[:99])
    np.testing.assert_array_equal(labels, x + 1)
    with pytest.raises(ValueError, match="the text has 3 characters; 3 streams need 4"):
        next(pieces(text[:3], 3, 10))


def test_a_step_follows_the_gradient(rng):
    """The first step, whose velocity is the gradient: by finite differences of the loss, through every step of time."""
    piece, rate = a_piece(rng), 1e-3
    model = LSTM(4, 6, seed=3, dtype=np.float64)
    state = rng.standard_normal((2, 1, 3, 6))
    before = [each.copy() for each in model.parameters]
    model.train_step(piece, rate, (state[0], state[1]))
    after = [each.copy() for each in model.parameters]
    probe = LSTM(4, 6, dtype=np.float64)
    slopes = []
    for which, values in enumerate(before):
        for index in rng.permutation(list(np.ndindex(values.shape)))[:6]:
            ends = []
            for step in (1e-6, -1e-6):
                for own, given in zip(probe.parameters, before, strict=True):
                    own[...] = given
                probe.parameters[which][tuple(index)] += step
                ends.append(probe.train_step(piece, 0.0, (state[0], state[1]))[0])
            slope = (ends[0] - ends[1]) / 2e-6
            np.testing.assert_allclose((values - after[which])[tuple(index)] / rate, slope, 1e-4, 1e-8)
            slopes.append(abs(slope))
    assert max(slopes) > 1e-2


def test_long_gradients_are_shortened_and_steps_go_on(rng, monkeypatch):
    piece = a_piece(rng)
    model, free = LSTM(4, 6, seed=3, dtype=np.float64), LSTM(4, 6, seed=3, dtype=np.float64)
    before = [each.copy() for each in model.parameters]
    free.train_step(piece, 1.0)
    monkeypatch.setattr(lstm, "CLIP", 1e-3)
    model.train_step(piece, 1.0)
    moved = [new - old for new, old in zip(model.parameters, before, strict=True)]
    assert sum(float((each**2).sum()) for each in moved) ** 0.5 == pytest.approx(1e-3, rel=1e-4)
    whole = free.parameters[4] - before[4]
    assert np.vdot(moved[4], whole) == pytest.approx(np.linalg.norm(moved[4]) * np.linalg.norm(whole))
    monkeypatch.setattr(lstm, "CLIP", 0.0)  # nothing is added: what is left of the last step
    at = model.parameters[4].copy()
    model.train_step(piece, 1.0)
    np.testing.assert_allclose(model.parameters[4] - at, MOMENTUM * moved[4], 1e-6)


def test_training_is_that_of_torch():
    pytest.importorskip("torch")
    text = np.random.default_rng(4).integers(0, 7, 500)
    ours = LSTM(7, 20, seed=1)
    theirs = TorchLSTM(ours)
    start, states, losses = ours.parameters[1].copy(), [None, None], []
    for piece in pieces(text, 4, 11):
        found = [model.train_step(piece, 0.5, state) for model, state in zip((ours, theirs), states, strict=True)]
        states = [state for _, state in found]
        losses.append([loss for loss, _ in found])
    assert len(losses) == 12
    np.testing.assert_allclose(*np.transpose(losses), 1e-4)
    for mine, torchs in zip(ours.parameters, theirs.parameters, strict=True):
        np.testing.assert_allclose(mine, torchs.detach().numpy(), 1e-3, 1e-4)
    assert np.abs(ours.parameters[1] - start).max() > 1e-2


def test_what_a_step_runs_on(monkeypatch, rng):
    used = []
    for name in CALLS:
        real = getattr(numbaprims, name)

        def counted(*args, _name=name, _real=real, **kwargs):
            used.append(_name)
            return _real(*args, **kwargs)

        monkeypatch.setattr(numbaprims, name, counted)
    LSTM(4, 6).train_step(a_piece(rng), 0.1)
    assert {name: used.count(name) for name in used} == dict.fromkeys(CALLS, 1) | {"gemm": 2}


def test_bits_are_those_of_the_chances(rng):
    """Over pieces, from a state that goes on: the same as of the whole text at once."""
    text, model = rng.integers(0, 5, 41), LSTM(5, 8, seed=2, dtype=np.float64)
    y, *_ = numbaprims.lstm(np.eye(5)[text[:-1, None]], model.weights)
    scores = y[:, 0] @ model.parameters[4].T + model.parameters[5]
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    expected = -np.log2(chances[np.arange(40), text[1:]]).mean()
    assert model.bits(text, streams=1, steps=7) == pytest.approx(expected, rel=1e-10)


def test_it_learns_the_book_in_a_few_seconds():
    """A character by its own frequency takes 4.6 bits; by the one before it, 3.4."""
    text = load_text()
    names = sorted(set(text))
    whole = np.array([names.index(each) for each in text[:60_000]])
    model, state = LSTM(len(names), 64, seed=0), None
    assert model.bits(whole[50_000:]) > 6
    for _ in range(2):
        for piece in pieces(whole[:50_000], 16, 25):
            _, state = model.train_step(piece, 1.0, state)
    assert model.bits(whole[50_000:]) < 3.4
    assert len(model.write(whole[:9], 20)) == 20


@pytest.mark.cpu
@pytest.mark.slow
def test_demo_learns_to_write(capsys):
    assert main(["--model", "lstm", "--no-torch"]) == 0
    printed = capsys.readouterr().out
    assert float(re.search(r"^held-out bits per character: (\d\.\d{3})$", printed, re.M)[1]) < 2.5
    assert "133,583 characters to train on, 14,843 held out" in printed


def test_demo_of_a_text_beside_torch(tmp_path, capsys):
    path = tmp_path / "own.txt"
    path.write_text("the quick brown fox jumps over the lazy dog\n" * 60)
    assert main(["--model", "lstm", "--data", str(path), "--hidden", "32", "--epochs", "6", "--batch", "4"]) == 0
    printed = capsys.readouterr().out
    assert float(re.search(r"^held-out bits per character: (\d\.\d{3})$", printed, re.M)[1]) < 2.0
    assert "an LSTM of 32 units" in printed and "4 streams, 50 characters a step: 6 epochs" in printed
    (row,) = re.findall(r"^seconds per epoch +(.+)$", printed, re.M)
    assert len(row.split()) == (2 if re.search(r"^ +numbaprims +torch$", printed, re.M) else 1)


def test_refusals_and_examples(tmp_path, capsys):
    (tmp_path / "short.txt").write_text("ab")
    for words, message in (
        (["--data", str(tmp_path / "none.txt")], "none.txt does not exist"),
        (["--data", str(tmp_path / "short.txt")], "16 streams need 17"),
        (["--device", "cuda"], "runs on the CPU only"),
        (["--activation", "tanh"], "--activation is of the other models"),
    ):
        assert main(["--model", "lstm", *words]) == 2
        assert message in capsys.readouterr().err
    failed, tried = doctest.testmod(lstm)
    assert failed == 0 < tried
