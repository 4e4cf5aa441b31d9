"""Launchers: what a solver's `bind` returns; calling one runs the problem's program on the caller's arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numbaprims import settings, workspace
from numbaprims.cpu import threads
from numbaprims.cpu.drivers import Program, parallel_driver, serial_driver


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


def make_launcher(
    program: Program, *, parallel: bool = True, shared: int = 0, per_worker: int = 0
) -> Callable[..., None]:
    """A function `launch(array0, ..., array6, f0, ..., f5)`; the order of arrays is that of the stem's Arguments.

    `shared` and `per_worker` are bytes of scratch memory; kernels see it as the array in slot 7, the shared part
    first, then one part for each worker.  `None` stands for an array that the problem does not have.
    """
    recorder: Callable[[Program, int], Callable[..., None]] | None
    recorder = getattr(settings.current().trial, "launcher", None)
    if recorder is not None:  # a call from a user's compiled code, which runs the program itself (call_sites.py)
        return recorder(program, shared + per_worker)
    serial = _serial()
    address = program.address
    most = program.most_workers if parallel else 1

    if most <= 1 and not (shared or per_worker):

        def launch_plain(  # type: ignore[no-untyped-def]
            a0,
            a1=None,
            a2=None,
            a3=None,
            a4=None,
            a5=None,
            a6=None,
            f0=0.0,
            f1=0.0,
            f2=0.0,
            f3=0.0,
            f4=0.0,
            f5=0.0,
        ):
            serial(
                address, 1, id(a0), id(a1), id(a2), id(a3), id(a4), id(a5), id(a6), 0, f0, f1, f2, f3, f4, f5
            )  # fmt: skip

        launch_plain.program = program  # type: ignore[attr-defined]
        launch_plain.most_workers = 1  # type: ignore[attr-defined]
        return launch_plain

    def launch(  # type: ignore[no-untyped-def]
        a0,
        a1=None,
        a2=None,
        a3=None,
        a4=None,
        a5=None,
        a6=None,
        f0=0.0,
        f1=0.0,
        f2=0.0,
        f3=0.0,
        f4=0.0,
        f5=0.0,
    ):
        workers = 1
        if most > 1:
            workers = min(most, threads.count())
            if workers > 1 and not threads.parallel_allowed():
                workers = 1
        if workers > 1:
            try:
                _launch(
                    serial, address, threads.enter(workers), shared, per_worker,
                    (id(a0), id(a1), id(a2), id(a3), id(a4), id(a5), id(a6)), f0, f1, f2, f3, f4, f5,
                )  # fmt: skip
            finally:
                threads.leave()
        elif shared or per_worker:
            _launch(
                serial, address, 1, shared, per_worker,
                (id(a0), id(a1), id(a2), id(a3), id(a4), id(a5), id(a6)), f0, f1, f2, f3, f4, f5,
            )  # fmt: skip
        else:
            serial(
                address, 1, id(a0), id(a1), id(a2), id(a3), id(a4), id(a5), id(a6), 0, f0, f1, f2, f3, f4, f5
            )  # fmt: skip

    launch.program = program  # type: ignore[attr-defined]
    if not (shared or per_worker):
        launch.most_workers = most  # type: ignore[attr-defined]
    return launch


def _launch(
    serial: Any,
    address: int,
    workers: int,
    shared: int,
    per_worker: int,
    handles: tuple[int, ...],
    f0: float,
    f1: float,
    f2: float,
    f3: float,
    f4: float,
    f5: float,
) -> None:
    """With scratch memory for so many workers."""
    size = shared + per_worker * workers
    if size:
        with workspace.borrow(size) as scratch:
            _run(serial, address, workers, handles, id(scratch), f0, f1, f2, f3, f4, f5)
    else:
        _run(serial, address, workers, handles, 0, f0, f1, f2, f3, f4, f5)


def _run(
    serial: Any,
    address: int,
    workers: int,
    handles: tuple[int, ...],
    scratch: int,
    f0: float,
    f1: float,
    f2: float,
    f3: float,
    f4: float,
    f5: float,
) -> None:
    if workers <= 1:
        serial(address, 1, *handles, scratch, f0, f1, f2, f3, f4, f5)
        return
    threads.initialise()
    driver = _parallel()
    with threads.region_lock():
        driver(address, workers, *handles, scratch, f0, f1, f2, f3, f4, f5)
