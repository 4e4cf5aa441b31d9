"""Cumulative sums by their definition, in float64; of integers in 64 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def scan(function: str, x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    """The sum or product of the elements up to each along an axis, itself among them or not; from the end where
    `reverse`."""
    if reverse:
        x = np.flip(x, axis)
    y: Array = getattr(np, function)(x, axis)
    if exclusive:
        y = np.roll(y, 1, axis)
        y[(*(slice(None),) * (axis % x.ndim), slice(0, 1))] = 0 if function == "cumsum" else 1
    return np.flip(y, axis) if reverse else y
