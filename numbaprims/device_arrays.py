"""Arrays in the memory of a GPU: whose they are, and the way in.

Nothing here needs a GPU or its packages: whoever has an array of torch, CuPy or numba-cuda has imported them.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy import ndarray

from numbaprims import settings
from numbaprims.device_views import DeviceView, c_strides, dense_strides
from numbaprims.dtypes import DTYPES, LONG_NAMES
from numbaprims.libraries import Library, describe, refuse_dtype, torch_library
from numbaprims.settings import stream_address as stream_address

_STORAGE = {name: kind.storage for name, kind in DTYPES.items()}
_AS_IT_IS = nullcontext()


class DeviceLibrary(Library):
    """Whose a device array is, on one device; results, scratch memory and the stream come from there."""

    name = "cuda"
    starter: Any = None
    """What starts kernels, where they do not go to the device's driver (`gpu/recording.py`)."""

    def __init__(self, index: int = 0, kind: str = "cuda") -> None:
        self.index = index
        self.device = f"{kind}:{index}"
        self.place = self.device

    def allocate(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Any:
        """A new array of the library; strides in bytes, without gaps."""
        raise TypeError(f"{type(self).__name__} allocates nothing")

    def pointer_of(self, x: Any) -> int:
        """Address of the first element of an array of the library."""
        raise TypeError(f"{type(self).__name__} reads no address")

    def current_stream(self) -> int:
        """The stream that the library would launch on now."""
        return 0

    def asks(self) -> Callable[[], int] | None:
        """What gives the stream of calls under the settings in force now, if that is not the same for all of them."""
        return None

    def maker(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Callable[[], Any]:
        """What makes such arrays under the settings in force now."""
        return functools.partial(self.allocate, shape, strides, dtype)

    def lender(self, nbytes: int) -> Callable[[], tuple[int, Any]]:
        """What gives scratch memory, as `scratch` does, under the settings in force now."""
        return functools.partial(self.scratch, nbytes)

    def stream(self) -> int:
        """The stream of a call: that of the settings, else the library's current one."""
        chosen = settings.current().stream
        return self.current_stream() if chosen is None else stream_address(chosen)

    def follow(self, name: str, producer: Any) -> None:
        """Let a call begin after what the producer's stream holds, as version 3 of the interface asks for.

        Events order the two, so that the host waits for nothing and a capture goes on.
        """
        if producer == 0:
            raise ValueError(f"{name} says it is written on stream 0, which its interface forbids: 1 or 2 is meant")
        ours, theirs = self.stream(), stream_address(producer)
        if ours != theirs:
            from importlib import import_module

            import_module("numbaprims.gpu.driver").current(self.index).follow(ours, theirs)

    def ordered(self) -> AbstractContextManager[Any]:
        """Where memory of a call is allocated: under the stream of the settings, if they name one.

        A library gives memory out again in the order of the stream that it was allocated under; under another than
        the call's, scratch memory would be somebody else's while kernels still use it.
        """
        chosen = settings.current().stream
        return _AS_IT_IS if chosen is None else self.under(stream_address(chosen))

    def under(self, stream: int) -> AbstractContextManager[Any]:
        """Make a stream the library's current one."""
        return _AS_IT_IS

    def scratch(self, nbytes: int) -> tuple[int, Any]:
        """(pointer, owner): memory for work on the call's stream, given back with the owner."""
        owner = self.allocate((nbytes,), (1,), "u8")
        return self.pointer_of(owner), owner

    def _view(self, x: Any, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> tuple[Any, DeviceView]:
        return x, DeviceView(self.pointer_of(x), shape, strides, _STORAGE[dtype], self)

    def empty(self, shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
        strides = c_strides(shape, DTYPES[dtype].itemsize)
        return self._view(self.allocate(shape, strides, dtype), shape, strides, dtype)

    def empty_like(self, storage: Any, dtype: str) -> tuple[Any, Any]:
        size = DTYPES[dtype].itemsize
        strides = tuple(step // storage.itemsize * size for step in dense_strides(storage))
        return self._view(self.allocate(storage.shape, strides, dtype), storage.shape, strides, dtype)

    def wrap(self, storage: Any, dtype: str) -> Any:
        raise TypeError("a view of device memory is wrapped by nothing")

    def __repr__(self) -> str:
        return f"<library {self.name} on {self.device}>"


class _Torch(DeviceLibrary):
    """torch CUDA tensors of one device."""

    name = "torch"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        torch = sys.modules["torch"]
        self._empty, self._empty_strided = torch.empty, torch.empty_strided
        self._at = torch.device("cuda", index)
        self._dtypes = {short: getattr(torch, long) for short, long in LONG_NAMES.items()}
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # 0.1 us; the public way makes an object, 1 us
        self._stream = raw or (lambda index: torch.cuda.current_stream(index).cuda_stream)

    def allocate(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Any:
        size = DTYPES[dtype].itemsize
        steps = tuple(stride // size for stride in strides)
        with self.ordered():
            return self._empty_strided(shape, steps, dtype=self._dtypes[dtype], device=self._at)

    def empty(self, shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
        with self.ordered():
            tensor = self._empty(shape, dtype=self._dtypes[dtype], device=self._at)
        return self._view(tensor, shape, c_strides(shape, DTYPES[dtype].itemsize), dtype)

    def over(self, x: Any, storage: Any, dtype: str) -> Any:
        size, steps = storage.itemsize, [step // storage.itemsize for step in storage.strides]
        return x.as_strided(storage.shape, steps, x.storage_offset() + (storage.pointer - x.data_ptr()) // size)

    def pointer_of(self, x: Any) -> int:
        return int(x.data_ptr())

    def current_stream(self) -> int:
        return int(self._stream(self.index))

    def asks(self) -> Callable[[], int] | None:
        return functools.partial(self._stream, self.index) if settings.current().stream is None else None

    def maker(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Callable[[], Any]:
        size = DTYPES[dtype].itemsize
        if settings.current().stream is not None or strides != c_strides(shape, size):
            return super().maker(shape, strides, dtype)
        return functools.partial(self._empty, shape, dtype=self._dtypes[dtype], device=self._at)

    def lender(self, nbytes: int) -> Callable[[], tuple[int, Any]]:
        make = self.maker((nbytes,), (1,), "u8")

        def lend() -> tuple[int, Any]:  # 1.5 us, by `scratch` 5
            owner = make()
            return owner.data_ptr(), owner

        return lend

    def under(self, stream: int) -> AbstractContextManager[Any]:
        cuda = sys.modules["torch"].cuda
        # torch takes an external stream of address 0 for any of its pool
        of = cuda.ExternalStream(stream, device=self._at) if stream else cuda.default_stream(self._at)
        context: AbstractContextManager[Any] = cuda.stream(of)
        return context


class _Cupy(DeviceLibrary):
    name = "cupy"

    def allocate(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Any:
        cupy = sys.modules["cupy"]
        kind = _named_dtype(dtype)
        with cupy.cuda.Device(self.index), self.ordered():
            memory = cupy.cuda.alloc(max(1, math.prod(shape) * kind.itemsize))
            return cupy.ndarray(shape, kind, memptr=memory, strides=strides)

    def over(self, x: Any, storage: Any, dtype: str) -> Any:
        memory = x.data + (storage.pointer - x.data.ptr)
        return sys.modules["cupy"].ndarray(storage.shape, x.dtype, memptr=memory, strides=storage.strides)

    def pointer_of(self, x: Any) -> int:
        return int(x.data.ptr)

    def current_stream(self) -> int:
        return int(sys.modules["cupy"].cuda.get_current_stream(self.index).ptr)

    def asks(self) -> Callable[[], int] | None:
        return self.current_stream if settings.current().stream is None else None

    def maker(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Callable[[], Any]:
        usual, kind = super().maker(shape, strides, dtype), _named_dtype(dtype)
        if settings.current().stream is not None or strides != c_strides(shape, kind.itemsize):
            return usual
        cupy = sys.modules["cupy"]
        index, new, current = self.index, cupy.ndarray, cupy.cuda.runtime.getDevice
        return lambda: new(shape, kind) if current() == index else usual()

    def under(self, stream: int) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = sys.modules["cupy"].cuda.ExternalStream(stream)
        return context


class _Numba(DeviceLibrary):
    name = "numba"

    def allocate(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Any:
        cuda = sys.modules["numba.cuda"]
        # neither knows of streams: allocating and giving back wait for the device
        with cuda.gpus[self.index]:
            return cuda.device_array(shape, _named_dtype(dtype), strides)

    def over(self, x: Any, storage: Any, dtype: str) -> Any:
        facts = {"shape": storage.shape, "strides": storage.strides, "data": (storage.pointer, False)}
        facts |= {"typestr": x.dtype.str, "version": 3}
        return sys.modules["numba.cuda"].from_cuda_array_interface(facts, owner=x, sync=False)

    def pointer_of(self, x: Any) -> int:
        return int(x.__cuda_array_interface__["data"][0])


def _named_dtype(dtype: str) -> np.dtype:
    """The NumPy dtype that a caller sees."""
    if dtype == "bf16":
        ml_dtypes = sys.modules.get("ml_dtypes")
        if ml_dtypes is None:
            raise TypeError("NumPy has no bfloat16 of its own; import ml_dtypes, or use torch tensors")
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(LONG_NAMES[dtype])


_libraries: dict[tuple[type, int], DeviceLibrary] = {}


def _library(kind: type, index: int) -> DeviceLibrary:
    found = _libraries.get((kind, index))
    if found is None:
        found = _libraries.setdefault((kind, index), kind(index))
    return found


def own_library(index: int) -> DeviceLibrary:
    """The library of our own `DeviceArray`, which also makes the results for arrays of libraries unknown here."""
    from importlib import import_module

    library: DeviceLibrary = import_module("numbaprims.gpu.memory").own_library(index)
    return library


# ---------------------------------------------------------------- the way in


def enter_tensor(x: Any, name: str, dtype: str | None) -> tuple[DeviceView, str, DeviceLibrary]:
    """A torch CUDA tensor, known not to require grad; `dtype` is its name, None if it is not one of ours."""
    if dtype is None:
        refuse_dtype(x, name)
    library = _library(_Torch, x.get_device())
    _check_device(name, library)
    storage = _STORAGE[dtype]
    size = storage.itemsize
    owner = None
    if x.is_neg():
        with library.ordered():
            x = owner = x.resolve_neg()  # a copy, which is not the caller's memory
    shape, steps = tuple(x.shape), x.stride()
    strides = tuple([step * size for step in steps])
    return DeviceView(x.data_ptr(), shape, strides, storage, library, owner is None, owner), dtype, library


def enter_interface(x: Any, name: str) -> tuple[DeviceView, str, DeviceLibrary]:
    """An array with a CUDA array interface (version 2 or 3): CuPy's, numba-cuda's, ours, anybody's."""
    # Our DeviceArray never changes, so it keeps the view it was entered as: 0.4 us instead of 6.
    entered = getattr(x, "entered", None)
    if entered is not None and entered[0] is not None:
        _check_device(name, entered[2])
        x.memory.use(settings.current().stream)
        return entered
    facts = x.__cuda_array_interface__
    if (facts.get("version") or 0) < 2:
        raise TypeError(f"{name} has a CUDA array interface of version {facts.get('version')}; 2 and 3 are read")
    if facts.get("mask") is not None:
        raise TypeError(f"{name} has a mask, which would be lost; fill it first")
    pointer, readonly = facts["data"]
    pointer = int(pointer or 0)  # None where there are no elements
    shape = tuple(facts["shape"])
    given = np.dtype(facts["typestr"])
    strides = tuple(facts.get("strides") or c_strides(shape, given.itemsize))
    library, writeable = getattr(x, "numbaprims_library", None) or _library_of(x), not readonly
    _check_device(name, library)
    dtype = _dtype_of(given, x)
    if dtype is None:
        refuse_dtype(x, name, given)
    _check_aligned(name, dtype, pointer, strides)
    view = DeviceView(pointer, shape, strides, _STORAGE[dtype], library, writeable)
    if entered is not None:
        x.entered = (view, dtype, library)
        x.memory.use(settings.current().stream)
    elif facts.get("stream") is not None:
        library.follow(name, facts["stream"])
    return view, dtype, library


def _check_device(name: str, library: DeviceLibrary) -> None:
    """Raise the TypeError for an array of one device where the settings ask for another."""
    wanted = settings.current().device
    if wanted is None or wanted in ("cuda", "emulated", library.device):
        return
    raise TypeError(
        f"{name} lies on {library.device} and the settings say device={wanted!r}; copy it there, or leave the device "
        "to the arrays (device='auto')"
    )


def _check_aligned(name: str, dtype: str, pointer: int, strides: tuple[int, ...]) -> None:
    size = DTYPES[dtype].itemsize
    if pointer % size or any(stride % size for stride in strides):
        raise TypeError(f"{name} is not aligned to its {size}-byte elements, which no GPU reads; copy it")


def _dtype_of(given: np.dtype, x: Any) -> str | None:
    if given.kind == "V":  # NumPy has no letter for bfloat16
        return "bf16" if given.itemsize == 2 and "bfloat16" in str(getattr(x, "dtype", given)) else None
    if not given.isnative:
        return None
    return next((short for short, long in LONG_NAMES.items() if long == given.name), None)


def _library_of(x: Any) -> DeviceLibrary:
    module = type(x).__module__.partition(".")[0]
    index = device_index(x)
    if module == "cupy":
        return _library(_Cupy, index)
    if module == "numba" and "numba.cuda" in sys.modules:
        return _library(_Numba, index)
    return own_library(index)


def device_index(x: Any) -> int:
    """The index of the device that holds an array, as far as the array tells."""
    # numba-cuda's arrays say it by the context of their memory alone
    context = getattr(getattr(x, "gpu_data", None), "context", None)
    device = getattr(x if context is None else context, "device", None)
    index = getattr(device, "id", None)
    if isinstance(index, int):
        return index
    if isinstance(device, int):
        return device
    if hasattr(x, "__dlpack_device__"):
        return int(x.__dlpack_device__()[1])
    return 0


def enter_dlpack(x: Any, name: str) -> tuple[DeviceView, str, DeviceLibrary]:
    """An array of device memory that speaks DLPack alone."""
    from numbaprims import dlpack

    kind, index = x.__dlpack_device__()
    if int(kind) != dlpack.CUDA:
        raise TypeError(f"{name} lives on DLPack device {int(kind)}:{index}; CPUs and CUDA devices are known")
    library = own_library(int(index))
    _check_device(name, library)
    tensor, capsule = dlpack.open_tensor(x, library.stream())
    if tensor.dtype not in DTYPES:
        raise TypeError(f"{name} is a {describe(x)} of {tensor.dtype}; dtypes are {', '.join(LONG_NAMES.values())}")
    size = DTYPES[tensor.dtype].itemsize
    strides = tuple(step * size for step in tensor.steps)
    _check_aligned(name, tensor.dtype, tensor.pointer, strides)
    view = DeviceView(
        tensor.pointer, tensor.shape, strides, _STORAGE[tensor.dtype], library, not tensor.readonly, capsule
    )
    return view, tensor.dtype, library


def device_of(x: Any) -> str | None:
    """Where an array lives: "cpu", "cuda:0"; None for what is no array."""
    if isinstance(x, ndarray):
        return "cpu"
    torch = torch_library()
    if torch is not None and isinstance(x, torch.tensor):
        return f"cuda:{x.get_device()}" if x.is_cuda else "cpu"
    if hasattr(x, "__cuda_array_interface__"):
        return f"cuda:{device_index(x)}"
    if hasattr(x, "__dlpack_device__") and not isinstance(x, np.generic):
        kind, index = x.__dlpack_device__()
        return "cpu" if int(kind) == 1 else f"cuda:{int(index)}"
    return None
