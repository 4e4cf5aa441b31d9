"""The on-disk cache of compiled kernels: one file for each key, no index, safe between processes.

Numba's own ``cache=True`` is not used, because (measured with Numba 0.68) its index has no lock: six processes that
compile 15 specialisations of one factory each lost 7 of 90 kernels and let 2 of 90 return another specialisation's
result; it does not notice an edited helper in another module; and it raises where no directory can be written.

Here the name of a file is the digest of everything that the machine code depends on (see ``KernelCache.key``), the
whole key is stored in the file and compared, and a checksum is verified before anything is unpickled. Files appear by
``os.replace``. A directory of kernels that ships read-only is looked at first, then the user's own. One file lock for
each key lets N processes compile a kernel once. Whatever goes wrong on the disk costs one warning and a compilation.

This module also is the only one that knows Numba's semi-private names (`_numba_parts`); a test watches them. Without
them kernels still compile, they are only not kept.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from numbaprims import settings
from numbaprims.source_digest import NotStable, closure_digest, function_token

__all__ = [
    "Entry",
    "KernelCache",
    "clear",
    "codegen_facts",
    "compile_lock",
    "directory",
    "entries",
    "install_unique_symbols",
    "size",
    "statistics",
    "unavailable",
]

SCHEMA = 1  # raised when the layout of a file or of a key changes
SUFFIX = ".npk"
_MAGIC = b"numbaprims kernel\n"
_HEAD = struct.Struct("<I32sIQ")  # schema, SHA-256 of key and payload, their lengths
# The largest kernels compile in about 4 s; a lock that is held longer than this is taken for dead.
LOCK_SECONDS = 30.0
_SAVES_BETWEEN_TRIMS = 64


# ------------------------------------------------------------------------------- what we use of Numba's inside
class _Numba(NamedTuple):
    identity: Any  # FunctionIdentity, whose counter goes into mangled names
    target: Any  # the CPU target's context
    reduce: Callable[[Any], tuple]
    rebuild: Callable[..., Any]
    dumps: Callable[[Any], bytes]
    versions: tuple
    options: Callable[[], tuple]


@functools.cache
def _numba_parts() -> _Numba | str:
    """The semi-private names in one place, or one sentence that says which is missing."""
    try:
        import numba
        import numpy
        from numba.core import config, registry
        from numba.core.bytecode import FunctionIdentity
        from numba.core.compiler import CompileResult
        from numba.core.serialize import dumps

        next(iter(FunctionIdentity._unique_ids))  # an iterator, or this raises
        target = registry.cpu_target.target_context
        triple, cpu, features = target.codegen().magic_tuple()
        if not all(isinstance(part, str) for part in (triple, cpu, features)):
            raise TypeError("codegen().magic_tuple() no longer holds three strings")
        versions = (
            ("numba", numba.__version__),
            ("llvmlite", sys.modules["llvmlite"].__version__),
            ("numpy", numpy.__version__),
            ("python", f"{sys.implementation.cache_tag}-{sys.version_info[2]}{getattr(sys, 'abiflags', '')}"),
        )
        # Numba's own settings that change the code it makes.
        names = ("OPT", "BOUNDSCHECK", "LOOP_VECTORIZE", "SLP_VECTORIZE", "USING_SVML", "ENABLE_AVX")
        names += ("DEBUGINFO_DEFAULT", "DISABLE_HASHING", "LLVM_REFPRUNE_PASS", "ENABLE_PROFILING")

        def options() -> tuple:
            return tuple((name, str(getattr(config, name, None))) for name in names)

        return _Numba(
            FunctionIdentity, target, CompileResult._reduce, CompileResult._rebuild, dumps, versions, options
        )
    except Exception as error:
        return f"this Numba lacks a part that the kernel cache needs ({type(error).__name__}: {error})"


def unavailable() -> str | None:
    """None if compiled kernels can be kept on disk, else one sentence saying why not."""
    if not settings.current().cache:
        return "the kernel cache is switched off (NUMBAPRIMS_CACHE=0)"
    parts = _numba_parts()
    return parts if isinstance(parts, str) else None


def codegen_facts() -> tuple[str, str, str]:
    """(triple, CPU name, features) that Numba compiles for in this process; empty strings where unknown."""
    parts = _numba_parts()
    return ("", "", "") if isinstance(parts, str) else parts.target.codegen().magic_tuple()


_unique_lock = threading.Lock()


class _UniqueIds:
    """An endless iterator of 64-bit random numbers. `os.urandom` also differs after a fork; a counter would not."""

    def __iter__(self) -> _UniqueIds:
        return self

    def __next__(self) -> int:
        return int.from_bytes(os.urandom(8), "little")


def install_unique_symbols() -> None:
    """Give every function that Numba compiles from now on a symbol that no other process uses.

    Numba numbers symbols with a counter of the process. Machine code that comes from the cache and code that is
    compiled here can then carry the same name, and linking them together calls the wrong body.
    """
    parts = _numba_parts()
    if isinstance(parts, str):
        return
    with _unique_lock:
        if not isinstance(parts.identity._unique_ids, _UniqueIds):
            parts.identity._unique_ids = _UniqueIds()


# --------------------------------------------------------------------------------------- statistics, warnings
_counts_lock = threading.Lock()
_counts = {"hits": 0, "misses": 0, "saves": 0, "errors": 0}
_warned: set[str] = set()


def _count(what: str) -> None:
    with _counts_lock:
        _counts[what] += 1


def statistics() -> dict[str, int]:
    """How often this process found a kernel (hits), did not (misses), kept one (saves), or met an error."""
    with _counts_lock:
        return dict(_counts)


def _warn(topic: str, message: str) -> None:
    """Count an error; the first one of each topic is also a warning. Never raises, not even under -W error."""
    with _counts_lock:
        _counts["errors"] += 1
        first = topic not in _warned
        _warned.add(topic)
    if first:
        try:
            warnings.warn(f"numbaprims kernel cache: {message}", RuntimeWarning, stacklevel=3)
        except RuntimeWarning:
            print(f"numbaprims kernel cache: {message}", file=sys.stderr)


# ------------------------------------------------------------------------------------------------ directories
def directory() -> Path:
    """The user's directory of compiled kernels. It need not exist."""
    return Path(_user_directory(settings.current().cache_dir))


@functools.cache
def _user_directory(chosen: str | None) -> str:
    if chosen is None:
        import platformdirs

        chosen = platformdirs.user_cache_dir("numbaprims", appauthor=False)
    return os.path.join(chosen, "kernels")


def _shipped_directory() -> str | None:
    return settings.current().shipped_cache


def _prepare_directory(path: str) -> None:
    """Create it for this user alone; OSError if that is not possible or others could plant code in it."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    if hasattr(os, "getuid"):
        info = os.stat(path)
        if info.st_mode & stat.S_IWOTH and not info.st_mode & stat.S_ISVTX:
            raise PermissionError(f"{path} can be written by everybody, so kernels in it cannot be trusted")


# ------------------------------------------------------------------------------------------------- file format
def _pack(key: bytes, payload: bytes) -> bytes:
    checksum = hashlib.sha256(key + payload).digest()
    return b"".join((_MAGIC, _HEAD.pack(SCHEMA, checksum, len(key), len(payload)), key, payload))


def _unpack(data: bytes, key: bytes) -> bytes:
    """The payload; ValueError with a reason if this is not the entry of `key`, whole and unchanged."""
    start = len(_MAGIC) + _HEAD.size
    if not data.startswith(_MAGIC) or len(data) < start:
        raise ValueError("it is not a kernel file, or was cut short")
    schema, checksum, key_length, payload_length = _HEAD.unpack_from(data, len(_MAGIC))
    if schema != SCHEMA or len(data) != start + key_length + payload_length:
        raise ValueError("it was cut short, or written by another version")
    if hashlib.sha256(memoryview(data)[start:]).digest() != checksum:
        raise ValueError("its checksum is wrong")
    if data[start : start + key_length] != key:
        raise ValueError("it holds another kernel")
    return data[start + key_length :]


def _write(path: str, data: bytes) -> None:
    temporary = f"{path}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise


# -------------------------------------------------------------------------------------------------- the cache
class KernelCache:
    """The cache of one kernel, to be assigned to ``dispatcher._cache`` or ``CFunc._cache``.

    Parameters
    ----------
    py_func : function
        The kernel. Its sources, those of every module of its package that it can reach by imports, its byte code, and
        the values it closes over are part of the key.
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
        self._held: Any = None
        self._keys: dict[str, bytes | None] = {}

    def __repr__(self) -> str:
        return f"KernelCache({self.name!r}, {self.spec!r})"

    # What Numba calls. None of these raises.
    @property
    def cache_path(self) -> str:
        return str(directory())

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def flush(self) -> None:
        """Remove this kernel's entries (Numba calls it before it recompiles)."""
        for key in self._keys.values():
            if key is not None:
                _remove(os.path.join(str(directory()), _file_name(self.name, key)))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled kernel from disk, or None."""
        try:
            target_context.refresh()
            return self._load(sig, target_context)
        except Exception as error:
            _warn("load", f"{self.name} was not loaded ({type(error).__name__}: {error}); it is compiled")
            return None

    def save_overload(self, sig: Any, cres: Any) -> None:
        """Keep a compiled kernel."""
        try:
            self._save(sig, cres)
        except OSError as error:
            _warn("write", f"{directory()} cannot be written ({error}); kernels are compiled in every process")
        except Exception as error:
            _warn("save", f"{self.name} was not kept ({type(error).__name__}: {error})")
        finally:
            self._release()

    def key(self, sig: Any) -> bytes | None:
        """Everything the machine code depends on, as text; None if that cannot be known."""
        name = str(sig)
        if name not in self._keys:
            self._keys[name] = self._make_key(name)
        return self._keys[name]

    def _make_key(self, sig: str) -> bytes | None:
        parts = _numba_parts()
        if isinstance(parts, str):
            _warn("numba", f"{parts}; kernels are compiled in every process")
            return None
        try:
            function = function_token(self._py_func)
            sources = closure_digest(self._py_func)
        except NotStable as reason:
            _warn("source", f"{self.name} is not kept: {reason}")
            return None
        lines = [
            f"name {self.name}",
            f"spec {self.spec!r}",
            f"signature {sig}",
            f"options {sorted((k, _stable(v)) for k, v in self.options.items())!r}",
            f"sources {sources}",
            f"function {function}",
            f"target {parts.target.codegen().magic_tuple()!r}",
            f"versions {parts.versions!r}",
            f"numba {parts.options()!r}",
        ]
        return "\n".join(line.replace("\n", " ") for line in lines).encode()

    def _load(self, sig: Any, target_context: Any) -> Any:
        key = self.key(sig) if self._enabled and unavailable() is None else None
        if key is None:
            _count("misses")
            return None
        file = _file_name(self.name, key)
        user = str(directory())
        payload = self._find(file, key, user)
        if payload is None and self._wants_lock:
            self._acquire(user, file)
            payload = self._read(os.path.join(user, file), key)  # another process may have kept it by now
        if payload is not None:
            result = self._rebuild(payload, target_context)
            if result is not None:
                _count("hits")
                return result
        _count("misses")
        return None

    def _find(self, file: str, key: bytes, user: str) -> bytes | None:
        for folder in (_shipped_directory(), user):
            if folder is not None:
                payload = self._read(os.path.join(folder, file), key)
                if payload is not None:
                    return payload
        return None

    def _read(self, path: str, key: bytes) -> bytes | None:
        try:
            with open(path, "rb") as file:
                return _unpack(file.read(), key)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            _warn("read", f"{path} cannot be read ({error}); the kernel is compiled")
        except ValueError as reason:
            _warn("corrupt", f"{path} is ignored: {reason}; it is compiled again and replaced")
        return None

    def _rebuild(self, payload: bytes, target_context: Any) -> Any:
        import pickle

        parts = _numba_parts()
        assert not isinstance(parts, str)
        try:
            return parts.rebuild(target_context, *pickle.loads(payload))
        except Exception as error:
            _warn("rebuild", f"{self.name} cannot be used ({type(error).__name__}: {error}); it is compiled")
            return None

    def _save(self, sig: Any, cres: Any) -> None:
        key = self.key(sig) if self._enabled and unavailable() is None else None
        if key is None or cres.library.has_dynamic_globals or any(not x.can_cache for x in cres.lifted or ()):
            return
        parts = _numba_parts()
        assert not isinstance(parts, str)
        data = _pack(key, parts.dumps(parts.reduce(cres)))
        folder = str(directory())
        _prepare_directory(folder)
        _write(os.path.join(folder, _file_name(self.name, key)), data)
        _count("saves")
        _trim_sometimes(folder)

    # The file lock. It is taken in `load_overload`, where Numba already holds its compiler lock: the other order could
    # leave one thread with the file lock waiting for the compiler, and another the other way round.
    def _acquire(self, folder: str, file: str) -> None:
        if self._held is None:
            self._held = _lock_file(folder, file)

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            _unlock(held)


def _stable(value: Any) -> str:
    return repr(sorted(map(str, value))) if isinstance(value, (set, frozenset)) else repr(value)


def _file_name(name: str, key: bytes) -> str:
    readable = "".join(c if c.isalnum() or c in "_-" else "_" for c in name)[:60]
    return f"{readable}-{hashlib.sha256(key).hexdigest()[:32]}{SUFFIX}"


# ------------------------------------------------------------------------------------------------------- locks
@contextmanager
def compile_lock(cache: KernelCache) -> Iterator[None]:
    """While one process compiles this kernel inside the block, others wait and then load it.

    A lock that cannot be taken (read-only directory, network mount without locks, a holder that hangs) costs at most
    `LOCK_SECONDS`; then this process compiles by itself.
    """
    cache._wants_lock = True
    try:
        yield
    finally:
        cache._wants_lock = False
        cache._release()


_held_files: set[str] = set()  # file locks don't nest between objects, so a second one would wait for the first


def _lock_file(folder: str, file: str) -> Any:
    path = os.path.join(folder, file + ".lock")
    if path in _held_files:
        return None
    try:
        import filelock

        _prepare_directory(folder)
        lock = filelock.FileLock(path, timeout=LOCK_SECONDS)
        lock.acquire(poll_interval=0.02)
    except Exception:
        return None  # nothing is lost but the time of a second compilation; a bad directory is reported on saving
    _held_files.add(path)
    return lock, path


def _unlock(held: Any) -> None:
    lock, path = held
    _held_files.discard(path)
    try:
        # Removed while it is held. A process that waits for the removed file and one that makes a new file may then
        # both enter, but they find the kernel that was kept before this point.
        os.unlink(path)
    except OSError:
        pass
    try:
        lock.release()
    except Exception:
        pass


# ---------------------------------------------------------------------------------------- looking at the entries
class Entry(NamedTuple):
    """One kernel on disk."""

    name: str
    spec: str
    bytes: int
    mtime: float
    path: str


def _kernel_files(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as files:
            yield from (file for file in files if file.name.endswith(SUFFIX))
    except OSError:
        return


def entries() -> list[Entry]:
    """The kernels in the user's directory, newest first. Files that are not kernels are left out."""
    found = []
    for file in _kernel_files(str(directory())):
        try:
            info = file.stat()
            with open(file.path, "rb") as stream:
                head = stream.read(len(_MAGIC) + _HEAD.size)
                if len(head) < len(_MAGIC) + _HEAD.size or not head.startswith(_MAGIC):
                    continue
                key = stream.read(_HEAD.unpack_from(head, len(_MAGIC))[2]).decode(errors="replace")
        except OSError:
            continue
        fields = dict(line.partition(" ")[::2] for line in key.split("\n"))
        name, spec = fields.get("name", "?"), fields.get("spec", "?")
        found.append(Entry(name, spec, info.st_size, info.st_mtime, file.path))
    return sorted(found, key=lambda entry: entry.mtime, reverse=True)


def size() -> int:
    """Bytes of all kernels in the user's directory."""
    total = 0
    for file in _kernel_files(str(directory())):
        try:
            total += file.stat().st_size
        except OSError:
            pass
    return total


def clear() -> int:
    """Remove the user's kernels, and what dead processes left behind; returns how many kernels there were."""
    folder = str(directory())
    removed = 0
    try:
        names = os.listdir(folder)
    except OSError:
        return 0
    for name in names:
        # Only our own names: somebody may have pointed NUMBAPRIMS_CACHE_DIR at a directory with other things in it.
        if name.endswith(SUFFIX):
            removed += _remove(os.path.join(folder, name))
        elif name.endswith((SUFFIX + ".lock",)) or (SUFFIX + "." in name and name.endswith(".tmp")):
            _remove(os.path.join(folder, name))
    return removed


def _remove(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


_saves = 0


def _trim_sometimes(folder: str) -> None:
    global _saves
    _saves += 1
    if _saves % _SAVES_BETWEEN_TRIMS == 1:
        _trim(folder, settings.current().cache_limit)


def _trim(folder: str, limit: int) -> None:
    """Remove the kernels that were not used for longest, down to 80 % of the limit, and old temporary files."""
    files, now = [], time.time()
    for file in _kernel_files(folder):
        try:
            info = file.stat()
        except OSError:
            continue
        files.append((max(info.st_atime, info.st_mtime), info.st_size, file.path))
    total = sum(size for _, size, _ in files)
    if total > limit:
        for _, bytes_, path in sorted(files):
            if total <= 0.8 * limit:
                break
            _remove(path)
            total -= bytes_
    try:
        leftovers = [name for name in os.listdir(folder) if SUFFIX + "." in name]
        for name in leftovers:
            path = os.path.join(folder, name)
            if now - os.stat(path).st_mtime > 3600:
                _remove(path)
    except OSError:
        pass
