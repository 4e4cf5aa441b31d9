"""The estimate chooses well: judged by times that were measured once and stored (benchmarks/regret_gemm.py)."""

import json
import pathlib
import types

import numpy as np
import pytest

from numbaprims.cpu.rates import profile
from numbaprims.dispatch import registry
from numbaprims.dispatch.explain import problem_of

MACHINES = json.loads((pathlib.Path(__file__).parent / "data" / "gemm_timings.json").read_text())


def name_of(machine):
    """The CPU, and how many threads were timed."""
    return f"{machine['target']['name']}, {machine['target']['threads']}"


def slowdowns(machine):
    """For each stored problem: time of the chosen solver over that of the best."""
    facts = machine["target"]
    rates = profile(facts["name"], facts["isa"], facts["vector_bytes"], facts["l3"])
    target = types.SimpleNamespace(**facts, rates=rates)
    solvers = {solver.name: solver for solver in registry.solvers("gemm", "cpu")}
    for row in machine["rows"]:
        m, n, k = row["m"], row["n"], row["k"]
        a = np.empty((m, k), np.float32)
        b = np.empty((n, k) if row["trans_b"] else (k, n), np.float32)
        problem = problem_of("gemm", a, b, trans_b=row["trans_b"])
        seconds = row["seconds"]
        chosen = min(seconds, key=lambda name: solvers[name].estimate(problem, target))
        yield seconds[chosen] / min(seconds.values()), (m, n, k, row["trans_b"], chosen)


@pytest.mark.parametrize("machine", MACHINES, ids=name_of)
def test_regret(machine):
    found = sorted(slowdowns(machine))
    assert len(found) >= 60
    mean = np.mean([ratio for ratio, _ in found])
    assert mean <= 1.011, found[-8:]
    assert found[-1][0] <= 1.2, found[-3:]


@pytest.mark.parametrize("machine", MACHINES, ids=name_of)
def test_the_stored_times_can_tell(machine):
    """A constant estimate would fail: taking always the same solver, or the list's order, is worse."""
    for name in ("blocked", "private"):
        ratios = [row["seconds"][name] / min(row["seconds"].values()) for row in machine["rows"]]
        assert np.mean(ratios) > 1.2, name
