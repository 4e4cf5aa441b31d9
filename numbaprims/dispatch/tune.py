"""`tune`: the best config of every solver, for problems that matter to you; kept in the user's tuning database.

The part that decides (`tuning/search.py`) runs here; what needs the device runs in jobs, plain dictionaries in and
out, on any executor of concurrent.futures: this process, a pool of processes, a dask cluster. A job's times are kept
under the CPU that took them.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import json
import math
import numbers
from collections.abc import Iterable, Iterator, Sequence
from time import monotonic
from typing import Any

from numbaprims import arrays, settings
from numbaprims.dispatch import choose as _choose, examples, find as _find, peaks, registry
from numbaprims.dispatch.explain import seconds_text
from numbaprims.dispatch.launchers import forget
from numbaprims.dispatch.problem import Problem
from numbaprims.dispatch.scaling import check_executor
from numbaprims.tuning import database, records
from numbaprims.tuning.search import Batch, Option, Walk
from numbaprims.tuning.timing import Schedule

MOST_CONFIGS = 256
"""Of one solver; a generator that never ends is cut there."""
IN_FLIGHT = 16
"""Problems whose jobs wait on an executor at a time."""

_WALK = {"rounds": 3, "min_rounds": 2, "time_limit": 0.5}
_FINAL = {"rounds": 9, "time_limit": 3.0}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What `tune` found for one problem."""

    problem: Problem
    solver: str
    config: dict[str, int | str]
    seconds: float
    before: float
    """Seconds of what the estimates choose."""
    timed: int
    """Configs that were timed now; 0 where all were known from an earlier run."""
    complete: bool
    """Whether the walk came to its end."""

    @property
    def speedup(self) -> float:
        """How many times faster than what the estimates choose."""
        return self.before / self.seconds


class Outcomes(list[Outcome]):
    """The outcomes of a run: a list, which prints as a table."""

    def __str__(self) -> str:
        lines = []
        for o in self:
            config = ", ".join(f"{name}={value}" for name, value in o.config.items())
            state = "" if o.complete else "  (stopped before the end)"
            lines.append(
                f"{o.problem.bench_command()}: {o.solver} ({config}) {seconds_text(o.seconds)}, "
                f"{o.speedup:.2f} x the estimate's choice, {o.timed} configs timed{state}"
            )
        return "\n".join(lines)

    __repr__ = __str__


def tune(
    problems: Problem | Iterable[Problem],
    *,
    executor: concurrent.futures.Executor | None = None,
    budget: float | None = None,
    device: str | None = None,
    sampler: str = "order",
    progress: bool = True,
    again: bool = False,
) -> Outcomes:
    """Time the configs of every solver for some problems, and keep the best in the user's tuning database.

    Every result is compared with the float64 reference first: a config that is wrong is warned of and never kept.

    Args:
        problems: a problem or several, as `numbaprims.explain(...).problem` gives them.
        executor: where the timings run; None is this process. Timings on one device take turns, so a pool of
            processes helps with compiling only (start it with the "spawn" method), a cluster with everything:
            `dask.distributed.Client(...).get_executor()` is one.
        budget: seconds for all problems together; what was found until then is kept.
        device: "cpu" or "cuda"; by default where plain calls on arrays of the host run.
        sampler: "order" times all configs (of the solvers that are worth it), "optuna" a quarter of them.
        progress: draw a bar, on a terminal.
        again: also time what an earlier run has timed.

    Returns:
        An outcome for each problem: solver, config, seconds, seconds of what the estimates choose. Problems with
        nothing to compute are left out, as are those with an operand without elements.

    Raises:
        TypeError: what is no problem, or no executor.
        ValueError: an unknown sampler or device, a budget below 0.
        KeyboardInterrupt: passed on, after what was found so far has been kept; the next run goes on from there.
        Exception: whatever a job raised; the other problems have come to their end then.

    Example:
        >>> import numpy as np, numbaprims
        >>> x = np.ones(64, np.float32)
        >>> problem = numbaprims.explain("ger", x, x).problem
        >>> with numbaprims.config(database="off"):
        ...     [outcome] = numbaprims.tune(problem, progress=False)
        >>> outcome.seconds > 0
        True
    """
    wanted = [problems] if isinstance(problems, Problem | str) or not isinstance(problems, Iterable) else list(problems)
    for problem in wanted:
        if not isinstance(problem, Problem):
            raise TypeError(
                f"problems: {problem!r} given; tune takes what numbaprims.explain(function, ...).problem gives, as "
                f"find does with find(function, ...); `numbaprims tune` takes sizes"
            )
    if budget is not None and not (isinstance(budget, numbers.Real) and budget >= 0):
        raise ValueError(f"budget is {budget!r}; it must be a number of seconds, at least 0")
    if executor is not None:
        check_executor(executor)
    place = device or registry.device_of(arrays.NUMPY)
    Walk((), sampler=sampler), registry.split(place)  # which refuse what is none, before anything is timed
    own = database.user()
    runs = [_Run(problem, place, own, sampler, again) for problem in wanted if _has_work(problem)]
    bar = _Bar(len(runs), progress)
    deadline = math.inf if budget is None else monotonic() + budget
    try:
        if executor is None:
            for number, run in enumerate(runs):
                left = deadline - monotonic()
                run.deadline = monotonic() + left / (len(runs) - number)
                try:
                    for job in run.jobs():
                        run.take(run_job(job))
                        bar.show(run)
                except Exception as error:  # the other problems are tuned all the same
                    run.error = error
                bar.done(run)
        else:
            _on_executor(executor, runs, deadline, bar)
    finally:
        for run in runs:
            run.keep()
        bar.close()
        forget()
    for run in runs:
        if run.error is not None:
            raise run.error
    return Outcomes(outcome for run in runs if (outcome := run.outcome()) is not None)


def _has_work(problem: Problem) -> bool:
    """Whether there is anything to time. Making an example takes a while: only where nothing is added or multiplied."""
    if problem.empty:
        return False
    return problem.flops() > 0 or not examples.example_call(problem.stem, problem).hollow


def _on_executor(executor: concurrent.futures.Executor, runs: Sequence[_Run], deadline: float, bar: _Bar) -> None:
    """Keep one job of each of some problems waiting on the executor."""
    waiting = iter(runs)
    flying: dict[concurrent.futures.Future[Any], tuple[_Run, Iterator[dict[str, Any]]]] = {}

    def submit(run: _Run, jobs: Iterator[dict[str, Any]]) -> None:
        job = next(jobs, None)
        if job is None:
            bar.done(run)
        else:
            flying[executor.submit(run_job, job)] = (run, jobs)

    def begin() -> None:
        for run in itertools.islice(waiting, max(0, IN_FLIGHT - len(flying))):
            run.deadline = deadline
            run.compile_first = True
            submit(run, run.jobs())

    try:
        begin()
        while flying:
            ended, _ = concurrent.futures.wait(flying, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in ended:
                run, jobs = flying.pop(future)
                try:
                    run.take(future.result())
                    bar.show(run)
                    submit(run, jobs)
                except Exception as error:  # the other problems are tuned all the same
                    run.error = error
                    bar.done(run)
            begin()
    finally:
        for future in flying:
            future.cancel()


# ---------------------------------------------------------------- one problem


class _Run:
    """The walk through one problem."""

    def __init__(self, problem: Problem, device: str, own: Any, sampler: str, again: bool) -> None:
        self.problem = problem
        self.device = device
        self.deadline = math.inf
        self.compile_first = False
        self.walk: Walk | None = None
        self.complete = False
        self.peak = math.inf
        self.error: Exception | None = None
        self._own = own
        self._sampler = sampler
        self._again = again
        self._batch: Batch | None = None
        self._key: records.Key | None = None
        self._facts: dict[str, Any] = {}
        self._estimated: tuple[str, str] | None = None
        self._stored = self._wrong = False

    def jobs(self) -> Iterator[dict[str, Any]]:
        """Jobs, one at a time: `take` the result of each before the next."""
        common = {
            "stem": self.problem.stem,
            "problem": records.fields_of(self.problem),
            "settings": {**records.settings_document(), "threads": settings.current().threads},
            "device": self.device,
        }
        yield {**common, "do": "list"}
        assert self.walk is not None
        while monotonic() < self.deadline:
            self._batch = self.walk.next()
            if self._batch is None:
                self.complete = True
                return
            yield {
                **common,
                "do": "time",
                "items": [list(item) for item in self._batch.items],
                "schedule": _FINAL if self._batch.final else _WALK,
                "compile_first": self.compile_first,
            }

    def take(self, result: dict[str, Any]) -> None:
        """The result of the job that was asked for last."""
        self._facts = result
        self._key = records.Key(
            self.problem.stem, records.dump(records.fields_of(self.problem)), records.dump(result["settings"]),
            result["fingerprint"], result["family"],
        )  # fmt: skip
        if self.walk is None:
            self._begin(result)
            return
        assert self._batch is not None
        times = [math.inf if seconds is None else float(seconds) for seconds in result["seconds"]]
        self.walk.tell(self._batch, times)
        if self._own is not None:
            timed = [
                self._record(solver, config, seconds)
                for (solver, config), seconds in zip(self._batch.items, times, strict=True)
            ]
            self._own.add_trials(self._key, timed)
        for (solver, config), note in zip(self._batch.items, result["wrong"], strict=True):
            if note:
                self._wrong = True
                _find.warn_of(self.problem, solver, config, note)

    def _begin(self, result: dict[str, Any]) -> None:
        options = [Option(o["solver"], o["version"], o["estimate"], tuple(o["configs"])) for o in result["options"]]
        self.peak = result["peak"]
        known = {}
        if self._own is not None and not self._again:
            versions = {option.solver: option.version for option in options}
            found = self._own.trials(self._key, result["threads"])
            known = {
                (solver, config): seconds
                for (solver, version, config), seconds in found.items()
                if versions.get(solver) == version
            }
        self.walk = Walk(options, known, sampler=self._sampler)
        first = min(options, key=lambda option: option.estimate)
        self._estimated = (first.solver, records.dump(first.configs[0]))
        self._versions = {option.solver: option.version for option in options}

    def _record(self, solver: str, config: dict[str, int | str], seconds: float) -> records.Record:
        return records.Record(
            solver, self._versions[solver], config, seconds, self._facts["threads"], self._facts["toolchain"]
        )

    def best(self) -> tuple[float, tuple[str, dict[str, int | str]]] | None:
        """(seconds, (solver, config)) of the fastest so far."""
        ranked = self.walk.ranked() if self.walk is not None else []
        return ranked[0] if ranked else None

    def keep(self) -> None:
        """Store the best config of each solver; once, and only where something was timed or nothing is stored."""
        if self._stored or self._own is None or self.walk is None or self._key is None:
            return
        if not self.best() and not self._wrong:
            return
        self._stored = True
        if self.walk.new or not any(which == "" for which, _ in self._own.lookup(self._key)):
            best = [self._record(solver, config, seconds) for seconds, (solver, config) in self.walk.best_of_each()]
            # under a limit, the times of solvers that it left out stay
            limited = settings.current().solver_workspace is not None
            self._own.store(self._key, best, solvers=list(self._versions) if limited else None)

    def outcome(self) -> Outcome | None:
        best = self.best()
        if best is None or self.walk is None or self._estimated is None:
            return None
        seconds, (solver, config) = best
        before = self.walk.seconds.get(self._estimated, seconds)
        return Outcome(self.problem, solver, config, seconds, before, self.walk.new, self.complete)


class _Bar:
    """The bar of a run: problems, and the best of the one at hand."""

    def __init__(self, total: int, on: bool) -> None:
        from tqdm.auto import tqdm

        self._bar = tqdm(total=total, unit="problem", disable=None if on else True)

    def show(self, run: _Run) -> None:
        best = run.best()
        if best is None or run.walk is None:
            return
        seconds, (solver, _) = best
        rate = run.problem.flops() / seconds / 1e9
        share = f", {100 * run.peak / seconds:.0f} % of peak" if run.peak < math.inf else ""
        done = f"{len(run.walk.seconds)} of {run.walk.total} configs"
        self._bar.set_postfix_str(f"{run.problem.stem}: {done}, {solver} {rate:.4g} GFLOP/s{share}")

    def done(self, run: _Run) -> None:
        run.keep()
        self._bar.update()

    def close(self) -> None:
        self._bar.close()


# ---------------------------------------------------------------- jobs: what runs beside the device


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Do a job on this machine: list the solvers of a problem, or time some configs.  Dictionaries of JSON values."""
    wanted = {name: value for name, value in job["settings"].items() if value is not None}
    with settings.config(**wanted):
        problem = examples.restore(job["stem"], job["problem"])
        target = registry.target(job["device"])
        key = records.key_of(problem, target)
        facts = {
            "fingerprint": key.fingerprint,
            "family": key.family,
            "settings": json.loads(key.settings),
            "threads": _find.threads_now(),
            "toolchain": records.toolchain(),
        }
        return facts | (_list(problem, target, job) if job["do"] == "list" else _time(problem, target, job))


def _list(problem: Problem, target: Any, job: dict[str, Any]) -> dict[str, Any]:
    found = []
    for candidate in _choose.candidates(problem, job["device"]):
        if candidate.refusal is None:
            solver = candidate.solver
            configs = [dict(c) for c in itertools.islice(solver.configs(problem, target), MOST_CONFIGS)]
            limit = settings.current().solver_workspace
            found.append(
                {
                    "solver": solver.name,
                    "version": solver.version,
                    "estimate": candidate.estimate,
                    "configs": [c for c in configs if _choose.over_limit(solver, problem, target, c, limit) is None],
                }
            )
    return {"options": found, "peak": peaks.least_seconds(problem, job["device"])}


def _time(problem: Problem, target: Any, job: dict[str, Any]) -> dict[str, Any]:
    solvers = {solver.name: solver for solver in registry.solvers(problem.stem, job["device"])}
    items = [(solvers[name], config, solvers[name].estimate(problem, target)) for name, config in job["items"]]
    if job["compile_first"]:  # while others have their turn on the device
        for solver, config, _ in items:
            try:
                solver.bind(problem, target, config)
            except Exception:
                continue  # it fails again when it is timed, and is noted there
    found = _find.time_items(problem, job["device"], items, check=True, schedule=Schedule(**job["schedule"]))
    return {
        "seconds": [f.seconds if f.measured else None for f in found],
        "wrong": [f.note if f.wrong else "" for f in found],
    }
