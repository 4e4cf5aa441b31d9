"""CTC: the loss and its gradient against all paths, torch and the definition; decoding."""

import itertools

import numpy as np
import pytest
from ctc_cases import draw, log_softmax
from helpers import (
    NUMPY_FLOATS,
    assert_close,
    forced,
    from_float64,
    has_module,
    in_library,
    printed_with_threads,
    to_float64,
)
from hypothesis import given, strategies as st

import numbaprims
from numbaprims import arrays

SOLVERS = ("vectors", "naive")


def merged(path, blank):
    """A path without repetitions and blanks."""
    return tuple(c for c, _ in itertools.groupby(path) if c != blank)


def of_all_paths(x, blank):
    """Labels -> (the sum of the probabilities of their paths, how much of it has each class at each step)."""
    found = {}
    for path in itertools.product(range(x.shape[1]), repeat=len(x)):
        p = np.exp(sum(x[t, c] for t, c in enumerate(path)))
        total, classes = found.setdefault(merged(path, blank), [0.0, np.zeros(x.shape)])
        found[merged(path, blank)][0] = total + p
        for t, c in enumerate(path):
            classes[t, c] += p
    return found


@given(st.data())
def test_it_is_the_sum_over_all_paths(data):
    steps, classes = data.draw(st.integers(0, 5), "steps"), data.draw(st.integers(1, 3), "classes")
    blank = data.draw(st.integers(0, classes - 1), "blank")
    others = [c for c in range(classes) if c != blank]
    target = data.draw(st.lists(st.sampled_from(others), max_size=4) if others else st.just([]), "target")
    rng = np.random.default_rng(data.draw(st.integers(0, 999), "seed"))
    x = log_softmax(2 * rng.standard_normal((steps, 1, classes)))
    p, share = of_all_paths(x[:, 0], blank).get(tuple(target), (0.0, np.zeros((steps, classes))))
    targets = np.array([target], int).reshape(1, -1)
    words = {"input_lengths": [steps], "target_lengths": [len(target)], "blank": blank}
    for device in (None, "reference"):
        with numbaprims.config(device=device):
            (loss,) = numbaprims.ctc_loss(x, targets, **words)
            dx = numbaprims.ctc_loss_backward(np.ones(1), x, targets, **words)[:, 0]
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(loss, -np.log(p), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(dx, -share / (p or 1.0), rtol=1e-11, atol=1e-14)


@given(st.data())
def test_a_beam_of_all_prefixes_finds_the_best_labels(data):
    steps, classes = data.draw(st.integers(0, 4), "steps"), data.draw(st.integers(1, 3), "classes")
    blank = data.draw(st.integers(0, classes - 1), "blank")
    rng = np.random.default_rng(data.draw(st.integers(0, 999), "seed"))
    x = log_softmax(2 * rng.standard_normal((steps, 1, classes)))
    best = sorted(of_all_paths(x[:, 0], blank).items(), key=lambda item: -item[1][0])[:3]
    labels, lengths, scores = numbaprims.ctc_beam_search_decode(x, beam_width=64, paths=3, blank=blank)
    for k, (wanted, (p, _)) in enumerate(best):
        assert tuple(labels[0, k, : lengths[0, k]]) == wanted
        assert (labels[0, k, lengths[0, k] :] == blank).all()
        np.testing.assert_allclose(scores[0, k], np.log(p), rtol=1e-12, atol=1e-14)
    assert (scores[0, len(best) :] == -np.inf).all()
    assert (lengths[0, len(best) :] == 0).all()


@pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("blank", [0, 4])
def test_it_is_that_of_torch(rng, reduction, blank):
    import torch

    for steps, batch, classes, labels in ((20, 5, 7, 4), (50, 3, 5, 20), (8, 2, 40, 0)):
        x, targets, inputs, counts = draw(rng, steps, batch, classes, labels, blank, repeats=True)
        scores = torch.from_numpy(x).requires_grad_()
        parts = [torch.from_numpy(each) for each in (targets, inputs, counts)]
        words = {"blank": blank, "reduction": reduction, "zero_infinity": True}
        wanted = torch.nn.functional.ctc_loss(scores.log_softmax(2), *parts, **words)
        loss = numbaprims.ctc_loss(x, targets, inputs, counts, **words)
        np.testing.assert_allclose(loss, wanted.detach().numpy(), rtol=1e-12)
        dy = torch.from_numpy(np.asarray(rng.standard_normal(loss.shape)))
        wanted.backward(dy)
        dx = numbaprims.ctc_loss_backward(dy.numpy(), x, targets, inputs, counts, logits=True, **words)
        np.testing.assert_allclose(dx, scores.grad.numpy(), rtol=1e-10, atol=1e-12)


def definition(function, *args, **words):
    """It, of the same operands in float64."""
    wide = [x if isinstance(x, list) else np.asarray(to_float64(*arrays.enter(x, "x")[:2])) for x in args[:-3]]
    with numbaprims.config(device="reference"):
        return getattr(numbaprims, function)(*wide, *args[-3:], **words)


#: A solver reads and writes the two types of 16 bits alike for all that it computes.
PAIRS = [
    pytest.param(solver, dtype, marks=[pytest.mark.slow] * (at > 0 and dtype == ("f16", "bf16")[at % 2]))
    for at, solver in enumerate(SOLVERS)
    for dtype in NUMPY_FLOATS
]


@pytest.mark.parametrize(("solver", "dtype"), PAIRS)
def test_every_type_and_size(rng, dtype, solver):
    def stored(x):
        return in_library(from_float64(x, dtype), dtype)

    for steps, batch, classes, labels in (
        (1, 1, 2, 1),
        (37, 3, 19, 15),
        (60, 2, 33, 16),
        (45, 2, 130, 17),
        (9, 3, 5, 0),
    ):
        x, *more = draw(rng, steps, batch, classes, labels, 1, repeats=True)
        x, dy = stored(x), stored(rng.standard_normal(batch) + 2.0)
        with forced("ctc", solver):
            loss = numbaprims.ctc_loss(x, *more, blank=1)
            wanted = definition("ctc_loss", x, *more, blank=1)
            assert_close(loss, wanted, k=128, vacuous=not np.isfinite(wanted).all())
            for logits in (False, True):
                dx = numbaprims.ctc_loss_backward(dy, x, *more, blank=1, logits=logits)
                assert_close(dx, definition("ctc_loss_backward", dy, x, *more, blank=1, logits=logits), k=128)


def test_arrays_may_lie_anyhow(rng):
    x, *more = draw(rng, 12, 3, 21, 4)
    wanted = numbaprims.ctc_loss_backward(np.ones(3), x, *more)
    for view in (
        np.repeat(x, 2, 2)[..., ::2], x.transpose(1, 0, 2).copy().transpose(1, 0, 2), x[::-1].copy()[::-1],
        x.transpose(2, 1, 0).copy().transpose(2, 1, 0), x[..., ::-1].copy()[..., ::-1],
    ):  # fmt: skip
        np.testing.assert_allclose(numbaprims.ctc_loss(view, *more), numbaprims.ctc_loss(x, *more), rtol=1e-14)
        np.testing.assert_allclose(numbaprims.ctc_loss_backward(np.ones(3), view, *more), wanted, rtol=1e-13)
        out = np.full_like(view, np.nan)
        assert numbaprims.ctc_loss_backward(np.ones(6)[::2], x, *more, out=out) is out
        np.testing.assert_allclose(out, wanted, rtol=1e-13)


def test_targets_in_a_row(rng):
    x, targets, inputs, counts = draw(rng, 12, 4, 9, 4)
    row = np.concatenate([target[:count] for target, count in zip(targets, counts, strict=True)]).astype(np.int32)
    wanted = numbaprims.ctc_loss(x, targets, inputs, counts)
    np.testing.assert_array_equal(numbaprims.ctc_loss(x, row, inputs, counts), wanted)
    np.testing.assert_array_equal(numbaprims.ctc_loss(x, row.tolist(), tuple(inputs), list(counts)), wanted)


def test_what_no_path_gives(rng):
    x = log_softmax(rng.standard_normal((6, 5, 4)))
    # two steps too few for a repetition, a step too few, no step, no step and no label, just enough
    targets, inputs, counts = [[1, 1, 1]] * 5, [4, 2, 0, 0, 5], [3, 3, 1, 0, 3]
    loss = numbaprims.ctc_loss(x, targets, inputs, counts)
    assert np.isposinf(loss[:3]).all()
    assert loss[3] == 0.0
    assert np.isfinite(loss[4])
    np.testing.assert_array_equal(numbaprims.ctc_loss(x, targets, inputs, counts, zero_infinity=True)[:3], 0.0)
    for logits in (False, True):
        dx = numbaprims.ctc_loss_backward(
            np.ones(5), x, targets, inputs, counts, logits=logits, out=np.full_like(x, np.nan)
        )
        assert (dx[:, :4] == 0.0).all()
        assert dx[:5, 4].any()
        assert (dx[5, 4] == 0.0).all(), "behind its end"


def test_nothing_is_lost_where_probabilities_are_far_apart(rng):
    """Losses of 40,000, states e**-300 beside one another: logarithms of float32 would lose the third digit."""
    for steps, labels, scale in ((300, 60, 30.0), (500, 200, 1.0)):
        x = log_softmax(scale * rng.standard_normal((steps, 2, 24))).astype(np.float32)
        given = (rng.integers(1, 24, (2, labels)), [steps, steps - 7], [labels, labels - 1])
        assert_close(numbaprims.ctc_loss(x, *given), definition("ctc_loss", x, *given), k=4)
        dx = numbaprims.ctc_loss_backward(np.ones(2, np.float32), x, *given)
        assert_close(dx, definition("ctc_loss_backward", np.ones(2, np.float32), x, *given), k=256)


def test_probabilities_of_zero(rng):
    x, *_ = draw(rng, 8, 2, 5, 2)
    x[:, :, 3] = -np.inf
    x[2, :, 0] = -1e300
    given = ([[1, 2], [1, 3]], [8, 8], [2, 2])
    for dtype in (np.float64, np.float32):
        with np.errstate(over="ignore"):
            y = x.astype(dtype)
        loss = numbaprims.ctc_loss(y, *given)
        assert np.isfinite(loss[0])
        assert np.isposinf(loss[1])
        dx = numbaprims.ctc_loss_backward(np.ones(2, dtype), y, *given)
        assert (dx[2, :, 0] == 0).all()
        assert np.isfinite(dx).all()
        assert not dx[:, 1].any()


def test_bits_do_not_depend_on_threads():
    script = """
import hashlib, numpy as np, sys
sys.path.insert(0, "tests")
import numbaprims
from ctc_cases import draw
x, *more = draw(np.random.default_rng(0), 150, 7, 40, 30, 0, np.float32, repeats=True)
found = [numbaprims.ctc_loss(x, *more), numbaprims.ctc_loss_backward(np.ones(7, np.float32), x, *more),
         numbaprims.ctc_loss(x, *more, reduction="mean"), *numbaprims.ctc_beam_search_decode(x, beam_width=5)]
print(hashlib.sha256(b"".join(np.ascontiguousarray(y).tobytes() for y in found)).hexdigest())
"""
    assert len(printed_with_threads(script)) == 1


# ---------------------------------------------------------------- decoding


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_decoding_is_the_definition(rng, dtype):
    for steps, batch, classes, width in ((12, 3, 5, 8), (7, 2, 70, 4), (6, 1, 1, 4), (20, 2, 6, 40), (5, 2, 16, 1)):
        x = log_softmax(rng.standard_normal((steps, batch, classes))).astype(dtype)
        lengths, blank = rng.integers(0, steps + 1, batch), classes // 2
        calls = {"ctc_greedy_decode": {}, "ctc_beam_search_decode": {"beam_width": width, "paths": min(width, 3)}}
        for view in (x, np.repeat(x, 2, 2)[..., ::2]):
            for name, words in calls.items():
                found = getattr(numbaprims, name)(view, lengths, blank=blank, **words)
                with numbaprims.config(device="reference"):
                    wanted = getattr(numbaprims, name)(x.astype(np.float64), lengths, blank=blank, **words)
                np.testing.assert_array_equal(found[0], wanted[0])
                np.testing.assert_array_equal(found[1], wanted[1])
                assert_close(found[2], wanted[2], k=64, vacuous=True)


def test_the_first_of_equal_classes_and_never_nan():
    x = np.full((3, 1, 37), -2.0, np.float32)
    x[0, 0, [20, 35]] = x[1, 0, [0, 36]] = 1.0
    x[2, 0, 3] = np.nan
    labels, lengths, score = numbaprims.ctc_greedy_decode(x, blank=1)
    assert labels[0, : lengths[0]].tolist() == [20, 0]
    assert score == 0.0
    x[2, 0, 0] = -3.0
    assert numbaprims.ctc_greedy_decode(x, blank=5)[0][0].tolist() == [20, 0, 1]


@pytest.mark.parametrize("integer", [np.int8, np.uint8, np.int16])
def test_widths_of_numpys_integers(rng, integer):
    x = log_softmax(rng.standard_normal((50, 2, 9)))
    for width in (1, 5, 100):
        wanted = numbaprims.ctc_beam_search_decode(x, beam_width=width)
        numbaprims.dispatch.call.forget()
        words = {"beam_width": integer(width), "paths": integer(1), "blank": integer(0)}
        for _ in range(3):
            for found, want in zip(numbaprims.ctc_beam_search_decode(x, **words), wanted, strict=True):
                np.testing.assert_array_equal(found, want)


def test_a_prefix_that_comes_back_is_the_same_one():
    """[1] leaves a beam of two while [1, 2] stays, and comes back: its paths must still join those of [1, 2]."""
    for seed in range(200):
        x = log_softmax(3 * np.random.default_rng(seed).standard_normal((9, 1, 3)))
        for width in (2, 3):
            found = numbaprims.ctc_beam_search_decode(x, beam_width=width, paths=width)
            with numbaprims.config(device="reference"):
                wanted = numbaprims.ctc_beam_search_decode(x, beam_width=width, paths=width)
            np.testing.assert_array_equal(found[0], wanted[0])
            np.testing.assert_allclose(found[2], wanted[2], rtol=1e-12)


# ---------------------------------------------------------------- refusals


def test_what_cannot_be_computed_is_refused():
    x = np.zeros((4, 2, 3), np.float32)
    good = {"targets": [[1, 2], [2, 1]], "input_lengths": [4, 3], "target_lengths": [2, 1]}
    for words, error, match in (
        ({"targets": [[1, 3], [2, 1]]}, ValueError, "targets holds 3, which is no class of 0 to 2"),
        ({"targets": [[1, -1], [2, 1]]}, ValueError, "targets holds -1"),
        ({"targets": [[0, 1], [2, 1]]}, ValueError, "targets holds 0, which is blank"),
        ({"targets": [[1, 2]]}, ValueError, "targets has shape"),
        ({"targets": [1, 2]}, ValueError, "target_lengths say 3"),
        ({"targets": [[1.0, 2.0], [2.0, 1.0]]}, TypeError, "targets is of float64"),
        ({"input_lengths": [5, 3]}, ValueError, r"input_lengths\[0\] is 5; with 4 steps"),
        ({"input_lengths": [4]}, ValueError, "input_lengths has shape"),
        ({"input_lengths": [4.0, 3.0]}, TypeError, "input_lengths is of float64"),
        ({"target_lengths": [2, 3]}, ValueError, r"target_lengths\[1\] is 3; with 2 labels"),
        ({"target_lengths": [2, -1]}, ValueError, r"target_lengths\[1\] is -1"),
        ({"blank": 3}, ValueError, "blank is 3"),
        ({"blank": 0.0}, TypeError, "blank is 0.0"),
        ({"reduction": "max"}, ValueError, "reduction is 'max'"),
    ):
        out = np.full_like(x, 7)
        with pytest.raises(error, match=match):
            numbaprims.ctc_loss(x, **{**good, **words})
        with pytest.raises(error, match=match):
            numbaprims.ctc_loss_backward(np.ones(2, np.float32), x, **{**good, **words}, out=out)
        assert (out == 7).all()
    with pytest.raises(ValueError, match="steps, batch, classes"):
        numbaprims.ctc_loss(x[0], **good)
    with pytest.raises(ValueError, match="dy is a"):
        numbaprims.ctc_loss_backward(np.ones(3, np.float32), x, **good)
    with pytest.raises(ValueError, match="dy is a"):
        numbaprims.ctc_loss_backward(np.ones(2, np.float32), x, **good, reduction="sum")
    with pytest.raises(TypeError, match="takes float64"):
        numbaprims.ctc_loss(x.astype(np.int32), **good)
    for words, error, match in (
        ({"beam_width": 0}, ValueError, "beam_width is 0"), ({"paths": 17}, ValueError, "paths is 17"),
        ({"beam_width": 2.0}, TypeError, "beam_width is 2.0"), ({"input_lengths": [4, 9]}, ValueError, "is 9"),
    ):  # fmt: skip
        with pytest.raises(error, match=match):
            numbaprims.ctc_beam_search_decode(x, **words)
