"""From (stem, device) to solvers, by path and late: a CPU user never loads CUDA, and no list has to be kept."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from numbaprims.dispatch.solver import Solver


@functools.cache
def solvers(stem: str, device: str) -> tuple[Solver, ...]:
    """The ordered SOLVERS of ``numbaprims.<device>.<stem>``."""
    return tuple(importlib.import_module(f"numbaprims.{device}.{stem}").SOLVERS)


def target(device: str) -> Any:
    """The facts of the device that estimates and kernels depend on."""
    return importlib.import_module(f"numbaprims.{device}.target").current()


def prepared(stem: str, device: str) -> Solver:
    """The stem's solver for plans: the one whose weights are packed or transformed once."""
    solver: Solver = importlib.import_module(f"numbaprims.{device}.{stem}").PREPARED
    return solver
