"""Solvers of users: registered ones take part in all that the package's own do, and only they can be taken back."""

import numpy as np
import pytest

import numbaprims
from numbaprims.cpu.ger.solvers import Naive
from numbaprims.dispatch import registry
from numbaprims.dispatch.solver import Solver

X, Y = np.arange(3, dtype=np.float32), np.arange(4, dtype=np.float32)


class Mine(Naive):
    """Counts its launches, and says that it takes no time."""

    name = "mine"
    seconds = 0.0

    def __init__(self):
        self.launches = 0

    def estimate(self, problem, target):
        return self.seconds

    def bind(self, problem, target, config):
        inner = super().bind(problem, target, config)

        def launch(*arrays, **floats):
            self.launches += 1
            inner(*arrays, **floats)

        return launch


@pytest.fixture
def mine():
    numbaprims.ger(X, Y)  # a launcher of this problem is known before
    solver = Mine()
    registry.register("ger", solver)
    yield solver
    registry.unregister("ger", "mine")


def test_a_registered_solver_is_chosen_explained_and_found(mine):
    np.testing.assert_array_equal(numbaprims.ger(X, Y), np.outer(X, Y))
    assert mine.launches == 1
    assert numbaprims.explain("ger", X, Y).chosen.solver == "mine"
    assert "mine" in [row.algorithm for row in numbaprims.find("ger", X, Y, store=False)]


def test_the_last_of_a_name_takes_its_place(mine):
    class Slower(Mine):
        seconds = 1.0

    second = Slower()
    registry.register("ger", second)
    assert [solver.name for solver in registry.solvers("ger", "cpu")].count("mine") == 1
    numbaprims.ger(X, Y)
    assert second.launches == mine.launches == 0  # its estimate is worse than that of the package's own
    with numbaprims.config(algorithm={"ger": "mine"}):
        numbaprims.ger(X, Y)
    assert second.launches == 1 and mine.launches == 0


def test_taken_back_it_is_forgotten():
    solver = Mine()
    registry.register("ger", solver)
    numbaprims.ger(X, Y)
    registry.unregister("ger", "mine")
    numbaprims.ger(X, Y)
    assert solver.launches == 1
    with pytest.raises(ValueError, match="no solver 'mine' was registered for ger on cpu"):
        registry.unregister("ger", "mine")


@pytest.mark.parametrize("method, gives, error, says", [
    ("estimate", float("nan"), ValueError, "its estimate is nan; it must be seconds"),
    ("estimate", None, ValueError, "its estimate is None; it must be seconds"),
    ("why_not", KeyError("mine2"), KeyError, "mine2"),
    ("program", None, TypeError, "solver 'wrong' of ger gives None as its program"),
])  # fmt: skip
def test_a_wrong_solver_is_named(method, gives, error, says):
    def wrong(self, *given):
        if isinstance(gives, Exception):
            raise gives
        return gives

    fast = {"estimate": lambda self, *given: 0.0}
    registry.register("ger", type("Wrong", (Naive,), {"name": "wrong", **fast, method: wrong})())
    try:
        with pytest.raises(error, match=says) as raised:
            numbaprims.ger(X, Y)
        assert method == "program" or raised.value.__notes__ == ["in solver 'wrong' of ger"]
    finally:
        registry.unregister("ger", "wrong")


@pytest.mark.parametrize("method", ["program", "bind"])
def test_a_class_without_a_file_says_where_its_method_stands(method):
    """As in a notebook on Python 3.11, where inspect finds no source of a class."""
    scope = {"__name__": "__main__", "Naive": Naive}
    text = (
        f"class Cell(Naive):\n    name = 'cell'\n\n    def {method}(self, *a):\n        return super().{method}(*a)\n"
    )
    exec(compile(text, "<cell 1>", "exec"), scope)
    registry.register("ger", scope["Cell"]())
    try:
        row = numbaprims.explain("ger", X, Y)["cell"]
        assert row.source == "<cell 1>" and row.line == 4
    finally:
        registry.unregister("ger", "cell")


def test_refusals():
    class Nameless(Solver):
        pass

    class Taken(Naive):
        name = "register_block"

    with pytest.raises(TypeError, match="is no solver with a name"):
        registry.register("ger", Mine)  # the class, not an object
    with pytest.raises(TypeError, match="is no solver with a name"):
        registry.register("ger", Nameless())
    with pytest.raises(ValueError, match="solver 'register_block' of its own"):
        registry.register("ger", Taken())
    for stem in ("gre", "arrays", "simd"):
        with pytest.raises(ValueError, match="stem"):
            registry.register(stem, Mine())
    assert [solver.name for solver in registry.solvers("ger", "cpu")][0] == "register_block"
