"""Tuning records that may ship with the package: those whose solver was held to the float64 definition."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from numbaprims import settings
from numbaprims.dispatch import examples, registry
from numbaprims.dispatch.check import check_of
from numbaprims.dispatch.find import capture
from numbaprims.tuning.records import Key, Record, key_of


def checked(entries: Iterable[tuple[Key, Record]], device: str = "cpu") -> Iterator[tuple[Key, Record]]:
    """The entries whose config computes the right thing here and now, each with the error that was found.

    Any other costs a warning: one that is wrong, that this release would not use, or of another family of devices.
    """
    for key, record in entries:
        try:
            error = _error(key, record, device)
        except Exception as reason:  # whatever a kernel raises: it does not ship
            warnings.warn(
                f"{key.stem}:{record.solver} {record.config} does not ship: {reason} ({key.problem})",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            yield key, dataclasses.replace(record, error=error)


def _error(key: Key, record: Record, device: str) -> float:
    wanted: dict[str, Any] = json.loads(key.settings)
    target = registry.target(device)
    with settings.config(**wanted):
        problem = examples.restore(key.stem, json.loads(key.problem))
        if key_of(problem, target).family != key.family:
            raise ValueError(f"it is of {key.family}, which this is not")
        solver = next((s for s in registry.solvers(key.stem, device) if s.name == record.solver), None)
        if solver is None or solver.version != record.version:
            raise ValueError(f"this release has no such solver of version {record.version}")
        refusal = solver.why_not(problem, target)
        if refusal is not None or not solver.is_valid(problem, target, record.config):
            raise ValueError(refusal or "it is no config of the solver")
        call = examples.example_call(key.stem, problem)
        check = check_of(problem, call)
        error, why = check(solver, capture(problem, device, call.on(device), solver, record.config)[1], device)
    if why is not None:
        raise ValueError(why)
    return error
