"""The least time that a problem could take: what "% of peak" is a part of."""

from __future__ import annotations

import functools
import importlib
import math
from typing import Any

from numbaprims.arrays import aligned_empty
from numbaprims.dispatch import registry
from numbaprims.dispatch.problem import Problem
from numbaprims.tuning.timing import Schedule, measure

_QUICK = Schedule(rounds=3, time_limit=0.3)
STREAM = 64 << 20


def least_seconds(problem: Problem, device: str) -> float:
    """Operations at the peak rate, or bytes at the speed of a copy of as many, whichever takes longer.

    On the CPU both are measured, once in a process; on a GPU they follow from its data sheet.
    """
    dtype = next(
        (str(found) for name in ("dtype", "a_dtype", "x_dtype") if (found := getattr(problem, name, None))), "f32"
    )
    if registry.split(device)[0] == "gpu":
        target = registry.target(device)
        return float(max(problem.flops() / target.peak(dtype), problem.bytes_moved() / target.bandwidth))
    size = 1 << max(14, math.ceil(math.log2(max(problem.bytes_moved(), 1.0))))
    return max(problem.flops() / _operations(dtype), problem.bytes_moved() / _bytes(min(size, STREAM)))


@functools.cache
def _operations(dtype: str) -> float:
    """Operations a second of this CPU on the threads of now."""
    roofline = _roofline()
    kind = {"bf16": "bf16", "i8": "u8s8", "u8": "u8s8"}.get(dtype)
    if kind is not None and roofline.best_is_dot(kind):
        call, amount = roofline.dot_peak(kind)
    else:
        call, amount = roofline.fma_peak("f64" if dtype == "f64" else "f32")
    return float(amount / measure({"peak": call}, _QUICK)["peak"].best)


@functools.cache
def _bytes(size: int) -> float:
    """Bytes a second of the best copy, half of `size` read and half written."""
    import numpy as np

    count = size // 8
    source = np.ones(count, np.float32)
    target = aligned_empty((count,), np.float32)
    calls = {str(way): _roofline().copier(source, target, streaming=way) for way in (False, True)}
    times = measure(calls, _QUICK)
    return 2.0 * source.nbytes / min(timing.best for timing in times.values())


def _roofline() -> Any:
    return importlib.import_module("numbaprims.cpu.roofline")
