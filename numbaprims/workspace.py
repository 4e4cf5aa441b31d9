"""Scratch memory of kernels on the CPU: kept by each thread, grown but not shrunk, capped, page aligned.

A thread that calls primitives in a loop allocates once. Blocks start at a page boundary, which is more than the 64
bytes that aligned vector loads need; blocks of 2 MiB and more start at a multiple of that and ask for huge pages.
"""

from __future__ import annotations

import threading
from types import TracebackType

import numpy as np
import numpy.typing as npt

from numbaprims import settings

__all__ = ["borrow", "get", "held", "release"]

PAGE = 4096
HUGE = 2 << 20


def _allocate(nbytes: int) -> npt.NDArray[np.uint8]:
    align = HUGE if nbytes >= HUGE else PAGE
    size = -(-nbytes // align) * align
    raw = np.empty(size + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + size]


class _Stack(threading.local):
    """The blocks of one thread: level i serves the i-th of nested borrowers."""

    def __init__(self) -> None:
        self.depth = 0
        self.blocks: list[npt.NDArray[np.uint8]] = []


_stack = _Stack()


def _block(depth: int, nbytes: int) -> npt.NDArray[np.uint8]:
    """A block of at least `nbytes` for this level; kept unless the thread would then keep more than the cap."""
    blocks = _stack.blocks
    if depth < len(blocks) and blocks[depth].nbytes >= nbytes:
        return blocks[depth]
    # Half as much again: a sequence of growing problems then allocates a logarithmic number of times.
    limit = settings.current().workspace_limit
    others = sum(block.nbytes for level, block in enumerate(blocks) if level != depth)
    room = limit - others
    if nbytes > room:
        return _allocate(nbytes)
    old = blocks[depth].nbytes if depth < len(blocks) else 0
    block = _allocate(min(max(nbytes, old + old // 2), room))
    while len(blocks) <= depth:
        blocks.append(_allocate(0))
    blocks[depth] = block
    return block


class borrow:
    """Context manager: scratch memory of at least one block, not shared with any other borrower.

    Parameters
    ----------
    nbytes : int
        How many bytes. Their contents are whatever was there.

    Returns
    -------
    numpy.ndarray
        uint8, one-dimensional, at least `nbytes` long, aligned to 4096 bytes. It is valid inside the block only.
    """

    __slots__ = ("_nbytes",)

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes

    def __enter__(self) -> npt.NDArray[np.uint8]:
        depth = _stack.depth
        block = _block(depth, self._nbytes)
        _stack.depth = depth + 1
        return block

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _stack.depth -= 1


def get(nbytes: int) -> npt.NDArray[np.uint8]:
    """Scratch memory that the next `get` or `borrow` of this thread may hand out again: for use at once."""
    return _block(_stack.depth, nbytes)


def held() -> int:
    """Bytes that this thread keeps."""
    return sum(block.nbytes for block in _stack.blocks)


def release() -> None:
    """Give back what this thread keeps and nobody has borrowed."""
    del _stack.blocks[_stack.depth :]
