"""The only place of the CPU side that calls Numba's compilers: range kernels, helpers, entries.

A *range kernel* is ``def kernel(args, worker, lo, hi)``: it works on the tiles [lo, hi) of one problem, writes into
its outputs, allocates nothing and is serial.  Every kernel has the same C signature, so ONE serial and ONE parallel
driver, compiled once, call them all by pointer: a kernel then costs about 0.1 s to compile instead of 0.5 s, and the
parallel call, the forked child and the user's own ``@njit`` code run the same machine code, bit for bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numba
from numba import types
from numba.core import config as _config
from numba.core.ccallback import CFunc
from numba.core.registry import cpu_target
from numba.core.typing import signature

from numbaprims import kernel_cache, signals
from numbaprims.cpu.compiler import KernelCompiler

config: Any = _config  # its names are made as Numba starts
_DISABLED = bool(config.DISABLE_JIT)

# fma contraction only: nnan/ninf would break -inf masks and NaN propagation, and arcp, afn, reassoc change results
# that are promised bit for bit (x / 9 under arcp differs in 11 % of values).
# error_model="numpy": a Python-style zero-division check in a loop stops LLVM from vectorising it.
OPTIONS: dict[str, Any] = {
    "fastmath": {"contract"},
    "error_model": "numpy",
    "nogil": True,
    "boundscheck": False,
}
_KERNEL_OPTIONS: dict[str, Any] = {k: v for k, v in OPTIONS.items() if k != "nogil"}  # a C function holds no GIL


def helper(function: Callable[..., Any]) -> Any:
    """Decorator: a module-level function to be inlined into range kernels (takes literals, vectors, pointers).

    Inlined into the kernel's Numba IR, before typing: literals stay literal, and a kernel is typed, optimised and
    assembled once.  Helpers that LLVM inlines are compiled and assembled one by one first, at every level of nesting
    again, which took the blocked product 4.3 s instead of 1.2 s.
    """
    with _compiling():
        return numba.njit(inline="always", **OPTIONS)(function)


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Numba's compilers also under NUMBA_DISABLE_JIT=1, by which users step through functions of their own: there is
    no Python to step through in a kernel of explicit vectors."""
    if not (_DISABLED or config.DISABLE_JIT):
        yield
        return
    with kernel_cache.compiler_lock():  # the flag is of the whole process
        before, config.DISABLE_JIT = config.DISABLE_JIT, 0
        try:
            yield
        finally:
            config.DISABLE_JIT = before


class RangeKernel:
    """A kernel of a factory, compiled (or loaded from the kernel cache) at the first use of `address`."""

    def __init__(
        self,
        function: Callable[..., None],
        name: str,
        args: types.Type,
        spec: tuple[Any, ...],
        room: int,
        contract: bool,
    ) -> None:
        _check_closure(function, name)
        # Unique names: Numba links by mangled name, and two specialisations of one factory would collide.
        unique = name + "_" + "_".join(str(part) for part in spec)
        function.__name__ = function.__qualname__ = unique
        self.function = function
        self.name = name
        self.spec = spec
        self.args = args
        self.room = room
        self.options = _KERNEL_OPTIONS if contract else {**_KERNEL_OPTIONS, "fastmath": False}
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
                    self._address = int(self._compiled.address or 0)
        return self._address

    def _signature(self) -> Any:
        return signature(types.void, self.args, types.int64, types.int64, types.int64)

    def _compile(self) -> CFunc:
        sig = self._signature()
        compiled = CFunc(self.function, (sig.args, sig.return_type), {}, dict(self.options), KernelCompiler)
        cache_spec = (*self.spec, repr(self.args))
        _compile_through_cache(compiled, self.function, self.name, cache_spec, self.options, compiled.compile)
        return compiled

    def inspect_asm(self) -> str:
        """The assembly, freshly compiled: code that comes from the cache carries none."""
        sig = self._signature()
        fresh = CFunc(self.function, (sig.args, sig.return_type), {}, dict(self.options), KernelCompiler)
        with _compiling(), kernel_cache.compiler_lock():
            library = fresh._compile_uncached().library  # type: ignore[attr-defined]
            library.only_read = True
            library.finalize()
            return str(library.get_asm_str())

    def __repr__(self) -> str:
        return f"<range kernel {self.function.__name__}>"


def range_kernel(
    name: str, args: types.Type, spec: tuple[Any, ...], room: int = 0, contract: bool = True
) -> Callable[[Callable[..., None]], RangeKernel]:
    """Make a factory's inner function a range kernel.  `spec` must hold everything that its code depends on.

    `room` is the bytes of scratch memory of a worker that the kernel takes at an address among its arguments.  Without
    `contract` products and sums of neighbouring formulas are rounded one by one.
    """

    def decorate(function: Callable[..., None]) -> RangeKernel:
        return RangeKernel(function, name, args, spec, room, contract)

    return decorate


class _CFunction(RangeKernel):
    """A function of words that gives one."""

    def _signature(self) -> Any:
        return signature(types.int64, *[types.int64] * self.function.__code__.co_argcount)


def c_function(name: str, spec: tuple[Any, ...]) -> Callable[[Callable[..., Any]], RangeKernel]:
    """Make a factory's inner function a C function, int64(int64, ...); `spec` as for `range_kernel`."""

    def decorate(function: Callable[..., Any]) -> RangeKernel:
        return _CFunction(function, name, types.int64, spec, 0, True)

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
    signals.whole_refresh(cpu_target)
    kind = kernel_cache.CodeCache if isinstance(compiled, CFunc) else kernel_cache.KernelCache
    cache = kind(function, name, spec, options)
    compiled._cache = cache
    with kernel_cache.compiler_lock(), kernel_cache.compile_lock(cache), _compiling():
        compile_now()


def compile_entry(function: Callable[..., Any], sig: str, *, parallel: bool = False) -> Any:
    """Compile a function that Python calls (a driver), one signature, through the kernel cache."""
    options = dict(OPTIONS, parallel=parallel)
    with _compiling():
        dispatcher = numba.njit(**options)(function)
    _compile_through_cache(dispatcher, function, function.__name__, (sig,), options, lambda: dispatcher.compile(sig))
    # Other scalars than this signature's are converted; without this, one call with alpha=2 compiled for 0.35 s.
    dispatcher.disable_compile()
    return dispatcher
