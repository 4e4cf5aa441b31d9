"""`find`: every solver that can compute a problem, timed, the fastest first.

A problem is timed through the public call that poses it (`numbaprims.dispatch.examples` has the contract that a stem
fulfils for it): the call is made once for each solver, its launch is recorded, and the launches are then timed against
each other by the only clock there is, `numbaprims.tuning.timing`. The caller's arrays take no part.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from numbaprims import forks, settings
from numbaprims.dispatch import choose as _choose, examples, registry, tables
from numbaprims.dispatch.check import check_of
from numbaprims.dispatch.explain import problem_and_device, public_function, seconds_text
from numbaprims.dispatch.launchers import forget
from numbaprims.dispatch.problem import Problem
from numbaprims.dispatch.solver import Config, Solver
from numbaprims.tuning import database, records, turns
from numbaprims.tuning.timing import Schedule, measure
from numbaprims.tuning.trouble import warn_once

MODES = ("normal", "fast", "hybrid", "trust_verify")
TIME_BOX = 3.0
"""A solver that is so many times slower than the best gets a glance of a few calls and no more."""
LONG = 1.0
"""Seconds: a call that is expected to take longer, and is hopeless by its estimate, is not begun."""
GLANCE = 20e-3
"""Seconds that the first look at a solver may take in any case."""
TOLERANCE = 0.5
"""trust_verify keeps a stored winner whose time has grown by less than this part: shared machines vary by 30 %."""

_FIND = Schedule(rounds=7, time_limit=3.0)
_VERIFY = Schedule(rounds=3)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One solver for one problem."""

    algorithm: str
    config: Config
    seconds: float
    """Of one launch; infinite where it was not timed and has no estimate either."""
    workspace: int
    """Bytes of scratch memory."""
    error: float | None = None
    """Largest difference from the reference, relative to the largest value of it; None if not asked for, infinite for
    NaN."""
    note: str = ""
    """How the time was found where it was not measured in full: "a glance", "not begun: ...", "user database",
    "estimate", "failed: ..."; or "wrong: ...", which is not timed."""

    @property
    def measured(self) -> bool:
        """Whether `seconds` is a time that was taken now."""
        return self.note in ("", GLANCED)

    @property
    def wrong(self) -> bool:
        """Whether the result was found to be further from the reference than rounding explains."""
        return self.note.startswith(WRONG)


GLANCED = "a glance"
WRONG, FAILED = "wrong: ", "failed: "
_NOT_BEGUN = f"not begun: {_choose.NOTHING}"


class Findings(list[Finding]):
    """The findings of a problem, the fastest first: a list, which prints as a table."""

    HEADINGS = ("solver", "time", "GFLOP/s", "workspace", "error", "config", "note")

    def __init__(self, problem: Problem, device: str, found: Sequence[Finding]) -> None:
        super().__init__(sorted(found, key=lambda finding: finding.seconds))
        self.problem = problem
        self.device = device

    @property
    def best(self) -> Finding:
        """The fastest; RuntimeError where no solver computes the problem, or none gives the right result."""
        if not self or self[0].note.startswith((WRONG, FAILED)):
            notes = "".join(f"; {f.algorithm}: {f.note}" for f in self)
            raise RuntimeError(f"no solver of {self.problem.stem} is right{notes}")
        return self[0]

    def _cells(self) -> list[tuple[str, ...]]:
        flops = self.problem.flops()
        return [
            (
                f.algorithm,
                "" if math.isinf(f.seconds) else seconds_text(f.seconds),
                f"{flops / f.seconds / 1e9:.3g}" if 0 < f.seconds < math.inf else "",
                str(f.workspace),
                "" if f.error is None else f"{f.error:.1e}",
                ", ".join(f"{name}={value}" for name, value in f.config.items()),
                f.note,
            )
            for f in self
        ]

    def table(self, *, wide: bool = False) -> str:
        """The findings as text that fits the terminal, or as wide as it comes, below the command of the benchmark."""
        if wide:
            return f"{self.problem}\n{tables.aligned(self.HEADINGS, self._cells())}"
        width = tables.terminal_width()
        head = tables.command_text(self.problem.bench_command(), width)
        return f"{head}\n{tables.fitted(self.HEADINGS, self._cells(), width, ('note', 'config', 'solver'))}"

    def __str__(self) -> str:
        return self.table()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from html import escape

        head = "".join(f"<th>{escape(name)}</th>" for name in self.HEADINGS)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in self._cells()
        )
        return f"<p>{escape(str(self.problem))}</p><table><tr>{head}</tr>{body}</table>"


def find(
    function: str | Callable[..., Any] | Problem,
    *args: Any,
    mode: str = "normal",
    device: str | None = None,
    check: bool = False,
    workspace_limit: int | str | None = None,
    store: bool = True,
    **kwargs: Any,
) -> Findings:
    """Time every solver that can compute a problem, and keep the result in the user's tuning database.

    Args:
        function: a problem; or a public function or its name, with the arguments of the call.
        *args: the arguments of the call; arrays are looked at, not computed with.
        mode: "normal" times all solvers; "fast" times none and gives what the databases say, else the estimates;
            "hybrid" gives what the databases say, else times; "trust_verify" checks and times the stored winner again,
            and all of them where it is wrong or its time has grown by half, or where nothing is stored. Any other value
            is the function's own ``mode``, where it has one (``find("resize", x, (3, 4), mode="linear")``).
        device: where a Problem runs ("cpu", "cuda"); a call's arrays say it themselves.
        check: also compare each result with the float64 reference. A solver that is further from it than rounding
            explains is marked, warned of, never the best and never stored. "trust_verify" always does.
        workspace_limit: bytes of scratch memory that a solver may need (``"64M"``); default
            `config(solver_workspace=...)`.
        store: keep the times in the user's database, which later calls of the problem choose by.
        **kwargs: the keyword arguments of the call.

    Returns:
        A list of findings, the fastest first: algorithm, config, seconds, workspace, error. A solver that is three
        times slower than the best is timed by a few calls; none is left out. Those that fail or are wrong come last.
        What is empty, or has an operand without elements that cannot be posed again, is not timed.

    Raises:
        ValueError: the function is not one of ours, the mode is unknown, or the call itself would raise it.
        NotImplementedError: the stem does not say how its problems are called.

    Example:
        >>> import numpy as np, numbaprims
        >>> x = np.ones(64, np.float32)
        >>> found = numbaprims.find("ger", x, x, store=False)
        >>> [f.seconds for f in found] == sorted(f.seconds for f in found)
        True
    """
    if not isinstance(mode, str) or mode not in MODES:
        if not isinstance(function, Problem) and "mode" in inspect.signature(public_function(function)[1]).parameters:
            kwargs, mode = {**kwargs, "mode": mode}, "normal"
        else:
            raise ValueError(f"mode is {mode!r}; it must be one of {', '.join(MODES)}")
    limit = None if workspace_limit is None else settings.check_bytes("workspace_limit", workspace_limit)
    problem, place = problem_and_device("find", function, args, kwargs, device)
    found = _choose.candidates(problem, place, workspace_limit=limit)
    if mode != "normal":
        known = _stored(problem, place, found, limit)
        if mode == "fast":
            return known or _estimated(problem, place, found)
        if known and (mode == "hybrid" or _holds(problem, place, known)):
            return known
    check = check or mode == "trust_verify"
    return search(problem, place, found, check=check, store=store, workspace_limit=limit)


def search(
    problem: Problem,
    device: str,
    found: Sequence[_choose.Candidate],
    *,
    check: bool = False,
    store: bool = True,
    workspace_limit: int | None = None,
) -> Findings:
    """Time the candidates that don't refuse, with the configs that a database knows for them, else their first."""
    target = registry.target(device)
    known = _choose.with_stored(problem, device, tuple(found), workspace_limit=workspace_limit)
    able = [candidate for candidate in known if candidate.refusal is None]
    able.sort(key=lambda c: c.estimate)
    items = [(c.solver, c.config, c.estimate) for c in able]
    result = Findings(problem, device, time_items(problem, device, items, check=check))
    versions = {c.solver.name: c.solver.version for c in able}
    if store:
        limited = workspace_limit is not None or settings.current().solver_workspace is not None
        keep(problem, target, [(f, versions[f.algorithm]) for f in result], everything=not limited)
    for finding in result:
        if finding.wrong:
            warn_of(problem, finding.algorithm, finding.config, finding.note)
    return result


def warn_of(problem: Problem, solver: str, config: Config, note: str) -> None:
    """Warn of a solver whose result is wrong."""
    warnings.warn(
        f"{problem.stem}:{solver} {dict(config)} is {note}. It is not stored; please report it: "
        f"{problem.bench_command()}",
        RuntimeWarning,
        stacklevel=3,
    )


def keep(problem: Problem, target: Any, found: Sequence[tuple[Finding, int]], *, everything: bool = True) -> bool:
    """Put measured times into the user's database and let later calls choose anew; False if nothing was kept.

    What is stored of solvers that were not measured now goes, above all of those that are wrong. Without `everything`,
    solvers that were not asked stay: a limit had left them out.
    """
    own = database.user()
    done = False
    timed = [(finding, version) for finding, version in found if finding.measured]
    if own is not None and (timed or any(finding.wrong for finding, _ in found)):
        try:
            key = records.key_of(problem, target)
        except TypeError as error:
            warn_once(own.path, str(error))
        else:
            threads = threads_now()
            done = own.store(
                key, [record_of(finding, version, threads) for finding, version in timed],
                solvers=None if everything else [finding.algorithm for finding, _ in found],
            )  # fmt: skip
    forget()
    return done


def record_of(finding: Finding, version: int, threads: int) -> records.Record:
    """What a database keeps of a finding."""
    return records.Record(
        finding.algorithm, version, dict(finding.config), finding.seconds, threads, records.toolchain()
    )


def threads_now() -> int:
    """Threads that a call on the CPU uses now."""
    return int(importlib.import_module("numbaprims.cpu.threads").count())


# ---------------------------------------------------------------- timing


def time_items(
    problem: Problem,
    device: str,
    items: Sequence[tuple[Solver, Config, float]],
    *,
    check: bool = False,
    schedule: Schedule | None = None,
) -> list[Finding]:
    """Time (solver, config, estimate) of one problem, those most likely to win first.

    Every one is called once, which compiles it, and glanced at by the clock; those within `TIME_BOX` of the best are
    then timed in blocks against each other.
    """
    if problem.empty:
        return [Finding(solver.name, config, estimate, 0, note=_NOT_BEGUN) for solver, config, estimate in items]
    target = registry.target(device)
    clock = registry.clock(device)
    with turns.turn(device):
        host = examples.example_call(problem.stem, problem)
        call = host.on(device)
        checked = check_of(problem, host) if check else None
        trials: list[tuple[int, Callable[[], Any], Any]] = []
        first: dict[int, float] = {}
        errors: dict[int, float] = {}
        notes: dict[int, str] = {}
        pace = 1.0  # how much longer a call takes than its estimate says
        best = math.inf
        for number, (solver, config, estimate) in enumerate(items):
            if estimate * pace > max(LONG, TIME_BOX * best):
                notes[number] = f"not begun: it would take some {seconds_text(estimate * pace)}"
                continue
            if number and "out" in call.kwargs:
                call = examples.example_call(problem.stem, problem).on(device)  # in place: the operands are used up
            try:
                launch, result = capture(problem, device, call, solver, config)
                if launch is None:
                    notes[number] = _NOT_BEGUN
                    continue
                if checked is not None:  # now: repeated launches change what is computed in place
                    errors[number], why = checked(solver, result, device)
                    if why is not None:
                        notes[number] = WRONG + why
                        continue
                first[number] = _glance(launch, clock, max(GLANCE, TIME_BOX * best if best < math.inf else 0.0))
            except Exception as error:  # one solver that fails must not cost the others their turn
                notes[number] = f"{FAILED}{type(error).__name__}: {error}"
                continue
            if first[number] < best:
                best = first[number]
                pace = best / estimate if estimate > 0 else 1.0
            trials.append((number, launch, (call, result)))
        near = {str(n): launch for n, launch, _ in trials if first[n] <= TIME_BOX * best}
        schedule = schedule or _FIND
        if clock is not None:
            schedule = dataclasses.replace(schedule, resolution=1e-3)  # the device does not wait for the host
        times = measure(near, schedule, clock=clock) if near else {}
    found = []
    for number, (solver, config, estimate) in enumerate(items):
        note = notes.get(number, "")
        if str(number) in times:
            seconds = times[str(number)].best  # the fastest block: other users of the machine only add
        elif number in first:
            seconds, note = first[number], GLANCED
        else:
            seconds = math.inf if note.startswith((WRONG, FAILED)) else estimate * pace
        bytes_ = solver.workspace(problem, target, config)
        found.append(Finding(solver.name, config, seconds, bytes_, errors.get(number), note))
    return found


def capture(
    problem: Problem, device: str, call: examples.Call, solver: Solver, config: Config
) -> tuple[Callable[[], Any] | None, Any]:
    """Make the call with one solver; give its launch, to be repeated, and the call's result. There may be no launch
    where an operand has no elements.

    Raises:
        RuntimeError: the call did not pose the problem.
    """
    trial = _choose.Trial(problem.stem, records.dump(records.fields_of(problem)), solver, config)
    place = "cpu" if registry.split(device)[0] == "cpu" else "auto"
    with settings.config(device=place, algorithm="", verbose=0), settings.trial(trial):
        result = call()
    if trial.call is None and not (problem.empty or call.hollow):
        raise RuntimeError(f"the example call of {problem.stem} poses another problem than {problem}")
    return trial.call, result


def _glance(launch: Callable[[], Any], clock: Any, box: float) -> float:
    """The least of three to seven calls, as the box has room for them: what else the machine does only adds.

    Three in any case, unless they take long: on a busy machine one call of a parallel kernel in two waits 8 ms or more
    for the other users of a core.
    """
    least, spent = math.inf, 0.0
    for count in range(1, 8):
        begin = _now(clock)
        launch()
        seconds = _now(clock) - begin
        least, spent = min(least, seconds), spent + seconds
        if spent > LONG or (spent > box and count >= 3):
            break
    return least


def _now(clock: Any) -> float:
    return float(clock.now()) if clock is not None else perf_counter()


# ---------------------------------------------------------------- without timing everything


def _stored(
    problem: Problem, device: str, found: Sequence[_choose.Candidate], workspace_limit: int | None
) -> Findings | None:
    """What the databases say, or None."""
    target = registry.target(device)
    candidates = _choose.with_stored(problem, device, tuple(found), workspace_limit=workspace_limit)
    known = [c for c in candidates if c.seconds is not None]
    if not known:
        return None
    return Findings(
        problem,
        device,
        [
            Finding(
                c.solver.name, c.config, c.seconds or math.inf,
                _choose.scratch(c.solver, problem, target, c.config), note=c.origin,
            )
            for c in known
        ],
    )  # fmt: skip


def _estimated(problem: Problem, device: str, found: Sequence[_choose.Candidate]) -> Findings:
    target = registry.target(device)
    able = [c for c in found if c.refusal is None]
    return Findings(
        problem,
        device,
        [
            Finding(
                c.solver.name, c.config, c.estimate, _choose.scratch(c.solver, problem, target, c.config),
                note="estimate",
            )
            for c in able
        ],
    )  # fmt: skip


def _holds(problem: Problem, device: str, known: Findings) -> bool:
    """Whether the stored winner is right, and still takes the time that is stored."""
    best = known.best
    solver = next(s for s in registry.solvers(problem.stem, device) if s.name == best.algorithm)
    again = time_items(problem, device, [(solver, best.config, best.seconds)], check=True, schedule=_VERIFY)[0]
    return again.measured and again.seconds <= (1 + TOLERANCE) * best.seconds


_done: set[tuple[str, str, str]] = set()
_finding = forks.lock()


def before_call(problem: Problem, device: str) -> None:
    """What a find mode other than "fast" does before the first call of a problem in a process: one search.

    A call never fails for it: what cannot be timed costs a warning, and the choice is that of "fast".
    """
    state = settings.current()
    if state.deterministic or state.algorithm_for(problem.stem) is not None:
        return
    with _finding:
        try:
            what = (state.find_mode, device, records.dump([problem.stem, records.fields_of(problem)]))
            if what in _done:
                return
            _done.add(what)
            find(problem, mode=state.find_mode, device=device)
        except (NotImplementedError, TypeError, ValueError) as error:
            warn_once("find", f"{problem.stem} is not timed: {error}")
