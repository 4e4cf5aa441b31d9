"""Calls whose arrays are as those of an earlier call: native code looks at them, and runs that call's program.

In Python, to find a launcher by shapes, strides, dtypes and flags takes 0.7 us, and to call it 0.45: more than
the work of a small array.  Here a *record* says how the arrays of a call lay, a *table* holds the records of
some calls, and the driver compares the array objects with each of them: 0.15 us with the launch.  It runs a
program in the calling thread only, and answers 0 where no record fits; the caller then goes the long way.

What it reads of an array object is what NumPy's own macros read: it has been the same since NumPy 1.0 and is
looked up again when the first record is made.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba.extending import register_jitable

from numbaprims.cpu import threads
from numbaprims.cpu.drivers import CALL_WORDS, data_word
from numbaprims.cpu.interpreter import C_PROGRAM, C_WORDS
from numbaprims.cpu.jit import compile_entry
from numbaprims.cpu.program_words import ALONE
from numbaprims.cpu.simd.arguments import FLOAT_SLOT, call_range, float_bits, load_word, stack_words, store_word
from numbaprims.cpu.simd.objects import OBJECT, object_address

# Words of a record: the program, how many arrays; then of each array these, its lengths, and its strides.
_PROGRAM, _ARRAYS, _HEAD = 0, 1, 2
_SLOT, _NDIM, _DTYPE, _FLAGS, _SAME, _LOW, _HIGH, _FIXED = 0, 1, 2, 3, 4, 5, 6, 7
# Words of an array object, counted from the one with the pointer to its data.
_TYPE_AT, _NDIM_AT, _LENGTHS_AT, _STRIDES_AT, _DTYPE_AT, _FLAGS_AT = -1, 1, 2, 3, 5, 6
_ALIGNED, _WRITEABLE = 0x100, 0x400
_INT = 0xFFFFFFFF  # ndim and flags are ints in words of 8 bytes

MOST_ARRAYS = 3
#: Records of a table; the oldest go first.
MOST_RECORDS = 16


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
        word(_TYPE_AT) == id(np.ndarray)
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
def _fits(record, words, h0, h1, h2, data_word, ndarray_type):  # type: ignore[no-untyped-def]
    """Whether the arrays lie as the record says, and to each other too; sets their words of the call."""
    at = record + 8 * _HEAD
    data0 = low0 = high0 = 0
    for k in range(load_word(record, _ARRAYS)):
        data = _data_if_known(h0 if k == 0 else h1 if k == 1 else h2, at, data_word, ndarray_type)
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
        store_word(words, load_word(at, _SLOT), data)
        at += 8 * (_FIXED + 2 * load_word(at, _NDIM))
    return True


@functools.cache
def driver() -> Any:
    """`driver(table, array0, array1, array2, f0, f1, f2)`: 1 if it has run the program of a record that fits, else 0.

    Array 0 is the result.
    """
    word = data_word()

    def launch_known(table, a0, a1, a2, f0, f1, f2):  # type: ignore[no-untyped-def]
        h0, h1, h2 = object_address(a0), object_address(a1), object_address(a2)
        call = stack_words(CALL_WORDS)
        words = call + 8 * C_WORDS
        ndarray_type = load_word(table, 1)
        for index in range(load_word(table, 0)):
            record = load_word(table, 2 + index)
            if _fits(record, words, h0, h1, h2, word, ndarray_type):
                program = load_word(record, _PROGRAM)
                store_word(call, C_PROGRAM, program)
                store_word(words, FLOAT_SLOT, float_bits(f0))
                store_word(words, FLOAT_SLOT + 1, float_bits(f1))
                store_word(words, FLOAT_SLOT + 2, float_bits(f2))
                call_range(load_word(program, ALONE), call, 0, 1, 0)
                return 1
        return 0

    launch_known.__name__ = launch_known.__qualname__ = f"launch_known_{word}"
    entry = compile_entry(launch_known, _signature())
    try:
        # the C function itself: the types of the arguments need not be looked up
        return next(iter(entry.overloads.values())).entry_point
    except (AttributeError, StopIteration):
        return None


def _signature() -> Any:
    from numba import types

    objects = [OBJECT] * MOST_ARRAYS
    return types.int64(types.int64, *objects, *[types.float64] * 3)


def _extent(array: np.ndarray) -> tuple[int, int]:
    """The bytes that an array takes, counted from its first element: from, to."""
    steps = [(length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + array.itemsize


def make_record(launch: Any, operands: Sequence[tuple[int, np.ndarray]]) -> np.ndarray | None:
    """What `driver` compares: the slot of each array in the arguments, the result first; None where it cannot run it.

    The caller has checked that the result shares memory with an operand only where both are the same elements.
    """
    program = getattr(launch, "program", None)
    if program is None or program.shared or program.worker:
        return None
    if not 1 < len(operands) <= MOST_ARRAYS or not _readable():
        return None
    if program.most_workers > 1 and threads.default_threads() > 1:
        return None
    words = [program.address, len(operands)]
    result = operands[0][1]
    begin, end = _extent(result)
    for slot, array in operands:
        if type(array) is not np.ndarray or not array.size:
            return None
        low, high = _extent(array)
        gap = array.ctypes.data - result.ctypes.data
        same = gap == 0 and array.strides == result.strides and array.shape == result.shape
        if not same and gap + low < end and begin < gap + high:
            return None  # interleaved
        flags = _ALIGNED | (_WRITEABLE if array is result else 0)
        words += [slot, array.ndim, id(array.dtype), flags, int(same), low, high, *array.shape, *array.strides]
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
