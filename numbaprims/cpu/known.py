"""Calls whose arrays are as those of an earlier call: native code looks at them, and runs that call's program.

In Python, to find a launcher by shapes, strides, dtypes and flags takes 0.7 us, to call it 0.45 and to make the
result 0.4: more than the work of a small array.  Here a *record* says how the arrays of a call lay, a *table* holds
the records of some calls by the shapes of their first two arrays, and `known_call` finds the one that fits, makes the
results, and runs its program: 0.1 us, in this thread or in several.  Where a record fits whose program it cannot run,
because that needs much scratch memory or others use the threads, it says which, and the caller has found its launcher.

What it reads of an array, a tuple and a float is what NumPy's and Python's own macros read, and new arrays are made by
NumPy's C interface: all of it has been the same since NumPy 1.0, and is tried when the first record is made.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import types
from numba.extending import register_jitable

from numbaprims import settings
from numbaprims.cpu import threads
from numbaprims.cpu.drivers import CALL_WORDS, MOST_FURTHER, data_word, parallel_driver
from numbaprims.cpu.interpreter import C_PROGRAM, C_WORDS
from numbaprims.cpu.jit import c_function
from numbaprims.cpu.program_words import ALONE, FURTHER, SCRATCH
from numbaprims.cpu.simd.arguments import (
    FLOAT_SLOT,
    FLOAT_SLOTS,
    call_driver,
    call_range,
    call_word,
    load_word,
    stack_words,
    store_word,
)

# Words of a record: the hash of its table's key; the program, 0 if the caller has to launch it; its workers, and the
# driver of several; whether it is run without Python's lock; the bytes of its scratch memory; how many results, whether
# the first is a new array where the caller gives none, and how many arrays in all; then of each array these, its
# lengths, and its strides.  With -1 dimensions it is what has no array, by its address as the dtype.
_HASH, _PROGRAM, _WORKERS, _DRIVER, _LONG, _NEEDS, _RESULTS, _MADE, _ARRAYS, _HEAD = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
_SLOT, _NDIM, _DTYPE, _FLAGS, _SAME, _LOW, _HIGH, _DENSE, _FIXED = 0, 1, 2, 3, 4, 5, 6, 7, 8
# Words of a table: the mask of its places, the types of arrays, floats and tuples, NumPy's function, None, what is
# shared with `threads`; then the places.
_MASK, _NDARRAY, _FLOAT, _TUPLE, _NEW, _NOTHING, _THREADS, _PLACES = 0, 1, 2, 3, 4, 5, 6, 7
_READY, _NATIVE, _PYTHON = 0, 1, 2  # as in threads.py
# Words of an array object, counted from the one with the pointer to its data.
_TYPE_AT, _NDIM_AT, _LENGTHS_AT, _STRIDES_AT, _DTYPE_AT, _FLAGS_AT = -1, 1, 2, 3, 5, 6
_ALIGNED, _WRITEABLE = 0x100, 0x400
_INT = 0xFFFFFFFF  # ndim and flags are ints in words of 8 bytes
# The words of any object with its type, of a tuple with its length, of a float with its value.
_OBJECT_TYPE, _SIZE_AT, _VALUE_AT = 1, 2, 2
# PyArray_NewFromDescr among the functions of NumPy's C interface.
_NEW_FROM_DESCR = 94
# METH_FASTCALL
_FASTCALL = 0x80

#: Arrays of a call.
MOST_ARRAYS = 7 + MOST_FURTHER
#: Words of scratch memory on the stack: programs that need no more are run here, 2 us sooner than by their launchers.
STACK_WORDS = 2560
#: Records of a table; the oldest go first.
MOST_RECORDS = 256
#: Bytes of arrays of a call that does not let other Python threads run meanwhile, which takes 0.04 us.
SHORT = 64 << 10

_incref = types.ExternalFunction("Py_IncRef", types.void(types.int64))
_integer = types.ExternalFunction("PyLong_FromLong", types.int64(types.int64))
_new_tuple = types.ExternalFunction("PyTuple_New", types.int64(types.int64))
_release = types.ExternalFunction("PyEval_SaveThread", types.int64())
_acquire = types.ExternalFunction("PyEval_RestoreThread", types.void(types.int64))


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

    new: Any = ctypes.PYFUNCTYPE(ctypes.py_object, *[ctypes.c_void_p] * 2, ctypes.c_int, *[ctypes.c_void_p] * 5)(
        _new_from()
    )
    dtype, lengths, strides = np.dtype(np.float64), (ctypes.c_int64 * 2)(3, 5), (ctypes.c_int64 * 2)(8, 24)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dtype))
    made = new(id(np.ndarray), id(dtype), 2, ctypes.addressof(lengths), ctypes.addressof(strides), None, None, None)
    number = -1.5
    return (
        _items_word() > 0
        and type(made) is np.ndarray
        and (made.shape, made.strides, made.dtype) == ((3, 5), (8, 24), dtype)
        and ctypes.c_double.from_address(id(number) + 8 * _VALUE_AT).value == number
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
    """Whether the arrays lie as the record says, and to each other too; sets their words of the call.

    A handle of 0 stands for a result that is still to be made.
    """
    at = record + 8 * _HEAD
    data0 = low0 = high0 = 0
    for k in range(load_word(record, _ARRAYS)):
        handle, ndim = load_word(handles, k), load_word(at, _NDIM)
        if ndim < 0:
            if handle != load_word(at, _DTYPE):
                return False
            at += 8 * _FIXED
            continue
        if handle != 0:
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
def _make_results(table, record, words, handles, data_word):  # type: ignore[no-untyped-def]
    """Make the results that the caller does not give; False where there is no memory left."""
    at = record + 8 * _HEAD
    for k in range(load_word(record, _RESULTS)):
        ndim, dtype = load_word(at, _NDIM), load_word(at, _DTYPE)
        if load_word(handles, k) == 0:
            lengths = at + 8 * _FIXED
            strides = 0 if load_word(at, _DENSE) != 0 else lengths + 8 * ndim
            _incref(dtype)
            made = call_word(load_word(table, _NEW), load_word(table, _NDARRAY), dtype, ndim, lengths, strides, 0, 0, 0)
            if made == 0:
                return False
            store_word(handles, k, made)
            slot = load_word(at, _SLOT)
            if slot >= 0:
                store_word(words, slot, load_word(made, data_word))
        at += 8 * (_FIXED + 2 * ndim)
    return True


@register_jitable
def _order(record, handles, by_slot):  # type: ignore[no-untyped-def]
    """The arrays of a call by their places in a launch."""
    at = record + 8 * _HEAD
    for k in range(8):
        store_word(by_slot, k, 0)
    for k in range(load_word(record, _ARRAYS)):
        slot, ndim = load_word(at, _SLOT), load_word(at, _NDIM)
        if slot >= 0:
            store_word(by_slot, slot, load_word(handles, k))
        at += 8 * (_FIXED + 2 * max(ndim, 0))


@register_jitable
def _digest(fields, digest):  # type: ignore[no-untyped-def]
    """A hash of an array's lengths and dtype on top of another's."""
    lengths = load_word(fields, _LENGTHS_AT)
    digest = (digest ^ load_word(fields, _DTYPE_AT)) * -7046029254386353131
    for d in range(load_word(fields, _NDIM_AT) & _INT):
        digest = ((digest ^ (digest >> 29)) ^ load_word(lengths, d)) * -7046029254386353131
    return digest ^ (digest >> 29)


@functools.cache
def known_call() -> Any:
    """``known_call(table, out, operands, numbers)``: None where no record fits; the result, or the tuple of them, of
    the call that it has done; else the tuple (number of the record, result, ...) for the caller to launch.

    `out` is where the first result goes, or None; operands and numbers are tuples.
    """
    word, items = data_word(), _items_word()

    @c_function("known_call", spec=(word, items, MOST_ARRAYS, STACK_WORDS))
    def call(itself, arguments, count):  # type: ignore[no-untyped-def]
        table = load_word(load_word(arguments, 0), word)
        out, given, numbers = load_word(arguments, 1), load_word(arguments, 2), load_word(arguments, 3)
        none, ndarray_type = load_word(table, _NOTHING), load_word(table, _NDARRAY)
        operands, floats = load_word(given, _SIZE_AT), load_word(numbers, _SIZE_AT)
        block, handles, by_slot = stack_words(CALL_WORDS), stack_words(MOST_ARRAYS), stack_words(8)
        room = stack_words(STACK_WORDS)
        words = block + 8 * C_WORDS
        known = load_word(given, _OBJECT_TYPE) == load_word(numbers, _OBJECT_TYPE) == load_word(table, _TUPLE)
        known = known and 0 < operands and operands < MOST_ARRAYS and floats <= FLOAT_SLOTS
        for k in range(SCRATCH):  # arrays that a call does not have
            store_word(words, k, 0)
        for k in range(FLOAT_SLOTS):
            store_word(words, FLOAT_SLOT + k, 0)
        if known:
            for k in range(floats):
                number = load_word(numbers, items + k)
                if load_word(number, _OBJECT_TYPE) != load_word(table, _FLOAT):
                    known = False
                store_word(words, FLOAT_SLOT + k, load_word(number, _VALUE_AT))
        digest = 0
        if known:
            for k in range(min(operands, 2)):
                fields = load_word(given, items + k) + 8 * word
                if load_word(fields, _TYPE_AT) == ndarray_type:
                    digest = _digest(fields, digest)
                elif k == 0:
                    known = False
        mask = load_word(table, _MASK)
        place = digest & mask
        while known:
            record = load_word(table, _PLACES + 2 * place)
            if record == 0:
                break
            if load_word(record, _HASH) == digest:
                results = load_word(record, _RESULTS)
                if results + operands == load_word(record, _ARRAYS) and (out != none or load_word(record, _MADE) != 0):
                    for k in range(results):
                        store_word(handles, k, 0)
                    if out != none:
                        store_word(handles, 0, out)
                    for k in range(operands):
                        store_word(handles, results + k, load_word(given, items + k))
                    if _fits(record, words, handles, word, ndarray_type):
                        if not _make_results(table, record, words, handles, word):
                            return 0
                        if out != none:
                            _incref(out)
                        program, workers = load_word(record, _PROGRAM), load_word(record, _WORKERS)
                        running = load_word(table, _THREADS)
                        first = 0
                        if workers > 1 and (
                            load_word(running, _READY) == 0
                            or load_word(running, _NATIVE) != 0
                            or load_word(running, _PYTHON) != 0
                        ):
                            program = 0  # which has to share the CPUs with others, or may start no threads
                        if program == 0:
                            first = 1
                        elif workers > 1:
                            _order(record, handles, by_slot)
                            store_word(running, _NATIVE, workers)
                            state = _release()
                            call_driver(load_word(record, _DRIVER), program, workers, by_slot, words + 8 * FLOAT_SLOT)
                            _acquire(state)
                            store_word(running, _NATIVE, 0)
                        else:
                            store_word(block, C_PROGRAM, program)
                            store_word(words, SCRATCH, room if load_word(record, _NEEDS) != 0 else 0)
                            if load_word(record, _LONG) != 0:
                                state = _release()
                                call_range(load_word(program, ALONE), block, 0, 1, 0)
                                _acquire(state)
                            else:
                                call_range(load_word(program, ALONE), block, 0, 1, 0)
                        if results + first == 1:
                            return load_word(handles, 0)
                        made = _new_tuple(results + first)
                        if made != 0:
                            if first != 0:
                                store_word(made, items, _integer(load_word(table, _PLACES + 2 * place + 1)))
                            for k in range(results):
                                store_word(made, items + first + k, load_word(handles, k))
                        return made
            place = (place + 1) & mask
        _incref(none)
        return none

    return _python_function(call.address)


@functools.cache
def _parallel_address() -> int:
    """The address of `parallel_driver` for native code; 0 where this Numba keeps it elsewhere."""
    try:
        overload = next(iter(parallel_driver().overloads.values()))
        return int(overload.library.get_pointer_to_function(overload.fndesc.llvm_func_name))
    except (AttributeError, StopIteration):
        return 0


class _Method(ctypes.Structure):
    """What Python knows of a C function."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("call", ctypes.c_void_p), ("flags", ctypes.c_int), ("words", ctypes.c_char_p)
    )  # fmt: skip


_methods: list[_Method] = []


def _python_function(address: int) -> Any:
    """The C function at an address, of (itself, arguments, their number): Python calls it as it calls its own."""
    method = _Method(b"known_call", address, _FASTCALL, None)
    _methods.append(method)  # for good
    make = ctypes.PYFUNCTYPE(ctypes.py_object, *[ctypes.c_void_p] * 3)(("PyCFunction_NewEx", ctypes.pythonapi))
    return make(ctypes.addressof(method), None, None)


@functools.cache
def _new_from() -> int:
    """The address of NumPy's function that makes arrays."""
    interface = getattr(np, "_core", None) or np.core
    capsule = interface._multiarray_umath._ARRAY_API
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    return ctypes.c_void_p.from_address(get(capsule, None) + 8 * _NEW_FROM_DESCR).value or 0


def _extent(array: np.ndarray) -> tuple[int, int]:
    """The bytes that an array takes, counted from its first element: from, to."""
    steps = [(length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + array.itemsize


def make_record(
    launch: Any, results: int, made: bool, operands: Sequence[tuple[int, np.ndarray | None]]
) -> np.ndarray | None:
    """What `known_call` compares: the slot of each array in the arguments (-1: it is looked at only), results first.

    `made` says that the first result was made by the call. None where it cannot compare it.  The caller has checked
    that the result shares memory with an operand only where both are the same elements.
    """
    program = getattr(launch, "program", None)
    if program is None or not 1 < len(operands) <= MOST_ARRAYS or not _readable():
        return None
    alone = program.most_workers == 1 or threads.default_threads() == 1 or settings.current().threads == 1
    needs = program.shared + program.worker
    runs = alone and needs <= 8 * STACK_WORDS
    long = sum(array.nbytes for _, array in operands if array is not None) > SHORT
    workers = min(program.most_workers, settings.current().threads or threads.default_threads())
    team = not alone and needs == 0 and workers > 1 and all(slot < 7 for slot, _ in operands)
    driver = _parallel_address() if team else 0
    words = [0, program.address if runs or driver else 0, workers if driver else 1, driver]
    words += [int(long), needs, results, int(made), len(operands)]
    digest = 0
    result = operands[0][1]
    assert result is not None
    begin, end = _extent(result)
    for at, (slot, array) in enumerate(operands):
        if array is None:
            words += [-1, -1, id(None), 0, 0, 0, 0, 0]
            continue
        if not array.size:
            return None
        low, high = _extent(array)
        gap = array.ctypes.data - result.ctypes.data
        same = gap == 0 and array.strides == result.strides and array.shape == result.shape
        if not same and gap + low < end and begin < gap + high:
            return None  # interleaved
        if results <= at < results + 2:
            digest = _digest_of(array, digest)
        flags = _ALIGNED | (_WRITEABLE if array is result else 0)
        place = slot if slot < 7 else FURTHER + slot - 7
        words += [place, array.ndim, id(array.dtype), flags, int(same), low, high, int(array.flags.c_contiguous)]
        words += [*array.shape, *array.strides]
    words[_HASH] = digest
    return np.array(words, np.int64)


def _digest_of(array: np.ndarray, digest: int) -> int:
    """As `_digest` has it."""

    def word(x: int) -> int:
        return (x + (1 << 63)) % (1 << 64) - (1 << 63)

    digest = word((digest ^ id(array.dtype)) * -7046029254386353131)
    for length in array.shape:
        digest = word(((digest ^ (digest >> 29)) ^ length) * -7046029254386353131)
    return digest ^ (digest >> 29)


class Table:
    """Some records, of which calls in other threads may be reading one: none goes before the table does."""

    def __init__(self, records: Sequence[tuple[np.ndarray, Any]] = ()) -> None:
        """Each record comes with what must stay alive with it: its launcher, the dtypes of its arrays."""
        self.records = list(records)
        self._lay(8)

    def _lay(self, least: int) -> None:
        places = 1 << (2 * max(least, len(self.records)) - 1).bit_length()
        self.words = np.zeros(_PLACES + 2 * places, np.int64)
        self.words[:_NOTHING] = places - 1, id(np.ndarray), id(float), id(tuple), _new_from()
        self.words[_NOTHING:_PLACES] = id(None), threads.shared_address()
        for number in range(len(self.records)):
            self._place(number)

    def _place(self, number: int) -> None:
        record, mask = self.records[number][0], int(self.words[_MASK])
        place = int(record[_HASH]) & mask
        while self.words[_PLACES + 2 * place]:
            place = (place + 1) & mask
        self.words[_PLACES + 2 * place + 1] = number
        self.words[_PLACES + 2 * place] = record.ctypes.data

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
