"""find and tune on a GPU: operands there, the device's clock, records under the device's name."""

import numpy as np
import pytest
from helpers import has_module

import numbaprims
from numbaprims.dispatch import call, examples, registry
from numbaprims.gpu.memory import to_device
from numbaprims.tuning import database, records

X = np.ones(5, np.float32)


@pytest.fixture
def user(tmp_path):
    path = tmp_path / "tuning.sqlite"
    call.forget()
    with numbaprims.config(database=path):
        yield path
        database.user().close()
    call.forget()


def test_arrays_of_a_device_are_timed_there(gpu, user):
    x = to_device(X)
    found = numbaprims.find("ger", x, x, check=True)
    assert found.device.startswith("emulated") or found.device.startswith("cuda")
    assert [f.error for f in found] == pytest.approx([0.0] * len(found), abs=1e-6)
    assert {f.algorithm for f in found} == {s.name for s in registry.solvers("ger", "cuda")}
    table = numbaprims.explain("ger", x, x)
    assert table.rule == "user database" and table.chosen.solver == found.best.algorithm
    assert numbaprims.explain("ger", X, X).rule == "least estimated time", "the CPU's times are others"
    assert (numbaprims.ger(x, x).to_host() == 1).all()
    key = records.key_of(found.problem, registry.target(found.device))
    assert key.fingerprint == registry.target(found.device).fingerprint() and key.family.startswith("sm_")


def test_tune_on_a_device(gpu, user):
    problem = numbaprims.explain("ger", X, X).problem
    [outcome] = numbaprims.tune(problem, device="emulated", progress=False)
    assert outcome.complete and outcome.solver in {s.name for s in registry.solvers("ger", "cuda")}
    assert numbaprims.explain("ger", to_device(X), to_device(X)).rule == "user database"


def test_an_array_that_comes_twice_is_one_there_too(gpu):
    dtype = np.float32
    if has_module("ml_dtypes"):
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    x = np.ones(4, dtype)
    moved = examples.Call("exp", (x,), {"out": x, "axis": 3}).on("emulated")
    assert moved.args[0] is moved.kwargs["out"] and moved.kwargs["axis"] == 3
    assert moved.args[0].dtype == x.dtype and moved.on("cpu") is moved
