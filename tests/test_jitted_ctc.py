"""CTC inside a user's own @njit, whose table of labels compiled code makes: the bits and errors of the public calls."""

import numpy as np
import pytest
from helpers import in_turn
from numba.core.errors import TypingError
from test_jitted import compiled, refuse_alike, same

from numbaprims.cpu.call_sites import Site

pytestmark = pytest.mark.cpu
STEPS, BATCH, CLASSES = 12, 3, 6
LOSSES = {
    "rows": "nb.ctc_loss(x, rows, lengths, counts)",
    "in a row": "nb.ctc_loss(x, flat, lengths, counts, blank=0, reduction='none')",
    "mean": "nb.ctc_loss(x, rows, lengths.astype(np.int32), counts, reduction='mean', zero_infinity=True)",
    "sum": "nb.ctc_loss(x[::-1], rows.astype(np.uint8), lengths, counts.astype(np.int16), reduction='sum')",
    "strided": "nb.ctc_loss(x.T.copy().T, rows[:, :40], lengths[::-1][::-1], counts, blank=0)",
    "gradient": "nb.ctc_loss_backward(dy, x, rows, lengths, counts)",
    "logits": "nb.ctc_loss_backward(np.full((), 0.5, x.dtype), x, flat, lengths, counts, reduction='mean', "
    "logits=True)",
    "out": "nb.ctc_loss_backward(dy, x, rows, lengths, counts, zero_infinity=True, out=np.empty_like(x))",
}


def labels(rng, counts, width=40):
    """The same labels in both forms, what lies behind those of a sequence being no labels."""
    rows = np.full((len(counts), width), -7)
    for row, count in zip(rows, counts, strict=True):
        row[:count] = rng.integers(1, CLASSES, count)
    return rows, np.concatenate([row[:count] for row, count in zip(rows, counts, strict=True)])


def log_probs(rng, dtype=np.float32):
    x = rng.standard_normal((STEPS, BATCH, CLASSES))
    return (x - np.log(np.exp(x).sum(-1, keepdims=True))).astype(dtype)


@pytest.mark.parametrize("label, dtype", in_turn(LOSSES, [np.float32, np.float64]))
def test_calls(rng, monkeypatch, label, dtype):
    direct, real = [], Site._directly
    monkeypatch.setattr(Site, "_directly", lambda *given: direct.append(1) or real(*given))
    inside, outside = compiled("x, dy, rows, flat, lengths, counts", LOSSES[label])
    # other labels of the same number of columns, a sequence without labels or steps, more of them, one without a path
    for counts, lengths in (([3, 1, 2], [12, 5, 9]), ([2, 0, 4], [12, 0, 12]), ([20, 1, 0], [12, 1, 12])):
        x, dy = log_probs(rng, dtype), rng.standard_normal(BATCH).astype(dtype)
        rows, flat = labels(rng, counts)
        given = x, dy, rows, flat, np.array(lengths), np.array(counts)
        got, want = inside(*given), outside(*given)
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    assert not direct, "every launch was recorded"


def test_other_labels_are_the_same_record(rng, monkeypatch):
    inside, outside = compiled("x, rows, lengths, counts", "nb.ctc_loss(x, rows, lengths, counts, reduction='sum')")
    x, lengths = log_probs(rng), np.array([12, 11, 10])
    inside(x, labels(rng, [1, 2, 3])[0], lengths, np.array([1, 2, 3]))
    monkeypatch.setattr(Site, "miss", None)
    for counts in (np.array([5, 0, 4]), np.array([2, 2, 2])):
        rows = labels(rng, counts)[0]
        same(inside(x, rows, lengths, counts), outside(x, rows, lengths, counts))


DECODERS = (
    "nb.ctc_greedy_decode(x)",
    "nb.ctc_greedy_decode(x[:, :, ::-1], lengths, blank=k)",
    "nb.ctc_beam_search_decode(x, lengths.astype(np.uint8))",
    "nb.ctc_beam_search_decode(x, None, beam_width=k + 3, paths=k, blank=2)",
)


@pytest.mark.parametrize("expression, dtype", in_turn(DECODERS, [np.float32, np.float64]))
def test_decoding(rng, monkeypatch, expression, dtype):
    direct, real = [], Site._directly
    monkeypatch.setattr(Site, "_directly", lambda *given: direct.append(1) or real(*given))
    inside, outside = compiled("x, lengths, k", expression)
    for k, lengths in ((1, [12, 5, 9]), (3, [0, 12, 1]), (1, [12, 12, 12])):
        x = log_probs(rng, dtype)
        same(inside(x, np.array(lengths), k), outside(x, np.array(lengths), k))
    assert not direct, "every launch was recorded"


@pytest.mark.parametrize("shape", [(0, BATCH), (STEPS, 0)])
@pytest.mark.parametrize("label", ["rows", "mean", "gradient"])
def test_nothing(label, shape):
    inside, outside = compiled("x, dy, rows, flat, lengths, counts", LOSSES[label])
    x, lengths = np.zeros((*shape, CLASSES), np.float32), np.zeros(shape[1], np.int64)
    given = x, np.ones(shape[1], np.float32), np.zeros((shape[1], 3), np.int64), lengths, lengths, lengths
    got, want = inside(*given), outside(*given)
    assert got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "expression",
    [
        "nb.ctc_loss(x[0], rows, lengths, counts)",
        "nb.ctc_loss(x, rows[:2], lengths, counts)",
        "nb.ctc_loss(x, rows[0, 0:5], lengths, counts)",
        "nb.ctc_loss(x, rows.reshape((3, 2, 20)), lengths, counts)",
        "nb.ctc_loss(x, rows, lengths[1:], counts)",
        "nb.ctc_loss(x, rows, lengths + 1, counts)",
        "nb.ctc_loss(x, rows, lengths, counts - 2)",
        "nb.ctc_loss(x, rows, lengths, counts + 38)",
        "nb.ctc_loss(x, rows, lengths, counts + 1)",
        "nb.ctc_loss(x, rows, lengths.reshape((1, 3)), counts)",
        "nb.ctc_loss(x, rows + 3, lengths, counts)",
        "nb.ctc_loss(x, rows, lengths, counts, blank=6)",
        "nb.ctc_loss(x, rows, lengths, counts, blank=int(rows[0, 0]))",
        "nb.ctc_loss(x, rows, lengths, counts, reduction='some')",
        "nb.ctc_loss(rows.reshape((2, 3, 20)), rows, lengths, counts)",
        "nb.ctc_loss_backward(x[0, 0], x, rows, lengths, counts)",
        "nb.ctc_loss_backward(x[0, :, 0], x, rows, lengths, counts, reduction='sum')",
        "nb.ctc_loss_backward(x[0, :, 0], x, rows, lengths, counts, out=x)",
        "nb.ctc_greedy_decode(x, blank=-1)",
        "nb.ctc_greedy_decode(x[0])",
        "nb.ctc_greedy_decode(x, lengths + 1)",
        "nb.ctc_greedy_decode(x, lengths[1:])",
        "nb.ctc_greedy_decode(rows.reshape((2, 3, 20)))",
        "nb.ctc_beam_search_decode(x, beam_width=0)",
        "nb.ctc_beam_search_decode(x, beam_width=4, paths=5)",
        "nb.ctc_beam_search_decode(x, lengths.reshape((1, 3)), beam_width=4)",
    ],
)
def test_errors_are_those_of_the_public_call(rng, expression):
    counts = np.array([3, 1, 2])
    rows, _ = labels(rng, counts)
    inside, outside = compiled("x, rows, lengths, counts", expression)
    given = log_probs(rng), rows, np.array([12, 5, 9]), counts
    refuse_alike(inside, outside, *given)


@pytest.mark.parametrize(
    "expression, words",
    [
        ("nb.ctc_loss(x, x[0], lengths, lengths)", "targets is .*; it must be an array of integers"),
        ("nb.ctc_loss(x, [[1], [2], [3]], lengths, lengths)", "targets is .*; it must be an array"),
        ("nb.ctc_greedy_decode(x, x[0, 0])", "input_lengths is .*; it must be an array of integers"),
        ("nb.ctc_loss(x, lengths, lengths, lengths, blank=0.5)", "blank is .*; it must be an int"),
    ],
)
def test_refusals_name_the_argument(rng, expression, words):
    with pytest.raises((TypeError, TypingError), match=words):
        compiled("x, lengths", expression)[0](log_probs(rng), np.array([1, 1, 1]))
