"""The calls of a plan as one native call: their programs joined, what they hand on in scratch memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numbaprims import arrays, settings
from numbaprims.dispatch.joining import Entered, Whole, whole
from numbaprims.dispatch.known import KnownCalls
from numbaprims.dispatch.launchers import Bound, remember

#: Kinds of arrays that a plan keeps programs for.
_KINDS = 16


class JoinedCalls:
    """``joined(x, out, added)`` gives what ``apart(x, out, added)`` gives, by one program for each kind of arrays.

    The first call of a kind records what `apart` would launch, on arrays that nobody touches; from the next one on
    ``again((x, *added), out)`` runs it, which is None where native code was not told of such arrays.

    With `later` that is the second one: where `apart` is one call, its launcher may be known, and a program of its own,
    which takes 2 ms, is worth it only for arguments that stay.
    """

    def __init__(self, apart: Callable[[Any, Any, Sequence[Any]], Any], *, later: bool = False) -> None:
        self._apart, self._later = apart, later
        self._kinds: dict[Any, Bound] = {}
        self._known = KnownCalls()
        self.again = self._known.again
        self.why = ""
        """Why the latest kind is not joined; empty where it is."""
        remember(self)

    def clear(self) -> None:
        """Choose solvers anew."""
        self._kinds.clear()

    def __call__(self, x: Any, entered: Entered, out: Any, target: Any, live: Sequence[Any]) -> Any:
        """`entered` is what `arrays.enter` gives of x, `target` the storage of `out`; `live` is read beside them."""
        storage, _, library = entered
        state = settings.current()
        given = [entered, *(arrays.enter(each, "array") for each in live)] if live else [entered]
        key: Any = (
            state.key,
            library,
            storage.shape,
            storage.strides,
            None if target is None else target.strides,
            out is x,
        )
        key += tuple((each.shape, each.strides, dtype) for each, dtype, *_ in given)
        bound = self._kinds.get(key)
        if state.trial is not None or (bound is None and self._later):
            self._later = False
            return self._apart(x, out, live)
        if bound is None or state.verbose:  # which says of each call what it would run
            measures = state.find_mode != "fast"
            value = self._apart(x, out, live) if measures else None
            kind = self.made(given, entered if out is x else None if out is None else arrays.enter(out, "out"))
            bound = Bound(kind.launch, None, None, {}, "", (), "", kind)  # type: ignore[arg-type]
            if len(self._kinds) >= _KINDS:
                self._kinds.clear()
            self._kinds[key] = bound
            if measures:
                return value
        kind = bound.extra
        if kind.launch is None:
            return self._apart(x, out, live)
        operands = [each for each, *_ in given]
        results, storages = [], []
        if target is not None:
            if any(np.may_share_memory(target, each) for each in operands[out is x :]):
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
        # constants are of one kind of arrays, and what native code is asked for of all
        if library.device == "cpu" and not kind.constants and not state.verbose:
            self._known.add(state.calls, bound, [*enumerate((*results, x, *live))], len(results), out is None)
        return results[0] if len(results) == 1 else tuple(results)

    def made(self, given: Sequence[Entered], target: Entered | None = None) -> Whole:
        """What runs for x and what is added, and for an `out`."""
        found = whole(lambda each, out: self._apart(each[0], out, each[1:]), given, target)
        self.why = found.why
        return found
