"""Recurrent networks' definition: against torch, ONNX's rules, finite differences, and what follows from the others."""

import numpy as np
import pytest
from helpers import has_module
from rnn_cases import DEFINITIONS, draw_onnx, draw_weights, in_onnx_order, onnx_node

from numbaprims import RnnWeights
from numbaprims.philox import dropout_mask
from numbaprims.recurrent.parts import RnnPart
from numbaprims.reference.rnn import forward
from numbaprims.reference.rnn_backward import backward

needs_torch = pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")
LENGTHS = [2, 5, 1, 4]


def close(have, want, rtol=1e-12, atol=1e-13):
    np.testing.assert_allclose(have, want, rtol, atol)


# ---------------------------------------------------------------- torch


@needs_torch
@pytest.mark.parametrize("how", ["time", "batch", "packed", "packed batch"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize(("cell", "proj"), [("LSTM", 0), ("LSTM", 2), ("GRU", 0), ("tanh", 0), ("relu", 0)])
def test_is_torchs(cell, proj, layers, directions, bias, how, rng):
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    torch.manual_seed(int(rng.integers(1 << 30)))
    batch_first, packed, lstm = "batch" in how, "packed" in how, cell == "LSTM"
    words = {"bias": bias, "bidirectional": directions == 2, "batch_first": batch_first, "dtype": torch.float64}
    words |= {"proj_size": proj} if proj else {} if cell.isupper() else {"nonlinearity": cell}
    module = getattr(torch.nn, cell if cell.isupper() else "RNN")(3, 4, layers, **words)
    x = torch.randn((4, 5, 3) if batch_first else (5, 4, 3), dtype=torch.float64, requires_grad=True)
    sizes = (proj or 4, 4) if lstm else (4,)
    states = [torch.randn(layers * directions, 4, size, dtype=torch.float64, requires_grad=True) for size in sizes]
    given = pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first, False) if packed else x
    y, last = module(given, tuple(states) if lstm else states[0])
    y = pad_packed_sequence(y, batch_first, total_length=5)[0] if packed else y
    results = (y, *last) if lstm else (y, last)
    errors = [torch.randn_like(each) for each in results]
    torch.autograd.backward(results, errors)

    weights = RnnWeights.from_torch(module)
    h0, c0 = ([each.detach().numpy() for each in states] + [None])[:2]
    *found, reserve = forward(
        x.detach().numpy(), weights, h0, c0, LENGTHS if packed else None, batch_first=batch_first, return_reserve=True
    )
    for have, want in zip(found, results, strict=True):
        close(have, want.detach().numpy())
    dx, dh0, dc0, parts = backward(*([each.numpy() for each in errors] + [None])[:3], reserve)
    close(dx, x.grad.numpy())
    for have, want in zip((dh0, dc0), states, strict=False):
        close(have, want.grad.numpy())
    assert (dc0 is None) == (not lstm)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr", "peephole")
    compared = 0
    for k, part in enumerate(parts):
        for name, have in zip(names, part, strict=True):
            want = getattr(module, f"{name}_l{k // directions}{'_reverse' if k % directions else ''}", None)
            assert (have is None) == (want is None)
            if have is not None:
                close(have, want.grad.numpy())
                compared += 1
    assert compared == layers * directions * (2 + 2 * bias + bool(proj))


@needs_torch
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_is_torchs_at_its_defaults(cell):
    """States of zero, one sequence, one step, gradients of the outputs only."""
    import torch

    module = getattr(torch.nn, cell)(3, 4, dtype=torch.float64)
    x = torch.randn(1, 1, 3, dtype=torch.float64, requires_grad=True)
    y = module(x)[0]
    y.sum().backward()
    have, *_, reserve = forward(x.detach().numpy(), RnnWeights.from_torch(module), return_reserve=True)
    close(have, y.detach().numpy())
    dx, *_, parts = backward(np.ones((1, 1, 4)), None, None, reserve)
    close(dx, x.grad.numpy())
    close(parts[0].w_hh, module.weight_hh_l0.grad.numpy())


# ---------------------------------------------------------------- ONNX


VARIANTS_OF_ONNX = [
    (cell, after, variant)
    for cell, after in DEFINITIONS
    for variant in ("bias", "plain", "clip", "peephole", "peephole clip")
    if cell == "lstm" or "peephole" not in variant
]


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("cell", "after", "variant"), VARIANTS_OF_ONNX)
def test_is_onnxs(cell, after, variant, direction, rng):
    directions, clip = 1 + (direction == "bidirectional"), 0.4 if "clip" in variant else 0.0
    arrays = draw_onnx(rng, cell, directions, bias=variant != "plain", peephole="peephole" in variant)
    x, (h0, c0) = rng.standard_normal((5, 4, 3)), rng.standard_normal((2, directions, 4, 4))
    weights = RnnWeights.from_onnx(cell, *arrays, linear_before_reset=int(after and cell == "gru"), direction=direction)
    words = {"clip": clip, "reverse": direction == "reverse"}
    y, *states = forward(x, weights, h0, c0 if cell == "lstm" else None, LENGTHS, **words)
    rules = {"direction": direction, "linear_before_reset": after, "clip": clip}
    wanted = onnx_node(cell, x, *arrays, h0, c0, LENGTHS, **rules)
    for have, want in zip((in_onnx_order(y, directions), *states), wanted, strict=False):
        close(have, want)
    if clip:
        assert np.abs(y - forward(x, weights, h0, c0, LENGTHS, reverse=direction == "reverse")[0]).max() > 1e-3


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_onnx_rules_are_onnxruntimes(cell, after, direction, rng):
    """The loop above is ONNX's: onnxruntime gives the same in float32, with lengths, clip and peepholes."""
    runtime, onnx = pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
    directions, lstm = 1 + (direction == "bidirectional"), cell == "lstm"
    W, R, B, P = draw_onnx(rng, cell, directions, peephole=lstm)
    x, (h0, c0) = rng.standard_normal((5, 4, 3)), rng.standard_normal((2, directions, 4, 4))
    inputs = {"X": x, "W": W, "R": R, "B": B, "lengths": np.array(LENGTHS, np.int32), "h0": h0}
    inputs |= {"c0": c0, "P": P} if lstm else {}
    inputs = {k: v.astype(np.float32) if v.dtype.kind == "f" else v for k, v in inputs.items()}
    words = {"hidden_size": 4, "direction": direction, "clip": 0.4}
    words |= {"linear_before_reset": int(after)} if cell == "gru" else {}
    words |= {"activations": [{"rnn_tanh": "Tanh", "rnn_relu": "Relu"}[cell]] * directions} if "rnn" in cell else {}
    outputs = ["Y", "Y_h", "Y_c"] if lstm else ["Y", "Y_h"]
    node = onnx.helper.make_node({"lstm": "LSTM", "gru": "GRU"}.get(cell, "RNN"), list(inputs), outputs, **words)

    def described(name, shape, dtype=np.float32):
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return onnx.helper.make_tensor_value_info(name, kind, shape)

    values = [described(name, value.shape, value.dtype) for name, value in inputs.items()]
    graph = onnx.helper.make_graph([node], "g", values, [described(name, None) for name in outputs])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    theirs = session.run(None, inputs)
    rules = {"direction": direction, "linear_before_reset": after, "clip": 0.4}
    ours = onnx_node(cell, x, W, R, B, P if lstm else None, h0, c0, LENGTHS, **rules)
    for have, want in zip(theirs, ours, strict=False):
        np.testing.assert_allclose(have, want, 1e-4, 1e-5)


# ---------------------------------------------------------------- gradients by finite differences

VARIANTS = {
    "peephole": ("lstm", {"peephole": True}, {}),
    "peephole, projection": ("lstm", {"peephole": True, "proj": 2, "directions": 2}, {}),
    "reset before": ("gru", {"after": False, "layers": 2, "directions": 2}, {}),
    "reset before, clip": ("gru", {"after": False}, {"clip": 0.5}),
    "reset after, clip": ("gru", {}, {"clip": 0.5}),
    "clip": ("lstm", {"peephole": True}, {"clip": 0.5}),
    "relu, clip": ("rnn_relu", {}, {"clip": 0.5}),
    "sum": ("lstm", {"layers": 2, "directions": 2, "merge": "sum"}, {"merge": "sum"}),
    "skip": ("gru", {"layers": 2, "inputs": 4, "skip": True}, {}),
    "skip, both ways": ("lstm", {"inputs": 4, "skip": True, "directions": 2}, {}),
    "reverse": ("rnn_tanh", {"layers": 2}, {"reverse": True}),
    "dropout": ("lstm", {"layers": 3, "directions": 2}, {"dropout": 0.4, "seed": 5, "offset": 2}),
    "batch first": ("gru", {"layers": 2}, {"batch_first": True, "dropout": 0.4}),
}


@pytest.mark.parametrize("lengths", [None, [2, 5, 0, 4]], ids=["equal", "lengths"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_are_slopes(variant, lengths, rng):
    cell, drawn, words = VARIANTS[variant]
    weights = draw_weights(rng, cell, **drawn)
    count = len(weights.parts)
    x = rng.standard_normal((5, 4, weights.input_size))
    inputs = {"x": x.swapaxes(0, 1) if words.get("batch_first") else x}
    inputs["h0"] = rng.standard_normal((count, 4, weights.out_size))
    if cell == "lstm":
        inputs["c0"] = rng.standard_normal((count, 4, weights.hidden_size))
    for k, part in enumerate(weights.parts):
        inputs |= {(k, field): each for field, each in part._asdict().items() if each is not None}

    def results(inputs, **more):
        parts = [RnnPart(**{f: inputs.get((k, f)) for f in RnnPart._fields}) for k in range(count)]
        network = RnnWeights(cell, tuple(parts), weights.directions, weights.reset_after, weights.skip_input)
        return forward(inputs["x"], network, inputs["h0"], inputs.get("c0"), lengths, **words, **more)

    *given, reserve = results(inputs, return_reserve=True)
    errors = [rng.standard_normal(each.shape) for each in given]
    dx, dh0, dc0, grads = backward(*errors, *[None] * (3 - len(errors)), reserve)
    found = {"x": dx, "h0": dh0, "c0": dc0}
    found |= {(k, field): each for k, part in enumerate(grads) for field, each in part._asdict().items()}
    assert {name for name, each in found.items() if each is not None} == set(inputs)
    for name, array in inputs.items():
        assert found[name].shape == array.shape and np.abs(found[name]).max() > 1e-3
        direction = rng.standard_normal(array.shape)
        ends = [results({**inputs, name: array + step * direction}) for step in (1e-6, -1e-6)]
        slope = sum((error * (up - down)).sum() for error, up, down in zip(errors, *ends, strict=True)) / 2e-6
        exact = (found[name] * direction).sum()
        assert abs(slope - exact) < 1e-7 * max(1.0, abs(exact)), name


# ---------------------------------------------------------------- what follows


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
@pytest.mark.parametrize("directions", [1, 2])
def test_a_batch_is_its_sequences(cell, after, directions, rng):
    """Each sequence alone, of its own length, gives the same; what pads it is not looked at."""
    weights = draw_weights(rng, cell, layers=2, directions=directions, after=after)
    x, lengths = rng.standard_normal((6, 4, 3)), [3, 0, 6, 1]
    for n, length in enumerate(lengths):
        x[length:, n] = np.nan
    states = rng.standard_normal((2, len(weights.parts), 4, 4))
    y, *last, reserve = forward(x, weights, *states, lengths=lengths, return_reserve=True)
    dx, dh0, _, grads = backward(np.where(np.isnan(x[..., :1]), np.nan, 1.0) + 0 * y, None, None, reserve)
    assert all(np.isfinite(each).all() for part in grads for each in part if each is not None)
    for n, length in enumerate(lengths):
        alone, *ends, kept = forward(x[:length, n : n + 1], weights, *states[:, :, n : n + 1], return_reserve=True)
        close(y[:length, n : n + 1], alone)
        assert not y[length:, n].any() and not dx[length:, n].any()
        for have, want in zip(last, ends, strict=True):
            close(have[:, n : n + 1], want)
        dx_alone, dh0_alone, *_ = backward(np.ones(alone.shape), None, None, kept)
        close(dx[:length, n : n + 1], dx_alone)
        close(dh0[:, n : n + 1], dh0_alone)


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh"])
def test_reverse_is_forward_of_the_reversed(cell, rng):
    weights, x = draw_weights(rng, cell, layers=2), rng.standard_normal((5, 3, 3))
    y, *last = forward(x, weights, reverse=True)
    turned, *ends = forward(x[::-1], weights)
    close(y, turned[::-1])
    for have, want in zip(last, ends, strict=True):
        close(have, want)
    with pytest.raises(ValueError, match="a network of two directions goes both ways"):
        forward(x, draw_weights(rng, cell, directions=2), reverse=True)


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_relu"])
def test_two_directions_are_two_networks(cell, rng):
    both, x = draw_weights(rng, cell, directions=2), rng.standard_normal((5, 3, 3))
    ways = [RnnWeights(cell, (part,)) for part in both.parts]
    one, other = forward(x, ways[0])[0], forward(x, ways[1], reverse=True)[0]
    close(forward(x, both)[0], np.concatenate([one, other], -1))
    close(forward(x, both, merge="sum")[0], one + other)


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_skipped_input_is_a_product_with_ones(cell, after, rng):
    weights = draw_weights(rng, cell, layers=2, inputs=4, skip=True, after=after)
    x = rng.standard_normal((5, 3, 4))
    gates = weights.parts[0].w_hh.shape[0] // 4
    first = weights.parts[0]._replace(w_ih=np.tile(np.eye(4), (gates, 1)))
    product = RnnWeights(cell, (first, weights.parts[1]), 1, after)
    for have, want in zip(forward(x, weights), forward(x, product), strict=True):
        close(have, want)


@pytest.mark.parametrize("batch_first", [False, True])
def test_dropout_stands_between_layers(batch_first, rng):
    """Layers one by one, with the masks between them, give the same; the last layer and one alone have none."""
    weights = draw_weights(rng, "gru", layers=3, directions=2)
    x, lengths = rng.standard_normal((5, 3, 3)), [5, 2, 4]
    y = x
    for layer in range(3):
        y = forward(y, RnnWeights("gru", weights.parts[2 * layer : 2 * layer + 2], 2), lengths=lengths)[0]
        if layer < 2:
            y = np.where(dropout_mask(y.shape, 0.25, 11, 7 + layer), y / 0.75, 0.0)
    given = x.swapaxes(0, 1) if batch_first else x
    words = {"lengths": lengths, "batch_first": batch_first, "seed": 11, "offset": 7}
    have = forward(given, weights, dropout=0.25, **words)[0]
    close(have.swapaxes(0, 1) if batch_first else have, y)
    assert np.abs(have - forward(given, weights, **words)[0]).max() > 1e-3
    assert np.isfinite(forward(given, weights, dropout=1.0, **words)[0]).all()
    one = draw_weights(rng, "gru")
    assert (forward(x, one, dropout=0.5)[0] == forward(x, one)[0]).all()


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh"])
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("shape", [(0, 2), (3, 0), (0, 0), (1, 1)])
def test_nothing_and_one(shape, skip, cell, directions, rng):
    steps, batch = shape
    weights, lstm = draw_weights(rng, cell, layers=2, directions=directions, skip=skip), cell == "lstm"
    x_shape = (*shape, weights.input_size)
    states = list(rng.standard_normal((1 + lstm, len(weights.parts), batch, 4)))
    y, *last, reserve = forward(np.ones(x_shape), weights, *states, dropout=0.5, return_reserve=True)
    assert y.shape == (*shape, 4 * directions)
    errors = [rng.standard_normal(each.shape) for each in last]
    dx, dh0, dc0, grads = backward(np.ones(y.shape), *errors, *[None] * (not lstm), reserve)
    assert dx.shape == x_shape and dh0.shape == states[0].shape
    assert [len(part) for part in grads] == [6] * len(weights.parts)
    for have, state, gradient, error in zip(last, states, (dh0, dc0), errors, strict=False):
        assert have.shape == state.shape == gradient.shape
        if not steps:
            assert (have == state).all() and (gradient == error).all()
