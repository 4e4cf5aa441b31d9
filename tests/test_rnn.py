"""Recurrent networks: what the contract suite does not ask for: missing states, dropout, half precisions by every
solver, the number of products."""

import dataclasses
import re

import numpy as np
import pytest
from helpers import in_turn
from rnn_cases import DEFINITIONS, cast, draw_onnx, draw_weights, onnx_node
from solver_probes import PROBES

import numbaprims
from numbaprims import RnnWeights, settings
from numbaprims.cpu import target
from numbaprims.cpu.rnn import SOLVERS
from numbaprims.dispatch.choose import Posed, Trial
from numbaprims.dispatch.explain import problem_of

TOLERANCE = {"f64": 1e-12, "f32": 2e-5, "f16": 4e-2, "bf16": 2e-1}


def close(found, wanted, tolerance):
    for a, b in zip(found, wanted, strict=True):
        if b is None:
            assert a is None
        elif isinstance(b, tuple):
            close(a, b, tolerance)
        else:
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            np.testing.assert_allclose(a, b, atol=tolerance * max(1.0, abs(b).max(initial=0)), rtol=0)


def draw(rng, cell, after, dtype, steps, batch, inputs, start, lengths, more):
    """(arrays, keywords) of a call, by what `more` says of weights and call."""
    call = {k: more.pop(k) for k in ("batch_first", "reverse", "merge") if k in more}
    merge = call.get("merge", "concat")
    weights = cast(draw_weights(rng, cell, after=after, inputs=inputs, merge=merge, **more), dtype)
    shape = (batch, steps, inputs) if call.get("batch_first") else (steps, batch, inputs)
    parts = len(weights.parts)

    def state(width):
        return rng.standard_normal((parts, batch, width)).astype(dtype) if start else None

    given = (rng.standard_normal(shape).astype(dtype), weights, state(weights.out_size))
    return given + ((state(weights.hidden_size),) if cell == "lstm" else ()), {**call, "lengths": lengths}


def check_inference(
    rng, cell, after, dtype=np.float64, *, steps=5, batch=3, inputs=7, start=True, lengths=None,
    algorithm="", **more,
):  # fmt: skip
    """The kernels of a solver against the definition; the arrays, keywords and tolerance."""
    given, call = draw(rng, cell, after, dtype, steps, batch, inputs, start, lengths, more)
    name, tolerance = cell.partition("_")[0], TOLERANCE[given[1].dtype]
    forward = getattr(numbaprims, name)
    with numbaprims.config(algorithm=algorithm):
        found = forward(*given, **call)
    with numbaprims.config(device="reference"):
        close(found, forward(*given, **call), tolerance)
    return given, call, tolerance


def check(rng, cell, after, dtype=np.float64, dropout=None, **more):
    """Inference, training and the gradient against the definition."""
    given, call, tolerance = check_inference(rng, cell, after, dtype, **more)
    name = cell.partition("_")[0]
    train, backward = (getattr(numbaprims, name + way) for way in ("_train", "_backward"))
    call |= dropout or {}
    *found, reserve = train(*given, **call)
    with numbaprims.config(device="reference"):
        *wanted, definition = train(*given, **call)
    close(found, wanted, tolerance)
    close(reserve[-3:], definition[-3:], tolerance)
    errors = [rng.standard_normal(each.shape).astype(dtype) for each in wanted]
    for dy in (errors, [errors[0], *[None] * (len(errors) - 1)]):
        found = backward(*dy, reserve)
        with numbaprims.config(device="reference"):
            wanted = backward(*dy, definition)
        close(found, wanted, tolerance * 10)


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_states_may_be_missing(rng, cell, after):
    check(rng, cell, after, np.float32, steps=7, batch=19, inputs=5, hidden=37, start=False)


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_sequences_without_steps(rng, cell, after):
    check(rng, cell, after, batch=2, lengths=[0, 0])


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_no_steps_at_all(rng, cell, after):
    weights = draw_weights(rng, cell, after=after, layers=2, directions=2)
    states = [rng.standard_normal((4, 3, 4)) for _ in range(2 if cell == "lstm" else 1)]
    name, x = cell.partition("_")[0], np.zeros((0, 3, 3))
    y, *last, reserve = getattr(numbaprims, f"{name}_train")(x, weights, *states)
    assert y.shape == (0, 3, 8)
    dx, *first, parts = getattr(numbaprims, f"{name}_backward")(y, *states, reserve)
    assert dx.shape == x.shape
    assert not any(each.any() for part in parts for each in part if each is not None)
    close([*last, *first], [*states, *states], 0.0)


@pytest.mark.parametrize(("cell", "after", "dtype"), in_turn(DEFINITIONS, [np.float64, np.float32, np.float16]))
def test_no_inputs(rng, cell, after, dtype):
    check(rng, cell, after, dtype, inputs=0)
    check(rng, cell, after, dtype, inputs=0, layers=2, directions=2, merge="sum", lengths=[4, 0, 5])
    weights, name = cast(draw_weights(rng, cell, after=after, inputs=0), dtype), cell.partition("_")[0]
    *y, reserve = getattr(numbaprims, f"{name}_train")(np.zeros((4, 0), dtype), weights, batch_sizes=[2, 1, 1])
    dx, *_, (part,) = getattr(numbaprims, f"{name}_backward")(*y, reserve)
    assert dx.shape == (4, 0) and part.w_ih.shape == weights.parts[0].w_ih.shape


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize(("words", "error", "message"), [
    ({"dropout": -0.1}, ValueError, "dropout is -0.1; a probability lies between 0 and 1"),
    ({"dropout": 1.1}, ValueError, "dropout is 1.1"), ({"dropout": float("nan")}, ValueError, "dropout is nan"),
    ({"dropout": "half"}, TypeError, "dropout is 'half'"), ({"seed": -1}, ValueError, "seed is -1"),
    ({"seed": 0.5}, TypeError, "seed is 0.5"), ({"dropout": 0.5, "offset": 2**64}, ValueError, "offset is 1844"),
])  # fmt: skip
def test_what_dropout_refuses(rng, cell, words, error, message):
    """Of one layer too, between whose outputs nothing is dropped."""
    weights = draw_weights(rng, "rnn_tanh" if cell == "rnn" else cell)
    with pytest.raises(error, match=re.escape(message)):
        getattr(numbaprims, f"{cell}_train")(np.zeros((2, 2, 3)), weights, **words)


@pytest.mark.parametrize(("x", "error", "message"), [
    (np.zeros((4, 3)), ValueError, "x has 4 rows; batch_sizes say 3"),
    (np.zeros((3, 1, 3)), ValueError, "x is a float64 array (3, 1, 3); with batch_sizes it must be packed rows"),
    (3, TypeError, "x is a int; it must be a NumPy array"),
])  # fmt: skip
def test_what_is_packed_rows(rng, x, error, message):
    with pytest.raises(error, match=re.escape(message)):
        numbaprims.gru(x, draw_weights(rng, "gru"), batch_sizes=[2, 1])


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_dropout(rng, cell):
    dropout = {"dropout": 0.4, "seed": 2**63 + 7, "offset": 2**32 - 1}
    check(rng, cell, True, dropout=dropout, layers=3, directions=2, hidden=5)
    check(rng, cell, True, dropout=dropout, layers=2, batch_first=True, hidden=9, lengths=[4, 0, 5], merge="sum")
    check(rng, cell, True, np.float16, dropout={"dropout": 1.0}, layers=2)


@pytest.mark.parametrize(("cell", "after"), [("gru", False), ("rnn_relu", True)])
def test_half(rng, cell, after):
    """The definitions that are not the first ones of the contract suite."""
    check(rng, cell, after, np.float16, layers=2, directions=2, hidden=18, batch=4)


@pytest.mark.parametrize("solver", ["single_gemm", "step_by_step", "naive"])
@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_half_by_every_solver(rng, cell, after, solver):
    more = {"proj": 3 if cell == "lstm" else 0, "peephole": cell == "lstm"}
    check_inference(rng, cell, after, np.float16, algorithm=f"rnn:{solver}", reverse=True, batch_first=True, **more)


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh"])
def test_calls_of_products(rng, cell, steps=9):
    """One product for the inputs, one a step for the states; of the gradient one for dx and two for the weights."""
    weights = draw_weights(rng, cell, inputs=6, hidden=20)
    name = cell.partition("_")[0]
    x = rng.standard_normal((steps, 4, 6))

    def phases(function, *args):
        text = str(numbaprims.explain(function, *args, phases=True))
        print(text)
        return text

    text = phases(name, x, weights)
    assert len(re.findall("gemm_(?:direct_driver|private|shared):", text)) == 1
    assert f"{steps} times:\n" in text and text.count("rnn_step:") == 1
    *results, reserve = getattr(numbaprims, name + "_train")(x, weights)
    text = phases(name + "_backward", results[0], *[None] * (len(results) - 1), reserve)
    assert text.count("rnn_back_step:") == 1 and f"{steps} times:\n" in text


@pytest.mark.parametrize("name", ["lstm_train", "gru_backward"])
def test_find_checks_all_that_a_call_gives(name):
    """A reserve and gradients of weights are containers of results."""
    function, args, words = next(call for call in PROBES["rnn"] if call[0] == name)
    problem = problem_of(function, *args, **words)
    assert all(
        each.error is not None and each.error < 1e-5 for each in numbaprims.find(problem, check=True, store=False)
    )


def test_short_steps_stay_in_one_thread():
    """Workers would wait for each other longer than they compute; weights of bytes make steps shorter."""

    def workers(hidden, batch, **words):
        weights = numbaprims.RnnWeights.from_arrays(
            "lstm", np.zeros((4 * hidden, 8), np.float32), np.zeros((4 * hidden, hidden), np.float32)
        )
        x = np.zeros((9, batch, 8), np.float32)
        with settings.trial(Trial()), pytest.raises(Posed) as posed:
            numbaprims.lstm.plan(weights, **words)(x)
        return SOLVERS[0].program(posed.value.problem, core, {}).most_workers

    facts = dict(name="znver4", l1d=32 << 10, l2=1 << 20, l3=32 << 20, cores_physical=2, measured=None)
    core = dataclasses.replace(target.current(), **facts)

    assert workers(32, 1) == workers(64, 1, quantize="int8") == workers(200, 1, quantize="int8") == 1
    assert workers(256, 16) > 1 and workers(1024, 1) > 1 and workers(1024, 1, quantize="int8") > 1


@pytest.mark.parametrize("batch", [1, 3, 50])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh"])
def test_half_weights_of_2_and_more(rng, cell, batch, hidden=40):
    """Panels are packed in pairs of 15 bits where all weights are below 2, with the same bits: a unit that stays zero
    gets large weights, and then infinite ones and NaN."""
    weights = cast(draw_weights(rng, cell, inputs=5, hidden=hidden, directions=2), np.float16)
    for part in weights.parts:
        for each in (part.w_ih, part.w_hh, part.b_ih, part.b_hh):
            each[hidden - 1 :: hidden] = 0.0
        part.w_hh[:, -1] = 1.999
        part.w_hh.flat[:3] = 2.0**-24, -(2.0**-15), -0.0
    h0 = rng.standard_normal((2, batch, hidden)).astype(np.float16)
    h0[:, :, 0], h0[:, :, -1] = 65504.0, 0.0
    states = (h0, h0) if cell == "lstm" else (h0,)
    function, x = getattr(numbaprims, cell.partition("_")[0]), rng.standard_normal((4, batch, 5)).astype(np.float16)
    words = {"lengths": rng.integers(1, 5, batch)} if batch > 1 else {}
    found = []
    for large in (1.999, 2.0, np.inf, np.nan):
        for part in weights.parts:
            part.w_hh[:, -1] = large
        found.append(function(x, weights, *states, **words)[0])
    np.testing.assert_array_equal(found[0], found[1])
    assert np.isfinite(found[0]).all() and np.abs(found[0]).max() > 0.1
    assert np.isnan(found[2][0]).all() and np.isnan(found[3][0]).all()


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_onnx_batchwise(rng, cell, after, direction):
    """layout=1: X (N, T, I), states (N, D, H), Y (N, T, D, H), by the definition of layout=0."""
    directions, lengths = 1 + (direction == "bidirectional"), [5, 2, 0, 4]
    arrays = draw_onnx(rng, cell, directions, peephole=cell == "lstm")
    x, (h0, c0) = rng.standard_normal((4, 5, 3)), rng.standard_normal((2, 4, directions, 4))
    rules = {"direction": direction, "linear_before_reset": int(after and cell == "gru")}
    weights = RnnWeights.from_onnx(cell, *arrays, **rules)
    states = [each.swapaxes(0, 1) for each in ((h0, c0) if cell == "lstm" else (h0,))]
    words = {"lengths": lengths, "reverse": direction == "reverse", "batch_first": True, "clip": 0.6}
    y, *ends = getattr(numbaprims, cell.partition("_")[0])(x, weights, *states, **words)
    Y, *Y_ends = onnx_node(
        cell, x.swapaxes(0, 1), *arrays, h0.swapaxes(0, 1), c0.swapaxes(0, 1), lengths, clip=0.6, **rules
    )  # fmt: skip
    close([y.reshape(4, 5, directions, 4)], [Y.transpose(2, 0, 1, 3)], 1e-12)
    for end, wanted in zip(ends, Y_ends, strict=False):
        close([end.swapaxes(0, 1)], [wanted.swapaxes(0, 1)], 1e-12)
