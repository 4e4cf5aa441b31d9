"""Between the storage of an array and the float64 values in which the definitions compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims.dtypes import DTYPES


def from_bf16(patterns: np.ndarray) -> np.ndarray:
    """bf16 bit patterns as float32."""
    # of no dimensions NumPy 1.26 takes `patterns << 16` for int64
    return np.left_shift(patterns, 16, dtype=np.uint32).view(np.float32)


def to_float64(storage: np.ndarray, dtype: str) -> np.ndarray:
    """The values of a storage array as float64, exactly."""
    if dtype == "f16":
        return storage.view(np.float16).astype(np.float64)
    if dtype == "bf16":
        return from_bf16(storage).astype(np.float64)
    return storage.astype(np.float64)


def saturated(values: Any, dtype: str) -> Any:
    """float64 within the range of a type of integers."""
    limits = np.iinfo(DTYPES[dtype].storage)
    # the largest int64 is no float64
    return np.clip(values, limits.min, float(limits.max) if dtype != "i64" else float(2**63 - 1024))


def from_float64(values: Any, dtype: str) -> np.ndarray:
    """Storage that holds the values, rounded once to the nearest, halves to even; NaN is kept, integers saturate."""
    values = np.asarray(values, np.float64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if dtype == "f16":
            return values.astype(np.float16).view(np.uint16)
        if dtype != "bf16":
            storage = DTYPES[dtype].storage
            return (saturated(np.rint(values), dtype) if storage.kind in "iu" else values).astype(storage)
        # Through float32 it would be rounded twice. bfloat16 has 8 digits, fewer below 2^-126.
        finite = np.where(np.isfinite(values), values, 0.0)
        quantum = np.exp2(np.maximum(np.frexp(finite)[1] - 8, -133).astype(np.float64))
        rounded = np.where(np.isfinite(values), np.rint(finite / quantum) * quantum, values)
        bits = np.atleast_1d(rounded.astype(np.float32)).view(np.uint32)
    return (bits >> 16).astype(np.uint16).reshape(values.shape)
