"""The launchers of each stem, by what a call is: what a second call of a problem finds."""

from __future__ import annotations

import weakref
from typing import Any

from numbaprims import forks
from numbaprims.dispatch.solver import Config, Launcher, Solver

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
        self.known: set[tuple[Any, bool, Any]] = set()
        """Under which keys native code was told of it (`KnownCalls`), whether the result was made by the call, and of
        what kind the arrays were."""


class Launchers:
    """Bound problems of one stem, by the plain tuple that a call makes of its arguments; the oldest go first."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._bound: dict[Any, Bound] = {}
        self._capacity = capacity
        self._lock = forks.lock()
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
