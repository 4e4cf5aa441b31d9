"""What `find`, `tune` and exports do with solvers that are wrong."""

import dataclasses
import functools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from solver_stubs import Stub, put, stored

import numbaprims
from numbaprims import cli
from numbaprims.dispatch import call, find as finding, registry, ship
from numbaprims.dispatch.explain import problem_of
from numbaprims.tuning import database, records, trouble

pytestmark = pytest.mark.cpu
X = np.ones(24, np.float32)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(trouble, "_said", set())
    monkeypatch.setattr(finding, "_done", set())
    call.forget()
    yield
    call.forget()


@pytest.fixture
def user(tmp_path):
    """A user database in force."""
    path = tmp_path / "tuning.sqlite"
    with numbaprims.config(database=path):
        yield path
        database.user().close()


@pytest.fixture
def stubs(monkeypatch):
    """A function that makes solvers those of ger."""
    return functools.partial(put, monkeypatch)


def spoil(by):
    def spoiled(out):
        out[0, 0] += by

    return spoiled


WRONG = [spoil(1), spoil(1e-4), spoil(np.nan), spoil(np.inf)]


@pytest.mark.parametrize("wrong", WRONG, ids=["by 1", "by 1e-4", "NaN", "inf"])
def test_a_wrong_solver_is_never_the_best_and_never_stored(stubs, user, wrong):
    quick, right = Stub("wrong", 1e-7, wrong=wrong), Stub("right", sleep=1e-4)
    stubs(quick, right)
    with pytest.warns(RuntimeWarning, match=r"ger:wrong \{\} is wrong: 1 of 576 elements are wrong .* at \(0, 0\)"):
        found = numbaprims.find("ger", X, X, check=True)
    assert [f.algorithm for f in found] == ["right", "wrong"] and found.best.algorithm == "right"
    assert [f.wrong for f in found] == [False, True] and found[0].error == 0 and found[1].error > 5e-5
    assert found[1].seconds == math.inf and not found[1].measured and quick.calls == 1
    assert stored(found.problem) == ["right"]
    assert numbaprims.explain("ger", X, X).chosen.solver == "right"
    # what an unchecked run has stored of it goes
    numbaprims.find("ger", X, X)
    assert stored(found.problem) == ["right", "wrong"]
    for limit in ({}, {"workspace_limit": 1 << 20}):
        numbaprims.find("ger", X, X)
        with pytest.warns(RuntimeWarning, match="ger:wrong"):
            numbaprims.find("ger", X, X, check=True, **limit)
        assert stored(found.problem) == ["right"]


def test_where_no_solver_is_right_there_is_no_best(stubs, user):
    stubs(Stub("wrong", wrong=WRONG[0]), Stub("broken", fails=True))
    numbaprims.find("ger", X, X)
    with pytest.warns(RuntimeWarning, match="ger:wrong"):
        found = numbaprims.find("ger", X, X, check=True)
    with pytest.raises(RuntimeError, match="no solver of ger is right; wrong: wrong: .*; broken: failed: RuntimeError"):
        assert found.best
    assert stored(found.problem) == []


def test_trust_verify_looks_at_the_result_too(stubs, user):
    later, right = Stub("later_wrong", 1e-7), Stub("right", sleep=1e-3)
    stubs(later, right)
    assert numbaprims.find("ger", X, X, mode="trust_verify").best.algorithm == "later_wrong"
    assert numbaprims.find("ger", X, X, mode="trust_verify").best.note == "user database"
    later.wrong = WRONG[0]
    with pytest.warns(RuntimeWarning, match="ger:later_wrong"):
        found = numbaprims.find("ger", X, X, mode="trust_verify")
    assert found.best.algorithm == "right" and stored(found.problem) == ["right"]
    later.wrong = None
    numbaprims.find("ger", X, X)
    later.wrong = WRONG[0]
    with numbaprims.config(find_mode="trust_verify"), pytest.warns(RuntimeWarning, match="ger:later_wrong"):
        assert (numbaprims.ger(X, X) == 1).all(), "a plain call in this mode is not computed by it"


def test_errors_that_rounding_explains_are_right(stubs):
    small = Stub("small", wrong=spoil(2.0**-24))
    stubs(small, Stub("right"))
    found = numbaprims.find("ger", X, X, check=True, store=False)
    assert {f.algorithm: f.error > 0 for f in found} == {"small": True, "right": False}
    assert not any(f.wrong for f in found)


def test_only_what_is_right_here_may_ship(stubs, user):
    """`tune --export FILE --check`: records that are wrong, unknown, changed or of other machines stay out."""
    good, wrong, other = Stub("good"), Stub("wrong", wrong=WRONG[1]), Stub("other")
    stubs(good, wrong, other)
    other.why_not = lambda problem, target: "not this one"
    key = records.key_of(problem_of("ger", X, X), registry.target("cpu"))

    def record(solver, version=1, config=None):
        return records.Record(solver, version, config or {}, 1e-6, 2, "")

    kept = [(key, record("good"))]
    refused = [
        (key, record("wrong")), (key, record("good", version=2)), (key, record("nobody")),
        (key, record("good", config={"mr": 1})), (key, record("other")),
        (dataclasses.replace(key, family="arm64-m1"), record("good")),
        (dataclasses.replace(key, problem=records.dump({"m": 2})), record("good")),
        (dataclasses.replace(key, problem="[" * 9000), record("good")),
    ]  # fmt: skip
    for entry in refused:
        with pytest.warns(RuntimeWarning, match=f"ger:{entry[1].solver} .* does not ship: ") as said:
            assert list(ship.checked([entry, *kept])) == [(key, dataclasses.replace(kept[0][1], error=0.0))]
        assert len(said) == 1
    numbaprims.find("ger", X, X)
    with pytest.warns(RuntimeWarning, match="ger:wrong"):
        assert cli.main(["tune", "--export", f"{user}.jsonl", "--check"]) == 0
    lines = [json.loads(line) for line in Path(f"{user}.jsonl").read_text().splitlines()]
    assert [(line["solver"], line["error"]) for line in lines] == [("good", 0.0)]
