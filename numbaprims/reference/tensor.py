"""Definitions of `binary` and `cast`, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims.reference.convert import saturated

NAMES = {
    "sub": "subtract", "mul": "multiply", "div": "divide", "min": "minimum", "max": "maximum", "pow": "power",
    "floor_div": "floor_divide", "atan2": "arctan2",
}  # fmt: skip


def binary(a: Any, b: Any, c: Any, op: str, alpha1: float, alpha2: float, beta: float) -> Any:
    """op(alpha1 a, alpha2 b) + beta c, by NumPy's functions."""
    found = getattr(np, NAMES.get(op, op))(a * alpha1, b * alpha2)
    return found if c is None else found + beta * c


def cast(x: np.ndarray, dtype: str) -> Any:
    """x as another type holds it."""
    if dtype == "bool":
        return x != 0
    if dtype in ("i8", "u8", "i32", "i64"):
        return saturated(np.trunc(np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf)), dtype)
    return x
