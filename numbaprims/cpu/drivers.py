"""The two functions that Python calls to run a program: in the calling thread, or over several.

Arrays reach them as ``id(array)``; native code reads the data pointer out of the array object.  That is one
signature for every dtype and rank, and 0.03 us an array (``array.ctypes.data`` costs 1.15 us).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import register_jitable

from numbaprims.cpu import threads
from numbaprims.cpu.interpreter import C_PROGRAM, C_SHARED, C_WORDS, LINE, SHARED_WORDS
from numbaprims.cpu.jit import RangeKernel, c_function, compile_entry
from numbaprims.cpu.program_words import ALONE, FURTHER, NONE, THREADS, TOGETHER
from numbaprims.cpu.simd.arguments import (
    FLOAT_SLOT,
    call_range,
    call_word,
    float_bits,
    load_word,
    stack_words,
    store_word,
)
from numbaprims.cpu.threads import BEGIN, MEMBER, NUMBER

#: Arrays of a call after the seventh.
MOST_FURTHER = 120
CALL_WORDS = C_WORDS + FURTHER + MOST_FURTHER


@functools.cache
def data_word() -> int:
    """Where an ndarray object keeps its data pointer, in 8-byte words (2 in CPython with the GIL, 4 without)."""
    probe = np.empty(3, np.float64)
    address = probe.ctypes.data
    for word in range(2, 8):
        if ctypes.c_int64.from_address(id(probe) + 8 * word).value == address:
            return word
    raise RuntimeError("this Python keeps an ndarray's data pointer where numbaprims cannot find it")


def _make_fill(data_word: int) -> Callable[..., None]:
    @register_jitable
    def pointer(handle, none):  # type: ignore[no-untyped-def]
        # 0 and id(None) stand for "no array", which is a null pointer for the kernel
        return 0 if handle == 0 or handle == none else load_word(handle, data_word)

    def fill(call, program, h0, h1, h2, h3, h4, h5, h6, h7, further, f0, f1, f2, f3, f4, f5):  # type: ignore[no-untyped-def]
        none = load_word(program, NONE)
        words = call + 8 * C_WORDS
        store_word(call, C_PROGRAM, program)
        store_word(words, 0, pointer(h0, none))
        store_word(words, 1, pointer(h1, none))
        store_word(words, 2, pointer(h2, none))
        store_word(words, 3, pointer(h3, none))
        store_word(words, 4, pointer(h4, none))
        store_word(words, 5, pointer(h5, none))
        store_word(words, 6, pointer(h6, none))
        store_word(words, 7, pointer(h7, none))
        store_word(words, FLOAT_SLOT, float_bits(f0))
        store_word(words, FLOAT_SLOT + 1, float_bits(f1))
        store_word(words, FLOAT_SLOT + 2, float_bits(f2))
        store_word(words, FLOAT_SLOT + 3, float_bits(f3))
        store_word(words, FLOAT_SLOT + 4, float_bits(f4))
        store_word(words, FLOAT_SLOT + 5, float_bits(f5))
        if further != 0:  # the address of a number of arrays and their ids
            for i in range(load_word(further, 0)):
                store_word(words, FURTHER + i, pointer(load_word(further, 1 + i), none))

    fill.__name__ = fill.__qualname__ = f"fill_{data_word}"
    return register_jitable(fill)


# Numba starts all threads of the machine; those that a region does not need must not be woken for it (8 threads on 2
# cores: 66 us instead of 1.7). Declared as C functions, since numba.set_num_threads inside a function is a pointer
# of this process, with which nothing can be cached.
_get_thread_mask = types.ExternalFunction("get_num_threads", types.intp())
_set_thread_mask = types.ExternalFunction("set_num_threads", types.void(types.intc))

_DRIVER_SIGNATURE = "void(i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,f8,f8,f8,f8,f8,f8)"


@functools.cache
def serial_driver() -> Any:
    """`driver(program, workers, 8 array ids, further arrays, 6 floats)`: all tiles in the calling thread."""
    fill = _make_fill(data_word())

    def launch_serial(program, workers, h0, h1, h2, h3, h4, h5, h6, h7, further, f0, f1, f2, f3, f4, f5):  # type: ignore[no-untyped-def]
        call = stack_words(CALL_WORDS)
        fill(call, program, h0, h1, h2, h3, h4, h5, h6, h7, further, f0, f1, f2, f3, f4, f5)
        call_range(load_word(program, ALONE), call, 0, 1, 0)

    launch_serial.__name__ = launch_serial.__qualname__ = f"launch_serial_{data_word()}"
    return compile_entry(launch_serial, _DRIVER_SIGNATURE)


# Words that the threads of a region share: the interpreter, its call, the workers, the function that tells a thread's
# number.
T_INTERPRET, T_CALL, T_WORKERS, T_NUMBER, TEAM_WORDS = range(5)


@functools.cache
def _make_member() -> RangeKernel:
    """What OpenMP calls in each thread of a region."""

    @c_function("member", ())
    def member(team):  # type: ignore[no-untyped-def]
        worker = call_word(load_word(team, T_NUMBER), 0, 0, 0, 0, 0, 0, 0, 0) & 0xFFFFFFFF
        call_range(load_word(team, T_INTERPRET), load_word(team, T_CALL), worker, load_word(team, T_WORKERS), 0)
        return 0

    return member


@functools.cache
def parallel_driver() -> Any:
    """The same over `workers` threads: one region for the whole program, whose body is one call by pointer.

    Under OpenMP the region is begun as compilers do: an empty one takes 0.74 us, by Numba's loops of any kind 1.43, and
    1.4 and 2.8 in processes whose cores lay further apart (Zen 4).
    """
    fill, direct = _make_fill(data_word()), threads.direct()
    if direct:
        threads.run_in_regions(_make_member().address)

    def launch_parallel(program, workers, h0, h1, h2, h3, h4, h5, h6, h7, further, f0, f1, f2, f3, f4, f5):  # type: ignore[no-untyped-def]
        call = stack_words(CALL_WORDS)
        fill(call, program, h0, h1, h2, h3, h4, h5, h6, h7, further, f0, f1, f2, f3, f4, f5)
        shared = stack_words(SHARED_WORDS)
        for i in range(0, SHARED_WORDS, LINE):
            store_word(shared, i, 0)
        store_word(call, C_SHARED, shared)
        interpret = load_word(program, TOGETHER)
        if interpret == 0:  # it has no chunk for a second worker
            workers, interpret = 1, load_word(program, ALONE)
        mask = _get_thread_mask()
        if direct:
            team, library = stack_words(TEAM_WORDS), load_word(program, THREADS)
            store_word(team, T_INTERPRET, interpret)
            store_word(team, T_CALL, call)
            store_word(team, T_WORKERS, workers)
            store_word(team, T_NUMBER, load_word(library, NUMBER))
            call_range(load_word(library, BEGIN), load_word(library, MEMBER), team, min(workers, mask), 0)
        else:
            _set_thread_mask(min(workers, mask))
            for worker in numba.prange(workers):
                call_range(interpret, call, worker, workers, 0)
            _set_thread_mask(mask)

    name = f"launch_parallel_{data_word()}" + "_direct" * direct
    launch_parallel.__name__ = launch_parallel.__qualname__ = name
    return compile_entry(launch_parallel, _DRIVER_SIGNATURE, parallel=not direct)
