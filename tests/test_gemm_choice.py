"""The estimate chooses well: judged by times that were measured once and stored (benchmarks/regret_gemm.py)."""

import json
import pathlib
import types

import numpy as np

from numbaprims.dispatch import registry
from numbaprims.dispatch.explain import problem_of

STORED = json.loads((pathlib.Path(__file__).parent / "data" / "gemm_timings.json").read_text())
TARGET = types.SimpleNamespace(**STORED["target"])


def slowdowns():
    """For each stored problem: time of the chosen solver over that of the best."""
    solvers = {solver.name: solver for solver in registry.solvers("gemm", "cpu")}
    for row in STORED["rows"]:
        m, n, k = row["m"], row["n"], row["k"]
        a = np.empty((m, k), np.float32)
        b = np.empty((n, k) if row["trans_b"] else (k, n), np.float32)
        problem = problem_of("gemm", a, b, trans_b=row["trans_b"])
        seconds = row["seconds"]
        chosen = min(seconds, key=lambda name: solvers[name].estimate(problem, TARGET))
        yield seconds[chosen] / min(seconds.values()), (m, n, k, row["trans_b"], chosen)


def test_regret():
    found = sorted(slowdowns())
    assert len(found) >= 60
    mean = np.mean([ratio for ratio, _ in found])
    assert mean <= 1.10, found[-8:]
    assert found[-1][0] <= 1.6, found[-3:]


def test_the_stored_times_can_tell():
    """A constant estimate would fail: taking always the same solver, or the list's order, is much worse."""
    for name in ("blocked", "private"):
        ratios = [row["seconds"][name] / min(row["seconds"].values()) for row in STORED["rows"]]
        assert np.mean(ratios) > 1.2, name
