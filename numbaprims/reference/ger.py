"""ger by definition (BLAS xGER), in float64."""

from __future__ import annotations

import numpy as np


def ger(x: np.ndarray, y: np.ndarray, *, a: np.ndarray | None = None, alpha: float = 1.0) -> np.ndarray:
    """alpha * x y^T + a: x (M,), y (N,), a and the result (M, N)."""
    result = alpha * x.astype(np.float64)[:, None] * y.astype(np.float64)[None, :]
    return result if a is None else result + a.astype(np.float64)
