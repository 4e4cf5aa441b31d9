"""Recurrent networks inside a user's own `@njit`: weights as a value, bits and errors of the public call."""

import numpy as np
import pytest
from numba.core.errors import TypingError
from rnn_cases import DEFINITIONS, cast, draw_weights
from test_jitted import compiled, drawn, refuse_alike, same

from numbaprims import RnnWeights
from numbaprims.cpu.call_sites import Site

pytestmark = pytest.mark.cpu
#: What a call says beside x and the weights, and what the weights are.
CALLS = {
    "plain": ("", {}),
    "deep": ("", {"layers": 2, "directions": 2}),
    "sum": ("merge='sum', batch_first=flag", {"layers": 2, "directions": 2, "merge": "sum"}),
    "states": ("h0=h0, clip=number", {}),
    "no bias": ("clip=None, reverse=flag", {"bias": False}),
    "skip": ("", {"skip": True, "inputs": 6, "hidden": 6, "directions": 2}),
    "out": ("out=np.empty((5, 3, 4), x.dtype)", {}),
    "peepholes": ("c0=h0 + h0", {"peephole": True, "layers": 1}),
    "projection": ("h0=h0[:, :, :2].copy()", {"proj": 2}),
}


@pytest.mark.parametrize(
    ("cell", "after", "label", "dtype"),
    [
        *((*of, "plain", np.float64) for of in DEFINITIONS),
        *(("lstm", True, label, np.float32) for label in CALLS if label != "plain"),
        *(("gru", True, label, np.float32) for label in ("deep", "sum", "states")),
    ],
)
def test_calls(rng, monkeypatch, cell, after, label, dtype):
    words, given = CALLS[label]
    weights = cast(draw_weights(rng, cell, after=after, **given), dtype)
    name = cell.partition("_")[0]
    inside, outside = compiled("x, weights, h0, number, flag", f"nb.{name}(x, weights, {words})")
    direct = []
    real = Site._directly
    monkeypatch.setattr(Site, "_directly", lambda *given: direct.append(1) or real(*given))
    for number, flag in ((0.5, False), (0.25, True), (0.5, False)):
        x, h0 = drawn(rng, 5, 3, weights.input_size, dtype=dtype), drawn(rng, 1, 3, 4, dtype=dtype)
        same(inside(x, weights, h0, number, flag), outside(x, weights, h0, number, flag))
    assert not direct, "every launch was recorded"


def test_what_goes_through_python(rng):
    """Lengths make tables, and states that lie otherwise are copied."""
    weights = cast(draw_weights(rng, "gru", directions=2), np.float32)
    x, h0 = drawn(rng, 5, 3, 3), drawn(rng, 2, 3, 8)[..., ::2]
    inside, outside = compiled("x, weights, n, h0", "nb.gru(x, weights, h0, lengths=n)")
    for lengths in (np.array([2, 5, 0]), np.array([5, 1, 3])):
        same(inside(x, weights, lengths, h0), outside(x, weights, lengths, h0))


def test_weights_are_values(rng):
    """Each kind of network compiles once; another of the kind, and what is written into its arrays, is looked at."""
    inside, outside = compiled("x, one, two", "nb.lstm(nb.lstm(x, one)[0], two)")
    for _ in range(2):
        one, two = (cast(draw_weights(rng, "lstm", inputs=n), np.float32) for n in (3, 4))
        x = drawn(rng, 5, 3, 3)
        same(inside(x, one, two), outside(x, one, two))
        two.parts[0].w_hh[...] = 0
        same(inside(x, one, two), outside(x, one, two))
    assert len(inside.signatures) == 1


@pytest.mark.parametrize("expression", [
    "nb.lstm(x, w)",
    "nb.gru(x[0], w)",
    "nb.gru(x[:, :, :2], w)",
    "nb.gru(x, w, x)",
    "nb.gru(x, w, merge='some')",
    "nb.gru(x, w, clip=-1.0)",
    "nb.gru(x, w, out=np.empty((5, 3, 4)))",
])  # fmt: skip
def test_errors_are_those_of_the_public_call(rng, expression):
    x, weights = drawn(rng, 5, 3, 3), cast(draw_weights(rng, "gru"), np.float32)
    inside, outside = compiled("x, w", expression)
    refuse_alike(inside, outside, x, weights)


def test_a_clip_is_looked_at_in_each_call(rng):
    for cell in ("lstm", "gru", "rnn_tanh"):
        x, weights = drawn(rng, 5, 3, 3), cast(draw_weights(rng, cell), np.float32)
        inside, outside = compiled("x, w, clip", f"nb.{cell.partition('_')[0]}(x, w, clip=clip)")
        for clip in (0.5, np.inf):
            same(inside(x, weights, clip), outside(x, weights, clip))
        for clip in (0.0, -1.0, np.nan):
            refuse_alike(inside, outside, x, weights, clip)


def test_what_does_not_compile(rng):
    x, weights = drawn(rng, 5, 3, 3), cast(draw_weights(rng, "gru"), np.float32)
    refusals = {
        "nb.gru(x, x)": "weights is .*; it must be RnnWeights of NumPy arrays",
        "nb.gru(x, w, batch_sizes=np.ones(5, np.int64))": "batch_sizes is .*; it must be None; call it in a block",
        "nb.gru_train(x, w)": "numbaprims.gru_train cannot be called inside @njit",
    }
    for expression, words in refusals.items():
        with pytest.raises((TypingError, TypeError), match=words):
            compiled("x, w", expression)[0](x, weights)
    halves = cast(draw_weights(rng, "gru"), np.float16)
    with pytest.raises((TypingError, TypeError, NotImplementedError)):
        compiled("x, w", "nb.gru(x, w)")[0](x.astype(np.float16), halves)


def test_weights_made_of_tensors_are_refused(rng):
    torch = pytest.importorskip("torch")
    weights = RnnWeights.from_arrays("gru", torch.zeros(6, 3), torch.zeros(6, 2))
    with pytest.raises(TypingError, match="RnnWeights"):
        compiled("x, w", "nb.gru(x, w)")[0](drawn(rng, 5, 3, 3), weights)
