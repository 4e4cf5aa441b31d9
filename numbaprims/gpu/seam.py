"""The seam between this library and a GPU: seven functions, which the CUDA driver or an emulator implements.

Everything above (kernels, solvers, arrays, dispatch) asks `driver.py` for one and calls nothing of CUDA; everything
below is `cuda_driver.py` on a machine with a GPU, or the PTX emulator of the tests without one.  One `Driver` is
one device.  Pointers are plain ints, streams too (a CUstream as an int; 0 is the default stream).
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Collection
from typing import Any, NamedTuple

from numbaprims.gpu.target import GpuTarget

#: What one kernel argument is: a pointer, a scalar of this width, or by `struct_kind` a struct by value.
KINDS = ("p", "i32", "u32", "i64", "u64", "f32", "f64")


def struct_kind(nbytes: int) -> str:
    """The kind of a parameter that is `nbytes` bytes by value; it begins with "b", as no other does."""
    return f"b{nbytes}"


@functools.cache
def _bytes_of(nbytes: int) -> type[ctypes.Structure]:
    return type("Bytes", (ctypes.Structure,), {"_fields_": [("bytes", ctypes.c_uint8 * nbytes)]})


#: Bytes of a tensor map.
MAP_BYTES = 128


def struct_of(data: Any, addresses: tuple[int, ...] = ()) -> ctypes.Structure:
    """The value of such a parameter, with a copy of the bytes of `data`, anything contiguous; of tensor maps with the
    addresses in them, one after another."""
    raw = memoryview(data).cast("B")
    struct = _bytes_of(len(raw)).from_buffer_copy(raw)
    struct.addresses = addresses
    return struct


class Native(NamedTuple):
    """A device's context, and functions of the CUDA driver by their addresses, for launches by native code."""

    context: int
    current: int
    """cuCtxGetCurrent"""
    push: int
    """cuCtxPushCurrent"""
    pop: int
    """cuCtxPopCurrent"""
    launch: int
    """cuLaunchKernel"""
    together: int
    """cuLaunchCooperativeKernel"""
    replace: int
    """cuTensorMapReplaceAddress"""


class NoGpu(RuntimeError):
    """There is no GPU, no driver for it, or not the packages that reach it; the message says which."""


class Driver:
    """One device.  Subclasses set the attributes and implement the seven functions."""

    kind: str = "cuda"
    """"cuda", or "emulated"."""
    device: int = 0
    """Its index."""
    target: GpuTarget
    """What the device is; `target.arch` ("sm_90a") is what kernels are compiled for."""
    own_library: Any = None
    """Of our own arrays on this device; `memory.py` sets it."""

    def load(self, ptx: str, cubin: bytes, entry: str, dynamic_shared: int) -> Any:
        """Load a kernel; give the handle that `launch` takes.

        `cubin` was assembled from `ptx`, whose ``.visible .entry`` is `entry`.  The kernel may be launched with up to
        `dynamic_shared` bytes of dynamic shared memory, more than 48 KiB included.  Called once for each kernel.
        """
        raise self._missing("load")

    def launch(
        self,
        function: Any,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        stream: int,
        kinds: tuple[str, ...],
        values: tuple[Any, ...],
        together: bool = False,
    ) -> None:
        """Start a kernel and return at once.

        `shared` is the bytes of dynamic shared memory.  ``kinds[i]`` of `KINDS` says what ``values[i]`` is: a pointer
        and an integer are Python ints, a float is a Python float, a struct is what `struct_of` gave; its bytes are read
        before this returns.  `kinds` is the same object at every launch of a kernel, so that it can be a key.  Blocks
        that are started `together` may wait for one another: all run at a time, or none and this raises.
        """
        raise self._missing("launch")

    def alloc(self, nbytes: int, stream: int) -> int:
        """Device memory, in the order of the stream; a pointer, aligned to 256 bytes.  At least one byte is given."""
        raise self._missing("alloc")

    def free(self, pointer: int, streams: Collection[int]) -> None:
        """Give memory of `alloc` back, in the order of the first stream, after what the others hold.

        Finalizers call it, so it may come at any time, in any thread, and while any stream is captured. `streams` may
        be a dict that keeps the streams' objects alive; it is kept as long as they are needed.
        """
        raise self._missing("free")

    def copy(self, destination: Any, source: Any, nbytes: int, stream: int) -> None:
        """Copy in the order of the stream.  Each end is a device pointer (int) or a C-contiguous NumPy array.

        A copy that a NumPy array takes part in has ended when this returns.
        """
        raise self._missing("copy")

    def synchronise(self, stream: int) -> None:
        """Wait until everything on the stream has ended; raise what went wrong in it."""
        raise self._missing("synchronise")

    def follow(self, stream: int, other: int) -> None:
        """Let what is given to `stream` from now on begin after what `other` holds now."""
        self.synchronise(other)

    def tensor_map(
        self,
        pointer: int,
        dtype: str,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        box: tuple[int, ...],
    ) -> Any:
        """What a tensor copy (9.0) needs to know of an array: 128 bytes, a NumPy array of uint8, on the host.

        `shape`, `strides` and `box` begin with the contiguous dimension; `strides` are bytes and leave it out; they
        and the pointer are multiples of 16.  A box lies in shared memory with 128-byte swizzle.
        """
        raise self._missing("tensor_map")

    def native(self) -> Native | None:
        """How native code launches what `load` gave, by its number `int(function)`; None where it cannot."""
        return None

    def clock(self) -> Any:
        """Time of the device for `tuning.timing.measure`: `now` waits for what was launched, and gives seconds."""
        return HostClock(self)

    def _missing(self, name: str) -> Exception:
        return TypeError(f"{type(self).__name__} implements no {name}")

    def __repr__(self) -> str:
        return f"<{self.kind} driver, device {self.device}: {self.target.name}>"


class HostClock:
    """Seconds of the host, after everything on the default stream has ended."""

    sleep = staticmethod(time.sleep)

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def now(self) -> float:
        self._driver.synchronise(0)
        return time.perf_counter()
