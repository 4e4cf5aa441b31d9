"""The kernels of a problem, compiled ahead of its first call."""

from __future__ import annotations

from typing import Any

from numbaprims import settings
from numbaprims.dispatch import choose as _choose, examples, registry


def compile_problem(problem: Any) -> None:
    """Choose and bind the solver of a problem on the CPU, as a call of it does."""
    if getattr(problem, "prepared", False):  # what prepares weights is bound when they are
        with settings.config(device="cpu"):
            examples.example_call(problem.stem, problem)()
        return
    choice = _choose.choose(problem, "cpu", settings.current().algorithm)
    choice.solver.bind(problem, registry.target("cpu"), choice.config)
