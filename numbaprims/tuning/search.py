"""Which configs of a problem to time next: the walk of `tune`, without a clock and without a kernel.

1. The first config of every solver, all in one batch, as `find` does.
2. The other configs of the solvers that came within `KEEP` of the best, the fastest solver's first, a few in a batch.
   A solver that is further away has nothing to win by its tunables, and by its estimate it was not begun at all.
3. A run-off: the best few of all, timed against each other in one process. What is stored comes from there, so that
   the winner is not the one that was lucky with the machine's other users.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

from numbaprims.tuning.records import dump

KEEP = 2.0
BATCH = 4
FINALISTS = 4
SAMPLERS = ("order", "optuna")

Config = dict[str, int | str]
Item = tuple[str, Config]


@dataclasses.dataclass(frozen=True)
class Option:
    """One solver that takes the problem, and its configs, the default first."""

    solver: str
    version: int
    estimate: float
    configs: tuple[Config, ...]


@dataclasses.dataclass(frozen=True)
class Batch:
    """Configs to be timed in one go."""

    items: tuple[Item, ...]
    final: bool = False


class Walk:
    """Ask `next()` for a batch, `tell()` its times, until `next()` gives None.

    `known` are times of an earlier run, by (solver, config as canonical JSON): they are not asked for again.
    """

    def __init__(
        self, options: Sequence[Option], known: dict[tuple[str, str], float] | None = None, *, sampler: str = "order"
    ) -> None:
        if sampler not in SAMPLERS:
            raise ValueError(f"sampler is {sampler!r}; it must be one of {', '.join(SAMPLERS)}")
        self._options = {option.solver: option for option in options}
        self.seconds: dict[tuple[str, str], float] = {}
        self.new = 0
        """How many times were told."""
        for option in options:
            for config in option.configs:
                place = (option.solver, dump(config))
                if known and place in known:
                    self.seconds[place] = known[place]
        self._sampler = sampler
        self._batches = self._walk()
        self._configs = {(o.solver, dump(c)): c for o in options for c in o.configs}

    @property
    def total(self) -> int:
        """How many configs there are."""
        return len(self._configs)

    def next(self) -> Batch | None:
        """What to time next; None at the end."""
        return next(self._batches, None)

    def tell(self, batch: Batch, seconds: Sequence[float]) -> None:
        """The times of a batch, infinite where one failed."""
        for (solver, config), value in zip(batch.items, seconds, strict=True):
            self.seconds[solver, dump(config)] = value
            self.new += 1

    def ranked(self) -> list[tuple[float, Item]]:
        """(seconds, item) of all that have a time, the fastest first."""
        found = [(value, (place[0], self._configs[place])) for place, value in self.seconds.items() if value < math.inf]
        return sorted(found, key=lambda entry: entry[0])

    def best_of_each(self) -> list[tuple[float, Item]]:
        """The same, the best config of each solver only."""
        found: dict[str, tuple[float, Item]] = {}
        for value, item in self.ranked():
            found.setdefault(item[0], (value, item))
        return list(found.values())

    def _unknown(self, option: Option) -> list[Config]:
        return [config for config in option.configs if (option.solver, dump(config)) not in self.seconds]

    def _walk(self) -> Iterator[Batch]:
        first = [
            (option.solver, option.configs[0])
            for option in sorted(self._options.values(), key=lambda option: option.estimate)
            if (option.solver, dump(option.configs[0])) not in self.seconds
        ]
        if first:
            yield Batch(tuple(first))
        leaders = self.best_of_each()
        for value, (solver, _) in leaders:
            if value <= KEEP * leaders[0][0]:
                yield from self._others(self._options[solver])
        finalists = self.ranked()[:FINALISTS]
        if self.new and len(finalists) > 1:
            yield Batch(tuple(item for _, item in finalists), final=True)

    def _others(self, option: Option) -> Iterator[Batch]:
        if self._sampler == "optuna" and len(self._unknown(option)) > BATCH:
            yield from self._sampled(option)
            return
        waiting = self._unknown(option)
        for start in range(0, len(waiting), BATCH):
            yield Batch(tuple((option.solver, config) for config in waiting[start : start + BATCH]))

    def _sampled(self, option: Option) -> Iterator[Batch]:
        """A quarter of the configs, at least 16, in an order that optuna's default sampler (TPE) chooses."""
        try:
            optuna = importlib.import_module("optuna")
        except ModuleNotFoundError:
            raise ValueError("sampler is 'optuna', and optuna is not installed: pip install optuna") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(direction="minimize")
        names = list(option.configs[0])
        values: dict[str, list[Any]] = {
            name: sorted({config[name] for config in option.configs}, key=str) for name in names
        }
        most = max(16, len(option.configs) // 4)
        asked = 0
        for _ in range(20 * most):  # a draw that is no valid config, or a known one, is told and costs nothing
            if asked >= most or not self._unknown(option):
                return
            trial = study.ask()
            config = {name: trial.suggest_categorical(name, values[name]) for name in names}
            place = (option.solver, dump(config))
            if place not in self._configs:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                continue
            if place not in self.seconds:
                asked += 1
                yield Batch(((option.solver, self._configs[place]),))
            value = self.seconds.get(place, math.inf)
            if value < math.inf:
                study.tell(trial, value)
            else:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
