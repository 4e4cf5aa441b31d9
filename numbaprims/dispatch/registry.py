"""From (stem, device) to solvers, by path and late: a CPU user never loads CUDA, and no list has to be kept."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from typing import Any

from numbaprims import settings
from numbaprims.arrays import Library
from numbaprims.dispatch.launchers import forget
from numbaprims.dispatch.solver import Solver
from numbaprims.stems import ENGINES, STEMS
from numbaprims.tuning import machine
from numbaprims.tuning.trouble import warn_once


@functools.cache
def _stem(stem: str, kind: str) -> Any:
    """The module of a stem's kernels for a kind of device ("cpu", "gpu")."""
    name = f"numbaprims.{kind}.{ENGINES.get(stem, stem)}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if kind == "gpu" and error.name == name:
            raise NotImplementedError(f"{stem} has no kernels for GPUs yet; copy its arrays to the CPU") from None
        raise


def split(device: str) -> tuple[str, int]:
    """The kind of a device, and its index: ("gpu", 1) of "cuda:1"; an emulated device is a GPU.

    >>> split("cpu"), split("cuda"), split("emulated:0")
    (('cpu', 0), ('gpu', 0), ('gpu', 0))
    """
    name, _, index = str(device).partition(":")
    if name not in ("cpu", "cuda", "emulated") or not (index or "0").isdecimal():
        raise ValueError(f"device is {device!r}; it must be 'cpu', 'cuda', 'cuda:N' or 'emulated'")
    return ("cpu" if name == "cpu" else "gpu"), int(index or 0)


def device_of(library: Library) -> str:
    """The device of a call: that of its arrays; for arrays of the host that of the settings, if they name a GPU."""
    wanted = settings.current().device
    if library.device != "cpu" or wanted is None or wanted == "reference":
        return library.device
    return wanted


def solvers(stem: str, device: str) -> tuple[Solver, ...]:
    """Solvers of a stem, in order, for a device ("cpu", "cuda", "cuda:1", "emulated"): registered ones first."""
    kind = split(device)[0]
    own: tuple[Solver, ...] = _stem(stem, kind).SOLVERS
    added = _registered.get((stem, kind))
    return (*added, *own) if added else own


_registered: dict[tuple[str, str], tuple[Solver, ...]] = {}


def register(stem: str, solver: Solver, device: str = "cpu") -> None:
    """Let dispatch know a solver of your own, from now on and in this process; estimates decide when it is taken.

    Args:
        stem: the primitive: one of `numbaprims.stems.STEMS`.
        solver: its `name` is new, or that of one registered before, whose place it takes (a notebook's cell run again).
        device: "cpu", or "cuda" for GPUs.

    Raises:
        TypeError: not a Solver, or one without a name.
        ValueError: no such stem, or a solver of the package has that name.

    Example:
        >>> from numbaprims.cpu.ger.solvers import Naive
        >>> class Plain(Naive):
        ...     name = "plain"
        >>> register("ger", Plain())
        >>> [solver.name for solver in solvers("ger", "cpu")][0]
        'plain'
        >>> unregister("ger", "plain")
    """
    if not isinstance(solver, Solver) or not isinstance(getattr(solver, "name", None), str):
        raise TypeError(
            f"a {type(solver).__name__} is no solver with a name: give an object of a class made from"
            " numbaprims.dispatch.solver.Solver"
        )
    own = [known.name for known in _own(stem, device)]
    if solver.name in own:
        raise ValueError(f"{stem} has a solver {solver.name!r} of its own; give yours another name")
    key = (stem, split(device)[0])
    before = (known for known in _registered.get(key, ()) if known.name != solver.name)
    _registered[key] = (solver, *before)
    forget()


def unregister(stem: str, name: str, device: str = "cpu") -> None:
    """Take back what `register` added.

    Raises:
        ValueError: no solver of that name was registered.
    """
    _own(stem, device)
    key = (stem, split(device)[0])
    left = tuple(known for known in _registered.get(key, ()) if known.name != name)
    if len(left) == len(_registered.get(key, ())):
        raise ValueError(f"no solver {name!r} was registered for {stem} on {device}")
    _registered[key] = left
    forget()


def _own(stem: str, device: str) -> tuple[Solver, ...]:
    """The package's solvers of a stem; ValueError where there is no such stem."""
    kind = split(device)[0]
    try:
        return tuple(_stem(stem, kind).SOLVERS)
    except (ModuleNotFoundError, AttributeError):
        raise ValueError(f"stem {stem!r} is not one that has solvers: {', '.join(STEMS)}") from None


def target(device: str) -> Any:
    """The facts of the device that estimates and kernels depend on.

    Those of the CPU have the rates that `numbaprims calibrate` measured, unless all runs are to choose alike.
    """
    kind, index = split(device)
    if kind == "gpu":
        return importlib.import_module("numbaprims.gpu.driver").current(index).target
    cpu = importlib.import_module("numbaprims.cpu.target").current()
    return cpu if settings.current().deterministic else _calibrated(machine.path_of(cpu.fingerprint))


@functools.cache
def _calibrated(path: str) -> Any:
    """The CPU with the rates of a file; without, where that holds none."""
    module = importlib.import_module("numbaprims.cpu.target")
    cpu = module.current()
    rates = machine.load(path, cpu.fingerprint)
    try:
        return cpu if rates is None else dataclasses.replace(cpu, measured=module.CpuRates.of_document(rates))
    except ValueError as error:
        warn_once(path, f"it is not used: {error}")
        return cpu


def calibrated() -> None:
    """Read the file of this CPU's rates again, and let every problem be chosen anew."""
    _calibrated.cache_clear()
    forget()


def prepared(stem: str, device: str) -> Solver | None:
    """The stem's solver for plans: the one whose weights are packed or transformed once, if it has one."""
    solver: Solver | None = getattr(_stem(stem, split(device)[0]), "PREPARED", None)
    return solver


def clock(device: str) -> Any:
    """The clock of a GPU, since a call there returns before it is done; None for the CPU, whose clock is the host's."""
    kind, index = split(device)
    return None if kind == "cpu" else importlib.import_module("numbaprims.gpu.driver").current(index).clock()


def joining() -> Any:
    """The module that makes one program of the launches of several calls."""
    return importlib.import_module("numbaprims.cpu.joined")


def memory() -> Any:
    """The module that moves arrays between the host and GPUs."""
    return importlib.import_module("numbaprims.gpu.memory")


def recorded(launch: Any, operands: Any, numbers: tuple[float, ...]) -> Any:
    """What a launcher launches on a GPU, and how native code launches there; None where it cannot."""
    return importlib.import_module("numbaprims.gpu.recording").record(launch, operands, numbers)


def placed(library: Any, storage: Any, dtype: str) -> Any:
    """An array of a library with values of the host: over their memory, or a copy where the library has its arrays."""
    if library.device == "cpu":
        return library.wrap(storage, dtype)
    made, view = library.empty(storage.shape, dtype)
    memory().write(view, storage)
    return made
