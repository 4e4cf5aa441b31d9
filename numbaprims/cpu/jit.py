"""The only place of the CPU side that calls Numba's compilers: range kernels, helpers, and the two drivers.

A *range kernel* is ``def kernel(args, worker, lo, hi)``: it works on the tiles [lo, hi) of one problem, writes into
its outputs, allocates nothing and is serial.  Every kernel has the same C signature, so ONE serial and ONE parallel
driver, compiled once, call them all by pointer: a kernel then costs about 0.1 s to compile instead of 0.5 s, and the
parallel call, the forked child and the user's own ``@njit`` code run the same machine code, bit for bit.

Arrays reach the drivers as ``id(array)``; native code reads the data pointer out of the array object.  That is one
signature for every dtype and rank, and 0.03 us an array (``array.ctypes.data`` costs 1.15 us).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core.ccallback import CFunc
from numba.core.typing import signature
from numba.extending import register_jitable

from numbaprims import kernel_cache
from numbaprims.cpu.simd.arguments import (
    FLOAT_SLOT,
    INT_SLOT,
    STEP_SLOT,
    ArgsType,
    atomic_add_word,
    call_range,
    float_bits,
    load_word,
    stack_words,
    store_word,
)

# fma contraction only: nnan/ninf would break -inf masks and NaN propagation, and arcp, afn, reassoc change results
# that are promised bit for bit (x / 9 under arcp differs in 11 % of values).
# error_model="numpy": a Python-style zero-division check in a loop stops LLVM from vectorising it.
OPTIONS: dict[str, Any] = {
    "fastmath": {"contract"},
    "error_model": "numpy",
    "nogil": True,
    "boundscheck": False,
}
_KERNEL_OPTIONS: dict[str, Any] = {
    k: v for k, v in OPTIONS.items() if k != "nogil"
}  # a C function holds no GIL

# Words of a program, the block of int64 that tells a driver what to run (see Program).
_PHASES, _STEPS, _INTS, _NONE, _HEADER = 0, 1, 2, 3, 4
_PHASE_WORDS = 4  # address, tiles, chunk, spare
# The counter from which workers draw tiles sits in a cache line of its own, away from the arguments they all read.
_COUNTER_SLOT = 72
_ARGS_WORDS = 80


def helper(function: Callable[..., Any]) -> Any:
    """Decorator: a module-level function to be inlined into range kernels (takes literals, vectors, pointers).

    Inlined into the kernel's Numba IR, before typing: literals stay literal, and a kernel is typed, optimised and
    assembled once.  Helpers that LLVM inlines are compiled and assembled one by one first, at every level of nesting
    again, which took the blocked product 4.3 s instead of 1.2 s.
    """
    return numba.njit(inline="always", **OPTIONS)(function)


class RangeKernel:
    """A kernel of a factory, compiled (or loaded from the kernel cache) at the first use of `address`."""

    def __init__(
        self, function: Callable[..., None], name: str, args: ArgsType, spec: tuple[Any, ...]
    ) -> None:
        _check_closure(function, name)
        # Unique names: Numba links by mangled name, and two specialisations of one factory would collide.
        unique = name + "_" + "_".join(str(part) for part in spec)
        function.__name__ = function.__qualname__ = unique
        self.function = function
        self.name = name
        self.spec = spec
        self.args = args
        self._address = 0
        self._compiled: CFunc | None = None

    @property
    def address(self) -> int:
        """The C function void(int64 args, int64 worker, int64 lo, int64 hi)."""
        if not self._address:
            # Numba's own lock: a lock of ours would deadlock with a user's function that is being compiled
            # in another thread and needs this kernel.
            with kernel_cache.compiler_lock():
                if not self._address:
                    self._compiled = self._compile()
                    self._address = int(self._compiled.address)
        return self._address

    def _compile(self) -> CFunc:
        sig = signature(types.void, self.args, types.int64, types.int64, types.int64)
        compiled = CFunc(self.function, (sig.args, sig.return_type), {}, dict(_KERNEL_OPTIONS))
        cache_spec = (*self.spec, repr(self.args))
        _compile_through_cache(
            compiled, self.function, self.name, cache_spec, _KERNEL_OPTIONS, compiled.compile
        )
        return compiled

    def inspect_asm(self) -> str:
        """The assembly, freshly compiled: code that comes from the cache carries none."""
        sig = signature(types.void, self.args, types.int64, types.int64, types.int64)
        fresh = CFunc(self.function, (sig.args, sig.return_type), {}, dict(_KERNEL_OPTIONS))
        fresh.compile()
        return str(fresh._library.get_asm_str())

    def __repr__(self) -> str:
        return f"<range kernel {self.function.__name__}>"


def range_kernel(
    name: str, args: ArgsType, spec: tuple[Any, ...]
) -> Callable[[Callable[..., None]], RangeKernel]:
    """Make a factory's inner function a range kernel.  `spec` must hold everything that its code depends on."""

    def decorate(function: Callable[..., None]) -> RangeKernel:
        return RangeKernel(function, name, args, spec)

    return decorate


def _check_closure(function: Callable[..., None], name: str) -> None:
    for cell in function.__closure__ or ():
        value = cell.cell_contents
        parts = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(part, (int, float, str, bool, type(None))) for part in parts):
            raise TypeError(
                f"kernel {name} closes over {value!r}; a factory may close over ints, floats, strings and tuples "
                f"of them only (anything else would not be part of the kernel's cache key)"
            )


def _compile_through_cache(
    compiled: Any,
    function: Callable[..., Any],
    name: str,
    spec: tuple[Any, ...],
    options: dict[str, Any],
    compile_now: Callable[[], Any],
) -> None:
    kernel_cache.install_unique_symbols()
    cache = kernel_cache.KernelCache(function, name, spec, options)
    compiled._cache = cache
    with kernel_cache.compile_lock(cache):
        compile_now()


def compile_entry(function: Callable[..., Any], sig: str, *, parallel: bool = False) -> Any:
    """Compile a function that Python calls (a driver), one signature, through the kernel cache."""
    options = dict(OPTIONS, parallel=parallel)
    dispatcher = numba.njit(**options)(function)
    _compile_through_cache(
        dispatcher, function, function.__name__, (sig,), options, lambda: dispatcher.compile(sig)
    )
    return dispatcher


# ---------------------------------------------------------------------------------------------- drivers


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
    """The same over `workers` threads.  Workers draw chunks from a counter: a thread that the machine holds up takes
    fewer.  Results cannot depend on who takes which, because tiles are independent."""
    fill = _make_fill(_data_word())

    def launch_parallel(program, workers, h0, h1, h2, h3, h4, h5, h6, h7, f0, f1, f2, f3, f4, f5):  # type: ignore[no-untyped-def]
        args = stack_words(_ARGS_WORDS)
        fill(args, program, h0, h1, h2, h3, h4, h5, h6, h7, f0, f1, f2, f3, f4, f5)
        phases = program + 8 * (_HEADER + load_word(program, _INTS))
        mask = _get_thread_mask()
        _set_thread_mask(min(workers, mask))
        for step in range(load_word(program, _STEPS)):
            store_word(args, STEP_SLOT, step)
            for phase in range(load_word(program, _PHASES)):
                at = _PHASE_WORDS * phase
                kernel = load_word(phases, at)
                tiles = load_word(phases, at + 1)
                chunk = load_word(phases, at + 2)
                if tiles <= chunk:
                    call_range(kernel, args, 0, 0, tiles)
                else:
                    store_word(args, _COUNTER_SLOT, 0)
                    for worker in numba.prange(workers):
                        while True:
                            lo = atomic_add_word(args + 8 * _COUNTER_SLOT, chunk)
                            if lo >= tiles:
                                break
                            call_range(kernel, args, worker, lo, min(lo + chunk, tiles))
        _set_thread_mask(mask)

    launch_parallel.__name__ = launch_parallel.__qualname__ = f"launch_parallel_{_data_word()}"
    return compile_entry(launch_parallel, _DRIVER_SIGNATURE, parallel=True)


class Program:
    """What a driver runs: the problem's integers, then phases (kernel, tiles, chunk), the whole list `steps` times.

    A phase begins when the one before has ended on every worker.  `chunk` tiles are taken at a time.
    """

    def __init__(
        self,
        ints: Sequence[int],
        phases: Sequence[tuple[RangeKernel, int, int]],
        steps: int = 1,
        keep: tuple[Any, ...] = (),
    ) -> None:
        self.keep = keep  # what the integers point to
        self.kernels = tuple(kernel for kernel, _, _ in phases)
        words = [len(phases), steps, len(ints), id(None), *ints]
        for kernel, tiles, chunk in phases:
            words += [kernel.address, tiles, max(1, chunk), 0]
        self._words = np.array(words, np.int64)
        self.address = int(self._words.ctypes.data)
        # more workers than chunks would only wake threads for nothing
        self.most_workers = max((-(-tiles // max(1, chunk)) for _, tiles, chunk in phases), default=1)
