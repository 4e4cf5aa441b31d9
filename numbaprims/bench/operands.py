"""Operands of the benchmarks: one buffer, seen by every library in its own array type."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np

from numbaprims.bench.cases import aligned, aligned_empty, poison
from numbaprims.bench.rivals import load_rival
from numbaprims.reference.convert import from_bf16

_NUMPY = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "i8": np.int8,
    "u8": np.uint8,
    "i32": np.int32,
    "i64": np.int64,
}


_gpu: list[Any] = []
"""The driver of the device that operands lie on, while `on_gpu`; empty: the host."""
_on_gpu: weakref.WeakValueDictionary[int, Operand] = weakref.WeakValueDictionary()


@contextlib.contextmanager
def on_gpu(driver: Any) -> Iterator[None]:
    """Operands made inside the block are shared by CuPy, torch and us in the memory of a device."""
    _gpu.append(driver)
    try:
        yield
    finally:
        _gpu.pop()


def on_host() -> bool:
    """Whether operands lie where NumPy, SciPy, numexpr and oneDNN compute."""
    return not _gpu


class Operand:
    """Memory of one dtype, shared by NumPy, torch and us: no contender works on better aligned data.

    bf16, which NumPy does not have, is stored as uint16.  On a GPU, `storage` is what the host knows of it.
    """

    def __init__(self, storage: np.ndarray, dtype: str):
        self.storage = storage
        self.dtype = dtype
        self.there: Any = None
        if _gpu:
            from numbaprims.gpu.memory import to_device

            self.there = to_device(storage, device=_gpu[-1].device)
            _on_gpu[id(storage)] = self

    @classmethod
    def of(cls, values: np.ndarray, dtype: str) -> Operand:
        """The values rounded to `dtype`."""
        if dtype == "bf16":
            return cls(aligned(to_bf16(values)), dtype)
        return cls(aligned(values.astype(_NUMPY[dtype], copy=False)), dtype)

    @classmethod
    def empty(cls, shape: tuple[int, ...], dtype: str) -> Operand:
        """An output, filled with what no check lets through."""
        operand = cls(aligned_empty(shape, np.uint16 if dtype == "bf16" else _NUMPY[dtype]), dtype)
        spoil(operand.storage)
        return operand

    def values(self) -> np.ndarray:
        """What it holds, as an array that NumPy can compute with."""
        if self.there is not None:
            np.copyto(self.storage, self.there.to_host())
        return from_bf16(self.storage) if self.dtype == "bf16" else self.storage

    @property
    def torch(self) -> Any:
        """The tensor on the same memory."""
        torch = load_rival("torch")
        assert torch is not None
        if self.there is None:
            tensor = torch.from_numpy(self.storage)
        else:
            # torch reads int16 through the CUDA array interface, and no uint16
            plain = self.there.view(np.int16) if self.dtype == "bf16" else self.there
            tensor = torch.as_tensor(plain, device=f"cuda:{self.there.device}")
        return tensor.view(torch.bfloat16) if self.dtype == "bf16" else tensor

    @property
    def cupy(self) -> Any:
        """CuPy's array on the same memory."""
        cupy = load_rival("cupy")
        assert cupy is not None
        return cupy.asarray(self.there)

    def set(self, values: np.ndarray) -> None:
        """Overwrite it with other storage."""
        np.copyto(self.storage, values)
        if self.there is not None:
            self.there.driver.copy(self.there.pointer, self.storage, self.storage.nbytes, 0)

    @property
    def ours(self) -> Any:
        """What a user would pass to numbaprims: a NumPy array; for bf16 one of ml_dtypes, or a tensor."""
        if self.there is not None:
            if self.dtype != "bf16":
                return self.there
            if find_spec("ml_dtypes"):
                import ml_dtypes

                return self.there.view(ml_dtypes.bfloat16)
            return self.torch
        if self.dtype != "bf16":
            return self.storage
        if find_spec("ml_dtypes"):
            import ml_dtypes

            return self.storage.view(ml_dtypes.bfloat16)
        return self.torch


def spoil(output: np.ndarray) -> None:
    """Fill an output, and the memory of a device that it stands for, with what no check lets through."""
    poison(output)
    operand = _on_gpu.get(id(output))
    if operand is not None:
        operand.set(operand.storage)


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Finite float32 values as bf16 bit patterns, rounded to nearest even."""
    bits = np.asarray(values, np.float32, order="C").view(np.uint32)  # of a scalar too
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def chosen_solver(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Name of the solver that dispatch picks for a call of ours, which is not run."""
    import numbaprims

    return str(numbaprims.explain(function, *args, **kwargs).chosen.solver)
