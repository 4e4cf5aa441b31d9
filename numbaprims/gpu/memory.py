"""Arrays in device memory, for those who bring no library of their own: `to_device`, `to_host`, `DeviceArray`."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from numbaprims import settings
from numbaprims.device_arrays import DeviceLibrary, stream_address
from numbaprims.device_views import DeviceView, c_strides
from numbaprims.dtypes import LONG_NAMES
from numbaprims.gpu import driver as devices, seam


class _Memory:
    """An allocation; it is given back when the last array over it is gone."""

    __slots__ = ("__weakref__", "driver", "nbytes", "pointer", "stream", "streams")

    def __init__(self, driver: seam.Driver, nbytes: int, stream: Any) -> None:
        self.pointer = 0
        address = 0 if stream is None else stream_address(stream)
        self.driver = driver
        self.nbytes = nbytes
        self.stream: int | None = address
        """Where it may still be written; None: nowhere."""
        self.streams = {address: stream}
        """Where it was allocated, and then all others where it was used. As they were given: a stream of CuPy is
        destroyed with its object, and one that is gone can't be waited for."""
        self.pointer = driver.alloc(nbytes or 1, address)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # weakref.finalize takes 3 us to make
        if self.pointer and not ending():
            self.driver.free(self.pointer, self.streams)

    def use(self, stream: Any) -> int:
        """Note the stream (None: the default one) of a call that takes an array over the memory; its address."""
        self.stream = address = 0 if stream is None else stream_address(stream)
        if address not in self.streams:
            self.streams[address] = stream
        return address


class DeviceArray:
    """An array in device memory: pointer, shape, strides in bytes, dtype; slices and transposes are views.

    It speaks the CUDA array interface, so that torch, CuPy and numba-cuda read it without a copy. It computes nothing:
    pass it to the functions of this package, or take it to the host with `to_host`.
    """

    __slots__ = ("__weakref__", "driver", "dtype", "entered", "memory", "pointer", "shape", "strides")

    def __init__(
        self,
        memory: Any,
        pointer: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype,
        driver: seam.Driver,
    ) -> None:
        self.memory = memory
        self.pointer = pointer
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.driver = driver
        self.entered: tuple[Any, ...] = (None,)
        """What `arrays.enter` made of this array."""

    @property
    def device(self) -> int:
        """Index of the device that holds it."""
        return self.driver.device

    @property
    def numbaprims_library(self) -> DeviceLibrary:
        """What `arrays.enter` asks for first."""
        return _library_of(self.driver)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def T(self) -> DeviceArray:  # noqa: N802 (NumPy's name)
        return self.transpose()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "strides": self.strides,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "version": 3,
            "stream": None if self.memory.stream is None else self.memory.stream or 1,
        }

    def _view(self, like: ndarray, base: int) -> DeviceArray:
        """The view that NumPy made of an empty array with our shape and strides."""
        offset = like.__array_interface__["data"][0] - base
        return DeviceArray(self.memory, self.pointer + offset, like.shape, like.strides, like.dtype, self.driver)

    def _shadow(self) -> tuple[ndarray, int]:
        """An array of our shape and strides over nothing; only its address arithmetic is used."""
        base = 1 << 40
        interface = {"shape": self.shape, "strides": self.strides, "typestr": self.dtype.str, "version": 3}
        # ml_dtypes' types have no type string of their own; bits of the same width stand for them
        if self.dtype.kind == "V":
            interface["typestr"] = f"<u{self.itemsize}"

        class Nothing:
            __array_interface__ = {**interface, "data": (base, False)}

        return np.asarray(Nothing()), base

    def __getitem__(self, index: Any) -> DeviceArray:
        """A view: integers, slices, ellipsis and None, as in NumPy; no index arrays."""
        parts = index if isinstance(index, tuple) else (index,)
        for part in parts:
            if not (part is None or part is Ellipsis or isinstance(part, (int, slice, np.integer))):
                raise TypeError(f"a device array is indexed by integers, slices, ... and None, not by {part!r}")
        if Ellipsis not in parts:
            parts = (*parts, ...)  # an element then stays an array, of no dimensions
        shadow, base = self._shadow()
        return self._retyped(self._view(shadow[parts], base))

    def _retyped(self, view: DeviceArray) -> DeviceArray:
        view.dtype = self.dtype
        return view

    def transpose(self, *axes: Any) -> DeviceArray:
        """A view with its axes in another order; reversed without arguments."""
        shadow, base = self._shadow()
        return self._retyped(self._view(shadow.transpose(*axes), base))

    def reshape(self, *shape: Any) -> DeviceArray:
        """A view of a C-contiguous array in another shape.

        Raises:
            ValueError: a shape of another size, or an array with gaps or in another order.
        """
        if not self._in_order():
            raise ValueError(f"an array with strides {self.strides} has no view in another shape; copy it first")
        shadow, base = self._shadow()
        return self._retyped(self._view(shadow.reshape(*shape), base))

    def view(self, dtype: Any) -> DeviceArray:
        """The same bytes as another type of the same width."""
        wanted = np.dtype(dtype)
        if wanted.itemsize != self.itemsize:
            raise ValueError(f"{self.dtype} takes {self.itemsize} bytes, {wanted} takes {wanted.itemsize}")
        return DeviceArray(self.memory, self.pointer, self.shape, self.strides, wanted, self.driver)

    def set(self, values: Any, stream: Any = 0) -> None:
        """Overwrite a C-contiguous array with values of the host, after what it was last used for.

        Raises:
            ValueError: another shape or dtype than ours, or an array with gaps or in another order.
        """
        source = np.ascontiguousarray(values)
        if source.shape != self.shape or source.dtype != self.dtype:
            raise ValueError(f"values are {source.dtype} {source.shape}; they must be {self.dtype} {self.shape}")
        if self.size and not self._in_order():
            raise ValueError(f"an array with strides {self.strides} is overwritten by kernels only; copy it first")
        if self.size:
            self.driver.copy(self.pointer, source, source.nbytes, _behind(self, stream))

    def _in_order(self) -> bool:
        """Whether the elements lie one behind the other; the strides of dimensions of length 1 mean nothing."""
        wanted = c_strides(self.shape, self.itemsize)
        return all(n == 1 or have == want for n, have, want in zip(self.shape, self.strides, wanted, strict=True))

    def to_host(self, stream: Any = 0) -> ndarray:
        """A NumPy copy; waits for the stream, and for the one that the array was last used on."""
        return to_host(self, stream)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array of no dimensions has no length")
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: Any = None) -> ndarray:
        raise TypeError("a device array is copied to the host by its to_host(), never on the side")

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype} {self.shape}, strides {self.strides}, {self.driver.kind}:{self.device})"


def empty(shape: tuple[int, ...], dtype: Any, *, device: int = 0, stream: Any = 0) -> DeviceArray:
    """A C-contiguous array in device memory; its contents are whatever was there."""
    kind = np.dtype(dtype)
    return _allocate(devices.current(device), tuple(shape), c_strides(tuple(shape), kind.itemsize), kind, stream)


def _allocate(
    driver: seam.Driver, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype, stream: Any
) -> DeviceArray:
    memory = _Memory(driver, math.prod(shape) * dtype.itemsize, stream)
    return DeviceArray(memory, memory.pointer, shape, strides, dtype, driver)


def to_device(x: Any, *, device: int = 0, stream: Any = 0, copy: bool = True) -> DeviceArray:
    """Copy an array of the host to a device; strides are kept, gaps and all, so that a slice arrives as a slice.

    Without `copy`, only the memory is made.
    """
    source = np.asarray(x)
    low, high = _extent(source)
    driver = devices.current(device)
    where = stream_address(stream)
    memory = _Memory(driver, high - low, stream)
    if copy and high > low:
        driver.copy(memory.pointer, _span(source, low, high), high - low, where)
        memory.stream = None  # the copy has ended
    return DeviceArray(memory, memory.pointer - low, source.shape, source.strides, source.dtype, driver)


def to_host(x: DeviceArray, stream: Any = 0) -> ndarray:
    """Copy an array of a device to the host, strides and all; waits for the stream, and for the one that the array was
    last used on."""
    low, high = _extent(x._shadow()[0])
    address = _behind(x, stream)
    if high == low:
        x.driver.synchronise(address)
        return np.empty(x.shape, x.dtype)
    bits = np.empty(high - low, np.uint8)
    x.driver.copy(bits, x.pointer + low, high - low, address)
    return np.ndarray(x.shape, f"V{x.itemsize}", bits, -low, x.strides).view(x.dtype)


def _behind(x: DeviceArray, stream: Any) -> int:
    """The address of a stream, on which a copy then begins after what the array was last used for."""
    address, last = stream_address(stream), x.memory.stream if isinstance(x.memory, _Memory) else None
    if last is not None and last != address:
        x.driver.follow(address, last)
    return address


def _extent(x: ndarray) -> tuple[int, int]:
    """First byte and one past the last that the elements take, counted from the first element."""
    if x.size == 0:
        return 0, 0
    low = sum(min(0, stride * (length - 1)) for stride, length in zip(x.strides, x.shape, strict=True))
    high = sum(max(0, stride * (length - 1)) for stride, length in zip(x.strides, x.shape, strict=True))
    return low, high + x.itemsize


def _span(x: ndarray, low: int, high: int) -> ndarray:
    """The bytes of `_extent`, read where they lie."""

    class Bytes:
        owner = x
        __array_interface__ = {
            "shape": (high - low,),
            "typestr": "|u1",
            "data": (x.__array_interface__["data"][0] + low, True),
            "version": 3,
        }

    return np.asarray(Bytes())


# ---------------------------------------------------------------- as a library


class _Own(DeviceLibrary):
    """Our `DeviceArray`: what results are for those who bring arrays of no library that is known here."""

    name = "numbaprims"

    def __init__(self, driver: seam.Driver) -> None:
        super().__init__(driver.device, driver.kind)
        self._driver = driver
        self.place = (self.device, driver)  # another driver in its place may be another GPU

    def allocate(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> DeviceArray:
        if dtype == "bf16" and "ml_dtypes" not in sys.modules:
            raise TypeError("NumPy has no bfloat16 of its own; import ml_dtypes, or use torch tensors")
        return _allocate(self._driver, shape, strides, np.dtype(LONG_NAMES[dtype]), settings.current().stream)

    def maker(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Callable[[], Any]:
        if settings.current().stream is not None or dtype == "bf16":
            return super().maker(shape, strides, dtype)
        return functools.partial(_allocate, self._driver, shape, strides, np.dtype(LONG_NAMES[dtype]), None)

    def lender(self, nbytes: int) -> Callable[[], tuple[int, Any]]:
        def lend() -> tuple[int, Any]:
            memory = _Memory(self._driver, nbytes, settings.current().stream)
            return memory.pointer, memory

        return lend

    def over(self, x: DeviceArray, storage: Any, dtype: str) -> DeviceArray:
        return DeviceArray(x.memory, storage.pointer, storage.shape, storage.strides, x.dtype, x.driver)

    def pointer_of(self, x: DeviceArray) -> int:
        return x.pointer


def _library_of(driver: seam.Driver) -> DeviceLibrary:
    if driver.own_library is None:
        driver.own_library = _Own(driver)
    return driver.own_library


def own_library(device: int = 0) -> DeviceLibrary:
    """The library of our arrays on a device."""
    return _library_of(devices.current(device))


def write(view: DeviceView, data: ndarray) -> None:
    """Overwrite the memory of a C-contiguous view with bytes of the host."""
    if data.size:
        devices.current(view.origin.index).copy(view.pointer, data, data.nbytes, view.origin.stream())


def read(view: DeviceView) -> ndarray:
    """The elements of a view as an array of the host in C order; waits for the stream."""
    driver = devices.current(view.origin.index)
    array = DeviceArray(view.owner, view.pointer, view.shape, view.strides, view.dtype, driver)
    return np.ascontiguousarray(to_host(array, view.origin.stream()))


def storage_view(x: DeviceArray) -> DeviceView:
    """The view that kernels see of an array that holds storage (half precisions as uint16); the array is kept with
    it."""
    return DeviceView(x.pointer, x.shape, x.strides, x.dtype, _library_of(x.driver), True, x)
