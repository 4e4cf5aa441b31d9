"""The only clock: several callables timed in one process, interleaved in blocks.

Why blocks. Calls of different libraries that alternate one by one disturb each other: the idle workers of
the runtime that has just finished keep spinning for some milliseconds. NumPy's 256x256 product on two
threads then takes 3,900 us instead of 165. So each callable gets a block of its own (15 ms), the first 6 ms
of which are thrown away; a block gives one median; the callables take turns for several rounds, each round
beginning with another of them. What the machine does meanwhile (other users, clock changes) hits the blocks
of one round alike, so comparisons use the ratio of two blocks of the same round and take the median over
the rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol

__all__ = ["Clock", "Measurements", "Ratio", "Schedule", "Timing", "measure", "measure_one"]

Call = Callable[[], Any]
#: Blocks that a long call takes: it is called as seldom as possible.
LONG = 20


class Clock(Protocol):
    """What `measure` needs of time; a test passes one of its own."""

    def now(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class _MachineClock:
    now = staticmethod(time.perf_counter)
    sleep = staticmethod(time.sleep)


@dataclass(frozen=True)
class Schedule:
    """How a measurement is laid out in time (seconds).

    block       length of one callable's turn
    settle      start of a turn that is thrown away
    rounds      turns of each callable, when the time limit allows
    min_rounds  turns of each callable in any case; one, where warm calls of seconds alone take longer than the limit
    resolution  calls shorter than this are timed several at a time
    time_limit  no new round begins that would end after it (None: no limit)
    """

    block: float = 15e-3
    settle: float = 6e-3
    rounds: int = 9
    min_rounds: int = 3
    resolution: float = 20e-6
    time_limit: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.settle < self.block:
            raise ValueError(f"settle: {self.settle} s given, allowed from 0 to below block ({self.block} s)")
        if not 1 <= self.min_rounds <= self.rounds:
            raise ValueError(f"min_rounds: {self.min_rounds} given, allowed from 1 to rounds, {self.rounds}")


@dataclass(frozen=True)
class Ratio:
    """Median of a quotient over the rounds, with its lower and upper quartile."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Ratio:
        low, high = _quartiles(values)
        return cls(statistics.median(values), low, high)


@dataclass(frozen=True)
class Timing:
    """Seconds per call of one callable: the median of every block, in the order of the rounds."""

    blocks: tuple[float, ...]
    calls: int

    @property
    def seconds(self) -> float:
        """Median of the blocks."""
        return statistics.median(self.blocks)

    @property
    def best(self) -> float:
        """The fastest block."""
        return min(self.blocks)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles of the blocks, relative to their median."""
        low, high = _quartiles(list(self.blocks))
        return (high - low) / 2 / self.seconds


class Measurements(Mapping[str, Timing]):
    """The timings of one `measure`, by the callables' names, and their paired comparison."""

    def __init__(self, timings: dict[str, Timing]):
        self._timings = timings

    def __getitem__(self, name: str) -> Timing:
        return self._timings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._timings)

    def __len__(self) -> int:
        return len(self._timings)

    def speedup(self, name: str, over: str) -> Ratio:
        """How many times faster `name` is than `over`: time(over) / time(name), paired by round."""
        return Ratio.of([b / a for a, b in zip(self[name].blocks, self[over].blocks, strict=True)])


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    quarters = statistics.quantiles(values, n=4, method="inclusive")
    return quarters[0], quarters[2]


def measure(
    callables: Mapping[str, Call], schedule: Schedule | None = None, *, clock: Clock | None = None, warm: bool = False
) -> Measurements:
    """Time callables against each other in interleaved blocks.

    callables: name -> function without arguments. Each is called at least once before the first block, so
    that compilation, page faults and first-touch work stay outside.
    warm: each has been called before.  A call of 20 blocks and more is not called for that again: the call that says
    how long it takes is its first round, and seconds are not waited for twice.
    ValueError: no callables, or a schedule that is impossible.

    >>> from numbaprims.tuning.timing import measure
    >>> times = measure({"small": lambda: sum(range(100)), "large": lambda: sum(range(10000))})
    >>> times.speedup("small", over="large").value > 10
    True
    """
    if not callables:
        raise ValueError("callables: none given, at least one is needed")
    schedule = schedule or Schedule()
    clock = clock or _MachineClock()
    limit = float("inf") if schedule.time_limit is None else schedule.time_limit
    start = clock.now()
    names = list(callables)
    groups = {name: _calibrate(callables[name], schedule, clock, warm) for name in names}
    known = {name: [s] for name, (s, _) in groups.items() if warm and s >= LONG * schedule.block}
    blocks: dict[str, list[float]] = {name: [] for name in names}
    calls = dict.fromkeys(names, 0)
    longest_round = sum(seconds for (seconds,) in known.values())
    least = 1 if longest_round > limit else schedule.min_rounds
    for turn in range(schedule.rounds):
        before = clock.now()
        if turn >= least and before + longest_round - start > limit:
            break
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            seconds, group = groups[name]
            samples = known.pop(name, None) or _block(callables[name], seconds, group, schedule, clock)
            blocks[name].append(statistics.median(samples))
            calls[name] += len(samples) * group
        longest_round = max(longest_round, clock.now() - before)
    return Measurements({name: Timing(tuple(blocks[name]), calls[name]) for name in names})


def measure_one(call: Call, schedule: Schedule | None = None, *, clock: Clock | None = None) -> Timing:
    """Time one callable alone, by the same blocks.

    >>> from numbaprims.tuning.timing import measure_one
    >>> measure_one(lambda: sum(range(1000))).seconds > 0
    True
    """
    return measure({"call": call}, schedule, clock=clock)["call"]


def _calibrate(call: Call, schedule: Schedule, clock: Clock, warm: bool) -> tuple[float, int]:
    """(seconds per call, calls per sample). The first call is not looked at, it may compile; a `warm` one has."""
    if not warm:
        call()
    seconds = _timed(call, 1, clock)
    if schedule.block <= seconds < LONG * schedule.block:
        # Another process may have had the CPU meanwhile. A short call that passes for a long one is timed one by one,
        # each after a pause: a convolution of 0.26 ms then took 6.9.
        seconds = min(seconds, _timed(call, 1, clock), _timed(call, 1, clock))
    if seconds < schedule.block:
        # A single short call is mostly clock noise and cold cache; a doubled count averages both out.
        count = 1
        while count < 1 << 20:
            begin = clock.now()
            for _ in repeat(None, count):
                call()
            elapsed = clock.now() - begin
            seconds = elapsed / count
            if elapsed >= min(schedule.block / 4, 50 * schedule.resolution):
                break
            count *= 2
    return seconds, max(1, round(schedule.resolution / max(seconds, 1e-9)))


def _block(call: Call, seconds: float, group: int, schedule: Schedule, clock: Clock) -> list[float]:
    """One turn: seconds per call, a sample for each group of calls."""
    if seconds >= schedule.block:
        # Throwing a long call away would double the time of the run: the other runtimes' workers go to sleep
        # while nothing runs at all. One to three calls then, as many as three blocks hold.
        clock.sleep(schedule.settle)
        return [_timed(call, 1, clock) for _ in range(max(1, min(3, int(3 * schedule.block / seconds))))]
    samples: list[float] = []
    start = clock.now()
    while True:
        settled = clock.now() - start >= schedule.settle
        sample = _timed(call, group, clock)
        if settled:
            samples.append(sample)
            if clock.now() - start >= schedule.block:
                return samples


def _timed(call: Call, count: int, clock: Clock) -> float:
    begin = clock.now()
    for _ in repeat(None, count):
        call()
    return (clock.now() - begin) / count
