"""The files of the kernel cache: where they lie, how one is written, checked, locked, listed and thrown away.

One file holds one kernel. Its name is the digest of its key, the whole key stands in it, and a checksum
over key and payload is verified before anybody looks at the payload. Files appear by ``os.replace``, so
that a reader sees a whole file or none. There is no index that two processes could overwrite.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from numbaprims import settings

__all__ = ["Entry", "Lock", "clear", "directory", "entries", "file_name", "place", "read", "size", "trim", "write"]

SCHEMA = 3  # raised when the layout of a file or of a key changes
SUFFIX = ".npk"
LEFT_SECONDS = 600.0  # a temporary or lock file of this age belongs to no living compilation
_MAGIC = b"numbaprims kernel\n"
_HEAD = struct.Struct("<I32sIQ")  # schema, SHA-256 of key and payload, their lengths
_START = len(_MAGIC) + _HEAD.size


# ---------------------------------------------------------------------------------------------- directories
def directory() -> Path:
    """The user's directory of compiled kernels, or the private one in its place. It need not exist."""
    return Path(place(settings.current().cache_dir)[0])


@functools.cache
def place(chosen: str | None) -> tuple[str, str]:
    """(the directory of kernels, why it is not the one that was chosen or ""); looked at once a process."""
    wanted = _below(chosen)
    why = untrusted(wanted) if os.path.isabs(wanted) else ""
    if why:
        for other in (_below(None), os.path.join(tempfile.gettempdir(), f"numbaprims-{_user()}", "kernels")):
            if os.path.isabs(other) and not untrusted(other):
                return other, f"{why}, so that kernels in {wanted} could be anybody's; they are kept in {other}"
    return wanted, ""


def _below(chosen: str | None) -> str:
    if chosen is None:
        import platformdirs

        chosen = platformdirs.user_cache_dir("numbaprims", appauthor=False)
    return os.path.join(chosen, "kernels")


# Machine code is code: who may write it, or rename a directory above it, decides what this process runs.
def _user() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else -1


def _distrust(path: str, info: os.stat_result, sticky: bool = False) -> str:
    """Why somebody else may have written this, or may replace what lies in it; "" if nobody but this user and root."""
    if not hasattr(os, "geteuid"):
        return ""
    if info.st_uid not in (0, _user()):
        return f"{path} belongs to another user"
    others = info.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not stat.S_ISLNK(info.st_mode)
    if others and not (sticky and info.st_mode & stat.S_ISVTX):  # in /tmp everybody renames his own only
        return f"{path} can be written by {'everybody' if info.st_mode & stat.S_IWOTH else 'its group'}"
    return ""


def untrusted(path: str) -> str:
    """Why code in a directory could be somebody else's, by every step on the way to it, through symbolic links too; ""
    if it could not. What does not exist yet will be made by this user alone."""
    steps, here, links = path.split(os.sep)[::-1], os.sep, 0
    try:
        why = _distrust(here, os.lstat(here), sticky=True)
        while steps and not why:
            name = steps.pop()
            if name in ("", os.curdir):
                continue
            if name == os.pardir:
                here = os.path.dirname(here)
                continue
            at = os.path.join(here, name)
            info = os.lstat(at)
            why = _distrust(at, info, sticky=any(steps))
            if not stat.S_ISLNK(info.st_mode):
                here = at
                continue
            links += 1
            if links > 40:
                return f"{path} has too many symbolic links"
            target = os.readlink(at)
            here = os.sep if os.path.isabs(target) else here
            steps += target.split(os.sep)[::-1]
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return str(error)
    return why


@functools.cache
def _trust(path: str) -> None:
    """Raise PermissionError where `untrusted` has a reason; a directory that passes is not looked at again."""
    os.stat(path)
    why = untrusted(path)
    if why:
        raise PermissionError(why)


def prepare(path: str) -> None:
    """Make the directory, for this user alone; OSError if it cannot be made or trusted."""
    if not os.path.isabs(path):  # a home directory that could not be found out
        raise FileNotFoundError(f"no directory for {path}; set NUMBAPRIMS_CACHE_DIR")
    make_private(path)
    _trust(path)


def make_private(path: str) -> None:
    """Make a directory and those above it that are missing, each for this user alone: `os.makedirs` leaves the upper
    ones to the umask."""
    if path and not os.path.isdir(path):
        make_private(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)


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
    path = os.path.join(folder, file)
    try:
        _trust(folder)
        with open(path, "rb") as stream:
            why = _distrust(path, os.fstat(stream.fileno()))
            if why:
                raise PermissionError(why)
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


def of_a_time_limit(error: BaseException) -> bool:
    """Whether a caller's signal handler raised it: TimeoutErrors of disks have the system's number."""
    return isinstance(error, TimeoutError) and error.errno is None


# ---------------------------------------------------------------------------------------------- locks
class Lock:
    """A file lock for one kernel: while one process compiles it, others wait and then load it.

    A lock that cannot be taken (read-only directory, a mount without locks, a holder that hangs) is given
    up after `seconds`; `acquire` does not raise for it. A holder that died has lost its lock by then: the system
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
        import filelock

        try:
            prepare(self._folder)
            lock = filelock.FileLock(self._path, timeout=self._seconds)
            lock.acquire(poll_interval=0.02)
        except (OSError, NotImplementedError) as error:
            if of_a_time_limit(error) and not isinstance(error, filelock.Timeout):
                raise
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
        except OSError:
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
