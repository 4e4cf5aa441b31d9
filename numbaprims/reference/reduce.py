"""Definitions of `reduce`, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np


def reduce(x: np.ndarray, op: str, axes: tuple[int, ...] | None, keepdims: bool, nan: str) -> Any:
    """By NumPy's functions, those for data with NaN where it is left out."""
    how: Any = {"axis": axes, "keepdims": keepdims}
    if op in ("argmin", "argmax"):
        # of rows that are all NaN it is the first place of what stands for NaN
        if nan == "omit":
            x = np.where(np.isnan(x), np.inf if op == "argmin" else -np.inf, x)
        how["axis"] = None if axes is None or len(axes) > 1 else axes[0]
        return getattr(np, op)(x, **how)
    if nan == "omit":
        if op in ("sum", "mean", "prod", "min", "max", "var", "std"):
            return getattr(np, f"nan{op}")(x, **how)
        if op == "amax":
            return np.nanmax(np.abs(x), **how)
        x = np.where(np.isnan(x), {"all": 1.0, "logsumexp": -np.inf}.get(op, 0.0), x)
    if op == "amax":
        return np.abs(x).max(**how)
    if op == "norm1":
        return np.abs(x).sum(**how)
    if op in ("norm2", "sum_square"):
        y = np.square(x).sum(**how)
        return y if op == "sum_square" else np.sqrt(y)
    if op == "log_sum":
        return np.log(x.sum(**how))
    if op == "logsumexp":
        top = x.max(axis=axes, keepdims=True, initial=-np.inf)
        top = np.where(np.isfinite(top), top, 0.0)
        return np.log(np.exp(x - top).sum(**how)) + (top if keepdims else top.reshape(np.sum(x, **how).shape))
    return getattr(np, op)(x, **how)
