"""The two drivers that run programs of range kernels, and the programs.

Arrays reach a driver as ``id(array)``; native code reads the data pointer out of the array object.  That is one
signature for every dtype and rank, and 0.03 us an array (``array.ctypes.data`` costs 1.15 us).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types
from numba.extending import register_jitable

from numbaprims.cpu.jit import RangeKernel, compile_entry
from numbaprims.cpu.simd.arguments import (
    FLOAT_SLOT,
    INT_SLOT,
    INT_SLOTS,
    STEP_SLOT,
    atomic_add_word,
    call_range,
    float_bits,
    load_word,
    stack_words,
    store_word,
)

# Words of a program, the block of int64 that tells a driver what to run (see Program).
_PHASES, _STEPS, _INTS, _NONE, _HEADER = 0, 1, 2, 3, 4
_PHASE_WORDS = 4  # address, tiles, chunk, whether there is one queue for all workers
# As the chunk of a phase of one tile: the calling thread runs it, with all workers as its range of tiles.
PER_WORKER = -1
_ARGS_WORDS = 80
# Queues of chunks: (next, end) in a line of the cache each, and its neighbour, which is fetched with it. With more
# workers than queues neighbours share one, since whoever has nothing left looks into all of them.
_QUEUES, _QUEUE_WORDS = 16, 16
_QUEUE_SPACE = _QUEUES * _QUEUE_WORDS


@functools.cache
def _data_word() -> int:
    """Where an ndarray object keeps its data pointer, in 8-byte words (2 in CPython with the GIL, 4 without)."""
    probe = np.empty(3, np.float64)
    address = probe.ctypes.data
    for word in range(2, 8):
        if ctypes.c_int64.from_address(id(probe) + 8 * word).value == address:
            return word
    raise RuntimeError("this Python keeps an ndarray's data pointer where numbaprims cannot find it")


def _make_fill(data_word: int) -> Callable[..., None]:
    def fill(args, program, h0, h1, h2, h3, h4, h5, h6, h7, f0, f1, f2, f3, f4, f5):  # type: ignore[no-untyped-def]
        # 0 and id(None) stand for "no array", which is a null pointer for the kernel
        none = load_word(program, _NONE)
        store_word(args, 0, 0 if h0 == 0 or h0 == none else load_word(h0, data_word))
        store_word(args, 1, 0 if h1 == 0 or h1 == none else load_word(h1, data_word))
        store_word(args, 2, 0 if h2 == 0 or h2 == none else load_word(h2, data_word))
        store_word(args, 3, 0 if h3 == 0 or h3 == none else load_word(h3, data_word))
        store_word(args, 4, 0 if h4 == 0 or h4 == none else load_word(h4, data_word))
        store_word(args, 5, 0 if h5 == 0 or h5 == none else load_word(h5, data_word))
        store_word(args, 6, 0 if h6 == 0 or h6 == none else load_word(h6, data_word))
        store_word(args, 7, 0 if h7 == 0 or h7 == none else load_word(h7, data_word))
        store_word(args, FLOAT_SLOT, float_bits(f0))
        store_word(args, FLOAT_SLOT + 1, float_bits(f1))
        store_word(args, FLOAT_SLOT + 2, float_bits(f2))
        store_word(args, FLOAT_SLOT + 3, float_bits(f3))
        store_word(args, FLOAT_SLOT + 4, float_bits(f4))
        store_word(args, FLOAT_SLOT + 5, float_bits(f5))
        for i in range(load_word(program, _INTS)):
            store_word(args, INT_SLOT + i, load_word(program, _HEADER + i))

    fill.__name__ = fill.__qualname__ = f"fill_{data_word}"
    return register_jitable(fill)


# Numba starts all threads of the machine; those that a region does not need must not be woken for it (8 threads on 2
# cores: 66 us instead of 1.7). Declared as C functions, since numba.set_num_threads inside a function is a pointer
# of this process, with which nothing can be cached.
_get_thread_mask = types.ExternalFunction("get_num_threads", types.intp())
_set_thread_mask = types.ExternalFunction("set_num_threads", types.void(types.intc))

_DRIVER_SIGNATURE = "void(i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,f8,f8,f8,f8,f8,f8)"


@functools.cache
def serial_driver() -> Any:
    """`driver(program, workers, 8 array ids, 6 floats)`: all tiles in the calling thread."""
    fill = _make_fill(_data_word())

    def launch_serial(program, workers, h0, h1, h2, h3, h4, h5, h6, h7, f0, f1, f2, f3, f4, f5):  # type: ignore[no-untyped-def]
        args = stack_words(_ARGS_WORDS)
        fill(args, program, h0, h1, h2, h3, h4, h5, h6, h7, f0, f1, f2, f3, f4, f5)
        phases = program + 8 * (_HEADER + load_word(program, _INTS))
        for step in range(load_word(program, _STEPS)):
            store_word(args, STEP_SLOT, step)
            for phase in range(load_word(program, _PHASES)):
                at = _PHASE_WORDS * phase
                call_range(load_word(phases, at), args, 0, 0, load_word(phases, at + 1))

    launch_serial.__name__ = launch_serial.__qualname__ = f"launch_serial_{_data_word()}"
    return compile_entry(launch_serial, _DRIVER_SIGNATURE)


@functools.cache
def parallel_driver() -> Any:
    """The same over `workers` threads.

    Each worker draws chunks from a queue of its own, an even part of them in order, and then from those of the others:
    a thread that the machine holds up does fewer. Results cannot depend on who takes which, because tiles are
    independent; but a tile meets the worker that had it in the phase before and in the last call, so that its lines
    are in that core's cache. With one counter for all, neighbours were computed by different cores at the same
    time, and lines that they share went to and fro.
    """
    fill = _make_fill(_data_word())

    def launch_parallel(program, workers, h0, h1, h2, h3, h4, h5, h6, h7, f0, f1, f2, f3, f4, f5):  # type: ignore[no-untyped-def]
        args = stack_words(_ARGS_WORDS)
        fill(args, program, h0, h1, h2, h3, h4, h5, h6, h7, f0, f1, f2, f3, f4, f5)
        phases = program + 8 * (_HEADER + load_word(program, _INTS))
        queues = stack_words(_QUEUE_SPACE)
        mask = _get_thread_mask()
        _set_thread_mask(min(workers, mask))
        for step in range(load_word(program, _STEPS)):
            store_word(args, STEP_SLOT, step)
            for phase in range(load_word(program, _PHASES)):
                at = _PHASE_WORDS * phase
                kernel = load_word(phases, at)
                tiles = load_word(phases, at + 1)
                chunk = load_word(phases, at + 2)
                if chunk == PER_WORKER:
                    call_range(kernel, args, 0, 0, workers)
                elif tiles <= chunk:
                    call_range(kernel, args, 0, 0, tiles)
                else:
                    chunks = (tiles + chunk - 1) // chunk
                    parts = 1 if load_word(phases, at + 3) else min(workers, _QUEUES)
                    for part in range(parts):
                        queue = queues + 8 * _QUEUE_WORDS * part
                        store_word(queue, 0, part * chunks // parts)
                        store_word(queue, 1, (part + 1) * chunks // parts)
                    for worker in numba.prange(workers):
                        own = worker * parts // workers
                        for turn in range(parts):
                            queue = queues + 8 * _QUEUE_WORDS * ((own + turn) % parts)
                            end = load_word(queue, 1)
                            while load_word(queue, 0) < end:
                                lo = atomic_add_word(queue, 1)
                                if lo >= end:
                                    break
                                call_range(kernel, args, worker, lo * chunk, min((lo + 1) * chunk, tiles))
        _set_thread_mask(mask)

    launch_parallel.__name__ = launch_parallel.__qualname__ = f"launch_parallel_{_data_word()}"
    return compile_entry(launch_parallel, _DRIVER_SIGNATURE, parallel=True)


class Phase(NamedTuple):
    """A kernel over all its tiles."""

    kernel: RangeKernel
    tiles: int
    chunk: int
    """Tiles that are taken at a time; or `PER_WORKER`."""
    one_queue: bool = False
    """Whether workers take the next chunk of all: for few tiles of different sizes that keep nothing for the next."""


class Program:
    """What a driver runs: the problem's integers, then phases (kernel, tiles, chunk), the whole list `steps` times.

    A phase begins when the one before has ended on every worker.  `chunk` tiles are taken at a time; `PER_WORKER`
    instead makes it a phase that prepares the workers' parts of the workspace (without one, a worker is one tile).
    """

    def __init__(
        self,
        ints: Sequence[int],
        phases: Sequence[Phase | tuple[RangeKernel, int, int]],
        steps: int = 1,
        keep: tuple[Any, ...] = (),
    ) -> None:
        if len(ints) > INT_SLOTS:
            raise ValueError(f"{len(ints)} ints; a kernel takes at most {INT_SLOTS}")
        self.keep = keep  # what the integers point to
        each = [Phase(*phase) for phase in phases]
        self.kernels = tuple(phase.kernel for phase in each)
        words = [len(phases), steps, len(ints), id(None), *ints]
        for kernel, tiles, chunk, one_queue in each:
            if chunk == PER_WORKER and tiles != 1:
                raise ValueError(f"{tiles} tiles for each worker; there is one")
            words += [kernel.address, tiles, chunk if chunk == PER_WORKER else max(1, chunk), int(one_queue)]
        self._words = np.array(words, np.int64)
        self.address = int(self._words.ctypes.data)
        # more workers than chunks would only wake threads for nothing
        self.most_workers = max((-(-phase.tiles // max(1, phase.chunk)) for phase in each), default=1)
