"""Batch normalisation by definition, in float64; parameters of one element have the shape that broadcasts to x."""

from __future__ import annotations

import math

import numpy as np


def batch_norm(
    x: np.ndarray, scale: np.ndarray, shift: np.ndarray, mean: np.ndarray, var: np.ndarray, eps: float
) -> np.ndarray:
    """(x - mean) / sqrt(var + eps) scale + shift."""
    return (x - mean) / np.sqrt(var + eps) * scale + shift


def batch_norm_train(
    x: np.ndarray, scale: np.ndarray, shift: np.ndarray, axes: tuple[int, ...], eps: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(y, mean, 1 / sqrt(var + eps), the unbiased variance), statistics over the axes."""
    mean = x.mean(axes, keepdims=True)
    var = np.square(x - mean).mean(axes, keepdims=True)
    inv_std = 1 / np.sqrt(var + eps)
    n = math.prod(x.shape[axis] for axis in axes)
    return (x - mean) * inv_std * scale + shift, mean, inv_std, var * (n / max(n - 1, 1))


def batch_norm_backward(
    dy: np.ndarray, x: np.ndarray, scale: np.ndarray, mean: np.ndarray, inv_std: np.ndarray, axes: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(dx, dscale, dshift)."""
    normal = (x - mean) * inv_std
    dshift, dscale = dy.sum(axes, keepdims=True), (dy * normal).sum(axes, keepdims=True)
    n = math.prod(x.shape[axis] for axis in axes)
    return scale * inv_std * (dy - dshift / n - normal * (dscale / n)), dscale, dshift
