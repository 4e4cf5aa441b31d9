"""The k first elements by size, by sorting."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def topk(x: Array, k: int, axis: int, largest: bool) -> tuple[Array, Array]:
    """(values, indices) along an axis: NaN is the largest, equals stand in their order."""
    # a stable sort of the negated puts NaN last: it goes to the front where the largest come first
    order = np.argsort(-x if largest else x, axis=axis, kind="stable")
    if largest:
        nan = np.take_along_axis(np.isnan(x), order, axis)
        order = np.take_along_axis(order, np.argsort(~nan, axis=axis, kind="stable"), axis)
    first = np.take(order, np.arange(k), axis)
    return np.take_along_axis(x, first, axis), first
