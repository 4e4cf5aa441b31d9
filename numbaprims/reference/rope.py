"""Rotary position embedding by its definition, in float64 over (..., heads, length, width)."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def angles(length: int, dims: int, base: float) -> Array:
    """Of position m and pair i: m base**(-2 i / dims)."""
    result: Array = np.outer(np.arange(length, dtype=np.float64), base ** (-np.arange(0, dims, 2) / dims))
    return result


def rotate(x: Array, cos: Array, sin: Array, positions: Array | None, interleaved: bool, inverse: bool) -> Array:
    """Each pair turned by its angle; `inverse`: back."""
    if positions is not None:
        cos, sin = cos[positions.astype(np.int64)], sin[positions.astype(np.int64)]
    if x.ndim > 2:  # alike for all heads
        cos, sin = cos[..., None, :, :], sin[..., None, :, :]
    if inverse:
        sin = -sin
    dims = 2 * cos.shape[-1]
    one = (..., slice(0, dims, 2)) if interleaved else (..., slice(0, dims // 2))
    two = (..., slice(1, dims, 2)) if interleaved else (..., slice(dims // 2, dims))
    y = x.copy()
    y[one] = x[one] * cos - x[two] * sin
    y[two] = x[one] * sin + x[two] * cos
    return y
