"""Local response normalisation by its definition, in float64 over (N, C, ...)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def sums(x: Array, axes: Sequence[int], before: int, after: int) -> Array:
    """The sum of each element's window, `before` elements to `after` around it along each of the axes."""
    for axis in axes:
        pads = [(0, 0)] * x.ndim
        pads[axis] = (before, after)
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, pads), before + after + 1, axis)
        x = windows.sum(-1)
    return x


def forward(x: Array, axes: Sequence[int], before: int, after: int, a: float, beta: float, k: float) -> Array:
    """y"""
    result: Array = x * (k + a * sums(np.square(x), axes, before, after)) ** -beta
    return result


def backward(
    dy: Array, x: Array, axes: Sequence[int], before: int, after: int, a: float, beta: float, k: float
) -> Array:
    """dx"""
    s = k + a * sums(np.square(x), axes, before, after)
    # element i is in the windows of those from i - after to i + before
    total = sums(dy * x * s ** (-beta - 1), axes, after, before)
    result: Array = dy * s**-beta - 2 * a * beta * x * total
    return result
