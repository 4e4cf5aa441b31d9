"""Recurrent networks: every variant of the kernels against the definition, forward and gradients."""

import numpy as np
import pytest
from rnn_cases import DEFINITIONS, cast, draw_weights

import numbaprims

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
    rng, cell, after, dtype=np.float64, *, steps=5, batch=3, inputs=7, start=True, lengths=None, clip=None,
    algorithm="", **more,
):  # fmt: skip
    """The kernels of a solver against the definition; the arrays, keywords and tolerance."""
    given, call = draw(rng, cell, after, dtype, steps, batch, inputs, start, lengths, more)
    name, tolerance = cell.partition("_")[0], TOLERANCE[given[1].dtype]
    words = {} if clip is None else {"clip": clip}
    forward = getattr(numbaprims, name)
    with numbaprims.config(algorithm=algorithm):
        found = forward(*given, **call, **words)
    with numbaprims.config(device="reference"):
        close(found, forward(*given, **call, **words), tolerance)
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
def test_a_layer(rng, cell, after):
    check(rng, cell, after)
    check(rng, cell, after, np.float32, steps=7, batch=19, inputs=5, hidden=37, start=False)


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_layers_and_directions(rng, cell, after):
    check(rng, cell, after, np.float32, layers=2, directions=2, hidden=20, batch=4)
    check(rng, cell, after, layers=2, directions=2, hidden=9, merge="sum", bias=False)
    check(rng, cell, after, reverse=True, hidden=17)


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_lengths(rng, cell, after):
    check(rng, cell, after, batch=5, lengths=[2, 5, 0, 4, 2], hidden=18, layers=2, directions=2)
    lengths = np.array([1, 6, 3, 3])
    check(rng, cell, after, np.float32, steps=6, batch=4, lengths=lengths, batch_first=True, reverse=True)


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_variants(rng, cell, after):
    check(rng, cell, after, skip=True, inputs=21, hidden=21, layers=2)
    check(rng, cell, after, batch_first=True, hidden=6, clip=0.7)
    check(rng, cell, after, steps=1, batch=1)


def test_projections_and_peepholes(rng):
    check(rng, "lstm", True, proj=5, hidden=18, layers=2, directions=2, batch=4, lengths=[3, 5, 1, 5])
    check(rng, "lstm", True, np.float32, peephole=True, hidden=33, batch=9, layers=2)
    check(rng, "lstm", True, peephole=True, proj=3, directions=2, lengths=[5, 0, 2], clip=1.0)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_dropout(rng, cell):
    dropout = {"dropout": 0.4, "seed": 2**63 + 7, "offset": 2**32 - 1}
    check(rng, cell, True, dropout=dropout, layers=3, directions=2, hidden=5)
    check(rng, cell, True, dropout=dropout, layers=2, batch_first=True, hidden=9, lengths=[4, 0, 5], merge="sum")
    check(rng, cell, True, np.float16, dropout={"dropout": 1.0}, layers=2)


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_half(rng, cell, after):
    check(rng, cell, after, np.float16, layers=2, directions=2, hidden=18, batch=4)


@pytest.mark.parametrize("solver", ["single_gemm", "step_by_step"])
@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_products_one_by_one(rng, cell, after, solver):
    for more in (
        {"layers": 2, "directions": 2, "hidden": 18},
        {"reverse": True, "batch_first": True, "dtype": np.float16, "proj": 3 if cell == "lstm" else 0},
        {"skip": True, "inputs": 6, "hidden": 6, "peephole": cell == "lstm", "dtype": np.float32},
        {"lengths": [3, 0, 5], "directions": 2} if solver == "single_gemm" else {"steps": 1},
    ):
        check_inference(rng, cell, after, algorithm=f"rnn:{solver}", **more)


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
    assert text.count("gemm_direct_driver") + text.count("gemm_shared") == 1
    assert f"{steps} times:\n" in text and text.count("rnn_step:") == 1
    *results, reserve = getattr(numbaprims, name + "_train")(x, weights)
    text = phases(name + "_backward", results[0], *[None] * (len(results) - 1), reserve)
    assert text.count("rnn_back_step:") == 1 and f"{steps} times:\n" in text
