"""The files of the kernel cache: where they lie, how one is written, checked, locked, listed and thrown away.

One file holds one kernel. Its name is the digest of its key, the whole key stands in it, and a checksum
over key and payload is verified before anybody unpickles the payload. Files appear by ``os.replace``, so
that a reader sees a whole file or none. There is no index that two processes could overwrite.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from numbaprims import settings

__all__ = ["Entry", "Lock", "clear", "directory", "entries", "file_name", "read", "size", "trim", "write"]

SCHEMA = 2  # raised when the layout of a file or of a key changes
SUFFIX = ".npk"
LEFT_SECONDS = 600.0  # a temporary or lock file of this age belongs to no living compilation
_MAGIC = b"numbaprims kernel\n"
_HEAD = struct.Struct("<I32sIQ")  # schema, SHA-256 of key and payload, their lengths
_START = len(_MAGIC) + _HEAD.size


# ---------------------------------------------------------------------------------------------- directories
def directory() -> Path:
    """The user's directory of compiled kernels. It need not exist."""
    return Path(_user_directory(settings.current().cache_dir))


@functools.cache
def _user_directory(chosen: str | None) -> str:
    if chosen is None:
        import platformdirs

        chosen = platformdirs.user_cache_dir("numbaprims", appauthor=False)
    return os.path.join(chosen, "kernels")


def _check_owner(path: str) -> None:
    """Raise PermissionError if somebody else could have put machine code into this directory."""
    if not hasattr(os, "getuid"):
        return
    info, me = os.stat(path), os.getuid()
    if info.st_mode & stat.S_IWOTH:
        raise PermissionError(f"{path} can be written by everybody")
    # root inside a container often works on a directory that the host's user mounted there, and named it.
    if info.st_uid not in (me, 0) and not (me == 0 and settings.current().cache_dir):
        raise PermissionError(f"{path} belongs to another user")


def prepare(path: str) -> None:
    """Make the directory, for this user alone; OSError if it cannot be made or trusted."""
    if not os.path.isabs(path):  # a home directory that could not be found out
        raise FileNotFoundError(f"no directory for {path}; set NUMBAPRIMS_CACHE_DIR")
    os.makedirs(path, mode=0o700, exist_ok=True)
    _check_owner(path)


# ---------------------------------------------------------------------------------------------- one file
def file_name(name: str, key: bytes) -> str:
    """The file of a key; it begins with the kernel's name, for people."""
    readable = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in name)[:60]
    return f"{readable}-{hashlib.sha256(key).hexdigest()[:32]}{SUFFIX}"


def pack(key: bytes, payload: bytes) -> bytes:
    """The contents of a file."""
    checksum = hashlib.sha256(key + payload).digest()
    return b"".join((_MAGIC, _HEAD.pack(SCHEMA, checksum, len(key), len(payload)), key, payload))


def unpack(data: bytes, key: bytes) -> bytes:
    """The payload; ValueError with the reason if this is not the file of `key`, whole and unchanged."""
    if not data.startswith(_MAGIC) or len(data) < _START:
        raise ValueError("it is not a kernel file, or was cut short")
    schema, checksum, key_length, payload_length = _HEAD.unpack_from(data, len(_MAGIC))
    if schema != SCHEMA or len(data) != _START + key_length + payload_length:
        raise ValueError("it was cut short, or written by another version")
    if hashlib.sha256(memoryview(data)[_START:]).digest() != checksum:
        raise ValueError("its checksum is wrong")
    if data[_START : _START + key_length] != key:
        raise ValueError("it holds another kernel")
    return data[_START + key_length :]


def read(folder: str, file: str, key: bytes) -> bytes | None:
    """The payload of a kernel, None if there is no such file.

    Raises OSError if the file cannot be read or its directory not be trusted, ValueError if it is not whole.
    """
    try:
        with open(os.path.join(folder, file), "rb") as stream:
            _check_owner(folder)
            return unpack(stream.read(), key)
    except (FileNotFoundError, NotADirectoryError):
        return None


def write(folder: str, file: str, key: bytes, payload: bytes) -> None:
    """Keep a kernel. OSError if it cannot be written; nothing is left behind then."""
    prepare(folder)
    path = os.path.join(folder, file)
    temporary = f"{path}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(pack(key, payload))
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise


def remove(path: str) -> bool:
    """Delete a file; False if that was not possible, or another process was faster."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


# ---------------------------------------------------------------------------------------------- locks
class Lock:
    """A file lock for one kernel: while one process compiles it, others wait and then load it.

    A lock that cannot be taken (read-only directory, a mount without locks, a holder that hangs) is given
    up after `seconds`; `acquire` never raises. A holder that died has lost its lock by then: the system
    frees it.
    """

    _held: set[str] = set()  # two lock objects of one process would wait for each other

    def __init__(self, folder: str, file: str, seconds: float) -> None:
        self._folder = folder
        self._path = os.path.join(folder, file + ".lock")
        self._seconds = seconds
        self._lock: Any = None

    def acquire(self) -> bool:
        """Wait for the lock; False if this process goes on without it."""
        if self._lock is not None or self._path in Lock._held:
            return False
        try:
            import filelock

            prepare(self._folder)
            lock = filelock.FileLock(self._path, timeout=self._seconds)
            lock.acquire(poll_interval=0.02)
        except Exception:
            return False
        Lock._held.add(self._path)
        self._lock = lock
        return True

    def release(self) -> None:
        """Let the next process in."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        Lock._held.discard(self._path)
        # Deleted while it is held. A process that waits on the deleted file and one that makes a new one
        # may both enter then, but they find the kernel that was kept before this point.
        remove(self._path)
        try:
            lock.release()
        except Exception:
            pass  # closing the file has freed it


# ----------------------------------------------------------------------------------------- the directory
class Entry(NamedTuple):
    """One kernel on disk."""

    name: str
    spec: str
    bytes: int
    mtime: float
    path: str


def _kernels(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as files:
            yield from (file for file in files if file.name.endswith(SUFFIX))
    except OSError:
        return


def entries() -> list[Entry]:
    """The kernels in the user's directory, newest first. Files that are not kernels are left out."""
    found = []
    for file in _kernels(str(directory())):
        try:
            info = file.stat()
            with open(file.path, "rb") as stream:
                head = stream.read(_START)
                if len(head) < _START or not head.startswith(_MAGIC):
                    continue
                key = stream.read(_HEAD.unpack_from(head, len(_MAGIC))[2]).decode(errors="replace")
        except OSError:  # another process has deleted it
            continue
        fields = dict(line.partition(" ")[::2] for line in key.split("\n"))
        name, spec = fields.get("name", "?"), fields.get("spec", "?")
        found.append(Entry(name, spec, info.st_size, info.st_mtime, file.path))
    return sorted(found, key=lambda entry: entry.mtime, reverse=True)


def _stats(folder: str) -> list[tuple[float, int, str]]:
    """(last use, bytes, path) of each kernel."""
    found = []
    for file in _kernels(folder):
        try:
            info = file.stat()
        except OSError:
            continue
        found.append((max(info.st_atime, info.st_mtime), info.st_size, file.path))
    return found


def size() -> int:
    """Bytes of all kernels in the user's directory."""
    return sum(bytes_ for _, bytes_, _ in _stats(str(directory())))


def clear() -> int:
    """Delete the user's kernels and what dead processes left; returns how many kernels there were."""
    folder = str(directory())
    removed = sum(remove(path) for _, _, path in _stats(folder))
    _sweep(folder)
    return removed


def _sweep(folder: str) -> None:
    """Delete temporary and lock files that are too old to be in use; only our own, by their names."""
    try:
        names = [name for name in os.listdir(folder) if SUFFIX + "." in name]
    except OSError:
        return
    for name in names:
        path = os.path.join(folder, name)
        try:
            if name.endswith((".tmp", ".lock")) and time.time() - os.stat(path).st_mtime > LEFT_SECONDS:
                remove(path)
        except OSError:  # its process was faster
            pass


def trim(folder: str, limit: int) -> None:
    """Delete the kernels unused for longest, down to 80 % of the limit, and what dead processes left."""
    found = sorted(_stats(folder))
    total = sum(bytes_ for _, bytes_, _ in found)
    if total > limit:
        for _, bytes_, path in found:
            if total <= 0.8 * limit:
                break
            remove(path)
            total -= bytes_
    _sweep(folder)
