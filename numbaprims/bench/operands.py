"""Operands of the benchmarks: one buffer, seen by every library in its own array type."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from numbaprims.bench.cases import aligned, aligned_empty, poison
from numbaprims.bench.rivals import library

_NUMPY = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "i8": np.int8, "i32": np.int32}


class Operand:
    """Memory of one dtype, shared by NumPy, torch and us: no contender works on better aligned data.

    bf16, which NumPy does not have, is stored as uint16.
    """

    def __init__(self, storage: np.ndarray, dtype: str):
        self.storage = storage
        self.dtype = dtype

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
        poison(operand.storage)
        return operand

    def values(self) -> np.ndarray:
        """What it holds, as an array that NumPy can compute with."""
        return from_bf16(self.storage) if self.dtype == "bf16" else self.storage

    @property
    def torch(self) -> Any:
        """The tensor on the same memory."""
        torch = library("torch")
        assert torch is not None
        tensor = torch.from_numpy(self.storage)
        return tensor.view(torch.bfloat16) if self.dtype == "bf16" else tensor

    @property
    def ours(self) -> Any:
        """What a user would pass to numbaprims: a NumPy array; for bf16 one of ml_dtypes, or a tensor."""
        if self.dtype != "bf16":
            return self.storage
        if find_spec("ml_dtypes"):
            import ml_dtypes

            return self.storage.view(ml_dtypes.bfloat16)
        return self.torch


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Finite float32 values as bf16 bit patterns, rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(patterns: np.ndarray) -> np.ndarray:
    """bf16 bit patterns as float32."""
    return (patterns.astype(np.uint32) << 16).view(np.float32)


def chosen_solver(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Name of the solver that dispatch picks for a call of ours, which is not run."""
    import numbaprims

    return str(numbaprims.explain(function, *args, **kwargs).chosen.solver)
