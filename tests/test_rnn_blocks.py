"""Inputs that are multiplied a block of steps at a time: the bits of one product, and when."""

import dataclasses

import numpy as np
import pytest
from rnn_cases import cast, draw_weights

import numbaprims
from numbaprims import settings
from numbaprims.cpu import target
from numbaprims.cpu.rnn import PREPARED
from numbaprims.cpu.rnn.panels import Panels
from numbaprims.dispatch import launchers
from numbaprims.dispatch.choose import Posed, Trial

FACTS = dict(
    name="znver4", triple="x86_64-linux-gnu", vector_bytes=64, l1d=32 << 10, l2=1 << 20, l3=32 << 20, measured=None,
    cores_physical=2,
)  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "after", "inputs", "batch", "words", "dtype"),
    [
        ("gru", True, 40, 3, {}, np.float32),
        # sums of several blocks of k, one sequence
        ("lstm", True, 1100, 1, {}, np.float32),
        ("lstm", True, 9, 5, {"reverse": True, "clip": 0.7}, np.float64),
        # two products a step; two layers, the second's inputs in scratch memory
        ("gru", False, 9, 5, {}, np.float32),
        ("rnn_tanh", True, 9, 7, {"batch_first": True}, np.float16),
    ],
)
def test_the_bits_of_one_product(rng, monkeypatch, cell, after, inputs, batch, words, dtype):
    weights = cast(draw_weights(rng, cell, after=after, inputs=inputs, hidden=37, layers=2), dtype)
    shape = (batch, 23, inputs) if words.get("batch_first") else (23, batch, inputs)
    x, forward, found = rng.standard_normal(shape).astype(dtype), getattr(numbaprims, cell.partition("_")[0]), []
    # layer by layer
    monkeypatch.setattr(type(PREPARED), "configs", lambda *of: iter([{"many": 0}]))
    for steps, threads in ((23, 1), (1, 1), (4, 1), (4, 2), (7, 1)):
        asked = []

        def block(self, layer, x, steps=steps, asked=asked):
            asked.append(layer)
            return steps if layer or self.p.order == "time" else self.p.steps

        monkeypatch.setattr(Panels, "block_steps", block)
        launchers.forget()
        with numbaprims.config(threads=threads, algorithm="rnn:persistent"):
            plan = forward.plan(weights, **words)
            plan(x[:1])  # packs, for any steps
            found += [forward(x, weights, **words), plan(x)]
        assert {0, 1} == set(asked)
    launchers.forget()
    for each in found:
        for a, b in zip(each, found[0], strict=True):
            np.testing.assert_array_equal(a, b)


def program(kind, steps, batch, hidden, *, plan=False, layers=1, **words):
    """What `persistent` runs on a Zen 4 of two cores."""
    rows = {"lstm": 4, "gru": 3}.get(kind, 1) * hidden
    both = [np.zeros((rows, hidden), np.float32)] * layers
    weights = numbaprims.RnnWeights.from_arrays(kind, both, both)
    core = dataclasses.replace(target.current(), **FACTS)
    forward = getattr(numbaprims, kind.partition("_")[0])
    x = np.zeros((batch, steps, hidden) if words.get("batch_first") else (steps, batch, hidden), np.float32)
    with settings.trial(Trial()), pytest.raises(Posed) as posed:
        forward.plan(weights, **words)(x) if plan else forward(x, weights, **words)
    return PREPARED.program(posed.value.problem, core, {"many": 0})


def counts(made):
    """(input products, steps of each run of steps)"""
    steps = [run.steps for run in made.runs if run.phases[0].kernel.name == "rnn_step"]
    products = [phase.kernel.name for run in made.runs for phase in run.phases if phase.kernel.name.startswith("gemm_")]
    return sum(name not in ("gemm_pack_b", "gemm_prepare") for name in products), steps


@pytest.mark.parametrize("plan", [False, True])
def test_one_product_where_its_sums_stay_in_the_cache(plan):
    assert counts(program("gru", 100, 1, 512, plan=plan)) == (1, [100])
    assert counts(program("lstm", 100, 16, 512, plan=plan)) == (1, [100])


@pytest.mark.parametrize("plan", [False, True])
def test_blocks_where_they_would_not(plan):
    """A block's multiply-adds take 64 times what reading the weights again does, on each of two cores."""
    products, steps = counts(program("gru", 1500, 32, 256, plan=plan))
    assert products == len(steps) > 1 and sum(steps) == 1500
    assert 256 <= 32 * max(steps) <= 512 and len(set(steps[:-1])) == 1
    # weights of 57 MB lie in memory, which takes longer to read
    _, further = counts(program("gru", 1500, 32, 2048, plan=plan))
    assert max(further) > max(steps) and sum(further) == 1500


def test_scratch_memory_does_not_grow_with_the_steps():
    few, many = (program("gru", steps, 32, 512).shared for steps in (500, 1500))
    assert few == many < 16 << 20


@pytest.mark.parametrize(
    ("kind", "size", "words"),
    [("gru", (500, 32, 256), {"batch_first": True}), ("lstm", (2000, 64, 64), {"batch_first": True})],
)
def test_rows_that_are_not_those_of_steps(kind, size, words):
    """Rows of x as it lies are sequence by sequence: one product."""
    assert counts(program(kind, *size, **words)) == (1, [size[0]])
