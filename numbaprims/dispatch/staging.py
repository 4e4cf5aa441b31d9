"""Arrays of the host computed on a GPU, as ``config(device="cuda")`` asks for: copied there, and the result back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numbaprims import settings
from numbaprims.dispatch import registry
from numbaprims.dispatch.solver import Launcher


def staged(launch: Launcher, device: str, stem: str, log: Callable[[str], None]) -> Launcher:
    """A launcher that takes arrays of the host.  The first array is the result; its elements alone are copied back.

    Arrays that are one and the same on the host are one on the device, so that a result may overwrite an operand.
    """
    index = registry.split(device)[1]

    def launch_staged(*given: Any, **floats: float) -> None:
        memory = registry.memory()
        stream = memory.library(index).stream()
        arrays: dict[tuple[Any, ...], Any] = {}
        arguments = []
        moved = 0
        for x in given:
            if not isinstance(x, np.ndarray):
                arguments.append(x)  # a number, or no array
                continue
            place = (x.__array_interface__["data"][0], x.shape, x.strides, x.dtype)
            if place not in arrays:
                copy = memory.to_device(x, device=index, stream=stream)
                moved += x.nbytes
                arrays[place] = memory.storage_view(copy)
            arguments.append(arrays[place])
        launch(*arguments, **floats)
        out = given[0]
        np.copyto(out, memory.to_host(arguments[0].owner, stream))
        if settings.current().verbose:
            log(f"{stem}: {_size(moved)} copied to {device}, {_size(out.nbytes)} back")

    return launch_staged


def _size(nbytes: int) -> str:
    """
    >>> _size(512), _size(3 << 20)
    ('512 B', '3 MiB')
    """
    value, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.3g} {unit}"
