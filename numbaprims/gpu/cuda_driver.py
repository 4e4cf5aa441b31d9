"""The seam on a machine with a GPU: the seven functions by cuda.bindings, on the device's primary context.

The primary context is the one that torch, CuPy and numba-cuda use, so their pointers and streams are ours.  A launch
is one call with two tuples, 0.8 us of host time in the bindings' share; Numba's own launch takes 15 to 50 us, that of
cuda.core 1.7 to 3.1 us.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import sys
import time
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy import ndarray

from numbaprims.gpu.seam import Driver, Native, NoGpu
from numbaprims.gpu.target import A100, GpuTarget

_DEFAULT_SHARED = 48 * 1024
# Blocks that are kept for the next call: their most bytes, what these are multiples of, how many sizes, and the most
# bytes of one size.  Larger ones take longer to write than to get.
KEPT_BYTES, KEPT_ALIGN, KEPT_SIZES, KEPT_OF_A_SIZE = 1 << 20, 512, 64, 4 << 20
_CTYPES = {
    "p": ctypes.c_void_p, "i32": ctypes.c_int32, "u32": ctypes.c_uint32, "i64": ctypes.c_int64,
    "u64": ctypes.c_uint64, "f32": ctypes.c_float, "f64": ctypes.c_double,
}  # fmt: skip


_TENSOR_TYPES = {"f16": "FLOAT16", "bf16": "BFLOAT16", "f32": "FLOAT32", "i8": "UINT8", "u8": "UINT8"}


@functools.cache
def bindings() -> Any:
    """The module cuda.bindings.driver, initialised.

    Raises:
        NoGpu: the package or the driver is missing, or there is no device.
    """
    try:
        from cuda.bindings import driver as cu
    except ImportError as error:
        raise NoGpu(f"GPUs need the package numba-cuda ({error}): pip install 'numbaprims[cu13]', or [cu12]") from None
    try:
        (status,) = cu.cuInit(0)
    except Exception:
        raise NoGpu("no NVIDIA driver was found on this machine") from None
    if int(status) != 0:
        raise NoGpu(f"the NVIDIA driver finds no usable GPU ({status.name})")
    return cu


def device_count() -> int:
    """How many GPUs this machine has; `NoGpu` where the driver or its package is missing."""
    status, count = bindings().cuDeviceGetCount()
    return int(count) if int(status) == 0 else 0


@functools.cache
def _functions() -> tuple[int, ...] | None:
    """The addresses of the functions of `Native`; None where the driver is too old for one of them.

    The bindings have them too, but tell nobody.
    """
    names = (
        "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuLaunchKernel", "cuLaunchCooperativeKernel",
        "cuTensorMapReplaceAddress",
    )  # fmt: skip
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        return tuple(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names)
    except (AttributeError, OSError):
        return None


class CudaError(RuntimeError):
    """What the CUDA driver reported."""


def _inside(method: Callable[..., Any]) -> Callable[..., Any]:
    """Run a method with the device's context current in this thread, and leave the thread as it was.

    Others change the current context at any time (torch.cuda.set_device, numba-cuda's `gpus[1]`), so it is looked at
    in each call; where it is ours already, as torch and CuPy leave it, that is all.
    """

    @functools.wraps(method)
    def inside(self: Any, *arguments: Any) -> Any:
        cu = self._cu
        if int(cu.cuCtxGetCurrent()[1] or 0) == self._context:
            return method(self, *arguments)
        self._call(cu.cuCtxPushCurrent(self._context))
        try:
            return method(self, *arguments)
        finally:
            self._call(cu.cuCtxPopCurrent())

    return inside


class CudaDriver(Driver):
    """One GPU of this machine."""

    kind = "cuda"

    def __init__(self, device: int = 0) -> None:
        self._cu = cu = bindings()
        count = self._call(cu.cuDeviceGetCount())
        if not 0 <= device < count:
            raise NoGpu(f"device {device} is not there; this machine has {count} GPUs")
        self.device = device
        self._handle = self._call(cu.cuDeviceGet(device))
        self._context = int(self._call(cu.cuDevicePrimaryCtxRetain(self._handle)))
        self._types: dict[tuple[str, ...], tuple[Any, ...]] = {}
        self._modules: list[Any] = []
        self._unused: collections.deque[tuple[int, Collection[int]]] = collections.deque()
        """Memory whose last array went during a capture: (pointer, streams)."""
        self._of_graphs: set[int] = set()
        """Memory allocated in a capture: it is the graph's."""
        self._kept: dict[int, list[int]] = {}
        """Small blocks by their bytes, used on the default stream alone, for the next call there."""
        self._sizes: dict[int, int] = {}
        """The bytes of blocks that may be kept, free or not."""
        self.target = self._describe()
        self._pool = self._make_pool()

    # -------------------------------------------------------------- helpers
    def _call(self, result: tuple[Any, ...]) -> Any:
        """The value of a call of the bindings, or the error in words."""
        status = result[0]
        if int(status) != 0:
            text = self._cu.cuGetErrorString(status)[1]
            raise CudaError(f"{status.name}: {text.decode() if isinstance(text, bytes) else text}")
        return result[1] if len(result) == 2 else result[1:]

    @_inside
    def _describe(self) -> GpuTarget:
        cu = self._cu
        attribute = cu.CUdevice_attribute

        def ask(name: str) -> int:
            return int(
                self._call(cu.cuDeviceGetAttribute(getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), self._handle))
            )

        name = self._call(cu.cuDeviceGetName(128, self._handle))
        _, memory = self._call(cu.cuMemGetInfo())
        return GpuTarget(
            name=name.decode().strip("\0 ") if isinstance(name, bytes) else str(name),
            capability=(ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR")),
            multiprocessors=ask("MULTIPROCESSOR_COUNT"),
            clock=ask("CLOCK_RATE") * 1e3,
            # kHz and bits; the memory moves a bit on both edges of its clock, which some virtual machines do not tell
            bandwidth=2.0 * ask("MEMORY_CLOCK_RATE") * 1e3 * ask("GLOBAL_MEMORY_BUS_WIDTH") / 8 or A100.bandwidth,
            l2=ask("L2_CACHE_SIZE"),
            memory=int(memory),
            shared_per_block=ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            shared_per_multiprocessor=ask("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            registers=ask("MAX_REGISTERS_PER_MULTIPROCESSOR"),
            warp=ask("WARP_SIZE"),
        )

    @_inside
    def _make_pool(self) -> Any:
        """A pool of our own, that keeps up to 1/16 of the device's memory for the next call.

        The device's default pool keeps nothing: all that is free in it goes back to the system whenever anything is
        waited for, and the next call asks the system anew. Its threshold is not ours to raise, others share it.
        """
        cu = self._cu
        wanted = cu.CUmemPoolProps()
        wanted.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        wanted.location.id = self.device
        pool = self._call(cu.cuMemPoolCreate(wanted))
        key = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self._call(cu.cuMemPoolSetAttribute(pool, key, cu.cuuint64_t(self.target.memory // 16)))
        return pool

    # -------------------------------------------------------------- the seven functions
    @_inside
    def load(self, ptx: str, cubin: bytes, entry: str, dynamic_shared: int) -> Any:
        cu = self._cu
        module = self._call(cu.cuModuleLoadData(cubin))
        self._modules.append(module)  # a module that is collected takes its functions along
        function = self._call(cu.cuModuleGetFunction(module, entry.encode()))
        if dynamic_shared > _DEFAULT_SHARED - 1024:
            key = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._call(cu.cuFuncSetAttribute(function, key, dynamic_shared))
        return function

    @_inside
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
        types = self._types.get(kinds) or self._types_of(kinds)
        if together:  # the driver refuses a grid that the device does not hold at a time
            given = (function, *grid, *block, shared, stream, (values, types))
            self._call(self._cu.cuLaunchCooperativeKernel(*given))
            return
        (status,) = self._cu.cuLaunchKernel(function, *grid, *block, shared, stream, (values, types), 0)
        if status:
            self._call((status,))

    def _types_of(self, kinds: tuple[str, ...]) -> tuple[Any, ...]:
        # of a ctypes.Structure the bindings pass the address; its type is then None
        types = self._types[kinds] = tuple(None if kind[0] == "b" else _CTYPES[kind] for kind in kinds)
        return types

    def alloc(self, nbytes: int, stream: int) -> int:
        if stream == 0 and nbytes <= KEPT_BYTES:
            # what is freed on one stream is free for it at once, whatever is captured elsewhere: the driver, which
            # takes 3 us to give a block and take it back, is not asked
            nbytes = -(-nbytes // KEPT_ALIGN) * KEPT_ALIGN
            try:
                return self._kept[nbytes].pop()
            except (KeyError, IndexError):
                pass
            pointer = self._alloc(nbytes, stream)
            self._of_graphs.discard(pointer)  # a capture beside the default stream is not of it
            self._sizes[pointer] = nbytes
            return pointer
        return self._alloc(nbytes, stream)

    @_inside
    def _alloc(self, nbytes: int, stream: int) -> int:
        if self._unused:
            with contextlib.suppress(IndexError):  # another thread has taken them
                for _ in range(len(self._unused)):
                    self._free(*self._unused.popleft())
        given = (max(1, nbytes), self._pool, stream)
        try:
            pointer = int(self._call(self._cu.cuMemAllocFromPoolAsync(*given)))
        except CudaError:
            if not self._release_kept():
                raise
            pointer = int(self._call(self._cu.cuMemAllocFromPoolAsync(*given)))
        (self._of_graphs.add if self._captured(stream) else self._of_graphs.discard)(pointer)
        return pointer

    def free(self, pointer: int, streams: Collection[int]) -> None:
        size = self._sizes.get(pointer, 0)
        if size and len(streams) == 1:
            kept = self._kept.get(size)
            if kept is None:
                kept = self._kept.setdefault(size, []) if len(self._kept) < KEPT_SIZES else None
            if kept is not None and len(kept) * size < KEPT_OF_A_SIZE:
                kept.append(pointer)
                return
        self._sizes.pop(pointer, None)
        self._free(pointer, streams)

    def _release_kept(self) -> bool:
        """Give back all memory that is kept; whether there was any."""
        found = False
        for kept in list(self._kept.values()):
            with contextlib.suppress(IndexError):
                while True:
                    pointer = kept.pop()
                    self._sizes.pop(pointer, None)
                    self._free(pointer, [0])
                    found = True
        return found

    @_inside
    def _free(self, pointer: int, streams: Collection[int]) -> None:
        captured = self._captured(*streams)
        if pointer in self._of_graphs:
            self._of_graphs.discard(pointer)
            if not captured:
                return  # the graph's, which writes it again when it is launched again
        elif captured:
            # The graph would take the free in, or the wait for another stream, and fail.
            self._unused.append((pointer, streams))
            return
        stream, *others = streams
        for other in others:
            self.follow(stream, other)
        self._call(self._cu.cuMemFreeAsync(pointer, stream))

    def _captured(self, *streams: int) -> bool:
        """Whether one of the streams is in a capture, or the default stream (the query then fails) would spoil one."""
        for stream in streams:
            failed, state = self._cu.cuStreamIsCapturing(stream)
            if failed or int(state):
                return True
        return False

    @_inside
    def copy(self, destination: Any, source: Any, nbytes: int, stream: int) -> None:
        cu = self._cu
        if isinstance(destination, ndarray):
            self._call(cu.cuMemcpyDtoHAsync(destination.__array_interface__["data"][0], source, nbytes, stream))
        elif isinstance(source, ndarray):
            self._call(cu.cuMemcpyHtoDAsync(destination, source.__array_interface__["data"][0], nbytes, stream))
        else:
            self._call(cu.cuMemcpyDtoDAsync(destination, source, nbytes, stream))
            return  # in the order of the stream, as a kernel
        # To the host: its reader has no stream.  From there: the source may be pinned, and is then read after this
        # returns, while its owner writes into it; and arrays sent once (tables, weights) are read on any stream.
        self._call(cu.cuStreamSynchronize(stream))

    @_inside
    def synchronise(self, stream: int) -> None:
        self._call(self._cu.cuStreamSynchronize(stream))

    @_inside
    def follow(self, stream: int, other: int) -> None:
        cu = self._cu
        event = self._call(cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING.value))
        try:
            self._call(cu.cuEventRecord(event, other))
            self._call(cu.cuStreamWaitEvent(stream, event, 0))
        finally:
            self._call(cu.cuEventDestroy(event))  # the driver keeps it until it has come

    @_inside
    def tensor_map(
        self,
        pointer: int,
        dtype: str,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        box: tuple[int, ...],
    ) -> ndarray:
        cu = self._cu
        kinds = cu.CUtensorMapDataType
        kind = getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_{_TENSOR_TYPES[dtype]}")
        encoded = self._call(
            cu.cuTensorMapEncodeTiled(
                kind, len(shape), pointer, [cu.cuuint64_t(length) for length in shape],
                [cu.cuuint64_t(step) for step in strides], [cu.cuuint32_t(length) for length in box],
                [cu.cuuint32_t(1)] * len(shape), cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
                cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        )  # fmt: skip
        return np.array([int(word) for word in encoded.opaque], np.uint64).view(np.uint8)

    def native(self) -> Native | None:
        found = _functions()
        return None if found is None else Native(self._context, *found)

    def clock(self) -> EventClock:
        return EventClock(self)


class EventClock:
    """Seconds of the device, by events on the default stream: what a kernel takes, without the waiting of the host."""

    sleep = staticmethod(time.sleep)

    def __init__(self, driver: CudaDriver) -> None:
        self._cu, self._context, self._call = driver._cu, driver._context, driver._call
        self._last, self._next = self._make(), self._make()
        self._seconds = 0.0
        self._record(self._last)

    @_inside
    def _make(self) -> Any:
        return self._call(self._cu.cuEventCreate(0))

    @_inside
    def _record(self, event: Any) -> None:
        self._call(self._cu.cuEventRecord(event, 0))
        self._call(self._cu.cuEventSynchronize(event))

    def now(self) -> float:
        # The driver gives float32 milliseconds: 0.004 us of 65 ms, but 8 us of 65 s.  So only the time since the last
        # reading is asked for, and summed in float64.
        self._record(self._next)
        self._seconds += self._call(self._cu.cuEventElapsedTime(self._last, self._next)) / 1e3
        self._last, self._next = self._next, self._last
        return self._seconds
