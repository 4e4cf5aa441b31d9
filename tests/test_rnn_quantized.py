"""Plans of weights of 8-bit integers: exact where rounding changes nothing, else within the bound of its steps."""

import pickle

import numpy as np
import pytest
from rnn_cases import DEFINITIONS, cast, draw_weights, sigmoid

import numbaprims
from numbaprims.recurrent.parts import RnnPart


def rounded(array, largest=127):
    """Whole numbers, the largest of each row `largest`, by a power of two."""
    found = np.rint(array / np.abs(array).max(-1, keepdims=True) * largest)
    return found / 256


def whole(weights):
    """Weights that bytes hold."""
    matrices = {"w_ih", "w_hh", "w_hr"}
    parts = [
        RnnPart(*(rounded(x) if x is not None and n in matrices else x for n, x in part._asdict().items()))
        for part in weights.parts
    ]
    found = numbaprims.RnnWeights(weights.cell, tuple(parts), weights.directions, weights.reset_after)
    return cast(found, np.float32)


def close(found, wanted, tolerance=2e-5):
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, atol=tolerance, rtol=0)


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_what_bytes_hold_is_exact(rng, cell, after, request):
    """One step of x, h0 and weights that are whole numbers: sums are those of float32, whatever their tiles."""
    function = getattr(numbaprims, cell.partition("_")[0])
    sizes = [(1, 1, 1, 1), (7, 18, 3, 2), (64, 40, 7, 1), (131, 67, 53, 2)]
    if cell == "rnn_relu" and not request.config.option.slow:
        del sizes[1:3]  # its sums are those of rnn_tanh
    for inputs, hidden, batch, directions in sizes:
        drawn = draw_weights(rng, cell, after=after, inputs=inputs, hidden=hidden, directions=directions)
        weights, count = whole(drawn), 2 if cell == "lstm" else 1
        x = rounded(rng.standard_normal((1, batch, inputs))).astype(np.float32)
        states = [rounded(rng.standard_normal((directions, batch, hidden))).astype(np.float32) for _ in range(count)]
        if not after:
            states[0][:] = 0  # r h is not whole
        plan = function.plan(weights, quantize="int8")
        close(plan(x, *states), function(x, weights, *states))


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_inputs_of_all_steps_are_exact(rng, cell, after):
    """Steps, lengths and orders, with no weights of the state."""
    drawn = whole(draw_weights(rng, cell, after=after, inputs=9, hidden=21))
    parts = [part._replace(w_hh=np.zeros_like(part.w_hh)) for part in drawn.parts]
    weights = numbaprims.RnnWeights(cell, tuple(parts), reset_after=after)
    function = getattr(numbaprims, cell.partition("_")[0])
    x = rounded(rng.standard_normal((11, 5, 9))).astype(np.float32)
    for words, call in (
        ({}, {}),
        ({"reverse": True}, {"lengths": [3, 11, 0, 5, 5]}),
        ({"batch_first": True, "clip": 0.3}, {}),
        ({}, {"batch_sizes": [5, 4, 4, 1]}),
    ):
        given = x.reshape(-1, 9)[:14] if "batch_sizes" in call else x.swapaxes(0, 1) if words.get("batch_first") else x
        found = function.plan(weights, **words, quantize="int8")(given, **call)
        close(found, function(given, weights, **words, **call))
    spread = np.zeros((11, 5, 18), np.float32)[..., ::2]
    spread[:] = x
    close(function.plan(weights, quantize="int8")(spread), function(x, weights))


def lstm_bounds(w, x):
    """(h, its error at most) of each step of an LSTM of float64 sums, whose operands are rounded to steps of 1/127 of
    their rows' largest: what is rounded is off by half a step, and errors pass on by the derivatives of the gates."""
    part = w.parts[0]
    W, R = part.w_ih.astype(np.float64), part.w_hh.astype(np.float64)
    half_w, half_r = (np.abs(each).max(1) / 254 for each in (W, R))
    bias = (part.b_ih + part.b_hh).astype(np.float64)
    hidden = R.shape[1]
    h = c = eh = ec = np.zeros((x.shape[1], hidden))
    found = []

    def off(a, error, weights, half):
        """Of a product of `a`, known up to `error`, which is rounded itself, by weights that were rounded."""
        error = error + (np.abs(a) + error).max(1, keepdims=True) / 254
        return error @ np.abs(weights).T + (np.abs(a) + error).sum(1)[:, None] * half

    for each in x.astype(np.float64):
        e = off(each, np.zeros_like(each), W, half_w) + off(h, eh, R, half_r)
        i, f, g, o = np.split(each @ W.T + h @ R.T + bias, 4, 1)
        ei, ef, eg, eo = np.split(e * np.repeat([0.25, 0.25, 1, 0.25], hidden), 4, 1)
        i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
        ec = np.abs(c) * ef + np.minimum(f + ef, 1) * ec + np.abs(g) * ei + np.minimum(i + ei, 1) * eg
        c = f * c + i * g
        eh = np.abs(np.tanh(c)) * eo + np.minimum(o + eo, 1) * ec
        h = o * np.tanh(c)
        found.append((h, eh))
    return map(np.stack, zip(*found, strict=True))


@pytest.mark.parametrize("batch", [1, 9])
def test_errors_are_those_of_the_steps(rng, batch):
    drawn = draw_weights(rng, "lstm", inputs=48, hidden=40)
    weights = cast(times(drawn, 0.2), np.float32)
    x = rng.standard_normal((6, batch, 48)).astype(np.float32)
    y, *_ = numbaprims.lstm.plan(weights, quantize="int8")(x)
    h, bound = lstm_bounds(weights, x)
    error = np.abs(y - h)
    assert (error <= bound + 1e-6).all()
    assert error.max() > 1e-4, "bytes round"
    assert bound[0].max() < 0.1 and error[0].max() > bound[0].max() / 50, "the bound says something"


def times(weights, factor):
    parts = tuple(RnnPart(*(None if a is None else a * factor for a in part)) for part in weights.parts)
    return numbaprims.RnnWeights(weights.cell, parts, weights.directions, weights.reset_after, weights.skip_input)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_whole_networks(rng, dtype):
    """Layers, directions, projections, peepholes and skipped inputs are near the network of floats."""
    for cell, network, words in (
        ("lstm", {"layers": 2, "directions": 2, "hidden": 20, "proj": 6}, {}),
        ("lstm", {"peephole": True, "hidden": 33, "layers": 2}, {"reverse": True}),
        ("gru", {"skip": True, "inputs": 21, "hidden": 21, "layers": 2}, {"batch_first": True}),
        ("gru", {"after": False, "layers": 2, "directions": 2, "merge": "sum"}, {"merge": "sum"}),
        ("rnn_tanh", {"hidden": 30, "layers": 3}, {}),
    ):
        weights = cast(times(draw_weights(rng, cell, **network), 0.3), dtype)
        function = getattr(numbaprims, cell.partition("_")[0])
        plan = function.plan(weights, quantize="int8", **words)
        x = rng.standard_normal((4, 5, weights.input_size)).astype(dtype)
        wanted = function(x, weights, **words)
        found = plan(x)
        close(found, wanted, 3e-2)
        again = pickle.loads(pickle.dumps(plan))
        for a, b in zip(again(x), found, strict=True):
            assert a.tobytes() == b.tobytes()
        assert any((a != b).any() for a, b in zip(found, wanted, strict=True))


def test_rows_that_are_not_finite(rng):
    """A sequence with NaN or infinity gives NaN, and the others what they gave."""
    weights = cast(draw_weights(rng, "rnn_tanh", inputs=20, hidden=18), np.float32)
    plan = numbaprims.rnn.plan(weights, quantize="int8")
    x = rng.standard_normal((3, 4, 20)).astype(np.float32)
    before = plan(x)[0]
    x[1, 1, 3], x[0, 2, 19], x[:, 3] = np.nan, -np.inf, 0
    after = plan(x)[0]
    assert np.isnan(after[1:, 1]).all() and np.isnan(after[:, 2]).all()
    assert (after[:, 0] == before[:, 0]).all() and (after[0, 1] == before[0, 1]).all()
    assert np.isfinite(after[:, 3]).all()


def test_the_definition_and_other_solvers(rng):
    weights = cast(draw_weights(rng, "gru", hidden=9), np.float32)
    plan, x = numbaprims.gru.plan(weights, quantize="int8"), np.ones((3, 2, 3), np.float32)
    plan(x)
    with numbaprims.config(device="reference"):
        close(plan(x), numbaprims.gru(x, weights))  # the weights as they were given
    with numbaprims.config(algorithm="rnn:single_gemm"), pytest.raises(ValueError, match="as they were given"):
        plan(x)


def test_what_is_refused(rng):
    weights = draw_weights(rng, "gru")
    with pytest.raises(TypeError, match="weights are float64; quantize='int8' takes float32"):
        numbaprims.gru.plan(weights, quantize="int8")
    with pytest.raises(ValueError, match="quantize is 'int4'"):
        numbaprims.gru.plan(weights, quantize="int4")
    array = np.zeros((4, 70000), np.float32)
    wide = numbaprims.RnnWeights.from_arrays("lstm", array, array[:, :1])
    with pytest.raises(ValueError, match="rows of 70000; with quantize='int8' they have at most 66311"):
        numbaprims.lstm.plan(wide, quantize="int8")


@pytest.mark.filterwarnings("ignore")
def test_beside_torch(rng):
    """Errors are at most twice those of torch's dynamic quantisation, whose scales are a matrix's and a tensor's."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.LSTM(64, 96)
    quantize = torch.ao.quantization.quantize_dynamic
    theirs = quantize(torch.nn.ModuleList([module]), {torch.nn.LSTM}, dtype=torch.qint8)[0]
    x = rng.standard_normal((12, 4, 64)).astype(np.float32)
    with torch.no_grad():
        wanted, their = (each(torch.from_numpy(x))[0].numpy() for each in (module, theirs))
    ours = numbaprims.lstm.plan(numbaprims.RnnWeights.from_torch(module), quantize="int8")(x)[0]
    assert 0 < np.abs(their - wanted).max() < 0.1
    assert np.abs(ours - wanted).max() < 2 * np.abs(their - wanted).max()
