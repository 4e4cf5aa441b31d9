"""The records that calls from a user's own `@njit` code run, and how one is made (call_entry.py runs them).

Where a site has no record for a call, `Site.miss` makes the public call itself, with arrays of the same shapes and
strides that nothing reads or writes, under settings in which launchers are recorded instead of run.  So the checks,
the messages of errors, the choice of a solver and its blocks are those of the public call, and so are the bits.
"""

from __future__ import annotations

import contextvars
import ctypes
import itertools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from numbaprims import forks, settings
from numbaprims.cpu.call_entry import ALIGN, FLOAT, NOTHING, R_HASH, TEMPORARY, make_entry
from numbaprims.cpu.program import array as word_of
from numbaprims.cpu.recording import NOWHERE, Recording, extent, place_of, stand_in
from numbaprims.cpu.simd.arguments import FLOAT_SLOT, FLOAT_SLOTS
from numbaprims.cpu.simd.call_sites import (
    ARRAYS_AT,
    FLOATS_AT,
    HASH,
    KEY_AT,
    KEYS,
    PUBLISH_AT,
    PUBLISH_VALUE,
    SITE_ENTRY,
    SITE_TABLE,
    SITE_WORDS,
)

# Kinds of arrays that one site remembers, some 2 KB each; later ones take the long way through Python.
CAPACITY = 4096

# Held for as long as a table is looked at, by nobody who compiles.
_lock = forks.lock()


class ArrayKind(NamedTuple):
    """What the type of an argument says of an array."""

    name: str
    dtype: str
    ndim: int
    writeable: bool
    aligned: bool


class _Operand(NamedTuple):
    """One array of a call: where it lies."""

    kind: ArrayKind
    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        return np.dtype(self.kind.dtype).itemsize

    def extent(self) -> tuple[int, int]:
        return extent(self.shape, self.strides, self.size)

    def is_aligned(self) -> bool:
        return self.kind.aligned and not any(x % self.size for x in (self.pointer, *self.strides))

    def view(self) -> np.ndarray:
        """The caller's array; valid while its call lasts."""
        low, high = self.extent()
        if low == NOWHERE:
            return _frozen(np.zeros(self.shape, self.kind.dtype), self.kind.writeable)
        memory: Any = (ctypes.c_char * (high - low)).from_address(self.pointer + low)
        made = np.ndarray(self.shape, self.kind.dtype, memory, -low, self.strides)
        return _frozen(made, self.kind.writeable)

    def stand_in(self) -> np.ndarray:
        """An array that lies as the caller's does, in memory of its own that nobody touches."""
        return _frozen(stand_in(self.shape, self.strides, self.kind.dtype), self.kind.writeable)


def _frozen(array: np.ndarray, writeable: bool) -> np.ndarray:
    array.flags.writeable = writeable
    return array


class Site:
    """The records of one function for arguments of given types.

    `call(arrays, floats, ints)` is the public call; the first `results` of the arrays are its results. Those that it
    has no argument for, whose names begin with "=", are what it returns. `direct`: it is made each time. `constants`:
    what Python fills depends on no elements and no floats of the call, so that a record may keep it.
    """

    def __init__(
        self,
        arrays: Sequence[ArrayKind],
        floats: int,
        results: int,
        call: Callable[[dict[str, np.ndarray], tuple[float, ...], tuple[int, ...]], Any],
        direct: bool = False,
        constants: bool = False,
    ) -> None:
        self._arrays, self._floats, self._results, self._call = tuple(arrays), floats, results, call
        self._direct, self._constants = direct, constants
        self._generation = 0
        self._kept: list[Any] = []  # records and tables that native code may be reading, for good
        self.words = np.zeros(SITE_WORDS, np.int64)
        self.words[SITE_ENTRY] = make_entry().address
        self.forget()

    @property
    def address(self) -> int:
        return int(self.words.ctypes.data)

    def __len__(self) -> int:
        return len(self._records)

    def forget(self) -> None:
        """Choose anew for every kind of arrays; calls that run just now end with the records that they have."""
        with _lock:
            self._generation += 1
            self._records: dict[Any, tuple[int, int]] = {}  # key -> address, place in the table
            self._table, self._taken = self._new_table(16), set[int]()
            self.words[SITE_TABLE] = self._table.ctypes.data

    def _new_table(self, places: int) -> np.ndarray:
        table = np.zeros(1 + places, np.int64)
        table[0] = places - 1
        self._kept.append(table)
        return table

    # ------------------------------------------------------------------ a call that no record fits

    def miss(self, block: int) -> int:
        """The address of a record for the call of a block; 0 where the call has been done."""
        words = (ctypes.c_int64 * KEY_AT).from_address(block)
        keys = tuple((ctypes.c_int64 * words[KEYS]).from_address(block + 8 * KEY_AT))
        floats = struct.unpack(f"{self._floats}d", bytes(words)[8 * FLOATS_AT : 8 * (FLOATS_AT + self._floats)])
        operands, at = [], 1  # the first word of the key tells whether all are aligned
        for i, kind in enumerate(self._arrays):
            shape, strides = keys[at : at + kind.ndim], keys[at + kind.ndim : at + 2 * kind.ndim]
            operands.append(_Operand(kind, words[ARRAYS_AT + i], shape, strides))
            at += 2 * kind.ndim
        ints = keys[at:]
        relations = _relations(operands)
        key = (keys, relations)
        generation = self._generation
        known = self._records.get(key)
        address = known[0] if known else 0
        if not address:
            if (
                self._direct
                or relations is None
                or len(self._records) >= CAPACITY
                or not all(x.is_aligned() for x in operands)
            ):
                return self._directly(operands, floats, ints)
            stand_ins: list[np.ndarray] = []
            for operand, same in zip(operands, relations, strict=True):
                stand_ins.append(stand_ins[0] if same else operand.stand_in())
            recording = Recording()
            returned = self._returned(contextvars.Context().run(self._record, recording, stand_ins, floats, ints))
            placed = [made if made is not None else x for made, x in itertools.zip_longest(returned, stand_ins)]
            record = self._make_record(recording, operands, relations, placed, words[HASH], keys)
            if record is None:
                return self._directly(operands, floats, ints)
            address = self._keep(key, record, generation)
        words[PUBLISH_AT], words[PUBLISH_VALUE] = self._publication(key, address)
        return address

    def _directly(self, operands: Sequence[_Operand], floats: tuple[float, ...], ints: tuple[int, ...]) -> int:
        """The public call, on the caller's arrays: it checks what the entry cannot."""
        arrays = {operand.kind.name: operand.view() for operand in operands}
        returned = contextvars.Context().run(self._call, arrays, floats, ints)
        for made, x in zip(self._returned(returned), arrays.values(), strict=False):
            if made is not None:
                x[...] = made
        return 0

    def _record(
        self, recording: Recording, arrays: Sequence[np.ndarray], floats: tuple[float, ...], ints: tuple[int, ...]
    ) -> Any:
        with settings.trial(recording):
            return self._call({kind.name: x for kind, x in zip(self._arrays, arrays, strict=True)}, floats, ints)

    def _returned(self, value: Any) -> list[np.ndarray | None]:
        """Of each result what the public call has made; None for those that were given to it."""
        values = value if isinstance(value, tuple) else (value,)
        kinds = self._arrays[: self._results]
        return [value if kind.name.startswith("=") else None for kind, value in zip(kinds, values, strict=False)]

    def _make_record(
        self,
        recording: Recording,
        operands: Sequence[_Operand],
        relations: tuple[bool, ...],
        stand_ins: Sequence[np.ndarray],
        digest: int,
        keys: tuple[int, ...],
    ) -> np.ndarray | None:
        """The words of a record; None for what was not launched by programs on the arrays of the call alone, and on
        what they have written for one another."""
        if not recording.whole and any(x.size for x in stand_ins[: self._results]):
            return None
        if any(
            (x.shape, x.strides) != (operand.shape, operand.strides)
            for x, operand in zip(stand_ins, operands, strict=True)
        ):
            return None  # a result that does not lie as the one that was allocated for it
        programs = [launch.program for launch in recording.launches if launch.program is not None]
        if len(programs) < len(recording.launches):
            return None
        places = []
        for i, (x, operand) in enumerate(zip(stand_ins, operands, strict=True)):
            low, high = operand.extent()
            places.append((x.ctypes.data + low, x.ctypes.data + high, x.ctypes.data, i, 0))
        temporary, launches = 0, list[int]()
        for launch, program in zip(recording.launches, programs, strict=True):
            launches += [program.address, len(launch.arrays) + FLOAT_SLOTS]
            for number in (*launch.outputs, *range(len(launch.arrays))):
                array = launch.arrays[number]
                if array is None or not array.size or place_of(array, places) is not None:
                    continue
                low, high = extent(array.shape, array.strides, array.itemsize)
                start = array.ctypes.data
                if number not in launch.outputs:
                    if not self._constants:
                        return None  # Python has filled it
                    recording.kept.append(array)
                    places.append((start + low, start + high, 0, NOTHING, 0))
                    continue
                places.append((start + low, start + high, start + low, TEMPORARY, temporary))
                temporary += -(-(high - low) // ALIGN) * ALIGN
            for number, array in enumerate(launch.arrays):
                which, offset = place_of(array, places) or (NOTHING, 0)
                launches += [word_of(number).word, which, offset]
            for i, value in enumerate(launch.floats):
                bits = struct.unpack("q", struct.pack("d", value))[0]
                launches += [FLOAT_SLOT + i, FLOAT + i if i < self._floats else NOTHING, bits]
        scratch = temporary + max((program.shared + program.worker for program in programs), default=0)
        words = [digest, len(keys), len(operands), len(programs), scratch, temporary, *keys]
        for operand, same in zip(operands, relations, strict=True):
            words += [int(same), *operand.extent()]
        self._kept += (*programs, *recording.kept)
        return np.array([*words, *launches], np.int64)

    # ------------------------------------------------------------------ the table

    def _keep(self, key: Any, record: np.ndarray, generation: int) -> int:
        """The address of a record that is now kept; where another thread was faster, of its."""
        with _lock:
            self._kept.append(record)
            address = int(record.ctypes.data)
            if generation != self._generation:  # chosen under settings that have changed: good for this call only
                return address
            if key in self._records:
                return self._records[key][0]
            places = len(self._table) - 1
            grown = 2 * (len(self._records) + 1) > places
            if grown:
                self._grow(4 * places)
            place = self._take_place(int(record[R_HASH]))
            self._records[key] = address, place
            if grown:  # nobody reads the new table yet; to one that is read, the entry adds
                self._table[1 + place] = address
            return address

    def _grow(self, places: int) -> None:
        self._table, self._taken = self._new_table(places), set()
        for key, (address, _) in self._records.items():
            place = self._take_place(ctypes.c_int64.from_address(address + 8 * R_HASH).value)
            self._records[key] = address, place
            self._table[1 + place] = address

    def _take_place(self, digest: int) -> int:
        mask = len(self._table) - 2
        place = digest & mask
        while place in self._taken:
            place = (place + 1) & mask
        self._taken.add(place)
        return place

    def _publication(self, key: Any, address: int) -> tuple[int, int]:
        """Where the entry is to store what, so that other threads find the record."""
        with _lock:
            table = int(self._table.ctypes.data)
            if self.words[SITE_TABLE] != table:  # it has grown
                return self.address + 8 * SITE_TABLE, table
            known = self._records.get(key)
            if known is None:
                return self.address + 8 * (SITE_WORDS - 1), 0
            return table + 8 * (1 + known[1]), address


def _relations(operands: Sequence[_Operand]) -> tuple[bool, ...] | None:
    """Which arrays are the result itself; None where one shares some of its memory."""
    out = operands[0]
    low, high = out.extent()
    found = [False]
    for x in operands[1:]:
        same = (
            x.pointer == out.pointer
            and x.kind.dtype == out.kind.dtype
            and (x.shape, x.strides) == (out.shape, out.strides)
            and math.prod(x.shape) > 0
        )
        begin, end = x.extent()
        if not same and x.pointer + begin < out.pointer + high and out.pointer + low < x.pointer + end:
            return None
        found.append(same)
    return tuple(found)
