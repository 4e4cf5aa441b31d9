"""Calls whose arrays are as those of an earlier call: native code looks at them, and runs that call's program.

In Python, to find a launcher by shapes, strides, dtypes and flags takes 0.7 us, and to call it 0.45: more than
the work of a small array.  Here a *record* says how the arrays of a call lay, a *table* holds the records of
some calls, and the driver compares the array objects with each of them: 0.15 us with the launch.  It runs a
program in the calling thread only, and answers 0 where no record fits; the caller then goes the long way.

What it reads of an array object is what NumPy's own macros read: it has been the same since NumPy 1.0 and is
looked up again when the first record is made.

There are two drivers.  One takes a result and up to two operands as arguments.  The other takes a tuple of results and
one of operands, however many, None among them; where a record fits whose program it cannot run, because that needs much
scratch memory or may take several threads, it says which, and the caller has found its launcher by one comparison.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba.extending import register_jitable

from numbaprims import settings
from numbaprims.cpu import threads
from numbaprims.cpu.drivers import CALL_WORDS, MOST_FURTHER, data_word
from numbaprims.cpu.interpreter import C_PROGRAM, C_WORDS
from numbaprims.cpu.jit import compile_entry
from numbaprims.cpu.program_words import ALONE, FURTHER, SCRATCH
from numbaprims.cpu.simd.arguments import FLOAT_SLOT, call_range, float_bits, load_word, stack_words, store_word
from numbaprims.cpu.simd.objects import OBJECT, object_address

# Words of a record: the program, 0 if the caller has to launch it; how many arrays; the bytes of its scratch memory;
# then of each array these, its lengths, and its strides.  With -1 dimensions it is what has no array, by its address as
# the dtype.
_PROGRAM, _ARRAYS, _NEEDS, _HEAD = 0, 1, 2, 3
_SLOT, _NDIM, _DTYPE, _FLAGS, _SAME, _LOW, _HIGH, _FIXED = 0, 1, 2, 3, 4, 5, 6, 7
# Words of an array object, counted from the one with the pointer to its data.
_TYPE_AT, _NDIM_AT, _LENGTHS_AT, _STRIDES_AT, _DTYPE_AT, _FLAGS_AT = -1, 1, 2, 3, 5, 6
_ALIGNED, _WRITEABLE = 0x100, 0x400
_INT = 0xFFFFFFFF  # ndim and flags are ints in words of 8 bytes
# The word of a tuple that has its length.
_SIZE_AT = 2

#: Arrays of the driver that takes them as arguments, and of the one that takes tuples.
FEW_ARRAYS, MOST_ARRAYS = 3, 7 + MOST_FURTHER
#: Words of scratch memory on the stack: programs that need no more are run here, 2 us sooner than by their launchers.
STACK_WORDS = 2560
#: Records of a table; the oldest go first.
MOST_RECORDS = 16


@functools.cache
def _items_word() -> int:
    """Where a tuple keeps its items, in 8-byte words; 0 where they or their number are not found."""
    probe = (object(), object(), object())
    words = (ctypes.c_int64 * 8).from_address(id(probe))
    wanted = [id(each) for each in probe]
    return next((at for at in range(3, 6) if words[at : at + 3] == wanted and words[_SIZE_AT] == 3), 0)


@functools.cache
def _readable() -> bool:
    """Whether array objects lie in memory as `_matches` reads them."""
    probe = np.empty((5, 7, 3), np.float32)[::2, ::-1]
    data = data_word()

    def word(at: int) -> int:
        return ctypes.c_int64.from_address(id(probe) + 8 * (data + at)).value

    def words(address: int) -> tuple[int, ...]:
        return tuple((ctypes.c_int64 * probe.ndim).from_address(address))

    return (
        _items_word() > 0
        and word(_TYPE_AT) == id(np.ndarray)
        and word(_NDIM_AT) & _INT == probe.ndim
        and word(_DTYPE_AT) == id(probe.dtype)
        and word(_FLAGS_AT) & _INT == probe.flags.num
        and words(word(_LENGTHS_AT)) == probe.shape
        and words(word(_STRIDES_AT)) == probe.strides
    )


@register_jitable
def _data_if_known(array, record, data_word, ndarray_type):  # type: ignore[no-untyped-def]
    """The address of an array's data if it lies as the record says, else -1."""
    fields = array + 8 * data_word
    if load_word(fields, _TYPE_AT) != ndarray_type:
        return -1
    ndim = load_word(record, _NDIM)
    wanted = load_word(record, _FLAGS)
    if (
        load_word(fields, _DTYPE_AT) != load_word(record, _DTYPE)
        or load_word(fields, _NDIM_AT) & _INT != ndim
        or load_word(fields, _FLAGS_AT) & wanted != wanted
    ):
        return -1
    lengths, strides = load_word(fields, _LENGTHS_AT), load_word(fields, _STRIDES_AT)
    for d in range(ndim):
        if (
            load_word(lengths, d) != load_word(record, _FIXED + d)
            or load_word(strides, d) != load_word(record, _FIXED + ndim + d)
        ):  # fmt: skip
            return -1
    return load_word(fields, 0)


@register_jitable
def _fits(record, words, handles, data_word, ndarray_type):  # type: ignore[no-untyped-def]
    """Whether the arrays lie as the record says, and to each other too; sets their words of the call."""
    at = record + 8 * _HEAD
    data0 = low0 = high0 = 0
    for k in range(load_word(record, _ARRAYS)):
        handle, ndim = load_word(handles, k), load_word(at, _NDIM)
        if ndim < 0:
            if handle != load_word(at, _DTYPE):
                return False
            at += 8 * _FIXED
            continue
        data = _data_if_known(handle, at, data_word, ndarray_type)
        if data == -1:
            return False
        low, high = data + load_word(at, _LOW), data + load_word(at, _HIGH)
        if k == 0:
            data0, low0, high0 = data, low, high
        elif load_word(at, _SAME) != 0:
            if data != data0:
                return False
        elif low < high0 and low0 < high:
            return False
        slot = load_word(at, _SLOT)
        if slot >= 0:
            store_word(words, slot, data)
        at += 8 * (_FIXED + 2 * ndim)
    return True


@register_jitable
def _launch(table, handles, least, most, f0, f1, f2, data_word):  # type: ignore[no-untyped-def]
    """0 where no record of so many arrays fits, 1 where its program has run, else 2 and the record's number."""
    call = stack_words(CALL_WORDS)
    words = call + 8 * C_WORDS
    for i in range(SCRATCH):  # arrays that a call does not have
        store_word(words, i, 0)
    ndarray_type = load_word(table, 1)
    for index in range(load_word(table, 0)):
        record = load_word(table, 2 + index)
        if least <= load_word(record, _ARRAYS) <= most and _fits(record, words, handles, data_word, ndarray_type):
            program = load_word(record, _PROGRAM)
            if program == 0:
                return 2 + index
            store_word(call, C_PROGRAM, program)
            store_word(words, SCRATCH, stack_words(STACK_WORDS) if load_word(record, _NEEDS) != 0 else 0)
            store_word(words, FLOAT_SLOT, float_bits(f0))
            store_word(words, FLOAT_SLOT + 1, float_bits(f1))
            store_word(words, FLOAT_SLOT + 2, float_bits(f2))
            call_range(load_word(program, ALONE), call, 0, 1, 0)
            return 1
    return 0


@functools.cache
def driver() -> Any:
    """`driver(table, array0, array1, array2, f0, f1, f2)`: 1 if it has run the program of a record that fits, else 0.

    Array 0 is the result.
    """
    word = data_word()

    def launch_known(table, a0, a1, a2, f0, f1, f2):  # type: ignore[no-untyped-def]
        handles = stack_words(FEW_ARRAYS)
        store_word(handles, 0, object_address(a0))
        store_word(handles, 1, object_address(a1))
        store_word(handles, 2, object_address(a2))
        return _launch(table, handles, 0, FEW_ARRAYS, f0, f1, f2, word)

    launch_known.__name__ = launch_known.__qualname__ = f"launch_known_{word}"
    return _entry(launch_known, FEW_ARRAYS)


@functools.cache
def tuple_driver() -> Any:
    """`driver(table, results, operands, f0, f1, f2)`, of two tuples: as `_launch` says."""
    word, items = data_word(), _items_word()

    def launch_tuples(table, made, given, f0, f1, f2):  # type: ignore[no-untyped-def]
        handles = stack_words(MOST_ARRAYS)
        a, b = object_address(made), object_address(given)
        first, second = load_word(a, _SIZE_AT), load_word(b, _SIZE_AT)
        count = first + second
        if count > MOST_ARRAYS:
            return 0
        for k in range(first):
            store_word(handles, k, load_word(a, items + k))
        for k in range(second):
            store_word(handles, first + k, load_word(b, items + k))
        return _launch(table, handles, count, count, f0, f1, f2, word)

    launch_tuples.__name__ = launch_tuples.__qualname__ = f"launch_tuples_{word}_{items}"
    return _entry(launch_tuples, 2)


def _entry(function: Any, objects: int) -> Any:
    """The C function of a driver: the types of the arguments need not be looked up."""
    from numba import types

    signature: Any = types.int64(types.int64, *[OBJECT] * objects, *[types.float64] * 3)
    try:
        return next(iter(compile_entry(function, signature).overloads.values())).entry_point
    except (AttributeError, StopIteration):
        return None


def _extent(array: np.ndarray) -> tuple[int, int]:
    """The bytes that an array takes, counted from its first element: from, to."""
    steps = [(length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + array.itemsize


def make_record(
    launch: Any, operands: Sequence[tuple[int, np.ndarray | None]], any_program: bool = False
) -> np.ndarray | None:
    """What a driver compares: the slot of each array in the arguments (-1: it is looked at only), the result first.

    None where the driver cannot run it, and with `any_program` where it cannot compare it.  The caller has checked that
    the result shares memory with an operand only where both are the same elements.
    """
    program = getattr(launch, "program", None)
    if program is None or not 1 < len(operands) <= (MOST_ARRAYS if any_program else FEW_ARRAYS) or not _readable():
        return None
    # tables belong to settings: what these say holds for each of their calls
    alone = program.most_workers == 1 or 1 in (settings.current().threads, threads.default_threads())
    needs = program.shared + program.worker
    runs = alone and needs <= 8 * STACK_WORDS
    if not runs and not any_program:
        return None
    words = [program.address if runs else 0, len(operands), needs]
    result = operands[0][1]
    assert result is not None
    begin, end = _extent(result)
    for slot, array in operands:
        if array is None:
            words += [-1, -1, id(None), 0, 0, 0, 0]
            continue
        if type(array) is not np.ndarray or not array.size:
            return None
        low, high = _extent(array)
        gap = array.ctypes.data - result.ctypes.data
        same = gap == 0 and array.strides == result.strides and array.shape == result.shape
        if not same and gap + low < end and begin < gap + high:
            return None  # interleaved
        flags = _ALIGNED | (_WRITEABLE if array is result else 0)
        place = slot if slot < 7 else FURTHER + slot - 7
        words += [place, array.ndim, id(array.dtype), flags, int(same), low, high, *array.shape, *array.strides]
    return np.array(words, np.int64)


class Table:
    """Some records, never changed: a call in another thread may be reading them."""

    def __init__(self, records: Sequence[tuple[np.ndarray, Any]]) -> None:
        """Each record comes with what must stay alive with it: its launcher, the dtypes of its arrays."""
        self.records = tuple(records)
        addresses = [int(record.ctypes.data) for record, _ in self.records]
        self._words = np.array([len(addresses), id(np.ndarray), *addresses], np.int64)
        self.address = int(self._words.ctypes.data)

    def with_record(self, record: np.ndarray, keep: Any) -> Table:
        """A table with one more record, which is compared first."""
        return Table([(record, keep), *self.records[: MOST_RECORDS - 1]])
