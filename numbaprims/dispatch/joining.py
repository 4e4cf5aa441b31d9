"""What a function of several public calls launches, as one launcher for arrays that lie in one way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from numbaprims import arrays, settings
from numbaprims.dispatch import registry

#: What `arrays.enter` gives of an array.
Entered = tuple[Any, str, arrays.Library]


class Whole(NamedTuple):
    """What runs for arrays of one kind; without a launcher the calls do, one after another."""

    launch: Any = None
    constants: tuple[np.ndarray, ...] = ()
    """Arrays that it takes behind those of the call."""
    results: tuple[tuple[Any, str], ...] = ()
    """Of each result an array that lies as it does, and its dtype."""
    why: str = ""
    """In words why programs on the host are not joined."""


def whole(
    apart: Callable[[Sequence[Any], Any], Any], given: Sequence[Entered | None], target: Entered | None = None
) -> Whole:
    """The launcher of ``apart(arrays, out)``, of which nothing is run; it takes results, arrays and constants.

    Where `target` is one of `given`, `out` is that array."""
    there = [each for each in given if each is not None]
    library = there[0][2]
    cpu = registry.split(registry.device_of(library))[0] == "cpu" and settings.current().device != "reference"
    if not cpu or not all(storage.size for storage, *_ in there):
        return Whole()
    joining = registry.joining()

    def beside(each: Entered) -> tuple[Any, Any]:
        """Memory that lies as an array does, and an array of the library over it."""
        storage = joining.stand_in(each[0].shape, each[0].strides, each[0].dtype)
        return storage, library.wrap(storage, each[1])

    inputs = [(None, None) if each is None else beside(each) for each in given]
    out = next((made for each, (_, made) in zip(given, inputs, strict=True) if each is target), None)
    if out is None and target is not None:
        out = beside(target)[1]
    value, recording = joining.recorded(lambda: apart([x for _, x in inputs], out))
    results = [arrays.enter(each, "y") for each in (value if isinstance(value, tuple) else (value,))]
    of_call = [*(storage for storage, *_ in results), *(storage for storage, _ in inputs if storage is not None)]
    found = joining.joined(recording, of_call, len(results))
    recording.launches.clear()  # plans keep their launchers, and those the recording
    if isinstance(found, str):
        return Whole(why=found)
    templates = tuple((as_strided(np.empty(1, y.dtype), y.shape, y.strides), dtype) for y, dtype, _ in results)
    return Whole(joining.make_launcher(found.program), found.constants, templates)
