"""From (stem, device) to solvers, by path and late: a CPU user never loads CUDA, and no list has to be kept."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from numbaprims.dispatch.solver import Solver


@functools.cache
def _stem(stem: str, kind: str) -> Any:
    """The module of a stem's kernels for a kind of device ("cpu", "gpu")."""
    name = f"numbaprims.{kind}.{stem}"
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
    name, _, index = device.partition(":")
    return ("cpu" if name == "cpu" else "gpu"), int(index or 0)


def solvers(stem: str, device: str) -> tuple[Solver, ...]:
    """The ordered SOLVERS of the stem for a device: "cpu", "cuda", "cuda:1", "emulated"."""
    return tuple(_stem(stem, split(device)[0]).SOLVERS)


def target(device: str) -> Any:
    """The facts of the device that estimates and kernels depend on."""
    kind, index = split(device)
    module = importlib.import_module(f"numbaprims.{kind}.target")
    return module.current() if kind == "cpu" else module.current(index)


def prepared(stem: str, device: str) -> Solver | None:
    """The stem's solver for plans: the one whose weights are packed or transformed once, if it has one."""
    solver: Solver | None = getattr(_stem(stem, split(device)[0]), "PREPARED", None)
    return solver


def clock(device: str) -> Any:
    """The clock of a GPU, since a call there returns before it is done; None for the CPU, whose clock is the host's."""
    kind, index = split(device)
    return None if kind == "cpu" else importlib.import_module("numbaprims.gpu.driver").current(index).clock()


def memory() -> Any:
    """The module that moves arrays between the host and GPUs."""
    return importlib.import_module("numbaprims.gpu.memory")
