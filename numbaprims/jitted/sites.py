"""From the description that compiled code carries to the site of this process, and to the public call behind it."""

from __future__ import annotations

import functools
import json
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import numbaprims
from numbaprims import settings
from numbaprims.cpu.call_sites import ArrayKind, Site
from numbaprims.dispatch import call
from numbaprims.jitted import calls

#: Raised when descriptions or blocks change: a function that Numba kept for an older release is then refused.
VERSION = 2

#: What the name of a function begins with that Python calls each time.
IN_PYTHON = "!"

_sites: dict[str, Site] = {}
_by_address: dict[int, Site] = {}


def describe(
    function: str,
    arrays: Sequence[ArrayKind],
    results: int,
    floats: Sequence[str],
    ints: Sequence[str],
    fixed: Mapping[str, Any],
) -> str:
    """The description of a call: what its types and literals say; the first `results` of the arrays are written."""
    return json.dumps([VERSION, function, arrays, results, floats, ints, fixed], sort_keys=True)


def address_of(description: str) -> int:
    """The address of the words of the site; they stay where they are for good."""
    known = _sites.get(description)
    if known is None:
        version, *rest = json.loads(description)
        if version != VERSION:
            raise RuntimeError(
                "this function was compiled with another release of numbaprims and kept by Numba's cache; delete the "
                "__pycache__ folder beside its source"
            )
        function, arrays, results, floats, ints, fixed = rest
        fixed = {name: () if value == [] else value for name, value in fixed.items()}
        public = functools.partial(_call, function, tuple(floats), tuple(ints), fixed)
        direct = function.startswith(IN_PYTHON)
        constants = fixed.get("=constants", False)
        made = Site([ArrayKind(*array) for array in arrays], len(floats), results, public, direct, constants)
        known = _sites.setdefault(description, made)
        _by_address[known.address] = known
    return known.address


def of_address(address: int) -> Site:
    """The site whose words these are."""
    return _by_address[address]


def tell_lost(error: BaseException) -> None:
    """Write an exception down that nobody will see: Numba drops those of the threads of a `prange`."""
    if threading.current_thread().name.startswith("Dummy-"):  # Python's name for threads that are not its own
        call.log_line(f"in a thread of prange, where exceptions are lost: {type(error).__name__}: {error}")


def _call(
    function: str,
    floats: tuple[str, ...],
    ints: tuple[str, ...],
    fixed: dict[str, Any],
    arrays: dict[str, np.ndarray],
    numbers: tuple[float, ...],
    integers: tuple[int, ...],
) -> Any:
    given: dict[str, Any] = {**fixed, **arrays}
    given.update(zip(floats, numbers, strict=True))
    for name, value in zip(ints, integers, strict=True):
        if name.startswith("~"):  # the bits of a float
            name, value = name[1:], struct.unpack("d", struct.pack("q", value))[0]
        name, _, dtype = name.partition(":")  # the type of an integer that has one
        value = np.dtype(dtype).type(value) if dtype else value
        name, *places = name.split(".")
        given[name] = _placed(given.get(name, ()), tuple(map(int, places)), value)
    # a name that begins with "=" is no argument: it tells kinds of calls apart, is read from an array or returned
    arguments = {name: value for name, value in given.items() if not name.startswith("=")}
    own = getattr(calls, function, None)  # a name that begins with "!" none has
    return (own or getattr(numbaprims, function.removeprefix(IN_PYTHON)))(**arguments)


def _placed(value: Any, places: tuple[int, ...], item: int) -> Any:
    """A tuple of tuples with one int more, which follows on the others.

    >>> _placed(((1, 2), (3,)), (1, 1), 4)
    ((1, 2), (3, 4))
    """
    if not places:
        return item
    inner = value[places[0]] if places[0] < len(value) else ()
    return *value[: places[0]], _placed(inner, places[1:], item)


class _Forgetting:
    """What `dispatch.call.forget` and `settings.watch` clear."""

    @staticmethod
    def clear() -> None:
        for known in list(_sites.values()):
            known.forget()


_forgetting = _Forgetting()
call.remember(_forgetting)
settings.watch(_forgetting.clear)
