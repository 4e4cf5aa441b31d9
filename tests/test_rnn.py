"""Recurrent networks: every variant of the kernels against the definition, forward and gradients."""

import numpy as np
import pytest
from rnn_cases import DEFINITIONS, draw_weights

import numbaprims
from numbaprims.recurrent.parts import RnnPart
from numbaprims.recurrent.weights import RnnWeights

TOLERANCE = {"f64": 1e-12, "f32": 2e-5, "f16": 4e-2, "bf16": 2e-1}


def cast(weights: RnnWeights, dtype) -> RnnWeights:
    """The same network in another dtype."""
    parts = tuple(RnnPart(*(x if x is None else np.ascontiguousarray(x, dtype) for x in p)) for p in weights.parts)
    return RnnWeights(weights.cell, parts, weights.directions, weights.reset_after, weights.skip_input)


def close(found, wanted, tolerance):
    for a, b in zip(found, wanted, strict=True):
        if b is None:
            assert a is None
        elif isinstance(b, tuple):
            close(a, b, tolerance)
        else:
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            np.testing.assert_allclose(a, b, atol=tolerance * max(1.0, abs(b).max(initial=0)), rtol=0)


def check(
    rng, cell, after, dtype=np.float64, *, steps=5, batch=3, inputs=7, start=True, lengths=None, clip=None, **more
):
    """Forward, in training and backward, by the kernels and by the definition."""
    call = {k: more.pop(k) for k in ("batch_first", "reverse", "merge") if k in more}
    merge = call.get("merge", "concat")
    weights = cast(draw_weights(rng, cell, after=after, inputs=inputs, merge=merge, **more), dtype)
    shape = (batch, steps, inputs) if call.get("batch_first") else (steps, batch, inputs)
    x = rng.standard_normal(shape).astype(dtype)
    parts = len(weights.parts)
    h0 = rng.standard_normal((parts, batch, weights.out_size)).astype(dtype) if start else None
    given = (x, weights, h0)
    if cell == "lstm":
        given += (rng.standard_normal((parts, batch, weights.hidden_size)).astype(dtype) if start else None,)
    call["lengths"] = lengths
    name, tolerance = cell.partition("_")[0], TOLERANCE[weights.dtype]
    forward, train, backward = (getattr(numbaprims, name + way) for way in ("", "_train", "_backward"))
    words = {} if clip is None else {"clip": clip}
    y = forward(*given, **call, **words)
    with numbaprims.config(device="reference"):
        wanted = forward(*given, **call, **words)
    close(y, wanted, tolerance)
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


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_half(rng, cell, after):
    check(rng, cell, after, np.float16, layers=2, directions=2, hidden=18, batch=4)
