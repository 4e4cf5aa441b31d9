"""Dropout and random numbers by definition, in float64; the words themselves are `numbaprims.philox`'s."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims import philox


def dropout(x: Any, p: float, seed: int, offset: int) -> Any:
    """x times its mask, divided by 1 - p."""
    kept = philox.dropout_mask(x.shape, p, seed, offset)
    return x * np.where(kept, 1.0 / (1.0 - p) if p < 1.0 else 0.0, 0.0)


def uniform(shape: Any, seed: int, offset: int, dtype: str, start: float, size: float) -> Any:
    """start + size u."""
    return start + size * philox.uniform(shape, seed, offset, dtype)


def normal(shape: Any, seed: int, offset: int, dtype: str, start: float, size: float) -> Any:
    """start + size z."""
    return start + size * philox.normal(shape, seed, offset, dtype)
