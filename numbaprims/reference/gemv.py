"""gemv by definition (BLAS xGEMV), in float64."""

from __future__ import annotations

import numpy as np


def gemv(
    a: np.ndarray,
    x: np.ndarray,
    *,
    y: np.ndarray | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    trans: bool = False,
) -> np.ndarray:
    """alpha * op(a) @ x + beta * y: a (M, N); x (N,) gives (M,), with trans x (M,) gives (N,).

    With beta = 0, y is not read (BLAS).
    """
    a, x = a.astype(np.float64), x.astype(np.float64)
    result = alpha * ((a.T if trans else a) @ x)
    if y is not None and beta != 0.0:
        result = result + beta * y.astype(np.float64)
    return result
