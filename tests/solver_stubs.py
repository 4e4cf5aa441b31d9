"""Solvers of ger that are slow, wrong, large, or fail."""

import time

from numbaprims.dispatch import registry
from numbaprims.dispatch.solver import Solver
from numbaprims.tuning import database, records


class Stub(Solver):
    """ger by the naive solver, and something else beside it."""

    def __init__(self, name, seconds=1e-5, *, sleep=0.0, wrong=None, fails=False, bytes=0):
        self.name, self.seconds, self.sleep, self.wrong, self.fails, self.bytes = (
            name,
            seconds,
            sleep,
            wrong,
            fails,
            bytes,
        )
        self.calls = self.binds = 0
        self.naive = registry.solvers("ger", "cpu")[-1]

    def estimate(self, problem, target):
        return self.seconds

    def workspace(self, problem, target, config):
        return self.bytes

    def bind(self, problem, target, config):
        self.binds += 1
        if self.fails:
            raise RuntimeError("no such instruction")
        launch = self.naive.bind(problem, target, {})

        def run(out, *given, **floats):
            self.calls += 1
            time.sleep(self.sleep)
            launch(out, *given, **floats)
            if self.wrong is not None:
                self.wrong(out)

        return run


def put(monkeypatch, *solvers):
    """Make them the solvers of ger."""
    real = registry.solvers
    monkeypatch.setattr(registry, "solvers", lambda stem, device: solvers if stem == "ger" else real(stem, device))


def stored(problem):
    """The solvers that the user database has times of."""
    known = database.user().lookup(records.key_of(problem, registry.target("cpu")))
    return sorted(record.solver for _, found in known for record in found)
