"""Calls whose arrays are as those of an earlier call: native code looks at them, and runs that call's program.

In Python, to find a launcher by shapes, strides, dtypes and flags takes 0.7 us, to call it 0.45 and to make the
result 0.4: more than the work of a small array.  Here a *record* says how the arrays of a call lay, a *table* holds
the records of some calls by the shapes of their first two arrays, and `known_call` finds the one that fits, makes the
results, and runs its program: 0.1 us, in this thread or in several.  Where a record fits whose program it cannot run,
because that needs much scratch memory, or another call has that or the threads, it says which, and the caller has found
its launcher.

What it reads of an array, a tuple and a float is what NumPy's and Python's own macros read, and new arrays are made by
NumPy's C interface: all of it has been the same since NumPy 1.0, and is tried when the first record is made.  Of a
tensor it makes the words that an array would have (`known_tensors`).
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from numba import types

from numbaprims.cpu.drivers import CALL_WORDS, data_word
from numbaprims.cpu.interpreter import C_PROGRAM, C_WORDS
from numbaprims.cpu.jit import c_function, helper
from numbaprims.cpu.known_tensors import AS_ARRAY, AS_TENSOR, TENSOR_WORDS, UNASKED
from numbaprims.cpu.known_words import (
    ARRAYS,
    DENSE,
    DEVICE,
    DONE,
    DRIVER,
    DTYPE,
    DTYPE_AT,
    FACTOR,
    FIND,
    FIXED,
    FLAGS,
    FLAGS_AT,
    FLOAT,
    FRAME_WORDS,
    HASH,
    HEAD,
    HIGH,
    INT,
    LENGTHS_AT,
    LONG,
    LOW,
    MADE,
    MASK,
    MOST_ARRAYS,
    MOST_RESULTS,
    MOST_TENSORS,
    NDARRAY,
    NDIM,
    NDIM_AT,
    NEEDS,
    NEW,
    NEW_DTYPE,
    NOT_THIS,
    NOTHING,
    OBJECT_TYPE,
    OTHERS,
    OWNER,
    PLACES,
    PROGRAM,
    RAISED,
    RESULTS,
    RUN,
    SAME,
    SIZE_AT,
    SLOT,
    STACK_WORDS,
    STRIDES_AT,
    TENSORS,
    THREADS,
    TORCH,
    TUPLE,
    TYPE_AT,
    UNKNOWN,
    VALUE_AT,
    VIEW,
    WORKERS,
    items_word,
)
from numbaprims.cpu.program_words import ALONE, SCRATCH
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
from numbaprims.cpu.simd.atomics import load_acquire, store_release, swap_if
from numbaprims.cpu.threads import BLOCK, IN_USE

_READY, _NATIVE, _PYTHON = 0, 1, 2  # as in threads.py
# METH_FASTCALL
_FASTCALL = 0x80
_TAKEN = MOST_RESULTS + MOST_ARRAYS
# Of an array object up to the address of its data (`data_word`).
_OBJECT_WORDS = 8

_incref = types.ExternalFunction("Py_IncRef", types.void(types.int64))
_integer = types.ExternalFunction("PyLong_FromLong", types.int64(types.int64))
_new_tuple = types.ExternalFunction("PyTuple_New", types.int64(types.int64))
_release = types.ExternalFunction("PyEval_SaveThread", types.int64())
_acquire = types.ExternalFunction("PyEval_RestoreThread", types.void(types.int64))


@helper
def data_if_known(array, record, data_word, ndarray_type):  # type: ignore[no-untyped-def]
    """The address of an array's data if it lies as the record says, else -1."""
    fields = array + 8 * data_word
    if load_word(fields, TYPE_AT) != ndarray_type:
        return -1
    ndim = load_word(record, NDIM)
    wanted = load_word(record, FLAGS)
    if (
        load_word(fields, DTYPE_AT) != load_word(record, DTYPE)
        or load_word(fields, NDIM_AT) & INT != ndim
        or load_word(fields, FLAGS_AT) & wanted != wanted
    ):
        return -1
    lengths, strides = load_word(fields, LENGTHS_AT), load_word(fields, STRIDES_AT)
    for d in range(ndim):
        if (
            load_word(lengths, d) != load_word(record, FIXED + d)
            or load_word(strides, d) != load_word(record, FIXED + ndim + d)
        ):  # fmt: skip
            return -1
    return load_word(fields, 0)


@helper
def _fits(record, words, handles, data_word, ndarray_type):  # type: ignore[no-untyped-def]
    """Whether the arrays lie as the record says, and to each other too; sets their words of the call.

    A handle of 0 stands for a result that is still to be made.
    """
    at = record + 8 * HEAD
    data0 = low0 = high0 = 0
    for k in range(load_word(record, ARRAYS)):
        handle, ndim = load_word(handles, k), load_word(at, NDIM)
        if ndim < 0:
            if handle != load_word(at, DTYPE):
                return False
            at += 8 * FIXED
            continue
        if handle != 0:
            data = data_if_known(handle, at, data_word, ndarray_type)
            if data == -1:
                return False
            low, high = data + load_word(at, LOW), data + load_word(at, HIGH)
            if k == 0:
                data0, low0, high0 = data, low, high
            elif load_word(at, SAME) != 0:
                if data != data0:
                    return False
            elif low < high0 and low0 < high:
                return False
            slot = load_word(at, SLOT)
            if slot >= 0:
                store_word(words, slot, data)
        at += 8 * (FIXED + 2 * ndim)
    return True


@helper
def _make_results(table, record, words, handles, data_word):  # type: ignore[no-untyped-def]
    """Make the results that the caller does not give; False where there is no memory left."""
    at = record + 8 * HEAD
    for k in range(load_word(record, RESULTS)):
        ndim, dtype = load_word(at, NDIM), load_word(at, NEW_DTYPE)
        if load_word(handles, k) == 0:
            lengths = at + 8 * FIXED
            strides = 0 if load_word(at, DENSE) != 0 else lengths + 8 * ndim
            _incref(dtype)
            made = call_word(load_word(table, NEW), load_word(table, NDARRAY), dtype, ndim, lengths, strides, 0, 0, 0)
            if made == 0:
                return False
            store_word(handles, k, made)
            slot = load_word(at, SLOT)
            if slot >= 0:
                store_word(words, slot, load_word(made, data_word))
        at += 8 * (FIXED + 2 * ndim)
    return True


@helper
def _as_tensors(table, record, handles):  # type: ignore[no-untyped-def]
    """New arrays as tensors, in the places of the arrays; False where that fails."""
    at, torch = record + 8 * HEAD, load_word(table, TORCH)
    for k in range(load_word(record, RESULTS)):
        array = load_word(handles, k)
        if array != 0:
            made = call_word(load_word(torch, AS_TENSOR), torch, array, load_word(at, VIEW), 0, 0, 0, 0, 0)
            if made == 0:
                return False
            store_word(handles, k, made)
        at += 8 * (FIXED + 2 * load_word(at, NDIM))
    return True


@helper
def _order(record, handles, by_slot):  # type: ignore[no-untyped-def]
    """The arrays of a call by their places in a launch."""
    at = record + 8 * HEAD
    for k in range(8):
        store_word(by_slot, k, 0)
    for k in range(load_word(record, ARRAYS)):
        slot, ndim = load_word(at, SLOT), load_word(at, NDIM)
        if slot >= 0:
            store_word(by_slot, slot, load_word(handles, k))
        at += 8 * (FIXED + 2 * max(ndim, 0))


@helper
def _digest(fields, digest):  # type: ignore[no-untyped-def]
    """A hash of an array's lengths and dtype on top of another's."""
    lengths = load_word(fields, LENGTHS_AT)
    digest = (digest ^ load_word(fields, DTYPE_AT)) * FACTOR
    for d in range(load_word(fields, NDIM_AT) & INT):
        digest = ((digest ^ (digest >> 29)) ^ load_word(lengths, d)) * FACTOR
    return digest ^ (digest >> 29)


@functools.cache
def known_result() -> Any:
    """``known_result(table, out, source, operands, block, launches)``: the result of a call by the record that fits,
    the tuple of several; -1 where none does, 0 where Python's error is set.

    At `source` lie the operands, in `block` the numbers.  Where native code cannot run the program, a caller that
    `launches` it gets the tuple (number of the record, result, ...), another -2.
    """
    word, items = data_word(), items_word()

    @c_function("known_result", spec=(word, items, MOST_ARRAYS, MOST_RESULTS, MOST_TENSORS, STACK_WORDS))
    def find(table, out, source, operands, block, launches):  # type: ignore[no-untyped-def]
        each = 8 * (word + TENSOR_WORDS)
        none, ndarray_type = load_word(table, NOTHING), load_word(table, NDARRAY)
        by_slot, frame, lent = stack_words(8), stack_words(FRAME_WORDS), stack_words(_OBJECT_WORDS)
        room = stack_words(STACK_WORDS)
        arrays = room  # of tensors the words that arrays would have: no longer read where the room is used
        # the operands; before them there is room for results
        taken = stack_words(_TAKEN) + 8 * MOST_RESULTS
        words = block + 8 * C_WORDS
        for k in range(SCRATCH):  # arrays that a call does not have
            store_word(words, k, 0)
        target, made = out, 0
        torch, others, graded = load_word(table, TORCH), load_word(table, OTHERS), UNASKED
        for k in range(-1, operands):
            handle = out if k < 0 else load_word(source, k)
            if load_word(handle, OBJECT_TYPE) != ndarray_type and handle != none:
                own = arrays + each * made
                if made == MOST_TENSORS:
                    return -1
                if others == 0 or call_word(load_word(others, 0), others, handle, own, 0, 0, 0, 0, 0) == 0:
                    if torch == 0:
                        return -1
                    graded = call_word(load_word(torch, AS_ARRAY), torch, handle, own, ndarray_type, graded, 0, 0, 0)
                    if graded < 0:
                        return -1
                handle, made = own, made + 1
            if k < 0:
                target = handle
            else:
                store_word(taken, k, handle)
        digest = 0
        for k in range(min(operands, 2)):
            handle = load_word(taken, k)
            if handle != none:
                digest = _digest(handle + 8 * word, digest)
            elif k == 0:
                return -1
        mask = load_word(table, MASK)
        place = digest & mask
        while True:
            record = load_word(table, PLACES + 2 * place)
            if record == 0:
                return -1
            if load_word(record, HASH) == digest:
                results = load_word(record, RESULTS)
                if results + operands == load_word(record, ARRAYS) and (out != none or load_word(record, MADE) != 0):
                    handles = taken - 8 * results
                    for k in range(results):
                        store_word(handles, k, 0)
                    if out != none:
                        store_word(handles, 0, target)
                    if _fits(record, words, handles, word, load_word(record, OWNER)):
                        program, workers = load_word(record, PROGRAM), load_word(record, WORKERS)
                        running = load_word(table, THREADS)
                        if workers > 1 and (
                            load_word(running, _READY) == 0
                            or load_word(running, _NATIVE) != 0
                            or load_word(running, _PYTHON) != 0
                        ):
                            program = 0  # which has to share the CPUs with others, or may start no threads
                        needs, scratch, in_use = load_word(record, NEEDS), room, running + 8 * IN_USE
                        if program != 0 and needs > 8 * STACK_WORDS:
                            if load_acquire(in_use) == 0 and swap_if(in_use, 0, 1):
                                scratch = load_word(running, BLOCK)
                            else:
                                program = 0  # a call of another thread has it
                        device, done = load_word(record, DEVICE), DONE
                        if device != 0:
                            for k, each_word in enumerate((table, record, words, handles, arrays, made, room)):
                                store_word(frame, k, each_word)
                            done = call_word(load_word(device, RUN), device, frame, 0, 0, 0, 0, 0, 0)
                            if done == NOT_THIS:
                                place = (place + 1) & mask
                                continue
                            if done == UNKNOWN:
                                return -1
                            if done == RAISED:
                                return 0
                        elif program == 0 and launches == 0:
                            return -2
                        elif not _make_results(table, record, words, handles, word):
                            if scratch != room:
                                store_release(in_use, 0)
                            return 0
                        if out != none:
                            _incref(out)
                        first = 0
                        if device != 0:
                            first = 0 if done == DONE else 1
                        elif program == 0:
                            first = 1
                        elif workers > 1:
                            _order(record, handles, by_slot)
                            if needs != 0:  # as an array of it
                                store_word(lent, word, scratch)
                                store_word(by_slot, SCRATCH, lent)
                            store_word(running, _NATIVE, workers)
                            state = _release()
                            call_driver(load_word(record, DRIVER), program, workers, by_slot, words + 8 * FLOAT_SLOT)
                            _acquire(state)
                            store_word(running, _NATIVE, 0)
                        else:
                            store_word(block, C_PROGRAM, program)
                            store_word(words, SCRATCH, scratch if needs != 0 else 0)
                            if load_word(record, LONG) != 0:
                                state = _release()
                                call_range(load_word(program, ALONE), block, 0, 1, 0)
                                _acquire(state)
                            else:
                                call_range(load_word(program, ALONE), block, 0, 1, 0)
                        if scratch != room:
                            store_release(in_use, 0)
                        if out != none:
                            store_word(handles, 0, 0)
                        if device == 0 and load_word(record, TENSORS) != 0 and not _as_tensors(table, record, handles):
                            return 0
                        if out != none:
                            store_word(handles, 0, out)
                        if results + first == 1:
                            return load_word(handles, 0)
                        found = _new_tuple(results + first)
                        if found != 0:
                            if first != 0:
                                store_word(found, items, _integer(load_word(table, PLACES + 2 * place + 1)))
                            for k in range(results):
                                store_word(found, items + first + k, load_word(handles, k))
                        return found
            place = (place + 1) & mask

    return find


@functools.cache
def known_call() -> Any:
    """``known_call(table, out, operands, numbers)``: None where no record fits; the result, or the tuple of them, of
    the call that it has done; else the tuple (number of the record, result, ...) for the caller to launch.

    `out` is where the first result goes, or None; operands and numbers are tuples.
    """
    word, items = data_word(), items_word()

    @c_function("known_call", spec=(word, items, MOST_ARRAYS))
    def call(itself, arguments, count):  # type: ignore[no-untyped-def]
        table = load_word(load_word(arguments, 0), word)
        out, given, numbers = load_word(arguments, 1), load_word(arguments, 2), load_word(arguments, 3)
        operands, floats = load_word(given, SIZE_AT), load_word(numbers, SIZE_AT)
        block = stack_words(CALL_WORDS)
        words = block + 8 * C_WORDS
        known = load_word(given, OBJECT_TYPE) == load_word(numbers, OBJECT_TYPE) == load_word(table, TUPLE)
        known = known and 0 < operands and operands < MOST_ARRAYS and floats <= FLOAT_SLOTS
        for k in range(FLOAT_SLOTS):
            store_word(words, FLOAT_SLOT + k, 0)
        if known:
            for k in range(floats):
                number = load_word(numbers, items + k)
                if load_word(number, OBJECT_TYPE) != load_word(table, FLOAT):
                    known = False
                store_word(words, FLOAT_SLOT + k, load_word(number, VALUE_AT))
        if known:
            found = call_word(load_word(table, FIND), table, out, given + 8 * items, operands, block, 1, 0, 0)
            if found != -1:
                return found
        _incref(load_word(table, NOTHING))
        return load_word(table, NOTHING)

    return _python_function(call.address)


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
