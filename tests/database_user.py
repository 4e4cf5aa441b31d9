"""A user's tuning database for tests, and what a call of ger chooses by it."""

import contextlib

import numpy as np

import numbaprims
from numbaprims.dispatch import call, registry
from numbaprims.dispatch.explain import problem_of
from numbaprims.tuning import database, records, trouble
from numbaprims.tuning.records import Record

X = np.ones(24, np.float32)
KINDS = ("register_block", "row_block", "naive")  # solvers of ger
opened: set[str] = set()
"""Files that are closed at the end of the test."""


@contextlib.contextmanager
def anew(monkeypatch):
    """Troubles are said again, launchers are chosen again, nothing stays open."""
    monkeypatch.setattr(trouble, "_said", set())
    call.forget()
    yield
    call.forget()
    for path in list(opened):
        found = database._database(path)
        if found is not None:
            found.close()
    opened.clear()
    database._database.cache_clear()
    database._shipped.cache_clear()


@contextlib.contextmanager
def in_force(path):
    """A user database in force."""
    opened.add(str(path))
    with numbaprims.config(database=path):
        yield path


def key(problem=None):
    return records.key_of(problem or problem_of("ger", X, X), registry.target("cpu"))


def record(solver="naive", seconds=1e-6, version=1, config=None, **changes):
    return Record(solver, version, config or {}, seconds, 2, "toolchain", **changes)


def chosen():
    """(solver, rule) of a call of ger."""
    table = numbaprims.explain("ger", X, X)
    return table.chosen.solver, table.rule


def result_is_right():
    return (numbaprims.ger(X, X) == 1).all()
