"""Recurrent networks on the emulated GPU against the definition."""

import numpy as np
import pytest
from rnn_cases import DEFINITIONS, draw_weights
from test_rnn import TOLERANCE, cast, close

import numbaprims
from numbaprims.recurrent.lengths import Lengths


def check(
    rng, cell, after, dtype=np.float32, *, steps=3, batch=3, inputs=5, start=True, train=True, clip=None, gap=1, **more
):
    """Inference, training's way forward with what it keeps, gradients."""
    call = {k: more.pop(k) for k in ("batch_first", "reverse", "merge", "lengths", "batch_sizes") if k in more}
    weights = cast(
        draw_weights(rng, cell, after=after, inputs=inputs, merge=call.get("merge", "concat"), **more), dtype
    )
    shape = (batch, steps, inputs) if call.get("batch_first") else (steps, batch, inputs)
    x = rng.standard_normal((*shape[:2], gap * inputs)).astype(dtype)[..., ::gap]
    if "batch_sizes" in call:
        x = rng.standard_normal((sum(call["batch_sizes"]), inputs)).astype(dtype)
    parts = len(weights.parts)
    sizes = [weights.out_size] + [weights.hidden_size] * (cell == "lstm")
    states = [rng.standard_normal((parts, batch, n)).astype(dtype) if start else None for n in sizes]
    name, tolerance = cell.partition("_")[0], TOLERANCE[weights.dtype]
    words = {} if clip is None else {"clip": clip}
    ways = [(name, words)] + [(f"{name}_train", {})] * train
    for function, own in ways:
        found, wanted = [], []
        for device, to in (("cuda", found), ("reference", wanted)):
            with numbaprims.config(device=device):
                to += getattr(numbaprims, function)(x, weights, *states, **call, **own)
        if own is not words:
            kept, definition = found.pop(), wanted.pop()
            close(kept[-3:], definition[-3:], tolerance)
            errors = [rng.standard_normal(each.shape).astype(dtype) for each in wanted]
            for dy in (errors, [None, *errors[1:]]) if start else ([errors[0], *[None] * len(sizes)],):
                with numbaprims.config(device="cuda"):
                    gradients = getattr(numbaprims, f"{name}_backward")(*dy, kept)
                with numbaprims.config(device="reference"):
                    close(gradients, getattr(numbaprims, f"{name}_backward")(*dy, definition), 10 * tolerance)
        close(found, wanted, tolerance)


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_a_layer(gpu, rng, cell, after):
    check(rng, cell, after)
    check(rng, cell, after, np.float64, start=False, train=False, bias=False, clip=0.7)


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_layers_and_directions(gpu, rng, cell, after):
    check(rng, cell, after, layers=2, directions=2, batch=2)
    check(rng, cell, after, layers=2, directions=2, merge="sum", lengths=[1, 3, 0])


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_lengths(gpu, rng, cell, after):
    check(rng, cell, after, lengths=[2, 0, 3], directions=2)
    check(rng, cell, after, lengths=[1, 3, 2], batch_first=True, reverse=True, start=False)
    check(rng, cell, after, batch_sizes=list(Lengths.of([3, 1, 1], 3).batch_sizes))


def test_variants(gpu, rng):
    check(rng, "lstm", True, proj=2, directions=2, lengths=[3, 1, 2])
    check(rng, "lstm", True, peephole=True, clip=1.0, gap=2)
    check(rng, "lstm", True, np.float16, peephole=True, proj=3, directions=2, lengths=[0, 2, 3], layers=2)
    check(rng, "gru", True, skip=True, inputs=4, batch_first=True, directions=2)
    check(rng, "gru", False, np.float64, steps=1, batch=1, reverse=True)


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_half(gpu, rng, cell, after):
    check(rng, cell, after, np.float16, layers=2, directions=2, batch=2)


def test_launches(gpu, rng):
    """One input product a layer and direction, and one recurrent product of each and one cell kernel a step."""
    steps, layers, directions = 4, 2, 2
    check(rng, "lstm", True, steps=steps, layers=layers, directions=directions, train=False)
    names = [each.entry for each in gpu.launches]
    assert sum("rnn_cell" in name for name in names) == layers * steps
    assert sum("gemm" in name for name in names) == layers * directions * (1 + steps)
    gpu.launches.clear()
    weights = draw_weights(rng, "gru", layers=layers, directions=directions)
    with numbaprims.config(device="cuda"):
        y, h_n, reserve = numbaprims.gru_train(rng.standard_normal((steps, 2, 3)), weights)
        gpu.launches.clear()
        numbaprims.gru_backward(y, h_n, reserve)
    names = [each.entry for each in gpu.launches]
    assert sum("rnn_back_cell" in name for name in names) == layers * steps
    # of dx, w_ih and w_hh one each
    assert sum("gemm" in name for name in names) == layers * directions * (3 + steps)
