"""The walk of `tune` over configs: what is timed, in which order, and what an earlier run spares."""

import importlib.util
import math
import sys
import types

import numpy as np
import pytest

from numbaprims.tuning.records import dump
from numbaprims.tuning.search import BATCH, FINALISTS, Option, Walk


def option(name, estimate, configs):
    return Option(name, 1, estimate, tuple({"way": way} for way in range(configs)))


def walked(walk, seconds, most=10_000):
    """The batches of a walk whose times `seconds` tells."""
    batches = []
    while (batch := walk.next()) is not None and len(batches) < most:
        batches.append(batch)
        walk.tell(batch, [seconds[name](config["way"]) for name, config in batch.items])
    return batches


SECONDS = {
    "good": lambda way: 1.0 + (way - 7) ** 2 / 100,
    "close": lambda way: 1.9 - way / 1000,
    "far": lambda way: 9.0,
}


def test_the_walk_times_defaults_then_what_is_close_then_the_best_again():
    walk = Walk([option("far", 3.0, 50), option("good", 2.0, 10), option("close", 1.0, 3)])
    batches = walked(walk, SECONDS)
    assert [name for name, _ in batches[0].items] == ["close", "good", "far"], "by estimate, one config each"
    assert not any(config["way"] for _, config in batches[0].items)
    later = [item for batch in batches[1:-1] for item in batch.items]
    assert [name for name, _ in later] == ["good"] * 9 + ["close"] * 2, (
        "the fastest solver first, nothing of the far one"
    )
    assert max(len(batch.items) for batch in batches[1:-1]) == BATCH
    assert batches[-1].final and len(batches[-1].items) == FINALISTS and not any(b.final for b in batches[:-1])
    assert batches[-1].items[0] == ("good", {"way": 7})
    assert [item for _, item in walk.best_of_each()] == [
        ("good", {"way": 7}),
        ("close", {"way": 2}),
        ("far", {"way": 0}),
    ]
    assert walk.total == 63 and walk.new == 3 + 11 + FINALISTS


def test_the_walk_goes_on_where_it_was():
    options = [option("good", 1.0, 10), option("close", 2.0, 3)]
    first = Walk(options)
    walked(first, SECONDS, most=2)
    known = dict(first.seconds)
    second = Walk(options, known)
    asked = [
        (name, dump(config)) for batch in walked(second, SECONDS) if not batch.final for name, config in batch.items
    ]
    assert not set(asked) & set(known) and len(asked) + len(known) == 13
    third = Walk(options, second.seconds)
    assert third.next() is None and third.new == 0 and third.ranked()[0][1] == ("good", {"way": 7})
    assert Walk(options, {("gone", "{}"): 1e-9}).ranked() == [], "times of solvers that are gone count for nothing"


def test_what_fails_is_not_asked_for_again():
    options = [option("good", 1.0, 6), option("bad", 0.5, 6)]
    seconds = {"good": SECONDS["good"], "bad": lambda way: math.inf}
    walk = Walk(options)
    batches = walked(walk, seconds)
    assert [name for batch in batches for name, _ in batch.items].count("bad") == 1
    assert Walk(options, walk.seconds).next() is None
    assert all(name != "bad" for _, (name, _) in walk.ranked())


def test_all_may_fail():
    walk = Walk([option("bad", 1.0, 3)])
    assert len(walked(walk, {"bad": lambda way: math.inf})) == 1 and walk.ranked() == walk.best_of_each() == []


def test_samplers(monkeypatch):
    with pytest.raises(ValueError, match="sampler is 'dice'; it must be one of order, optuna"):
        Walk([option("good", 1.0, 3)], sampler="dice")
    if importlib.util.find_spec("optuna") is None:
        walk = Walk([option("good", 1.0, 30)], sampler="optuna")
        with pytest.raises(ValueError, match="pip install optuna"):
            walked(walk, SECONDS)


def test_the_part_that_asks_optuna(monkeypatch):
    """Held to the protocol of a study (ask, suggest, tell); with optuna itself where it is installed."""
    if importlib.util.find_spec("optuna") is None:
        monkeypatch.setitem(sys.modules, "optuna", fake_optuna())
    options = [
        Option("good", 1, 1.0, tuple({"way": way, "wide": wide} for way in range(20) for wide in (0, 1) if way + wide)),
        option("close", 2.0, 3),
    ]
    seconds = {**SECONDS, "good": lambda way: 1.0 + way / 100}
    walk = Walk(options, sampler="optuna")
    batches = walked(walk, seconds)
    items = [(name, dump(config)) for batch in batches if not batch.final for name, config in batch.items]
    assert len(items) == len(set(items)), "nothing is timed twice"
    assert 10 <= sum(name == "good" for name, _ in items) <= 17, "a part of 39"
    assert all(config in {dump(c) for o in options for c in o.configs} for _, config in items), "valid ones only"


def fake_optuna():
    """As much of optuna as is used, drawing at random."""
    rng = np.random.default_rng(5)

    class Trial:
        def suggest_categorical(self, name, values):
            return values[rng.integers(len(values))]

    class Study:
        def ask(self):
            return Trial()

        def tell(self, trial, value=None, state=None):
            assert (value is None) != (state is None) and isinstance(trial, Trial)

    states = types.SimpleNamespace(PRUNED="pruned", FAIL="fail")
    made = types.ModuleType("optuna")
    made.trial = types.SimpleNamespace(TrialState=states)
    made.logging = types.SimpleNamespace(WARNING=30, set_verbosity=lambda level: None)
    made.create_study = lambda direction: Study()
    return made
