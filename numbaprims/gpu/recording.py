"""What a launcher launches, as data: native code launches it again, with other arrays and numbers.

A launcher computes the values of its kernels' parameters in Python, for each call anew: 5 to 10 us. Nearly all of them
are the same in every call that its problem was bound for; the others are addresses in the call's arrays or in scratch
memory, and the call's numbers. Which these are is found by trying: the launcher runs against a library that launches
nothing and notes what it was to launch, once as the call was, then with each array further on, then with each number
changed. What else of a launch changes thereby cannot be recorded; a number that is computed with is taken as fixed.
"""

from __future__ import annotations

import collections
import ctypes
import itertools
import struct
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from numbaprims.device_arrays import DeviceLibrary
from numbaprims.device_views import CLASS, DeviceView
from numbaprims.gpu import driver as devices
from numbaprims.gpu.launch import REGION
from numbaprims.gpu.seam import MAP_BYTES, Native

MOST_LAUNCHES = 64
SCRATCH = -1
"""The place of the scratch memory, among those of arrays."""

# Where scratch memory begins, which nobody reads.
_NOWHERE = 1 << 40
# How many classes an array is moved by: what depends on where it begins in larger units shows, and how it is computed.
_FAR = 1023


class Launch(NamedTuple):
    """A kernel, loaded; its parameters' values as they were in the call."""

    function: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    together: bool
    kinds: tuple[str, ...]
    values: tuple[Any, ...]


class Source(NamedTuple):
    """What a parameter of a launch follows: the number's value as float64 ("number"), its bits ("bits") or a half of
    them ("low", "high"), an address so many bytes behind an array's ("address"), or that in a tensor map ("map")."""

    launch: int
    parameter: int
    how: str
    of: int
    """The number, or the array; SCRATCH."""
    add: int = 0
    at: int = 0
    """Bytes in front of the tensor map."""


class Recorded(NamedTuple):
    """A call."""

    launches: tuple[Launch, ...]
    sources: tuple[Source, ...]
    fixed: tuple[int, ...]
    """Numbers that are the same in each call that is launched like this."""
    scratch: int
    """Bytes."""
    native: Native


class _Unlike(Exception):
    """What was launched cannot be described."""


class _Noted(NamedTuple):
    kernel: Any
    grid: tuple[int, int, int]
    together: bool
    values: tuple[Any, ...]


class _Owner:
    """Of a part of the scratch memory, while it is in use."""


class _Recording(DeviceLibrary):
    """The library of a call that launches nothing."""

    def __init__(self, of: DeviceLibrary, scratch: int) -> None:
        super().__init__(of.index)
        self.starter = self._start
        self.notes: list[_Noted] = []
        self.nbytes = 0
        self._begin = scratch
        self._lent: list[tuple[Any, int]] = []

    def _start(self, kernel: Any, grid: tuple[int, int, int]) -> Callable[..., None]:
        def note(values: tuple[Any, ...], together: bool = False) -> None:
            if len(self.notes) == MOST_LAUNCHES:
                raise _Unlike
            self.notes.append(_Noted(kernel, grid, together, values))

        return note

    def stream(self) -> int:
        return 0

    def scratch(self, nbytes: int) -> tuple[int, Any]:
        """Behind what is in use just now: launches follow one another."""
        self._lent = [(owner, end) for owner, end in self._lent if owner() is not None]
        begin = -(-max((end for _, end in self._lent), default=0) // REGION) * REGION
        owner = _Owner()
        self._lent.append((weakref.ref(owner), begin + nbytes))
        self.nbytes = max(self.nbytes, begin + nbytes)
        return self._begin + begin, owner

    def allocate(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Any:
        raise _Unlike  # what launches keep of one call for the next


def record(
    launch: Callable[..., None], operands: Sequence[DeviceView | None], numbers: Sequence[float]
) -> Recorded | None:
    """What `launch` launches for such operands (7 or more) and numbers, its kernels loaded; None where that cannot be
    said."""
    library = next(x.origin for x in operands if x is not None)
    native = devices.current(library.index).native()
    if native is None:
        return None
    try:
        return _record(launch, operands, numbers, library, native)
    except (_Unlike, RuntimeError):  # the latter of the driver's, about a tensor map of no array
        return None


def _record(
    launch: Callable[..., None],
    operands: Sequence[DeviceView | None],
    numbers: Sequence[float],
    library: DeviceLibrary,
    native: Native,
) -> Recorded:
    usual = {at: x.pointer for at, x in enumerate(operands) if x is not None} | {SCRATCH: _NOWHERE}

    def run(pointers: dict[int, int], numbers: Sequence[float]) -> _Recording:
        recording = _Recording(library, pointers[SCRATCH])
        given = [
            None if x is None else DeviceView(pointers[at], x.shape, x.strides, x.dtype, recording, x.writeable)
            for at, x in enumerate(operands)
        ]
        more = {"more": given[7:]} if len(given) > 7 else {}
        launch(*given[:7], **{f"f{at}": number for at, number in enumerate(numbers)}, **more)
        return recording

    first = run(usual, numbers)
    sources: list[Source] = []
    for place in usual:
        by = _FAR * (REGION if place == SCRATCH else CLASS)
        if place != SCRATCH or first.nbytes:
            sources += _addresses(first, run(usual | {place: usual[place] + by}, numbers), place, usual[place], by)
    followed = [_of_number(first, lambda given: run(usual, given).notes, numbers, at) for at in range(len(numbers))]
    # what seems to follow two of them is a product, say, of ones
    places = collections.Counter(_place(each) for each in [*sources, *itertools.chain(*filter(None, followed))])
    fixed = []
    for at, found in enumerate(followed):
        if found is None or any(places[_place(each)] > 1 for each in found):
            fixed.append(at)
        else:
            sources += found
    driver = devices.current(library.index)
    launches = [
        Launch(int(kernel.loaded(driver)), grid, kernel.block, kernel.shared, together, kernel.kinds, values)
        for kernel, grid, together, values in first.notes
    ]
    return Recorded(tuple(launches), tuple(sources), tuple(fixed), first.nbytes, native)


def _place(source: Source) -> tuple[int, int, int]:
    return source.launch, source.parameter, source.at


def _pairs(first: list[_Noted], other: list[_Noted]) -> Iterable[tuple[int, int, Any, Any, Any]]:
    """(launch, parameter, its kind, its values in both) of each; the kernels are the same."""
    if [each[:3] for each in first] != [each[:3] for each in other]:
        raise _Unlike
    for at, (one, two) in enumerate(zip(first, other, strict=True)):
        for parameter, (kind, a, b) in enumerate(zip(one.kernel.kinds, one.values, two.values, strict=True)):
            yield at, parameter, kind, a, b


def _addresses(first: _Recording, moved: _Recording, place: int, begin: int, by: int) -> list[Source]:
    """What followed an array that was moved by so many bytes."""
    if moved.nbytes != first.nbytes:
        raise _Unlike
    found = []
    for launch, parameter, kind, a, b in _pairs(first.notes, moved.notes):
        if isinstance(a, ctypes.Structure):
            if bytes(a) == bytes(b):
                continue
            pairs = zip(getattr(a, "addresses", ()), getattr(b, "addresses", ()), strict=True)
            maps = [(at * MAP_BYTES, x) for at, (x, y) in enumerate(pairs) if y - x == by]
            same = bytearray(b)
            for at, x in maps:
                same[at : at + MAP_BYTES] = bytes(a)[at : at + MAP_BYTES]
                found.append(Source(launch, parameter, "map", place, x - begin, at))
            if bytes(same) != bytes(a):
                raise _Unlike
        elif _differ(a, b):
            if kind not in ("p", "u64", "i64") or b - a != by:
                raise _Unlike
            found.append(Source(launch, parameter, "address", place, a - begin))
    return found


def _differ(a: Any, b: Any) -> bool:
    return struct.pack("<d", a) != struct.pack("<d", b) if isinstance(a, float) else a != b


def _bits(x: float) -> int:
    return int(struct.unpack("<Q", struct.pack("<d", x))[0])


def _of_number(
    first: _Recording, run: Callable[[list[float]], list[_Noted]], numbers: Sequence[float], at: int
) -> list[Source] | None:
    """What followed a number of the call; None where something was computed of it, or chosen by it."""
    usual = numbers[at]
    # both halves of its bits, both signs, what is often chosen by
    bits = _bits(usual) ^ 0x0000_2A51_0000_1A15
    tries = [struct.unpack("<d", struct.pack("<Q", bits))[0], usual + 1.0, -usual - 1.5, 0.0, 1.0]
    ways: dict[tuple[int, int], set[str]] = {}
    for value in tries:
        try:
            notes = run([*numbers[:at], value, *numbers[at + 1 :]])
            for launch, parameter, kind, a, b in _pairs(first.notes, notes):
                found = _ways(kind, usual, a, value, b)
                ways[launch, parameter] = found & ways.get((launch, parameter), found)
        except (_Unlike, ArithmeticError, ValueError, TypeError):
            return None
    if not all(ways.values()):
        return None
    return [
        Source(launch, parameter, min(found), at) for (launch, parameter), found in ways.items() if _SAME not in found
    ]


_SAME = "same"


def _ways(kind: str, usual: float, a: Any, value: float, b: Any) -> set[str]:
    """How a parameter may follow a number."""
    if isinstance(a, ctypes.Structure):
        return {_SAME} if bytes(a) == bytes(b) else set()
    found = set() if _differ(a, b) else {_SAME}
    if kind in ("f32", "f64"):
        return found if _differ(float(a), usual) or _differ(float(b), value) else found | {"number"}
    before, after = _bits(usual), _bits(value)
    for how, kinds, shift, mask in (
        ("bits", ("i64", "u64"), 0, (1 << 64) - 1), ("low", ("i32", "u32"), 0, (1 << 32) - 1),
        ("high", ("i32", "u32"), 32, (1 << 32) - 1),
    ):  # fmt: skip
        if kind in kinds and a & mask == before >> shift & mask and b & mask == after >> shift & mask:
            found.add(how)
    return found
