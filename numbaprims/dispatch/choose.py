"""The choice of a solver, in one fixed order: forced by the user > user database > shipped database > estimate > place
in the list."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable
from typing import Any

from numbaprims import forks, settings
from numbaprims.dispatch import registry
from numbaprims.dispatch.problem import Problem
from numbaprims.dispatch.solver import Config, Launcher, Solver, default_config
from numbaprims.tuning import database, records
from numbaprims.tuning.trouble import warn_once

BEING_TIMED = "being timed"
FORCED = "forced by the settings"
ESTIMATED = "least estimated time"
NOTHING = "there is nothing to compute"


@dataclasses.dataclass(frozen=True)
class Candidate:
    """What is known about one solver for one problem."""

    solver: Solver
    refusal: str | None
    estimate: float
    """Seconds; infinite where the solver refuses."""
    config: Config
    """The database's where it has one, else the solver's first."""
    seconds: float | None = None
    """Its time in a database."""
    origin: str = ""
    """Which database."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """The solver that runs, and the rule that chose it."""

    solver: Solver
    config: Config
    rule: str
    candidates: tuple[Candidate, ...]


class Posed(Exception):
    """A call has posed the problem that a `Trial` without a solver waits for."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem


class Trial:
    """One config to be timed: the next call that poses its problem is bound to it, and `call` then repeats the launch.

    It is put in force by ``settings.trial(...)``, whose key no other call shares, so that the launcher stays out of
    everybody's way. Without a solver, the call is broken off by `Posed`, which brings the problem; without a problem
    too, by the first that is posed.
    """

    def __init__(
        self, stem: str = "", problem: str = "", solver: Solver | None = None, config: Config | None = None
    ) -> None:
        self._wanted = (stem, problem)
        self._solver = solver
        self._config = config or {}
        self._lock = forks.lock()
        self.call: Callable[[], Any] | None = None

    @property
    def asks(self) -> bool:
        """Whether it only asks which problem a call poses."""
        return self._solver is None

    def choice(self, problem: Problem) -> Choice | None:
        """The choice for a problem; None where another than that of the trial is posed."""
        if not self._wanted[0]:
            raise Posed(problem)
        if problem.stem != self._wanted[0] or records.dump(records.fields_of(problem)) != self._wanted[1]:
            return None
        if self._solver is None:
            raise Posed(problem)
        return Choice(self._solver, self._config, BEING_TIMED, ())

    def wrap(self, launch: Launcher, rule: str, outputs: tuple[int, ...] = (0,)) -> Launcher:
        """A launcher that remembers its first arguments, where it is the one to be timed."""
        if rule != BEING_TIMED:
            return launch

        def recorded(*given: Any, **floats: float) -> None:
            with self._lock:
                if self.call is None:
                    self.call = functools.partial(launch, *given, **floats)
            launch(*given, **floats)

        return recorded


def candidates(
    problem: Problem, device: str, *, workspace_limit: int | None = None, asked: str | None = None, alone: bool = False
) -> tuple[Candidate, ...]:
    """Every solver of the stem, in the order of the list, with its refusal or its estimate.

    A solver whose scratch memory exceeds the limit (that of the settings, if none is given) refuses. `asked`: the one
    that the user names; `alone`: no other is asked for an estimate, if there is one of that name.
    """
    target = registry.target(device)
    limit = settings.current().solver_workspace if workspace_limit is None else workspace_limit
    found = []
    solvers = registry.solvers(problem.stem, device)
    for solver in [each for each in solvers if alone and each.name == asked] or solvers:
        why_not = solver.why_not_asked if solver.name == asked else solver.why_not
        try:
            if problem.empty:
                refusal = None if solver is solvers[-1] else NOTHING
            else:
                refusal = why_not(problem, target)
            config: Config = {}
            if refusal is None:
                config = default_config(solver, problem, target)
                refusal = over_limit(solver, problem, target, config, limit)
            seconds = math.inf
            if refusal is None:
                seconds = 0.0 if problem.empty else _seconds(solver.estimate(problem, target))
        except Exception as error:  # a user's own may be wrong
            error.add_note(f"in solver {solver.name!r} of {problem.stem}")
            raise
        found.append(Candidate(solver, refusal, seconds, config if refusal is None else {}))
    return tuple(found)


def _seconds(estimate: Any) -> float:
    """An estimate that others can be compared with."""
    if not isinstance(estimate, numbers.Real) or math.isnan(estimate):
        raise ValueError(f"its estimate is {estimate!r}; it must be seconds")
    return float(estimate)


def scratch(solver: Solver, problem: Problem, target: Any, config: Config) -> int:
    """Bytes of scratch memory; none for what is empty, which solvers are not asked of."""
    return 0 if problem.empty else solver.workspace(problem, target, config)


def over_limit(solver: Solver, problem: Problem, target: Any, config: Config, limit: int | None) -> str | None:
    """Why a config needs too much scratch memory, or None."""
    if limit is None:
        return None
    needed = scratch(solver, problem, target, config)
    return None if needed <= limit else f"it needs {needed} bytes of scratch memory, and the limit is {limit}"


def with_stored(
    problem: Problem, device: str, found: tuple[Candidate, ...], *, workspace_limit: int | None = None
) -> tuple[Candidate, ...]:
    """The candidates with the times and configs of the first database that has any for this problem and device.

    What a database says is checked as if a stranger had written it: an unknown solver, one that refuses the problem,
    another version of a solver, a config that is not one of its own are left out.
    """
    target = registry.target(device)
    try:
        key = records.key_of(problem, target)
    except TypeError:
        return found
    limit = settings.current().solver_workspace if workspace_limit is None else workspace_limit
    for origin, path, stored in database.lookup(key):
        by_name = {candidate.solver.name: candidate for candidate in found}
        valid: dict[str, Candidate] = {}
        for record in stored:
            known = by_name.get(record.solver)
            if known is None:
                warn_once(path, f"{key.stem} has no solver {record.solver!r}; this entry is not used")
            elif known.refusal is None and record.version == known.solver.version:
                if not _is_valid(known.solver, problem, target, record.config):
                    warn_once(path, f"{key.stem}:{record.solver} has no config {record.config}; this entry is not used")
                elif over_limit(known.solver, problem, target, record.config, limit) is None:
                    valid[record.solver] = dataclasses.replace(
                        known, config=record.config, seconds=record.seconds, origin=origin
                    )
        if valid:
            return tuple(valid.get(candidate.solver.name, candidate) for candidate in found)
    return found


def _is_valid(solver: Solver, problem: Problem, target: Any, config: Config) -> bool:
    """Whether the solver takes the config; one that it cannot even read is not valid."""
    try:
        return bool(solver.is_valid(problem, target, config))
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return False


def forced_name(algorithm: Any, stem: str) -> str | None:
    """The solver that the settings force for a stem: ``{"gemm": "blocked"}`` or None."""
    if not algorithm:
        return None
    return dict(algorithm).get(stem)


def choose(problem: Problem, device: str, algorithm: Any = None, *, every: bool = False) -> Choice:
    """Rank the solvers of a problem; where one is forced, it alone is looked at but for `every`.

    Raises:
        ValueError: a forced solver does not exist or refuses the problem (the message says why).
    """
    state = settings.current()
    if state.trial is not None:
        choice: Choice | None = state.trial.choice(problem)
        if choice is not None:
            # an example's arrays may lie in another way than those of the problem: strides are stored by nobody
            refusal = choice.solver.why_not(problem, registry.target(device))
            if refusal is not None:
                raise ValueError(
                    f"{problem.stem}:{choice.solver.name} was asked for, but of the example's arrays {refusal}"
                )
            return choice
    forced = forced_name(algorithm, problem.stem)
    found = candidates(problem, device, asked=forced, alone=not every)
    if forced is not None:
        for candidate in found:
            if candidate.solver.name == forced:
                if candidate.refusal is not None:
                    raise ValueError(f"{problem.stem}:{forced} was asked for, but {candidate.refusal}")
                return Choice(candidate.solver, candidate.config, FORCED, found)
        names = ", ".join(candidate.solver.name for candidate in found)
        raise ValueError(f"{problem.stem} has no solver {forced!r}; it has {names}")
    able = [candidate for candidate in found if candidate.refusal is None]
    if not able:
        reasons = "; ".join(f"{c.solver.name}: {c.refusal}" for c in found)
        raise NotImplementedError(f"no {problem.stem} solver takes this problem ({reasons})")
    if not state.deterministic:
        found = with_stored(problem, device, found)
        timed = [candidate for candidate in found if candidate.seconds is not None]
        if timed:
            best = min(timed, key=lambda candidate: candidate.seconds or math.inf)
            return Choice(best.solver, best.config, best.origin, found)
    best = min(able, key=lambda candidate: candidate.estimate)  # min keeps the list's order among equals
    return Choice(best.solver, best.config, ESTIMATED, found)
