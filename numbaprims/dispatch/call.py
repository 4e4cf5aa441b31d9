"""From a problem to a launcher: what fills the dict of launchers on a miss."""

from __future__ import annotations

import logging
import sys
from typing import Any

from numbaprims import settings
from numbaprims.arrays import NUMPY, Library
from numbaprims.dispatch import choose as _choose, registry
from numbaprims.dispatch.launchers import Bound as Bound, Launchers as Launchers, forget as forget, remember as remember
from numbaprims.dispatch.problem import Problem
from numbaprims.dispatch.registry import device_of as device_of
from numbaprims.dispatch.staging import staged

logger = logging.getLogger("numbaprims")


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
    state = settings.current()
    device = device_of(library)
    if state.find_mode != "fast" and state.trial is None:
        from numbaprims.dispatch import find

        find.before_call(problem, device)
    choice = _choose.choose(problem, device, state.algorithm, every=state.verbose >= 2)
    target = registry.target(device)
    launch = choice.solver.bind(problem, target, choice.config)
    if state.trial is not None:
        launch = state.trial.wrap(launch, choice.rule, outputs)
    if device != library.device and library.device == "cpu":
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
