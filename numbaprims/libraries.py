"""Whose an array is: NumPy's, torch's; and the words for what is no array of ours."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy import ndarray
from numpy.lib.stride_tricks import as_strided

from numbaprims.dtypes import DTYPES, LONG_NAMES

DTYPES_IN_WORDS = f"its dtype must be one of {', '.join(LONG_NAMES.values())}"

#: Bytes from which on a result begins at a cache line, as torch's do: stores past the caches are whole lines, which
#: rows of 512 bytes that begin 16 behind one have seven of nine of (heads of 4 x 2048 x 32 x 128 turned: 17.0 ms, 7.0
#: so, Zen 4).  Such calls go by way of Python, 20 us more than native code, which makes no such arrays.
LARGE = 16 << 20


def is_large(nbytes: int) -> bool:
    """Whether a result begins at a cache line."""
    return nbytes >= LARGE


#: Bytes of large results' memory that are kept for the next ones once nobody has these any more, and how many times as
#: large as a result it may be.
KEPT, ROOMIER = 256 << 20, 1.25


class Lease:
    """Memory of a large result, which is kept for the next one when the last array over it is gone.

    Memory that the system has just given is cleared page by page at its first touch: ReLU of 33 MB takes 6.0 ms into
    such, 1.9 into memory that was there, softmax 7.8 and 3.9, NumPy's x + y 9 (Emerald Rapids, one thread).
    """

    __slots__ = ("raw",)
    kept: ClassVar[dict[int, ndarray]] = {}

    def __init__(self, size: int) -> None:
        # single operations of a dictionary: threads may be here at once, and finalizers in the middle of them
        for key in list(self.kept):
            raw = self.kept.pop(key, None)
            if raw is not None:
                if size <= raw.nbytes <= size * ROOMIER:
                    self.raw = raw
                    return
                self.kept[id(raw)] = raw
        self.raw = np.empty(size, np.uint8)

    def __del__(self, kept: dict[int, ndarray] = kept, most: int = KEPT) -> None:
        if (raw := getattr(self, "raw", None)) is None or raw.nbytes > most:
            return
        kept[id(raw)] = raw
        for key in list(kept):  # the oldest first
            if sum(each.nbytes for each in list(kept.values())) <= most:
                return
            kept.pop(key, None)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.raw.__array_interface__


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> ndarray:
    """An uninitialised C-contiguous array that begins at a cache line."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    raw = np.asarray(Lease(size + 64))
    offset = -raw.ctypes.data % 64
    return raw[offset : offset + size].view(dtype).reshape(shape)


class Library:
    """Where a call's arrays come from and its result goes: `NUMPY`, or `TORCH` once a tensor was seen."""

    name = "numpy"
    device = "cpu"
    place: Any = "cpu"
    """What launchers are kept by: libraries of one place share them."""

    def wrap(self, storage: ndarray, dtype: str) -> Any:
        """Give the caller's array over a storage array, sharing its memory."""
        if dtype == "f16":
            return storage.view(np.float16)
        if dtype == "bf16":
            ml_dtypes = sys.modules.get("ml_dtypes")
            if ml_dtypes is None:
                raise TypeError("NumPy has no bfloat16 of its own; import ml_dtypes, or use torch tensors")
            return storage.view(ml_dtypes.bfloat16)
        return storage.view(np.bool_) if dtype == "bool" else storage

    def over(self, x: Any, storage: Any, dtype: str) -> Any:
        """An array over the memory of x that lies as a view of its storage does."""
        return self.wrap(storage, dtype)

    def empty(self, shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
        """Allocate a C-contiguous result; give the caller's array and the storage view kernels write."""
        kind = DTYPES[dtype]
        large = is_large(math.prod(shape) * kind.itemsize)
        storage = aligned_empty(shape, kind.storage) if large else np.empty(shape, kind.storage)
        return self.wrap(storage, dtype), storage

    def empty_like(self, storage: Any, dtype: str) -> tuple[Any, Any]:
        """Allocate a result that lies in memory as an array does, without its gaps."""
        made = np.empty_like(storage, DTYPES[dtype].storage, subok=False)
        if is_large(made.nbytes):
            made = as_strided(aligned_empty((made.size,), made.dtype), made.shape, made.strides)
        return self.wrap(made, dtype), made

    def __repr__(self) -> str:
        return f"<library {self.name}>"


class Torch(Library):
    """torch CPU tensors, in memory from NumPy: 0.8 us, where torch.empty and numpy() take 2.0 us."""

    name = "torch"

    def __init__(self, torch: Any) -> None:
        self.tensor = torch.Tensor
        self._from_numpy = torch.from_numpy
        self._views = {"f16": torch.float16, "bf16": torch.bfloat16, "bool": torch.bool}
        self.bfloat16 = torch.bfloat16
        self.uint16 = torch.uint16
        self.names = {getattr(torch, long): short for short, long in LONG_NAMES.items()}
        self.grad_enabled = torch.is_grad_enabled
        # past torch.jit.is_tracing, which takes 0.15 us more
        self.tracing = getattr(torch._C, "_is_tracing", torch.jit.is_tracing)
        modes = torch.utils._python_dispatch
        told = hasattr(modes, "_is_in_torch_dispatch_mode")
        self.modes: Any = modes if told else SimpleNamespace(_is_in_torch_dispatch_mode=True)
        """Its `_is_in_torch_dispatch_mode` is True while any thread may have a mode that sees torch's operations."""

    def tracer(self) -> str | None:
        """What writes down torch's operations in this thread, and would keep the numbers of a call of ours."""
        if self.tracing():
            return "torch.jit.trace"
        module = sys.modules.get("torch.fx.experimental.proxy_tensor")  # no such mode before somebody imports it
        found = None if module is None else module.get_proxy_mode()
        return None if found is None else "make_fx or torch.export"

    def wrap(self, storage: ndarray, dtype: str) -> Any:
        tensor = self._from_numpy(storage)
        view = self._views.get(dtype)
        return tensor if view is None else tensor.view(view)


NUMPY = Library()
_torch: Torch | None = None


def torch_library() -> Torch | None:
    """Give the torch library if the process has imported torch, which is the user's choice."""
    global _torch
    if _torch is None and (torch := sys.modules.get("torch")) is not None and hasattr(torch, "Tensor"):
        _torch = Torch(torch)
    return _torch


def is_tensor(x: Any) -> bool:
    library = torch_library()
    return library is not None and isinstance(x, library.tensor)


def describe(x: Any) -> str:
    """Describe an argument for an error message: "float32 array (8, 8)"."""
    if isinstance(x, np.generic):
        return f"{x.dtype} scalar"
    if isinstance(x, type):
        return f"class {x.__name__}"
    try:
        shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    except RuntimeError:  # a nested tensor
        return "nested tensor"
    if shape is None or dtype is None:
        return type(x).__name__
    kind = "array" if isinstance(x, ndarray) else "tensor" if is_tensor(x) else type(x).__name__
    return f"{str(dtype).removeprefix('torch.')} {kind} {tuple(shape)}"


def refuse_dtype(x: Any, name: str, dtype: Any = None) -> NoReturn:
    """Raise the TypeError for an element type that is not one of `DTYPES`; `dtype` is that of an array without one."""
    words = describe(x) if hasattr(x, "dtype") else f"{describe(x)} of {dtype}"
    dtype = getattr(x, "dtype", dtype)
    if not getattr(dtype, "isnative", True):
        raise TypeError(
            f"{name} is {'big' if sys.byteorder == 'little' else 'little'}-endian ({dtype.str}); "
            f"call {name}.astype({name}.dtype.newbyteorder('='))"
        )
    hint = "; view bfloat16 bits as ml_dtypes.bfloat16" if dtype == np.uint16 else ""
    raise TypeError(f"{name} is a {words}; {DTYPES_IN_WORDS}{hint}")
