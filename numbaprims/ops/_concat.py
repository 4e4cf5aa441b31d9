"""Arrays one behind the other: a copy for each, by one program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numbaprims import arrays
from numbaprims.ops.primitive import Joined

#: Parts of one program, at most.
_MOST = 16


def concatenated(parts: tuple[Any, ...], axis: int, out: Any, cast: Callable[..., Any]) -> Any:
    """The parts along an axis, by `cast`, which copies."""
    if not 1 < len(parts) <= _MOST:
        return _apart(cast, parts, (axis,), out)
    return _joined(len(parts), cast).run(parts, (axis,), (), out)


@functools.cache
def _joined(count: int, cast: Callable[..., Any]) -> Joined:
    return Joined("concat", tuple(f"parts[{at}]" for at in range(count)), functools.partial(_apart, cast))


def _apart(cast: Callable[..., Any], given: tuple[Any, ...], options: tuple[int, ...], out: Any) -> Any:
    (axis,) = options
    if not given:
        raise ValueError("parts is empty; give an array at least")
    entered = [arrays.enter(x, f"parts[{at}]") for at, x in enumerate(given)]
    first, dtype, library = entered[0]
    if not -first.ndim <= axis < first.ndim:
        raise ValueError(f"axis is {axis} and parts[0] a {arrays.describe(given[0])}")
    axis %= first.ndim
    for at, (x, own, of) in enumerate(entered):
        if own != dtype or of is not library:
            arrays.require_same(given[0], "parts[0]", given[at], f"parts[{at}]")
        if x.ndim != first.ndim or any(x.shape[d] != first.shape[d] for d in range(x.ndim) if d != axis):
            words = f"parts[0] is a {arrays.describe(given[0])} and parts[{at}] a {arrays.describe(given[at])}"
            raise ValueError(f"{words}; their shapes may differ along axis {axis} only")
    sizes = [x.shape[axis] for x, _, _ in entered]
    shape = (*first.shape[:axis], sum(sizes), *first.shape[axis + 1 :])
    if out is None:
        out = library.empty(shape, dtype)[0]
    else:
        storage = arrays.check_out(out, shape, dtype, library=library)
        arrays.check_overlap(storage, [(x, f"parts[{at}]", False) for at, (x, _, _) in enumerate(entered)])
    start = 0
    for x, size in zip(given, sizes, strict=True):
        if size:
            cast(x, dtype, out=out[(*(slice(None),) * axis, slice(start, start + size))])
        start += size
    return out
