"""The calls of a plan as one native call: their programs joined, what they hand on in scratch memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numbaprims import arrays, settings
from numbaprims.dispatch.joining import Entered, Whole, whole
from numbaprims.dispatch.launchers import remember

#: Kinds of arrays that a plan keeps programs for.
_KINDS = 16


class JoinedCalls:
    """``joined(x, out, added)`` gives what ``apart(x, out, added)`` gives, by one program for each kind of arrays.

    The first call of a kind records what `apart` would launch, on arrays that nobody touches.
    """

    def __init__(self, apart: Callable[[Any, Any, Sequence[Any]], Any]) -> None:
        self._apart = apart
        self._kinds: dict[Any, Whole] = {}
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

    def made(self, given: Sequence[Entered], target: Entered | None = None) -> Whole:
        """What runs for x and what is added, and for an `out`."""
        found = whole(lambda each, out: self._apart(each[0], out, each[1:]), given, target)
        self.why = found.why
        return found
