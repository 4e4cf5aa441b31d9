"""Arrays of the host computed on a GPU, as ``config(device="cuda")`` asks for: copied there, and the result back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numbaprims import settings
from numbaprims.dispatch import registry
from numbaprims.dispatch.solver import Launcher


def staged(
    launch: Launcher, device: str, stem: str, log: Callable[[str], None], outputs: tuple[int, ...] = (0,)
) -> Launcher:
    """A launcher that takes arrays of the host.  `outputs` are the places of the results; they alone are copied back.

    Arrays that are one and the same on the host are one on the device, so that a result may overwrite an operand.
    """
    index = registry.split(device)[1]

    def launch_staged(*given: Any, more: Any = (), **floats: float) -> None:
        memory = registry.memory()
        stream = memory.own_library(index).stream()
        there: dict[tuple[Any, ...], Any] = {}
        moved = 0
        every = (*given, *(None,) * (7 - len(given)), *more)
        # inputs first: what is also the result is copied then
        for position in (*(p for p in range(len(every)) if p not in outputs), *outputs):
            x = every[position]
            if isinstance(x, np.ndarray) and _place(x) not in there:
                read = position not in outputs
                moved += x.nbytes * read
                there[_place(x)] = memory.storage_view(memory.to_device(x, device=index, stream=stream, copy=read))
        arguments = [there[_place(x)] if isinstance(x, np.ndarray) else x for x in every]
        if more:
            launch(*arguments[:7], more=arguments[7:], **floats)
        else:
            launch(*arguments[: len(given)], **floats)
        results = {_place(every[p]): every[p] for p in outputs if isinstance(every[p], np.ndarray)}
        for place, out in results.items():
            np.copyto(out, memory.to_host(there[place].owner, stream))
        if settings.current().verbose:
            back = sum(out.nbytes for out in results.values())
            log(f"{stem}: {_size(moved)} copied to {device}, {_size(back)} back")

    return launch_staged


def _place(x: np.ndarray) -> tuple[Any, ...]:
    return x.__array_interface__["data"][0], x.shape, x.strides, x.dtype


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
