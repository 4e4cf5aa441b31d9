"""Scratch memory of kernels on the CPU: kept by each thread, grown but not shrunk, capped, page aligned; and a block
of the process for calls that enter no Python.

A thread that calls primitives in a loop allocates once: fresh memory costs a page fault for every 4 KiB at
its first use, a borrowed block 0.3 us. Blocks start at a page, which is more than the 64 bytes that aligned
loads need.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from numbaprims import settings

__all__ = ["borrow", "get", "held", "native", "release"]

PAGE = 4096
HUGE = 2 << 20
#: Bytes of `native`: 256 x 256 bf16 products take 225 KiB a worker, 3 x 3 convolutions of 64 planes 580 and 165 each.
NATIVE = 4 << 20


def _allocate(nbytes: int) -> npt.NDArray[np.uint8]:
    # NumPy asks Linux for huge pages from 4 MiB on; only those that lie wholly inside the array can be huge.
    align = HUGE if nbytes >= 2 * HUGE else PAGE
    size = -(-nbytes // align) * align
    raw = np.empty(size + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + size]


class _Pool:
    """The blocks of one thread that are not lent, and the bytes of all its blocks that go back to it."""

    __slots__ = ("free", "kept")

    def __init__(self) -> None:
        self.free: list[Block] = []
        self.kept = 0


class _Local(threading.local):
    def __init__(self) -> None:
        self.pool = _Pool()


_local = _Local()


class Block:
    """Scratch memory that `borrow` lends: entering it gives the array, leaving it gives the memory back."""

    __slots__ = ("capped", "memory", "pool", "ready", "size")

    def __init__(self, pool: _Pool) -> None:
        self.pool = pool
        self.size = 0
        self.memory: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self.ready = False
        self.capped = False

    def grow(self, nbytes: int) -> None:
        """Make it `nbytes` or more; past the cap of the thread the memory is not kept after its use."""
        pool = self.pool
        room = settings.current().workspace_limit - (pool.kept - self.size)
        # Half as much again: a sequence of growing problems then allocates a logarithmic number of times.
        wanted = nbytes if nbytes > room else max(nbytes, min(self.size + self.size // 2, room))
        pool.kept -= self.size
        self.size = 0
        self.memory = np.empty(0, np.uint8)  # before the new one: both together might not fit
        self.memory = _allocate(wanted)
        self.size = self.memory.nbytes
        self.capped = nbytes > room
        pool.kept += self.size

    def __enter__(self) -> npt.NDArray[np.uint8]:
        if not self.ready:
            raise RuntimeError("a block of scratch memory was entered twice: call borrow() for each `with`")
        self.ready = False
        return self.memory

    def __exit__(self, *exception: object) -> None:
        if self.capped:
            self.pool.kept -= self.size
        else:
            self.pool.free.append(self)


def borrow(nbytes: int) -> Block:
    """Scratch memory for the length of a ``with`` block, shared with no other borrower.

    Parameters
    ----------
    nbytes : int
        How many bytes at least. They hold whatever was there before.

    Returns
    -------
    context manager
        It gives a one-dimensional uint8 array, aligned to 4096 bytes and valid inside the block only.
        Blocks may nest, and each is to be entered once, by any thread.

    Examples
    --------
    >>> from numbaprims import workspace
    >>> with workspace.borrow(1000) as scratch:
    ...     scratch.nbytes >= 1000, scratch.ctypes.data % 4096
    (True, 0)
    """
    pool = _local.pool
    block = pool.free.pop() if pool.free else Block(pool)
    if block.size < nbytes:
        block.grow(nbytes)
    block.ready = True
    return block


def get(nbytes: int) -> npt.NDArray[np.uint8]:
    """Scratch memory that the next `get` or `borrow` of this thread hands out again: for use at once."""
    pool = _local.pool
    if not pool.free:
        pool.free.append(Block(pool))
    block = pool.free[-1]
    if block.size < nbytes:
        block.grow(nbytes)
        if block.capped:
            pool.free.pop()
            pool.kept -= block.size
    return block.memory


_native: list[npt.NDArray[np.uint8]] = []


def native() -> npt.NDArray[np.uint8]:
    """The process's block for calls that enter no Python, one at a time; kept for good.  Only pages that a program has
    written take memory."""
    if not _native:
        _native.append(_allocate(NATIVE))  # two threads may come here at once: the first block is everybody's
    return _native[0]


def held() -> int:
    """Bytes that this thread keeps, lent blocks included."""
    return _local.pool.kept


def release() -> None:
    """Give the memory that this thread keeps and has not lent back to the system."""
    pool = _local.pool
    while pool.free:
        pool.kept -= pool.free.pop().size
