"""The calls of a plan as one native call: their programs joined, what they hand on in scratch memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from numbaprims import arrays, settings
from numbaprims.dispatch import registry
from numbaprims.dispatch.launchers import remember

#: Kinds of arrays that a plan keeps programs for.
_KINDS = 16
Entered = tuple[Any, str, arrays.Library]


class Kind(NamedTuple):
    """What runs for arrays that lie in one way; without a launcher the calls do, one after another."""

    launch: Any = None
    constants: tuple[np.ndarray, ...] = ()
    results: tuple[tuple[Any, str], ...] = ()
    """Of each result an array that lies as it does, and its dtype."""


class JoinedCalls:
    """``joined(x, out, added)`` gives what ``apart(x, out, added)`` gives, by one program for each kind of arrays.

    The first call of a kind records what `apart` would launch, on arrays that nobody touches.
    """

    def __init__(self, apart: Callable[[Any, Any, Sequence[Any]], Any]) -> None:
        self._apart = apart
        self._kinds: dict[Any, Kind] = {}
        self.why = ""
        """Why the latest kind is not joined; empty where it is."""
        remember(self)

    def clear(self) -> None:
        """Choose solvers anew."""
        self._kinds.clear()

    def __call__(self, x: Any, entered: Entered, out: Any, target: Any, live: Sequence[Any]) -> Any:
        """`entered` is what `arrays.enter` gives of x, `target` the storage of `out`; `live` is read beside them."""
        storage, _, library = entered
        given = [entered, *(arrays.enter(each, "array") for each in live)] if live else [entered]
        key: Any = (settings.key(), library, storage.strides, None if target is None else target.strides)
        if live:
            key += tuple(each.strides for each, *_ in given)
        kind = self._kinds.get(key)
        if kind is None or settings.current().verbose:  # which says of each call what it would run
            measures = settings.current().find_mode != "fast"
            value = self._apart(x, out, live) if measures else None
            kind = self.made(given, None if out is None else arrays.enter(out, "out"))
            if len(self._kinds) >= _KINDS:
                self._kinds.clear()
            self._kinds[key] = kind
            if measures:
                return value
        if kind.launch is None:
            return self._apart(x, out, live)
        operands = [each for each, *_ in given]
        results, storages = [], []
        if target is not None:
            if any(np.may_share_memory(target, each) for each in operands):
                return self._apart(x, out, live)
            results, storages = [out], [target]
        for template, dtype in kind.results[len(results) :]:
            result, made = library.empty_like(template, dtype)
            results.append(result)
            storages.append(made)
        operands = [*storages, *operands, *kind.constants]
        if kind.launch.program.many:
            kind.launch(*operands[:7], more=operands[7:])
        else:
            kind.launch(*operands[:7])
        return results[0] if len(results) == 1 else tuple(results)

    def made(self, given: Sequence[Entered], target: Entered | None = None) -> Kind:
        """What runs for x and what is added, and for an `out`."""
        library = given[0][2]
        cpu = registry.split(registry.device_of(library))[0] == "cpu" and settings.current().device != "reference"
        if not cpu or not all(storage.size for storage, *_ in given):
            return Kind()
        joining = registry.joining()

        def beside(each: Entered) -> tuple[Any, Any]:
            """Memory that lies as an array does, and an array of the library over it."""
            storage = joining.stand_in(each[0].shape, each[0].strides, each[0].dtype)
            return storage, library.wrap(storage, each[1])

        inputs, (x, *more) = zip(*map(beside, given), strict=True)
        out = None if target is None else beside(target)[1]
        value, recording = joining.recorded(lambda: self._apart(x, out, more))
        results = [arrays.enter(each, "y") for each in (value if isinstance(value, tuple) else (value,))]
        of_call = [*(storage for storage, *_ in results), *inputs]
        found = joining.joined(recording, of_call, len(results))
        recording.launches.clear()  # plans keep their launchers, and those the recording
        self.why = found if isinstance(found, str) else ""
        if self.why:
            return Kind()
        templates = tuple((as_strided(np.empty(1, y.dtype), y.shape, y.strides), dtype) for y, dtype, _ in results)
        return Kind(joining.make_launcher(found.program), found.constants, templates)
