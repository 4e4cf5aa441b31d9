"""Every solver of a convolution against the others: what the choice of dispatch costs, and who is best."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

from numbaprims.bench.stems.conv_operands import Ours
from numbaprims.tuning.timing import Schedule, measure

# A solver that takes this many times as long as the fastest is timed roughly only: five calls, or 0.1 s of them.
_HOPELESS = 3.0
_LONG = 0.1
_SCHEDULE = Schedule(rounds=7, time_limit=3.0)


def solver_times(
    make: Callable[[str], Callable[[], Any]],
    names: Iterable[str],
    schedule: Schedule = _SCHEDULE,
    always: tuple[str, ...] = (),
) -> dict[str, float]:
    """Seconds of a call by each solver: `make(name)` returns the call, or raises ValueError where the solver refuses.

    All are timed roughly; those near the fastest, and those of `always`, are then timed interleaved.
    """
    calls, once = {}, {}
    for name in names:
        try:
            call = make(name)
            call()
        except ValueError:
            continue
        calls[name], once[name] = call, _shortest(call)
    limit = _HOPELESS * min(once.values())
    near = {name: call for name, call in calls.items() if once[name] <= limit or name in always}
    times = measure(near, schedule)
    best = min(near, key=lambda name: times[name].seconds)
    # relative to the best of the same rounds: what the machine did meanwhile hit both alike
    return once | {name: times[best].seconds * times.speedup(best, over=name).value for name in near}


def _shortest(call: Callable[[], Any]) -> float:
    """Seconds of a call: the shortest of five if they are short, since another process may have the CPU meanwhile."""
    shortest, began = float("inf"), perf_counter()
    for _ in range(5):
        begin = perf_counter()
        call()
        shortest = min(shortest, perf_counter() - begin)
        if perf_counter() - began > _LONG:
            break
    return shortest


def regret(ours: Ours) -> dict[str, Any]:
    """How much slower the default choice is than the best solver, in percent, with every solver's seconds."""
    times, default = solver_times(ours.plan, ours.candidates()), ours.solver()
    best = min(times, key=lambda name: times[name])
    return {"percent": 100 * (times[default] / times[best] - 1), "default": default, "best": best, "seconds": times}
