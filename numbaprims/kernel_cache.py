"""The on-disk cache of compiled kernels: keyed by everything the code depends on, safe between processes.

Numba's own ``cache=True`` is not used, because (measured with Numba 0.68) its index has no lock: six
processes that compiled 15 specialisations of one factory each lost 7 of 90 kernels, and 2 of 90 returned
another specialisation's result. It does not notice an edited helper in another module either, and it raises
where no directory can be written. Here there is no index (see kernel_files.py), the key holds all sources
that a kernel can reach (see source_digest.py), and whatever goes wrong on the disk costs one warning and a
compilation.

A directory of kernels that ships read-only is looked at first, then the user's own.

This module also is the only one that knows Numba's semi-private names; a test watches them. Without them
kernels still compile, they are only not kept.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple

from numbaprims import forks, kernel_files, settings
from numbaprims.kernel_files import Entry, clear, directory, entries, make_private, size, untrusted
from numbaprims.source_digest import NotStable, closure_digest, function_token

__all__ = [
    "CodeCache",
    "Entry",
    "KernelCache",
    "clear",
    "codegen_facts",
    "compile_lock",
    "compiler_lock",
    "directory",
    "entries",
    "install_unique_symbols",
    "make_private",
    "size",
    "statistics",
    "thread_mask",
    "unavailable",
    "untrusted",
]

# The largest kernels compile in about 4 s; a lock that is held for longer than this is taken for dead.
LOCK_SECONDS = 30.0
_SAVES_BETWEEN_TRIMS = 64


# ------------------------------------------------------------------------- what we use of Numba's inside
class _Numba(NamedTuple):
    identity: Any  # FunctionIdentity, whose counter goes into mangled names
    target: Any  # the CPU target's context
    reduce: Callable[[Any], tuple]
    rebuild: Callable[..., Any]
    dumps: Callable[[Any], bytes]
    runtime: Any  # Numba's reference counting runtime
    address_of_symbol: Callable[[str], int | None]
    versions: tuple
    options: Callable[[], tuple]


# What a damaged file or another Numba raises, beside OSError. Nothing wider: a caller's signal handler may raise too, a
# time limit for one, and that has to reach the caller.
_FOREIGN = (
    AssertionError, AttributeError, EOFError, ImportError, LookupError, RuntimeError, TypeError, ValueError,
    pickle.PickleError,
)  # fmt: skip

# Numba's own settings that change the code it makes.
_CODE_OPTIONS = (
    "OPT BOUNDSCHECK LOOP_VECTORIZE SLP_VECTORIZE USING_SVML ENABLE_AVX DEBUGINFO_DEFAULT ENABLE_PROFILING "
    "LLVM_REFPRUNE_PASS"
).split()


@functools.cache
def _numba_parts() -> _Numba | str:
    """The semi-private names in one place, or one sentence that says which is missing."""
    try:
        import llvmlite.binding
        import numba
        import numpy
        from numba.core import config, registry
        from numba.core.bytecode import FunctionIdentity
        from numba.core.compiler import CompileResult
        from numba.core.runtime import rtsys
        from numba.core.serialize import dumps

        next(iter(FunctionIdentity._unique_ids))  # an iterator, or this raises
        with compiler_lock():  # forks wait: Numba and llvmlite have locks of their own here
            target = registry.cpu_target.target_context
            facts = target.codegen().magic_tuple()
        if not all(isinstance(part, str) for part in facts):
            raise TypeError("magic_tuple() no longer holds the triple, the CPU and its features")
        versions = (
            ("numba", numba.__version__),
            ("llvmlite", llvmlite.__version__),
            ("numpy", numpy.__version__),
            ("python", sys.implementation.cache_tag, sys.version_info[:3], getattr(sys, "abiflags", "")),
        )

        def options() -> tuple:
            return tuple((name, str(getattr(config, name, None))) for name in _CODE_OPTIONS)

        return _Numba(
            FunctionIdentity,
            target,
            CompileResult._reduce,
            CompileResult._rebuild,
            dumps,
            rtsys,
            llvmlite.binding.address_of_symbol,
            versions,
            options,
        )
    except _FOREIGN as error:
        return f"this Numba lacks a part that the kernel cache needs ({type(error).__name__}: {error})"


def _parts() -> _Numba:
    """The same where a key was made, which proves that they are there."""
    parts = _numba_parts()
    assert not isinstance(parts, str)
    return parts


def unavailable() -> str | None:
    """None if compiled kernels can be kept on disk, else one sentence saying why not."""
    if not settings.current().cache:
        return "the kernel cache is switched off (NUMBAPRIMS_CACHE=0)"
    parts = _numba_parts()
    return parts if isinstance(parts, str) else None


def codegen_facts() -> tuple[str, str, str]:
    """(triple, CPU name, features) that Numba compiles for in this process; empty strings where unknown."""
    parts = _numba_parts()
    with compiler_lock():
        return ("", "", "") if isinstance(parts, str) else parts.target.codegen().magic_tuple()


@functools.cache
def compiler_lock() -> AbstractContextManager[Any]:
    """Numba's re-entrant compiler lock. Code that compiles takes it before any lock of its own.

    The other order deadlocks: one thread holds our lock and waits for Numba's, another compiles the user's
    function, which holds Numba's, and asks for the same kernel.

    Forks wait for it, from the first use on: a child that got LLVM in the middle of another thread's
    compilation could compile nothing. (Numba has imported logging, whose lock forks take too, by then.)
    """
    try:
        from numba.core.compiler_lock import global_compiler_lock
    except ImportError:
        return nullcontext()
    forks.wait_for(global_compiler_lock)
    return global_compiler_lock


@functools.cache
def _load_filelock() -> None:
    """Import it, which takes 20 ms and only compilations need: their forks wait for the compiler first."""
    import filelock  # noqa: F401

    if not isinstance(lock := compiler_lock(), nullcontext):
        forks.wait_for(lock)


@functools.cache
def thread_mask() -> Callable[[], int]:
    """Start the threads; a function like ``numba.get_num_threads`` that takes 0.09 us instead of 0.65 us."""
    import numba
    from numba.np.ufunc import parallel

    numba.get_num_threads()  # sets the name below
    fast = getattr(parallel, "_get_num_threads", None)
    return fast if callable(fast) and fast() == numba.get_num_threads() else numba.get_num_threads


class _UniqueIds:
    """An endless iterator of 64-bit random numbers. They differ after a fork too; a counter would not."""

    def __iter__(self) -> _UniqueIds:
        return self

    def __next__(self) -> int:
        return int.from_bytes(os.urandom(8), "little")


def install_unique_symbols() -> None:
    """Give every function that Numba compiles from now on a symbol that no other process uses.

    Numba numbers symbols with a counter of the process. Machine code that comes from the cache and code
    that is compiled here can then carry the same name, and linking them together calls the wrong body.
    """
    parts = _numba_parts()
    if not isinstance(parts, str) and not isinstance(parts.identity._unique_ids, _UniqueIds):
        parts.identity._unique_ids = _UniqueIds()


# ---------------------------------------------------------------------------------- statistics, warnings
# Numba calls the cache under its compiler lock, so these need none of their own.
_counts = {"hits": 0, "misses": 0, "saves": 0, "errors": 0}
_warned: set[str] = set()


def statistics() -> dict[str, int]:
    """How often this process found a kernel (hits), did not (misses), kept one (saves), or met an error."""
    return dict(_counts)


def _warn(topic: str, message: str) -> None:
    """Count an error; the first of each topic also warns. Never raises, not even under ``-W error``."""
    _counts["errors"] += 1
    if topic in _warned:
        return
    _warned.add(topic)
    try:
        warnings.warn(f"numbaprims kernel cache: {message}", RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        print(f"numbaprims kernel cache: {message}", file=sys.stderr)


# ---------------------------------------------------------------------------------- the cache
class KernelCache:
    """The cache of one kernel, to be assigned to ``dispatcher._cache`` or ``CFunc._cache``.

    Parameters
    ----------
    py_func : function
        The kernel. The key holds the sources of its module and of all modules of its package that it can
        reach by imports, its byte code, and the values that it closes over.
    name : str
        What the kernel is called in `entries`.
    spec : tuple
        What it was specialised for.
    options : dict
        The options of the compilation.
    """

    def __init__(self, py_func: Callable[..., Any], name: str, spec: tuple, options: dict[str, Any]) -> None:
        self._py_func = py_func
        self.name = name
        self.spec = spec
        self.options = options
        self._enabled = True
        self._wants_lock = False
        self._lock: kernel_files.Lock | None = None
        self._keys: dict[str, bytes | None] = {}

    def __repr__(self) -> str:
        return f"KernelCache({self.name!r}, {self.spec!r})"

    # What kernels of another compiler do otherwise (gpu/image.py).
    def facts(self, sig: str) -> dict[str, str]:
        """Fields of the key that tell the compiler and its target."""
        parts = _parts()
        return {
            "target": repr(parts.target.codegen().magic_tuple()),
            "versions": repr(parts.versions),
            "numba": repr(parts.options()),
        }

    def rebuild(self, payload: bytes, target_context: Any) -> Any:
        """The compiled kernel from what `reduce` made of it."""
        parts = _parts()
        symbols, start, reduced = pickle.loads(payload)
        for function in start:
            function()
        _provide(parts, target_context, symbols)
        return parts.rebuild(target_context, *reduced)

    def reduce(self, result: Any) -> bytes | None:
        """A compiled kernel as bytes; None if it cannot be kept."""
        if not _can_be_kept(result):
            return None
        parts = _parts()
        return parts.dumps((_external_symbols(result), tuple(result.reload_init), parts.reduce(result)))

    # What Numba calls. None of these raises what is wrong with the cache.
    @property
    def cache_path(self) -> str:
        return str(directory())

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def flush(self) -> None:
        """Delete this kernel's files; Numba calls it before it recompiles."""
        for key in self._keys.values():
            if key is not None:
                kernel_files.remove(os.path.join(self.cache_path, kernel_files.file_name(self.name, key)))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled kernel from disk, or None."""
        found = None
        try:
            key = self._usable_key(sig)
            if key is not None:
                found = self._load(key, target_context)
        except (OSError, *_FOREIGN) as error:
            if kernel_files.of_a_time_limit(error):
                raise
            _warn("load", f"{self.name} was not loaded ({type(error).__name__}: {error}); it is compiled")
        _counts["misses" if found is None else "hits"] += 1
        return found

    def save_overload(self, sig: Any, cres: Any) -> None:
        """Keep a compiled kernel."""
        try:
            key = self._usable_key(sig)
            if key is not None:
                self._save(key, cres)
        except OSError as error:
            if kernel_files.of_a_time_limit(error):
                raise
            where = f"{directory()} cannot be used ({error})"
            _warn("write", f"{where}; every process compiles its kernels. NUMBAPRIMS_CACHE_DIR names another")
        except _FOREIGN as error:
            _warn("save", f"{self.name} was not kept ({type(error).__name__}: {error})")
        finally:
            self._release()

    def _usable_key(self, sig: Any) -> bytes | None:
        if not self._enabled or not settings.current().cache:
            return None
        _, why = kernel_files.place(settings.current().cache_dir)
        if why and "place" not in _warned:
            _warn("place", why)
        return self.key(sig)

    def key(self, sig: Any) -> bytes | None:
        """Everything that the machine code depends on, as lines of text; None if that cannot be known."""
        name = str(sig)
        if name not in self._keys:
            self._keys[name] = self._make_key(name)
        return self._keys[name]

    def _make_key(self, sig: str) -> bytes | None:
        parts = _numba_parts()
        if isinstance(parts, str):
            _warn("numba", f"{parts}; every process compiles its kernels")
            return None
        try:
            function, sources = function_token(self._py_func), closure_digest(self._py_func)
        except NotStable as reason:
            _warn("source", f"{self.name} is compiled in every process: {reason}")
            return None
        fields = {
            "name": self.name,
            "spec": repr(self.spec),
            "signature": sig,
            "options": repr(sorted((name, _stable(value)) for name, value in self.options.items())),
            "sources": sources,
            "function": function,
            "schema": str(kernel_files.SCHEMA),
            **self.facts(sig),
        }
        return "\n".join(f"{field} {value}".replace("\n", " ") for field, value in fields.items()).encode()

    def _load(self, key: bytes, target_context: Any) -> Any:
        file = kernel_files.file_name(self.name, key)
        shipped, own = settings.current().shipped_cache, self.cache_path
        payload = self._read(shipped, file, key) if shipped else None
        if payload is None:
            payload = self._read(own, file, key)
        if payload is None and self._wants_lock:
            _load_filelock()
            self._lock = kernel_files.Lock(own, file, LOCK_SECONDS)
            if self._lock.acquire():  # another process may have kept it while we waited
                payload = self._read(own, file, key)
        if payload is None:
            return None
        return self.rebuild(payload, target_context)

    def _read(self, folder: str, file: str, key: bytes) -> bytes | None:
        try:
            return kernel_files.read(folder, file, key)
        except OSError as error:
            if kernel_files.of_a_time_limit(error):
                raise
            _warn("read", f"{os.path.join(folder, file)} cannot be read ({error}); the kernel is compiled")
        except ValueError as reason:
            _warn("corrupt", f"{os.path.join(folder, file)} is ignored, since {reason}; it is compiled again")
        return None

    def _save(self, key: bytes, cres: Any) -> None:
        payload = self.reduce(cres)
        if payload is None:
            return
        folder = self.cache_path
        kernel_files.write(folder, kernel_files.file_name(self.name, key), key, payload)
        _counts["saves"] += 1
        if _counts["saves"] % _SAVES_BETWEEN_TRIMS == 1:
            kernel_files.trim(folder, settings.current().cache_limit)

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()


class CodeCache(KernelCache):
    """The cache of a C function that is called by pointer alone: its file holds machine code and names, no pickle."""

    def rebuild(self, payload: bytes, target_context: Any) -> Any:
        head, _, code = payload.partition(b"\n")
        name, wrapper, symbols, size = json.loads(head)
        _provide(_parts(), target_context, symbols)
        library = target_context.codegen().unserialize_library((name, "object", (code[:size], code[size:])))
        return SimpleNamespace(library=library, fndesc=SimpleNamespace(llvm_cfunc_wrapper_name=wrapper))

    def reduce(self, result: Any) -> bytes | None:
        if not _can_be_kept(result) or result.reload_init or result.environment.consts:
            return None
        name, _, (code, bitcode) = result.library.serialize_using_object_code()
        head = [name, result.fndesc.llvm_cfunc_wrapper_name, _external_symbols(result), len(code)]
        return b"%s\n%s%s" % (json.dumps(head).encode(), code, bitcode)


def _can_be_kept(result: Any) -> bool:
    return not result.library.has_dynamic_globals and all(lifted.can_cache for lifted in result.lifted or ())


def _external_symbols(cres: Any) -> tuple[str, ...]:
    """The functions and variables that the machine code expects from elsewhere."""
    module = cres.library._final_module
    declared = [*module.functions, *module.global_variables]
    return tuple(v.name for v in declared if v.is_declaration and not v.name.startswith("llvm."))


def _provide(parts: _Numba, target_context: Any, symbols: tuple[str, ...]) -> None:
    """See to it that these symbols exist in the process: LLVM ends the process if one does not.

    Numba's way is ``refresh``, which imports all that it can compile and takes 0.25 s. Kernels need a dozen
    symbols, which are there at the first or second step.
    """
    for step in (lambda: None, lambda: parts.runtime.initialize(target_context), target_context.refresh):
        step()
        if all(parts.address_of_symbol(symbol) for symbol in symbols):
            return


def _stable(value: Any) -> str:
    # The order of a set of strings differs from process to process.
    return repr(sorted(map(str, value))) if isinstance(value, (set, frozenset)) else repr(value)


@contextmanager
def compile_lock(cache: KernelCache) -> Iterator[None]:
    """While one process compiles this kernel inside the block, others wait and then load it.

    The file lock is taken inside `load_overload`, if the kernel is not there: Numba holds its compiler lock
    by then, and the order of the two is the same everywhere. Waiting ends after `LOCK_SECONDS`.
    """
    cache._wants_lock = True
    try:
        yield
    finally:
        cache._wants_lock = False
        cache._release()


_paused: list[bool] = []  # whether the collector ran before, of each compilation under way
_pausing = forks.lock()


@contextmanager
def collector_paused() -> Iterator[None]:
    """Without Python's cyclic garbage collector, while any thread is inside: a compilation makes many objects that live
    until its end, and walking them again and again took 5 to 19 % of its time, more in long processes."""
    with _pausing:
        _paused.append(gc.isenabled() if not _paused else _paused[0])
        gc.disable()
    try:
        yield
    finally:
        with _pausing:
            if _paused.pop() and not _paused:
                gc.enable()
