"""The road from a call to a launcher: a dict of launchers, and what fills it on a miss."""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from typing import Any

from numbaprims import settings
from numbaprims.arrays import NUMPY, Library
from numbaprims.dispatch import choose as _choose
from numbaprims.dispatch.problem import Problem
from numbaprims.dispatch.solver import Config, Launcher, Solver

logger = logging.getLogger("numbaprims")

_caches: weakref.WeakSet[Any] = weakref.WeakSet()

# Launchers of one stem.  A launcher is 1-3 kB, so this bounds a stem at a few megabytes; unbounded caches per shape
# are what users of other libraries complain of most.
CAPACITY = 1024


class Bound:
    """A solver bound to a problem, with what the public function needs to make the output."""

    __slots__ = ("config", "dtype", "extra", "known", "launch", "problem", "rule", "shape", "solver")

    def __init__(
        self,
        launch: Launcher,
        problem: Any,
        solver: Solver,
        config: Config,
        rule: str,
        shape: tuple[int, ...],
        dtype: str,
        extra: Any = None,
    ) -> None:
        self.launch = launch
        self.problem = problem
        self.solver = solver
        self.config = config
        self.rule = rule
        self.shape = shape
        self.dtype = dtype
        self.extra = extra
        self.known = False
        """Whether native code was told of it (`KnownCalls`)."""


class Launchers:
    """Bound problems of one stem, by the plain tuple that a call makes of its arguments; the oldest go first."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._bound: dict[Any, Bound] = {}
        self._capacity = capacity
        self._lock = threading.Lock()
        self.get = self._bound.get  # a bare dict lookup: reads need no lock
        remember(self)

    def put(self, key: Any, bound: Bound) -> Bound:
        """Keep `bound`; where another thread was faster, its launcher stays and is returned."""
        with self._lock:
            known = self._bound.setdefault(key, bound)
            while len(self._bound) > self._capacity:
                del self._bound[next(iter(self._bound))]
        return known

    def clear(self) -> None:
        """Forget every launcher (a cleared kernel cache or a changed device needs it)."""
        with self._lock:
            self._bound.clear()

    def __len__(self) -> int:
        return len(self._bound)


def remember(cache: Any) -> None:
    """Let `forget` clear a cache of bound problems too."""
    _caches.add(cache)


def forget() -> None:
    """Forget every launcher: the next call of each problem chooses again.  `find` and `tune` end with it."""
    for cache in list(_caches):
        cache.clear()


def device_of(library: Library) -> str:
    """The device of a call: that of its arrays; for arrays of the host that of the settings, if they name a GPU."""
    wanted = settings.current().device
    if library.device != "cpu" or wanted is None or wanted == "reference":
        return library.device
    return wanted


def bind(
    problem: Problem,
    shape: tuple[int, ...],
    dtype: str,
    *,
    library: Library = NUMPY,
    extra: Any = None,
    outputs: tuple[int, ...] = (0,),
) -> Bound:
    """Choose a solver for `problem` on the device of its arrays, compile or load its kernels, and keep what a call
    needs; `outputs` are the places of the results in a launch.

    Raises:
        NotImplementedError: the stem has no kernels for that device.
    """
    from numbaprims.dispatch import registry

    state = settings.current()
    device = device_of(library)
    if state.find_mode != "fast" and state.trial is None:
        from numbaprims.dispatch import find

        find.before_call(problem, device)
    choice = _choose.choose(problem, device, state.algorithm)
    target = registry.target(device)
    launch = choice.solver.bind(problem, target, choice.config)
    if state.trial is not None:
        launch = state.trial.wrap(launch, choice.rule, outputs)
    if device != library.device and library.device == "cpu":
        from numbaprims.dispatch.staging import staged

        launch = staged(launch, device, problem.stem, log_line, outputs)
    if state.verbose >= 2:
        for candidate in choice.candidates:
            if candidate.refusal is not None:
                log_line(f"{problem.stem}: {candidate.solver.name} refuses: {candidate.refusal}")
    return Bound(launch, problem, choice.solver, choice.config, choice.rule, shape, dtype, extra)


def log_call(bound: Bound) -> None:
    """One line for one call: the command that reproduces it, then what was chosen and why."""
    log_line(f"{bound.problem.bench_command()}  # {bound.solver.name}, {bound.rule}")


def log_line(line: str) -> None:
    """To the `numbaprims` logger where the program has set one up, else to standard error."""
    if logger.handlers and logger.isEnabledFor(logging.INFO):
        logger.info(line)
    else:
        sys.stderr.write(f"numbaprims: {line}\n")
