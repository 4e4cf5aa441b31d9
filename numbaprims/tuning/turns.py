"""Turns: one timing at a time on a device, among the threads of a process and the processes of a machine."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from numbaprims import forks

# What one timing may keep others waiting before they go on without their turn: a lock on a network file system may
# be one that nobody releases.
PATIENCE = 600.0

_lock = forks.lock()


def lock_file(device: str) -> str | None:
    """The file that processes of this machine lock for a turn on a device; None where no directory is known, or what
    lies there could be somebody else's."""
    from numbaprims import kernel_cache

    folder = os.path.dirname(str(kernel_cache.directory()))
    if not os.path.isabs(folder) or kernel_cache.untrusted(folder):  # a lock file is opened for writing
        return None
    words = f"timing-{socket.gethostname()}-{device}"
    return os.path.join(folder, "".join(c if c.isalnum() or c in "-_." else "_" for c in words) + ".lock")


@contextlib.contextmanager
def turn(device: str) -> Iterator[None]:
    """Wait for the device, and hold it inside the block.  Where no lock can be had, the block runs without one."""
    with _lock, contextlib.ExitStack() as stack:
        path = lock_file(device)
        if path is not None:
            import filelock

            from numbaprims import kernel_cache

            try:
                kernel_cache.make_private(os.path.dirname(path))
                stack.enter_context(filelock.FileLock(path, timeout=PATIENCE, is_singleton=True))
            except (OSError, NotImplementedError, filelock.Timeout):
                pass  # a read-only home: its own threads still take turns
        yield
