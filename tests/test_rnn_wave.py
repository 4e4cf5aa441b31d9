"""Layers and directions that overlap: the bits of layer by layer, and when."""

import dataclasses
import math

import numpy as np
import pytest
from rnn_cases import cast, draw_weights

import numbaprims
from numbaprims import settings
from numbaprims.cpu import target
from numbaprims.cpu.rnn import PREPARED
from numbaprims.dispatch import launchers
from numbaprims.dispatch.choose import Posed, Trial

FACTS = dict(
    name="znver4", triple="x86_64-linux-gnu", vector_bytes=64, l1d=32 << 10, l2=1 << 20, l3=32 << 20, measured=None
)


def both(monkeypatch, run):
    """What `run` gives layer by layer, and in waves on one and two threads."""
    able = type(PREPARED).configs

    def config(self, problem, target, wave=True):
        _, *others = able(self, problem, target)
        return iter([{"many": min(3, problem.steps) if wave and others else 0}])

    found = []
    for wave, threads in ((False, 1), (True, 1), (True, 2)):
        monkeypatch.setattr(type(PREPARED), "configs", lambda *of, wave=wave: config(*of, wave=wave))
        launchers.forget()
        with numbaprims.config(threads=threads, algorithm="rnn:persistent"):
            found.append(run())
    monkeypatch.undo()
    launchers.forget()
    return found


@pytest.mark.parametrize(
    ("cell", "after", "layers", "directions", "more"),
    [
        ("lstm", True, 2, 1, {"proj": 11, "peephole": True}),
        ("lstm", True, 5, 1, {}),
        ("lstm", True, 2, 2, {"merge": "sum"}),
        ("gru", False, 3, 1, {"reverse": True}),
        ("gru", True, 1, 2, {}),
        ("gru", False, 1, 2, {}),
        ("rnn_tanh", True, 3, 1, {"batch_first": True}),
    ],
)
def test_a_wave_has_the_bits_of_layers(rng, monkeypatch, cell, after, layers, directions, more):
    call = {name: more.pop(name) for name in ("reverse", "batch_first") if name in more}
    call |= {"merge": more["merge"]} if "merge" in more else {}
    weights = draw_weights(rng, cell, after=after, layers=layers, directions=directions, inputs=9, hidden=37, **more)
    weights = cast(weights, np.float32)
    forward = getattr(numbaprims, cell.partition("_")[0])
    shape = (9, 11, 9) if call.get("batch_first") else (11, 9, 9)
    x = rng.standard_normal(shape).astype(np.float32)
    for lengths in (None, [3, 11, 0, 7, 7, 1, 10, 11, 2]):
        for plan in (None, forward.plan(weights, **call)):
            if plan is None:
                wanted, *found = both(monkeypatch, lambda n=lengths: forward(x, weights, lengths=n, **call))
            else:  # the first call packs: it may be either form
                wanted, *found = both(monkeypatch, lambda n=lengths, plan=plan: plan(x, lengths=n))
            for each in found:
                for a, b in zip(each, wanted, strict=True):
                    np.testing.assert_array_equal(a, b)


def program(kind, layers, directions, steps, batch, hidden, cores=2, **more):
    """What the default choice would run on a Zen 4 of so many cores."""
    rows = {"lstm": 4, "gru": 3}.get(kind, 1) * hidden

    def arrays(shape_of):
        return [np.zeros(shape_of(part), np.float32) for part in range(layers * directions)]

    weights = numbaprims.RnnWeights.from_arrays(
        kind, arrays(lambda k: (rows, hidden if k < directions else directions * hidden)),
        arrays(lambda k: (rows, hidden)), directions=directions,
    )  # fmt: skip
    core = dataclasses.replace(target.current(), **FACTS, cores_physical=cores)
    with settings.trial(Trial()), pytest.raises(Posed) as posed:
        getattr(numbaprims, kind.partition("_")[0])(np.zeros((steps, batch, hidden), np.float32), weights, **more)
    config, *_ = PREPARED.configs(posed.value.problem, core)
    return PREPARED.program(posed.value.problem, core, config), config.get("many", 0)


def test_short_steps_overlap():
    """An LSTM of 128 units and one sequence: steps too short to be shared, two layers to share."""
    made, many = program("lstm", 2, 1, 50, 1, 128)
    text = str(made)
    print(text)
    assert many and f"rnn_wave: {2 * math.ceil(50 / many)} tiles, one queue" in text
    assert "times:" not in text and made.most_workers > 1
    # a wave of four layers on four cores, two of two on two
    assert [str(program("lstm", 4, 1, 50, 1, 128, cores)[0]).count("rnn_wave") for cores in (2, 4)] == [2, 1]


def test_directions_overlap():
    text = str(program("gru", 2, 2, 30, 1, 64)[0])
    assert text.count("rnn_wave: 2 tiles, one queue") == 2 and "times:" not in text


@pytest.mark.parametrize(
    "size", [(2, 1, 50, 1, 512), (2, 1, 50, 16, 256), (1, 1, 50, 1, 128), (2, 1, 50, 1, 16), (2, 1, 1, 1, 128)]
)
def test_long_steps_are_shared(size):
    """A phase costs little there, and a worker's half of the weights stays in its cache; nor do tiny networks pay."""
    assert program("lstm", *size)[1] == 0


def test_one_core_has_nothing_to_overlap():
    assert program("lstm", 2, 1, 50, 1, 128, cores=1)[1] == program("lstm", 1, 2, 50, 1, 128, cores=1)[1] == 0
