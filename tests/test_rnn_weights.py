"""Containers of recurrent weights: every library's order of gates, what is copied, what is refused."""

import copy
import dataclasses
import doctest
import pickle
from pathlib import Path

import numpy as np
import pytest
from helpers import FLOATS, NUMPY_FLOATS, caller_array, has_module, to_float64
from rnn_cases import DEFINITIONS, draw_onnx, draw_weights, sigmoid

from numbaprims import RnnWeights
from numbaprims.recurrent.parts import CELLS, RnnPart
from numbaprims.reference.rnn import forward

needs_torch = pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")
OURS = {"lstm": "ifgo", "gru": "rzn", "rnn_tanh": "h", "rnn_relu": "h"}


def blocks(order: str, hidden=2, width=3):
    """Rows of a matrix that hold the code of their gate."""
    return np.repeat([float(ord(gate)) for gate in order], hidden)[:, None] * np.ones(width)


@pytest.mark.parametrize(("cell", "onnx", "miopen", "onednn", "keras"), [
    ("lstm", "iofg", "ifog", "ifgo", "ifgo"), ("gru", "zrn", "zrn", "zrn", "zrn"), ("rnn_tanh", *"hhhh"),
])  # fmt: skip
def test_orders_of_gates(cell, onnx, miopen, onednn, keras):
    """ONNX's c and MIOpen's new memory are our g, oneDNN's u our z and o our n, Keras' h our n."""
    want, gates = RnnPart(blocks(OURS[cell]), blocks(OURS[cell], width=2)), CELLS[cell]
    of = RnnWeights.from_onnx(cell, blocks(onnx)[None], blocks(onnx, width=2)[None], linear_before_reset=1)
    buffer = np.concatenate([blocks(miopen).ravel(), blocks(miopen, width=2).ravel()])
    ldigo = [blocks(onednn, width=width).T.reshape(1, 1, width, gates, 2) for width in (3, 2)]
    for found in (
        of,
        RnnWeights.from_miopen(cell, buffer, 3, 2, bias=False),
        RnnWeights.from_onednn(cell, *ldigo, reset_after=True),
        RnnWeights.from_keras(cell, blocks(keras).T, blocks(keras, width=2).T),
    ):
        np.testing.assert_array_equal(found.parts[0].w_ih, want.w_ih)
        np.testing.assert_array_equal(found.parts[0].w_hh, want.w_hh)
        assert found.parts[0][2:] == (None,) * 4 and found.reset_after


# ---------------------------------------------------------------- other libraries by their definitions


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_onnx_there_and_back(cell, after, directions, rng):
    arrays = draw_onnx(rng, cell, directions, peephole=cell == "lstm")
    direction = "bidirectional" if directions == 2 else "reverse"
    of = RnnWeights.from_onnx(cell, *arrays, linear_before_reset=int(after), direction=direction)
    assert of.reset_after == (after or cell != "gru")
    for have, want in zip(of.to_onnx(), arrays, strict=True):
        assert (have is None) == (want is None)
        if want is not None:
            np.testing.assert_array_equal(have, want)
    if "rnn" in cell:
        assert np.shares_memory(of.parts[0].w_ih, arrays[0]) and np.shares_memory(of.parts[0].b_hh, arrays[2])


def test_to_onnx_of_other_networks(rng):
    two = draw_weights(rng, "gru", layers=2, directions=2)
    back = RnnWeights.from_onnx("gru", *two.to_onnx(1), linear_before_reset=1, direction="bidirectional")
    for have, want in zip(back.parts, two.parts[2:], strict=True):
        for one, other in zip(have[:4], want[:4], strict=True):
            np.testing.assert_array_equal(one, other)
    half = RnnWeights.from_arrays("lstm", np.ones((8, 3)), np.ones((8, 2)), np.arange(8.0))
    np.testing.assert_array_equal(half.to_onnx()[2][0, 8:], np.zeros(8))
    for network, words in (
        (draw_weights(rng, "lstm", proj=2), "ONNX has no projection"),
        (draw_weights(rng, "gru", inputs=4, skip=True), "ONNX has no skip_input"),
    ):
        with pytest.raises(ValueError, match=words):
            network.to_onnx()
    with pytest.raises(ValueError, match="layer is 2; it must be 0 to 1"):
        two.to_onnx(2)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_relu"])
def test_miopen_buffer(cell, directions, skip, rng):
    """By the offsets of miopenGetRNNLayerParamOffset and ...BiasOffset, for which a layer is a layer and direction."""
    layers, hidden, gates = 3, 4, CELLS[cell]
    inputs = 4 if skip else 3
    first = 0 if skip else inputs
    matrices = directions * gates * hidden * (first + hidden + (layers - 1) * (directions + 1) * hidden)
    buffer = rng.standard_normal(matrices + layers * directions * gates * hidden * 2)
    of = RnnWeights.from_miopen(cell, buffer, inputs, hidden, layers, directions, skip_input=skip)
    miopen = {"lstm": "ifog", "gru": "zrn"}.get(cell, "h")
    for k, part in enumerate(of.parts):
        layer, d = divmod(k, directions)
        width = directions * hidden if layer else first
        before = directions * gates * hidden * (first + hidden + (layer - 1) * (directions + 1) * hidden) * (layer > 0)
        biases = matrices + layer * 2 * directions * gates * hidden
        for place, gate in enumerate(miopen):
            rows = slice(OURS[cell].index(gate) * hidden, (OURS[cell].index(gate) + 1) * hidden)
            at = before + (d * gates + place) * hidden * width
            if skip and not layer:
                assert part.w_ih is None
            else:
                assert (part.w_ih[rows].ravel() == buffer[at : at + hidden * width]).all()
            at = before + directions * gates * hidden * width + (d * gates + place) * hidden * hidden
            assert (part.w_hh[rows].ravel() == buffer[at : at + hidden * hidden]).all()
            at = biases + (d * gates + place) * hidden
            assert (part.b_ih[rows] == buffer[at : at + hidden]).all()
            at += directions * gates * hidden
            assert (part.b_hh[rows] == buffer[at : at + hidden]).all()
    assert cell != "rnn_relu" or np.shares_memory(of.parts[0].w_hh, buffer)


def onednn_steps(cell, x, w, u, b, p, r, after):
    """The outputs of one direction and sequence, x (T, input), by oneDNN's equations; gates i f c o, or u r o."""
    h, c, y = np.zeros(u.shape[0]), np.zeros(w.shape[2]), []
    for each in x:
        s = [each @ w[:, k] + b[k] for k in range(CELLS[cell])]
        q = [h @ u[:, k] for k in range(CELLS[cell])]
        if cell == "lstm":
            i, f = sigmoid(s[0] + q[0] + p[0] * c), sigmoid(s[1] + q[1] + p[1] * c)
            c = f * c + i * np.tanh(s[2] + q[2])
            h = (np.tanh(c) * sigmoid(s[3] + q[3] + p[2] * c)) @ r
        elif cell == "gru":
            update, reset = sigmoid(s[0] + q[0]), sigmoid(s[1] + q[1])
            new = np.tanh(s[2] + (reset * (q[2] + b[3]) if after else (reset * h) @ u[:, 2]))
            h = update * h + (1 - update) * new
        else:
            h = np.tanh(s[0] + q[0])
        y.append(h)
    return np.array(y)


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS[:4])
def test_onednn_equations(cell, after, rng):
    gates, lstm, lbr = CELLS[cell], cell == "lstm", cell == "gru" and after
    recurrent = 2 if lstm else 4
    w, u = rng.standard_normal((1, 2, 3, gates, 4)), rng.standard_normal((1, 2, recurrent, gates, 4))
    b = rng.standard_normal((1, 2, gates + lbr, 4))
    p, r = rng.standard_normal((1, 2, 3, 4)), rng.standard_normal((1, 2, 4, 2))
    words = {"peephole": p, "projection": r} if lstm else {"reset_after": after}
    of = RnnWeights.from_onednn(cell, w, u, b, **words)
    x = rng.standard_normal((5, 3))
    ways = [onednn_steps(cell, x[:: 1 - 2 * d], w[0, d], u[0, d], b[0, d], p[0, d], r[0, d], lbr) for d in (0, 1)]
    want = np.concatenate([ways[0], ways[1][::-1]], -1)
    np.testing.assert_allclose(forward(x[:, None], of)[0][:, 0], want, 1e-12, 1e-13)
    assert cell == "gru" or np.shares_memory(of.parts[1].w_ih, w)


def test_onednn_layers(rng):
    """Several layers in one array, which needs an input as wide as the outputs."""
    w, u, b = (rng.standard_normal((2, 1, *shape)) for shape in ((4, 3, 4), (4, 3, 4), (3, 4)))
    of = RnnWeights.from_onednn("gru", w, u, b)
    x = rng.standard_normal((5, 4))
    want = x
    for layer in (0, 1):
        want = onednn_steps("gru", want, w[layer, 0], u[layer, 0], b[layer, 0], None, None, False)
    assert of.layers == 2
    np.testing.assert_allclose(forward(x[:, None], of)[0][:, 0], want, 1e-12, 1e-13)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("cell", "after"), DEFINITIONS[:4])
def test_keras_equations(cell, after, bias, rng):
    gates, lbr = CELLS[cell], cell == "gru" and after
    kernel, recurrent = rng.standard_normal((3, 4 * gates)), rng.standard_normal((4, 4 * gates))
    given = rng.standard_normal((2, 4 * gates) if lbr else 4 * gates) if bias else None
    of = RnnWeights.from_keras(cell, kernel, recurrent, given, reset_after=after)
    x, h, c, want = rng.standard_normal((5, 3)), np.zeros(4), np.zeros(4), []
    b, rb = (np.zeros(4 * gates),) * 2 if not bias else given if lbr else (given, np.zeros(4 * gates))
    for each in x:
        s = np.split(each @ kernel + b, gates)
        q = np.split(h @ recurrent + rb, gates)
        if cell == "lstm":  # i f c o
            c = sigmoid(s[1] + q[1]) * c + sigmoid(s[0] + q[0]) * np.tanh(s[2] + q[2])
            h = sigmoid(s[3] + q[3]) * np.tanh(c)
        elif cell == "gru":  # z r h
            z, r = sigmoid(s[0] + q[0]), sigmoid(s[1] + q[1])
            h = z * h + (1 - z) * np.tanh(s[2] + (r * q[2] if after else (r * h) @ recurrent[:, 8:]))
        else:
            h = np.tanh(s[0] + q[0])
        want.append(h)
    np.testing.assert_allclose(forward(x[:, None], of)[0][:, 0], want, 1e-12, 1e-13)
    two = RnnWeights.from_keras(
        cell, [kernel] * 2, [recurrent] * 2, [given] * 2 if bias else None, directions=2, reset_after=after
    )
    np.testing.assert_array_equal(forward(x[:, None], two)[0][0, 0, 4:], forward(x[:, None], of, reverse=True)[0][0, 0])


@needs_torch
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"])
def test_torch_shares_memory(name):
    import torch

    class Own(getattr(torch.nn, name)):
        pass

    for nonlinearity in ("tanh", "relu") if "RNN" in name else (None,):
        module = Own(3, 4, **({"nonlinearity": nonlinearity} if nonlinearity else {}))
        of = RnnWeights.from_torch(module)
        assert of.cell == (f"rnn_{nonlinearity}" if nonlinearity else name[:4].lower().removesuffix("c"))
        assert (of.layers, of.input_size, of.hidden_size, of.dtype) == (1, 3, 4, "f32")
        with torch.no_grad():
            next(module.parameters())[1, 2] = 77
        assert of.parts[0].w_ih[1, 2] == 77 and type(of.parts[0].w_ih) is np.ndarray
    halves = RnnWeights.from_torch(module.bfloat16())
    assert type(halves.parts[0].w_hh) is torch.Tensor and halves.dtype == "bf16"
    assert (to_float64(halves.storages[0].w_ih, "bf16")[1, 2]) == 77
    with pytest.raises(TypeError, match="module is a Linear; it must be one of torch.nn's LSTM, GRU, RNN, LSTMCell"):
        RnnWeights.from_torch(torch.nn.Linear(2, 2))


@needs_torch
def test_tensors_are_reordered_as_arrays_are(rng):
    """Converters take tensors, of bfloat16 too, and keep them tensors."""
    import torch

    arrays = draw_onnx(rng, "lstm", 1)
    tensors = [None if x is None else torch.tensor(x).bfloat16() for x in arrays]
    of, want = RnnWeights.from_onnx("lstm", *tensors), RnnWeights.from_onnx("lstm", *arrays)
    assert type(of.parts[0].w_ih) is torch.Tensor and of.dtype == "bf16"
    np.testing.assert_allclose(of.parts[0].w_ih.double(), want.parts[0].w_ih, 2**-8)


# ---------------------------------------------------------------- the container


@pytest.mark.parametrize("library", ["numpy", pytest.param("torch", marks=needs_torch)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_dtypes(dtype, library, rng):
    if library == "numpy" and dtype not in NUMPY_FLOATS:
        pytest.skip("ml_dtypes is not installed")
    w_ih, w_hh = (caller_array(rng.standard_normal(shape), dtype, library) for shape in ((8, 3), (8, 2)))
    of = RnnWeights.from_arrays("lstm", w_ih, w_hh)
    assert of.dtype == dtype and of.parts[0].w_ih is w_ih and of.library.name == library
    np.testing.assert_array_equal(to_float64(of.storages[0].w_hh, dtype), to_float64(w_hh))


def test_sizes_and_identity(rng):
    of = draw_weights(rng, "lstm", layers=3, directions=2, proj=2)
    assert (of.layers, of.directions, of.input_size, of.hidden_size, of.proj_size, of.out_size) == (3, 2, 3, 4, 2, 2)
    assert [of.sizes(layer) for layer in range(3)] == [3, 4, 4]
    assert [draw_weights(rng, "gru", layers=2, directions=2, merge="sum").sizes(k) for k in (0, 1)] == [3, 4]
    assert draw_weights(rng, "gru", inputs=4, skip=True).sizes(0) == 4
    twin = RnnWeights(of.cell, of.parts, of.directions)
    assert of == of and of != twin and len({of, twin}) == 2
    assert twin.parts[1].w_hr is of.parts[1].w_hr
    with pytest.raises(dataclasses.FrozenInstanceError):
        of.cell = "gru"
    assert "array" not in repr(of)
    joined = RnnWeights("lstm", draw_weights(rng, "lstm").parts + draw_weights(rng, "lstm", inputs=4).parts)
    assert joined.layers == 2


@pytest.mark.parametrize("make", [lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy])
def test_copies_are_whole(make, rng):
    of = draw_weights(rng, "gru", layers=2, inputs=4, skip=True, after=False)
    twin = make(of)
    assert repr(twin) == repr(of) and not twin.reset_after and twin.skip_input and twin.parts[0].w_ih is None
    x = rng.standard_normal((3, 2, 4))
    np.testing.assert_array_equal(forward(x, twin)[0], forward(x, of)[0])


def ones(*shape, dtype=np.float64):
    return np.ones(shape, dtype)


LSTM = {"cell": "lstm", "w_ih": ones(8, 3), "w_hh": ones(8, 2)}
TWO = {"cell": "gru", "w_ih": [ones(6, 3)] * 2, "w_hh": [ones(6, 2)] * 2, "directions": 2}
MORE = {"cell": "gru", "w_ih": [ones(6, 3)] * 2 + [ones(6, 4)] * 2, "w_hh": [ones(6, 2)] * 4, "directions": 2}


@pytest.mark.parametrize(("given", "changes", "error", "words"), [
    (LSTM, {"cell": "lsmt"}, ValueError, "cell is 'lsmt'; it must be one of lstm, gru, rnn_tanh, rnn_relu"),
    (LSTM, {"directions": 3}, ValueError, "directions is 3; it must be 1 or 2"),
    (LSTM, {"directions": 2}, ValueError, "parts has 1 elements; it must have one a layer and direction"),
    (LSTM, {"reset_after": False}, ValueError, "reset_after is False; lstm has no reset gate"),
    (LSTM, {"w_hh": ones(8)}, ValueError, r"w_hh_l0 is a float64 array \(8,\); it must have shape \(4 \* hidden, hid"),
    (LSTM, {"w_hh": ones(3, 2)}, ValueError, r"w_hh_l0 is a float64 array \(3, 2\); it must have 4 rows for each hid"),
    (LSTM, {"w_hh": ones(9, 2)}, ValueError, r"w_ih_l0 is a float64 array \(8, 3\)|w_hh_l0 is a float64 array \(9"),
    (LSTM, {"w_hh": ones(8, 3)}, ValueError, r"w_hh_l0 is a float64 array \(8, 3\); it must have shape \(8, 2\)"),
    (LSTM, {"w_ih": ones(6, 3)}, ValueError, r"w_ih_l0 is a float64 array \(6, 3\); it must have shape \(8, input\)"),
    (LSTM, {"w_ih": None}, TypeError, "w_ih_l0 is a NoneType; it must be a NumPy array"),
    (LSTM, {"b_ih": ones(6)}, ValueError, r"b_ih_l0 is a float64 array \(6,\); it must have shape \(8,\)"),
    (LSTM, {"b_ih": ones(8, dtype=np.float32)}, TypeError, "w_hh_l0 is a float64 .* and b_ih_l0 a float32"),
    (LSTM, {"w_ih": ones(8, 3, dtype=np.int8), "w_hh": ones(8, 2, dtype=np.int8)}, TypeError, "a network takes"),
    (LSTM, {"w_hr": ones(1, 3)}, ValueError, r"w_hr_l0 is a float64 array \(1, 3\); .* \(projection, 2\)"),
    (LSTM, {"w_hr": ones(1, 2)}, ValueError, r"w_hh_l0 is a float64 array \(8, 2\); it must have shape \(8, 1\)"),
    (LSTM, {"peephole": ones(4, 2)}, ValueError, r"peephole_l0 is a float64 array \(4, 2\); .* \(3, 2\)"),
    (LSTM, {"skip_input": True}, ValueError, "w_ih_l0 is a .*; with skip_input the first layer has none"),
    (LSTM, {"w_ih": [ones(8, 3)] * 2}, ValueError, "w_ih has 2 arrays and w_hh 1; give one a layer and direction"),
    (TWO, {"b_ih": [ones(6), None]}, ValueError, r"b_ih_l0_reverse is missing; it must have shape \(6,\)"),
    (TWO, {"b_ih": [None, ones(6)]}, ValueError, r"b_ih_l0_reverse is a float64 array \(6,\); b_ih_l0 is None"),
    (TWO, {"peephole": [ones(3, 2)] * 2}, ValueError, r"peephole_l0 is a float64 array \(3, 2\); gru has none"),
    (TWO, {"w_hr": [ones(1, 2)] * 2, "w_hh": [ones(6, 1)] * 2}, ValueError, "w_hr_l0 is a .*; gru has none"),
    (TWO, {"w_ih": [ones(6, 3), ones(6, 2)]}, ValueError, r"w_ih_l0_reverse is a float64 array \(6, 2\)"),
    (MORE, {"w_ih": [ones(6, 3)] * 4}, ValueError,
     r"w_ih_l1 is a .* \(6, 3\); it must have shape \(6, 4\) or \(6, 2\)$"),
    (MORE, {"w_ih": [*[ones(6, 3)] * 2, ones(6, 4), ones(6, 2)]}, ValueError, r"w_ih_l1_reverse is a .* \(6, 2\)"),
    (MORE, {"w_ih": [*[ones(6, 3)] * 2, None, None]}, TypeError, "w_ih_l1 is a NoneType"),
])  # fmt: skip
def test_refusals(given, changes, error, words):
    assert RnnWeights.from_arrays(**given).layers
    with pytest.raises(error, match=words):
        RnnWeights.from_arrays(**{**given, **changes})


@pytest.mark.parametrize(("make", "error", "words"), [
    (lambda: RnnWeights.from_onnx("lstm", ones(1, 8, 3), ones(1, 6, 2)), ValueError, r"R is a .* \(1, 8, 2\)"),
    (lambda: RnnWeights.from_onnx("lstm", ones(8, 3), ones(1, 8, 2)), ValueError, r"W is a .* \(1, 8, input\)"),
    (lambda: RnnWeights.from_onnx("lstm", ones(1, 8, 3), ones(1, 8, 2), ones(1, 8)), ValueError, r"B is a .*\(1, 16\)"),
    (lambda: RnnWeights.from_onnx("gru", ones(1, 6, 3), ones(1, 6, 2), direction="both"), ValueError, "direction is"),
    (lambda: RnnWeights.from_onnx("gru", ones(1, 6, 3), ones(1, 6, 2), direction="bidirectional"), ValueError, "R is"),
    (lambda: RnnWeights.from_miopen("gru", ones(5), 3, 2), ValueError, r"weights is a .* \(5,\); .* \(42,\)"),
    (lambda: RnnWeights.from_onednn("gru", ones(1, 1, 3, 4, 2), None), ValueError, "weights_layer is a .* 3, hidden"),
    (lambda: RnnWeights.from_onednn("gru", ones(1, 1, 3, 3, 2), ones(1, 1, 2, 3, 2), ones(1, 1, 4, 2)), ValueError,
     r"bias is a .* \(1, 1, 3, 2\)"),
    (lambda: RnnWeights.from_keras("gru", ones(3, 6), ones(2, 6), ones(6)), ValueError, r"bias is a .* \(2, 6\)"),
    (lambda: RnnWeights.from_keras("gru", [ones(3, 6)] * 2, [ones(2, 6), ones(2, 5)]), ValueError,
     r"recurrent_kernel\[1\] is a .* \(2, 6\)"),
    (lambda: RnnWeights.from_keras("gru", [[1]], [[2]]), TypeError, "recurrent_kernel is a list"),
])  # fmt: skip
def test_converters_refuse(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_the_page_runs():
    """Every example of docs/primitives/rnn.md prints what it says."""
    page = Path(__file__).resolve().parent.parent / "docs" / "primitives" / "rnn.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert tried > 15 and not failed
