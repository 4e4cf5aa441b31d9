"""Views of arrays in the memory of a GPU: what checks and kernels see.

The checks of `ops` are written for NumPy arrays: they ask for shapes, strides and flags, transpose, slice and
broadcast. A `DeviceView` answers all that without an element being read, so device arrays take the same road.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

CLASS = 128
"""Launchers may look at where arrays begin within so many bytes, no further; calls that are known are alike in that."""


class Flags:
    """What `ndarray.flags` tells, as far as checks ask."""

    __slots__ = ("_view",)
    owndata = False  # a view does not know who else has the memory

    def __init__(self, view: DeviceView) -> None:
        self._view = view

    @property
    def writeable(self) -> bool:
        return self._view.writeable

    @property
    def aligned(self) -> bool:
        return True  # `enter` lets nothing else in

    @property
    def c_contiguous(self) -> bool:
        view = self._view
        return view.size == 0 or all(
            length == 1 or have == want
            for length, have, want in zip(view.shape, view.strides, c_strides(view.shape, view.itemsize), strict=True)
        )


class DeviceView:
    """Pointer, shape, strides in bytes and storage dtype of an array in device memory."""

    __slots__ = ("_bounds", "dtype", "itemsize", "origin", "owner", "pointer", "shape", "strides", "writeable")

    def __init__(
        self,
        pointer: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype,
        library: Any,
        writeable: bool = True,
        owner: Any = None,
    ) -> None:
        self.pointer = pointer
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.itemsize = dtype.itemsize
        self.origin = library  # a DeviceLibrary
        self.writeable = writeable
        self.owner = owner  # of memory that is not the caller's
        self._bounds: tuple[int, int] | None = None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def begin(self) -> int:
        """Where it begins, as far as launchers look."""
        return self.pointer % CLASS

    @property
    def bounds(self) -> tuple[int, int]:
        """Addresses of the first byte and of the one past the last; equal where there are none."""
        if self._bounds is None:
            low, high = self.pointer, self.pointer + self.itemsize
            for length, stride in zip(self.shape, self.strides, strict=True):
                if length == 0:
                    high = low = self.pointer
                    break
                if stride < 0:
                    low += stride * (length - 1)
                else:
                    high += stride * (length - 1)
            self._bounds = (low, high)
        return self._bounds

    @property
    def flags(self) -> Flags:
        return Flags(self)

    @property
    def T(self) -> DeviceView:  # noqa: N802 (NumPy's name)
        return self._like(self.shape[::-1], self.strides[::-1])

    def _like(self, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> DeviceView:
        return DeviceView(self.pointer + offset, shape, strides, self.dtype, self.origin, self.writeable, self.owner)

    def shadow(self) -> ndarray:
        """A NumPy array at our address: for arithmetic on addresses alone, since reading it would end the process."""

        class Nowhere:
            __array_interface__ = {
                "shape": self.shape,
                "strides": self.strides,
                "typestr": self.dtype.str,
                "data": (self.pointer or self.itemsize, False),
                "version": 3,
            }

        return np.asarray(Nowhere())

    def through(self, change: Callable[[ndarray], ndarray]) -> DeviceView:
        """The view that NumPy makes of us."""
        base = self.shadow()
        result = change(base)
        start = base.__array_interface__["data"][0]
        return self._like(result.shape, result.strides, result.__array_interface__["data"][0] - start)

    def swapaxes(self, first: int, second: int) -> DeviceView:
        return self.through(lambda x: x.swapaxes(first, second))

    def __getitem__(self, index: Any) -> DeviceView:
        whole = index if isinstance(index, tuple) else (index,)
        return self.through(lambda x: x[whole if Ellipsis in whole else (*whole, ...)])

    def reshape(self, *shape: Any) -> DeviceView:
        """In any shape that takes no copy; ValueError for the others."""
        wanted = list(shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape)
        if -1 in wanted:
            wanted[wanted.index(-1)] = self.size // max(1, -math.prod(wanted))
        lengths = [length for length in self.shape if length != 1]
        if [length for length in wanted if length != 1] != lengths:
            try:
                return self.through(lambda x: _reshaped(x, tuple(wanted)))
            except (AttributeError, ValueError):
                words = f"a view of shape {self.shape} takes the shape {tuple(wanted)} by a copy only"
                raise ValueError(words) from None
        each = iter([step for length, step in zip(self.shape, self.strides, strict=True) if length != 1])
        return self._like(tuple(wanted), tuple(next(each) if n != 1 else self.itemsize for n in wanted))

    def fill(self, value: int) -> None:
        """Write zeros (nothing else); waits for them. Only sums over nothing come here."""
        assert value == 0 and self.flags.c_contiguous
        from importlib import import_module

        import_module("numbaprims.gpu.memory").write(self, np.zeros(self.nbytes, np.uint8))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """The functions of NumPy that look at addresses and shapes only."""
        if function not in (np.may_share_memory, np.shares_memory, np.broadcast_to):
            return NotImplemented
        if function is np.broadcast_to:
            view: DeviceView = args[0]
            return view.through(lambda x: np.broadcast_to(x, *args[1:], **kwargs))
        first, second = args
        if not (isinstance(first, DeviceView) and isinstance(second, DeviceView)):
            return False  # one of them lies on the host
        (low, high), (start, end) = first.bounds, second.bounds
        if high <= start or end <= low or low == high or start == end:
            return False
        return True if function is np.may_share_memory else function(first.shadow(), second.shadow(), **kwargs)

    def __repr__(self) -> str:
        return f"<{self.dtype} view {self.shape} at {self.pointer:#x} on {self.origin.device}>"


def _reshaped(shadow: ndarray, shape: tuple[int, ...]) -> ndarray:
    """Without a copy, which would read it; AttributeError or ValueError where it takes one."""
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        return shadow.reshape(shape, copy=False)
    shadow.shape = shape  # which later versions warn of
    return shadow


def c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of a C-contiguous array."""
    strides = []
    for length in reversed(shape):
        strides.append(itemsize)
        itemsize *= max(1, length)
    return tuple(reversed(strides))


def dense_strides(view: Any) -> tuple[int, ...]:
    """Strides of a new array without gaps whose dimensions lie in the order of `view`'s, as np.empty_like has it."""
    order = sorted(range(view.ndim), key=lambda axis: (-abs(view.strides[axis]), axis))
    strides = [0] * view.ndim
    step = view.itemsize
    for axis in reversed(order):
        strides[axis] = step
        step *= max(1, view.shape[axis])
    return tuple(strides)
