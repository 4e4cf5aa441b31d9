"""Launches that are written down instead of run: what calls made of the public functions would do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from numbaprims.cpu.call_entry import ALIGN
from numbaprims.cpu.program import ARRAYS, Program
from numbaprims.cpu.simd.arguments import FLOAT_SLOTS

NOWHERE = 1 << 62


class Launch(NamedTuple):
    """A launch that was recorded."""

    program: Program | None
    arrays: tuple[Any, ...]
    floats: tuple[float, ...]
    outputs: tuple[int, ...]


class Recording:
    """Settings under which the launchers of one call write down what they would run (`settings.trial`)."""

    asks = False
    later = True
    """What a launch says of its operands is not known yet."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.kept: list[Any] = []  # what numbers of launches are the addresses of
        self.pieced: list[np.ndarray] = []
        """Temporary arrays that launches write piece by piece, all of each before it is read."""
        self._unbound = 0

    @property
    def whole(self) -> bool:
        """Whether the launches are all of the call: what has no elements may be done by its definition."""
        return bool(self.launches) and self._unbound == 0

    def choice(self, problem: Any) -> None:
        """The solver is chosen as ever."""
        self._unbound += 1

    def wrap(self, launch: Any, rule: str, outputs: tuple[int, ...]) -> Callable[..., None]:
        """In the place of a launcher that would run a program."""
        self._unbound -= 1

        def record(*given: Any, more: Sequence[Any] = (), **floats: float) -> None:
            numbers = [*given[ARRAYS:], *[0.0] * FLOAT_SLOTS][:FLOAT_SLOTS]
            for name, value in floats.items():
                numbers[int(name[1:])] = value
            arrays = (*given[:ARRAYS], *[None] * (ARRAYS - len(given)), *more)
            program = getattr(launch, "program", None)  # a solver of the user's may run something else, a GPU's does
            program = program if isinstance(program, Program) else None
            self.launches.append(Launch(program, arrays, tuple(map(float, numbers)), outputs))

        return record


def extent(shape: Sequence[int], strides: Sequence[int], size: int) -> tuple[int, int]:
    """The bytes that an array takes, counted from its first element: from, to.  An empty one lies beside everything."""
    if 0 in shape:
        return NOWHERE, -NOWHERE
    steps = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + size


def stand_in(shape: Sequence[int], strides: Sequence[int], dtype: Any) -> np.ndarray:
    """An array that lies as another does, in memory of its own that nobody touches."""
    size = np.dtype(dtype).itemsize
    low, high = extent(shape, strides, size)
    if low == NOWHERE:
        low, high = 0, size
    memory = np.zeros(high - low + ALIGN, np.uint8)
    start = -memory.ctypes.data % ALIGN - low
    return np.ndarray(shape, dtype, memory.data, start, strides)


def place_of(array: Any, places: Sequence[tuple[int, ...]]) -> tuple[int, int] | None:
    """What an array of a launch lies in, an array of the call or a temporary one, and how far behind its start."""
    if array is None or not array.size:
        return None
    data = array.ctypes.data
    inside = [(which, offset + data - start) for low, high, start, which, offset in places if low <= data < high]
    return inside[0] if inside else None
