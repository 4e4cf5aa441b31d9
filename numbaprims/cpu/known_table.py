"""Records of calls that native code knows, and tables of them: what `known_call` compares, in words."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from numbaprims import settings, workspace
from numbaprims.cpu import threads
from numbaprims.cpu.drivers import data_word, parallel_driver
from numbaprims.cpu.known import known_result
from numbaprims.cpu.known_tensors import Seen, look_at as look_at, tensor_words
from numbaprims.cpu.known_words import (
    ALIGNED,
    DEVICE,
    DTYPE_AT,
    FACTOR,
    FIXED,
    FLAGS_AT,
    HASH,
    INT,
    LENGTHS_AT,
    MASK,
    MOST_ARRAYS,
    MOST_RESULTS,
    NDIM_AT,
    NOTHING,
    OTHERS,
    PLACES,
    STACK_WORDS,
    STRIDES_AT,
    TENSORS,
    TORCH,
    TYPE_AT,
    VALUE_AT,
    WRITEABLE,
    items_word,
    signed,
)
from numbaprims.cpu.program_words import FURTHER

# PyArray_NewFromDescr among the functions of NumPy's C interface.
_NEW_FROM_DESCR = 94
#: Records of a table; the oldest go first.
MOST_RECORDS = 256
#: Bytes of arrays of a call that does not let other Python threads run meanwhile, which takes 0.04 us.
SHORT = 64 << 10


@functools.cache
def _new_from() -> int:
    """The address of NumPy's function that makes arrays."""
    interface = getattr(np, "_core", None) or np.core
    capsule = interface._multiarray_umath._ARRAY_API
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    return ctypes.c_void_p.from_address(get(capsule, None) + 8 * _NEW_FROM_DESCR).value or 0


@functools.cache
def _readable() -> bool:
    """Whether array objects lie in memory as `_matches` reads them."""
    probe = np.empty((5, 7, 3), np.float32)[::2, ::-1]
    data = data_word()

    def word(at: int) -> int:
        return ctypes.c_int64.from_address(id(probe) + 8 * (data + at)).value

    def words(address: int) -> tuple[int, ...]:
        return tuple((ctypes.c_int64 * probe.ndim).from_address(address))

    new: Any = ctypes.PYFUNCTYPE(ctypes.py_object, *[ctypes.c_void_p] * 2, ctypes.c_int, *[ctypes.c_void_p] * 5)(
        _new_from()
    )
    dtype, lengths, strides = np.dtype(np.float64), (ctypes.c_int64 * 2)(3, 5), (ctypes.c_int64 * 2)(8, 24)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dtype))
    made = new(id(np.ndarray), id(dtype), 2, ctypes.addressof(lengths), ctypes.addressof(strides), None, None, None)
    number = -1.5
    return (
        items_word() > 0
        and type(made) is np.ndarray
        and (made.shape, made.strides, made.dtype) == ((3, 5), (8, 24), dtype)
        and ctypes.c_double.from_address(id(number) + 8 * VALUE_AT).value == number
        and word(TYPE_AT) == id(np.ndarray)
        and word(NDIM_AT) & INT == probe.ndim
        and word(DTYPE_AT) == id(probe.dtype)
        and word(FLAGS_AT) & INT == probe.flags.num
        and words(word(LENGTHS_AT)) == probe.shape
        and words(word(STRIDES_AT)) == probe.strides
    )


@functools.cache
def _parallel_address() -> int:
    """The address of `parallel_driver` for native code; 0 where this Numba keeps it elsewhere."""
    try:
        overload = next(iter(parallel_driver().overloads.values()))
        return int(overload.library.get_pointer_to_function(overload.fndesc.llvm_func_name))
    except (AttributeError, StopIteration):
        return 0


def _extent(array: Any) -> tuple[int, int]:
    """The bytes that an array takes, counted from its first element: from, to."""
    steps = [(length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + array.itemsize


def make_record(
    launch: Any, results: int, made: bool, operands: Sequence[tuple[int, Seen | None]]
) -> np.ndarray | None:
    """What `known_call` compares: the slot of each array in the arguments (-1: it is looked at only), results first.

    `made` says that the first result was made by the call. None where it cannot compare it.  The caller has checked
    that the result shares memory with an operand only where both are the same elements.
    """
    program = getattr(launch, "program", None)
    if program is None or not 1 < len(operands) <= MOST_ARRAYS or results > MOST_RESULTS or not _readable():
        return None
    alone = program.most_workers == 1 or threads.default_threads() == 1 or settings.current().threads == 1
    workers = 1 if alone else min(program.most_workers, settings.current().threads or threads.default_threads())
    needs = program.shared + program.worker * workers
    near = needs <= 8 * STACK_WORDS
    runs = near or needs <= min(workspace.NATIVE, settings.current().workspace_limit)
    if runs and not near:
        threads.lend(workspace.native().ctypes.data)
    long = not near or sum(seen.storage.nbytes for _, seen in operands if seen is not None) > SHORT
    team = runs and workers > 1 and all(slot < 7 for slot, _ in operands)
    driver = _parallel_address() if team else 0
    first = operands[0][1]
    assert first is not None
    words = [0, program.address if runs and (alone or driver) else 0, workers if driver else 1, driver]
    words += [int(long), needs, results, int(made), len(operands), int(first.tensor), first.owner, 0]
    return _with_arrays(words, results, operands)


def make_device_record(
    launched: np.ndarray, results: int, made: bool, operands: Sequence[tuple[int, Seen | None]]
) -> np.ndarray | None:
    """As `make_record`, of arrays on a device, where `launched` is launched (`known_devices`)."""
    if not 1 < len(operands) <= MOST_ARRAYS or results > MOST_RESULTS or not _readable():
        return None
    first = operands[0][1]
    assert first is not None
    words = [0, 0, 1, 0, 0, 0, results, int(made), len(operands), int(first.tensor), first.owner, launched.ctypes.data]
    return _with_arrays(words, results, operands)


def _with_arrays(words: list[int], results: int, operands: Sequence[tuple[int, Seen | None]]) -> np.ndarray | None:
    """The head of a record, and what it says of each array."""
    first = operands[0][1]
    assert first is not None
    digest, result = 0, first.storage
    begin, end = _extent(result)
    for at, (slot, seen) in enumerate(operands):
        if seen is None:
            words += [-1, -1, id(None), *[0] * (FIXED - 3)]
            continue
        array = seen.storage
        if not array.size or seen.tensor != first.tensor or seen.owner != first.owner:
            return None
        low, high = _extent(array)
        gap = seen.address - first.address
        same = gap == 0 and array.strides == result.strides and array.shape == result.shape
        if not same and gap + low < end and begin < gap + high:
            return None  # interleaved
        if results <= at < results + 2:
            digest = _digest_of(seen, digest)
        flags = ALIGNED | (WRITEABLE if array is result else 0)
        place = slot if slot < 7 else FURTHER + slot - 7
        words += [place, array.ndim, seen.dtype, flags, int(same), low, high, int(array.flags.c_contiguous)]
        words += [id(seen.new), 0 if seen.view is None else id(seen.view), *array.shape, *array.strides]
    words[HASH] = digest
    return np.array(words, np.int64)


def _digest_of(seen: Seen, digest: int) -> int:
    """As `_digest` has it."""
    digest = signed((digest ^ seen.dtype) * FACTOR)
    for length in seen.storage.shape:
        digest = signed(((digest ^ (digest >> 29)) ^ length) * FACTOR)
    return digest ^ (digest >> 29)


class Table:
    """Some records, of which calls in other threads may be reading one: none goes before the table does."""

    def __init__(self, records: Sequence[tuple[np.ndarray, Any]] = ()) -> None:
        """Each record comes with what must stay alive with it: its launcher, the dtypes of its arrays."""
        self.records = list(records)
        self._lay(8)

    def _lay(self, least: int) -> None:
        places = 1 << (2 * max(least, len(self.records)) - 1).bit_length()
        self.words = np.zeros(PLACES + 2 * places, np.int64)
        self.words[:NOTHING] = places - 1, id(np.ndarray), id(float), id(tuple), _new_from()
        self.words[NOTHING:TORCH] = id(None), threads.shared_address(), known_result().address
        for number in range(len(self.records)):
            self._place(number)

    def _place(self, number: int) -> None:
        record, mask = self.records[number][0], int(self.words[MASK])
        if record[TENSORS]:
            self.words[TORCH] = tensor_words()
        elif record[DEVICE]:
            from numbaprims.cpu.known_devices import other_words  # late: only where there is a GPU

            self.words[OTHERS] = other_words()
        place = int(record[HASH]) & mask
        while self.words[PLACES + 2 * place]:
            place = (place + 1) & mask
        self.words[PLACES + 2 * place + 1] = number
        self.words[PLACES + 2 * place] = record.ctypes.data

    def with_record(self, record: np.ndarray, keep: Any) -> Table:
        """This table with one more record, or a new one with that and the latest."""
        if len(self.records) >= MOST_RECORDS:
            return Table([*self.records[MOST_RECORDS // 2 :], (record, keep)])
        self.records.append((record, keep))
        if 4 * len(self.records) > len(self.words):
            self._lay(2 * len(self.records))
        else:
            self._place(len(self.records) - 1)
        return self
