"""Arrays between pages that nobody may touch: what reads or writes outside of an array ends the process there."""

import ctypes
import mmap

import numpy as np

PAGE = mmap.PAGESIZE
GUARD = 16 * PAGE
"""In front and behind: a row of an image further is still inside."""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _protect(address: int, nbytes: int, access: int) -> None:
    if _libc.mprotect(address, nbytes, access):
        raise OSError(ctypes.get_errno(), "mprotect")


def memory(nbytes: int, at_end: bool, align: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """`nbytes` that end (within `align` bytes) or begin at a guard page, and all bytes between the guards: NaN."""
    used = -(-max(nbytes, 1) // align) * align
    room = -(-used // PAGE) * PAGE
    mapping = mmap.mmap(-1, room + 2 * GUARD)
    whole = np.frombuffer(mapping, np.uint8)
    address = whole.ctypes.data
    _protect(address, GUARD, 0)
    _protect(address + GUARD + room, GUARD, 0)
    between = whole[GUARD : GUARD + room]
    between.fill(0xFF)
    start = room - used if at_end else 0
    return between[start : start + nbytes], between


class Guarded:
    """A copy of an array, strides and all, that ends or begins at a guard page."""

    def __init__(self, given: np.ndarray, at_end: bool, *, writeable: bool) -> None:
        steps = [(size - 1) * step for size, step in zip(given.shape, given.strides, strict=True)]
        low = sum(step for step in steps if step < 0) if given.size else 0
        span = sum(map(abs, steps)) + given.itemsize if given.size else 0
        own, self._between = memory(span, at_end)
        own[:] = np.frombuffer(ctypes.string_at(given.ctypes.data + low, span), np.uint8)
        self.array = np.ndarray(given.shape, given.dtype, own.data, -low, given.strides)
        self._before = self._between.copy()
        self._own = np.zeros(own.size, bool)
        if given.size:
            elements = np.ndarray(given.shape + (1,), f"V{given.itemsize}", self._own.data, -low, (*given.strides, 1))
            elements[...] = np.full(given.itemsize, 1, np.uint8).view(elements.dtype)[0]
        self._first = own.ctypes.data - self._between.ctypes.data
        if writeable:
            return
        _protect(self._between.ctypes.data, self._between.size, mmap.PROT_READ)
        self.array.flags.writeable = given.flags.writeable

    def strays(self) -> int:
        """How many bytes beside the array's elements have changed."""
        changed = self._between != self._before
        inside = changed[self._first : self._first + self._own.size]
        inside &= ~self._own
        return int(changed.sum())
