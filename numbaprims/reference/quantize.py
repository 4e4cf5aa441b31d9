"""Definitions of quantised integers: arrays hold float64, and divisions are rounded as the function's type is."""

from __future__ import annotations

from typing import Any

import numpy as np

#: The integers of each type.
LIMITS = {"i8": (-128, 127), "u8": (0, 255), "i4": (-8, 7), "u4": (0, 15)}
KINDS = {"f64": np.float64, "f32": np.float32}


def _saturated(x: Any, dtype: str) -> Any:
    """Floats that are integers, within the range of a type; NaN is 0."""
    return np.clip(np.where(np.isnan(x), 0.0, x), *LIMITS[dtype]).astype(np.float64)


def quantize(x: Any, scale: Any, zero: Any, dtype: str, compute: str) -> Any:
    """saturate(round(x / scale) + zero)"""
    kind = KINDS[compute]
    q = x.astype(kind) / np.asarray(scale, kind)
    return np.clip(np.where(np.isnan(q), 0.0, np.rint(q)).astype(np.float64) + zero, *LIMITS[dtype])


def pack(even: Any, odd: Any) -> Any:
    """Pairs of integers of 4 bits as bytes, the first in the lower half."""
    return np.mod(even, 16.0) + 16.0 * np.mod(odd, 16.0)


def halves(x: Any, dtype: str) -> tuple[Any, Any]:
    """The integers of 4 bits that bytes hold."""
    most = LIMITS[dtype][1]
    lower, upper = np.mod(x, 16.0), np.floor(x / 16.0)
    return lower - 16.0 * (lower > most), upper - 16.0 * (upper > most)


def dequantize(x: Any, scale: Any, zero: Any) -> Any:
    """(x - zero) scale"""
    return (x - zero) * scale


def dynamic_quantize(x: Any, axis: int | None, symmetric: bool, compute: str) -> tuple[Any, Any, Any]:
    """(y, scale, zero point) of all of x, or along an axis."""
    kind = KINDS[compute]
    x = x.astype(kind)
    if symmetric:
        width, steps = np.abs(x).max(axis, keepdims=axis is not None, initial=0.0), kind(127)
        below = np.zeros_like(width)
    else:
        above = np.maximum(x.max(axis, keepdims=axis is not None, initial=0.0), 0)
        below = np.maximum((-x).max(axis, keepdims=axis is not None, initial=0.0), 0)
        width, steps = above + below, kind(255)
    scale = np.where(width == 0, 1.0, np.asarray(width / steps, kind)).astype(kind)
    zero = np.asarray(np.rint(below / scale))
    y = quantize(x, scale, zero.astype(np.float64), "i8" if symmetric else "u8", compute)
    return y, scale.astype(np.float64), _saturated(zero, "i8" if symmetric else "u8")


def qlinear_add(a: Any, b: Any, numbers: Any, limits: tuple[float, float]) -> Any:
    """saturate(round(factor_a a + factor_b b + fixed)), of factors in float32"""
    factor_a, factor_b, fixed = np.asarray(numbers, np.float32).astype(np.float64)
    return np.clip(np.rint(a * factor_a + b * factor_b + fixed), *limits)


def qlinear_mean(x: Any, axes: tuple[int, ...], numbers: Any, dtype: str) -> Any:
    """saturate(round((sum x + fixed) factor) + zero), of a factor in float32"""
    factor, fixed, zero = numbers
    return requantize(x.sum(axes, keepdims=True) + fixed, factor, zero, dtype)


def requantize(total: Any, factor: Any, zero: float, dtype: str) -> Any:
    """saturate(round(factor total) + zero), the factor and its product in float32."""
    product = total.astype(np.float32) * np.asarray(factor, np.float32)
    return np.clip(np.rint(product).astype(np.float64) + zero, *LIMITS[dtype])
