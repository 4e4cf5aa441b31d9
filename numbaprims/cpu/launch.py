"""Launchers: calling one runs a program on the caller's arrays."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable
from typing import Any

from numbaprims import workspace
from numbaprims.cpu import threads
from numbaprims.cpu.drivers import MOST_FURTHER, parallel_driver, serial_driver
from numbaprims.cpu.program import Program


def _entry(driver: Any) -> Any:
    """The C function behind a driver, which has one signature: 0.25 us a call instead of 0.43, because the types of
    the arguments are not looked up.  The dispatcher itself where this Numba keeps it elsewhere."""
    try:
        return next(iter(driver.overloads.values())).entry_point
    except (AttributeError, StopIteration):
        return driver


@functools.cache
def _serial() -> Any:
    return _entry(serial_driver())


@functools.cache
def _parallel() -> Any:
    return _entry(parallel_driver())


def make_launcher(program: Program) -> Callable[..., None]:
    """A function `launch(array0, ..., array6, f0, ..., f5, more=())`; the order of arrays is that of the program's.

    `None` stands for an array that the problem does not have; `more` are those after the seventh.
    """
    serial = _serial()
    address, most, scratch = program.address, program.most_workers, program.shared + program.worker

    def launch(  # type: ignore[no-untyped-def]
        a0, a1=None, a2=None, a3=None, a4=None, a5=None, a6=None, f0=0.0, f1=0.0, f2=0.0, f3=0.0, f4=0.0, f5=0.0,
        more=None,
    ):  # fmt: skip
        if more is not None and len(more) > MOST_FURTHER:
            raise ValueError(f"{7 + len(more)} arrays; a program takes at most {7 + MOST_FURTHER}")
        workers = threads.begin(most) if most > 1 else 1
        if not scratch and more is None:
            if workers == 1:
                serial(
                    address, 1, id(a0), id(a1), id(a2), id(a3), id(a4), id(a5), id(a6), 0, 0, f0, f1, f2, f3, f4, f5
                )  # fmt: skip
                return
            try:
                if workers:
                    with threads.region_lock():
                        _parallel()(
                            address, workers, id(a0), id(a1), id(a2), id(a3), id(a4), id(a5), id(a6), 0, 0,
                            f0, f1, f2, f3, f4, f5,
                        )  # fmt: skip
                else:
                    launch_alone(a0, a1, a2, a3, a4, a5, a6, f0, f1, f2, f3, f4, f5)
            finally:
                threads.leave()
            return
        further: Any = None
        if more is not None:
            further = array("q", (len(more), *map(id, more)))  # 1 us; as a ctypes array 1.7
        handles = id(a0), id(a1), id(a2), id(a3), id(a4), id(a5), id(a6)
        floats = 0 if further is None else further.buffer_info()[0], f0, f1, f2, f3, f4, f5
        if workers == 1:
            _run(program, serial, 1, handles, floats)
            return
        try:
            if workers:
                with threads.region_lock():
                    _run(program, _parallel(), workers, handles, floats)
            else:
                _run(program, serial, 1, handles, floats)
        finally:
            threads.leave()

    def launch_alone(  # type: ignore[no-untyped-def]
        a0, a1=None, a2=None, a3=None, a4=None, a5=None, a6=None, f0=0.0, f1=0.0, f2=0.0, f3=0.0, f4=0.0, f5=0.0,
    ):  # fmt: skip
        serial(
            address, 1, id(a0), id(a1), id(a2), id(a3), id(a4), id(a5), id(a6), 0, 0, f0, f1, f2, f3, f4, f5
        )  # fmt: skip

    # 0.1 us less; what takes more than seven arrays is no small call
    made: Any = launch if most > 1 or scratch or program.many else launch_alone
    made.program = program
    return made


def _run(program: Program, driver: Any, workers: int, handles: tuple[int, ...], floats: tuple[float, ...]) -> None:
    """With scratch memory for so many workers."""
    size = program.shared + program.worker * workers
    if size:
        with workspace.borrow(size) as scratch:
            driver(program.address, workers, *handles, id(scratch), *floats)
    else:
        driver(program.address, workers, *handles, 0, *floats)
