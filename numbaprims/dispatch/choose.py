"""The choice of a solver, in one fixed order: forced by the user > estimate > place in the list."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from numbaprims.dispatch import registry
from numbaprims.dispatch.problem import Problem
from numbaprims.dispatch.solver import Config, Solver, default_config


@dataclasses.dataclass(frozen=True)
class Candidate:
    """What is known about one solver for one problem."""

    solver: Solver
    refusal: str | None
    estimate: float
    """Seconds; infinite where the solver refuses."""
    config: Config


@dataclasses.dataclass(frozen=True)
class Choice:
    """The solver that runs, and the rule that chose it."""

    solver: Solver
    config: Config
    rule: str
    candidates: tuple[Candidate, ...]


def candidates(problem: Problem, device: str) -> tuple[Candidate, ...]:
    """Every solver of the stem, in the order of the list, with its refusal or its estimate."""
    target = registry.target(device)
    found = []
    for solver in registry.solvers(problem.stem, device):
        refusal = solver.why_not(problem, target)
        if refusal is None:
            config = default_config(solver, problem, target)
            found.append(Candidate(solver, None, float(solver.estimate(problem, target)), config))
        else:
            found.append(Candidate(solver, refusal, math.inf, {}))
    return tuple(found)


def forced_name(algorithm: Any, stem: str) -> str | None:
    """The solver that the settings force for a stem: ``{"gemm": "blocked"}`` or None."""
    if not algorithm:
        return None
    return dict(algorithm).get(stem)


def choose(problem: Problem, device: str, algorithm: Any = None) -> Choice:
    """Rank the solvers of a problem.

    Raises:
        ValueError: a forced solver does not exist or refuses the problem (the message says why).
    """
    found = candidates(problem, device)
    forced = forced_name(algorithm, problem.stem)
    if forced is not None:
        for candidate in found:
            if candidate.solver.name == forced:
                if candidate.refusal is not None:
                    raise ValueError(f"{problem.stem}:{forced} was asked for, but {candidate.refusal}")
                return Choice(candidate.solver, candidate.config, "forced by the settings", found)
        names = ", ".join(candidate.solver.name for candidate in found)
        raise ValueError(f"{problem.stem} has no solver {forced!r}; it has {names}")
    able = [candidate for candidate in found if candidate.refusal is None]
    if not able:
        reasons = "; ".join(f"{c.solver.name}: {c.refusal}" for c in found)
        raise NotImplementedError(f"no {problem.stem} solver takes this problem ({reasons})")
    best = min(able, key=lambda candidate: candidate.estimate)  # min keeps the list's order among equals
    return Choice(best.solver, best.config, "least estimated time", found)
