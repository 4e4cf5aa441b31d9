"""gemm and linear by definition. Floating-point inputs are computed in float64, integers exactly."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims.reference.activation import activation as apply_activation


def gemm(
    a: np.ndarray,
    b: np.ndarray,
    *,
    c: np.ndarray | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    trans_a: bool = False,
    trans_b: bool = False,
    bias: np.ndarray | None = None,
    activation: Any = None,
) -> np.ndarray:
    """activation(alpha * op(a) @ op(b) + beta * c + bias), op(m) being m or its last two dimensions swapped.

    a (..., M, K), b (..., K, N), c broadcastable to (..., M, N), bias (N,); leading dimensions broadcast.
    With beta = 0, c is not read (BLAS). Integers give int32 that wraps around, unless alpha, beta, a bias or
    an activation makes the result real. `activation` is a kind, or a pair of a kind and its parameters.
    """
    integers = a.dtype.kind in "iu" and b.dtype.kind in "iu"
    exact = np.int64 if integers else np.float64
    a, b = a.astype(exact), b.astype(exact)
    if trans_a:
        a = a.swapaxes(-1, -2)
    if trans_b:
        b = b.swapaxes(-1, -2)
    y = np.matmul(a, b)
    if integers and alpha == 1.0 and (c is None or beta == 0.0) and bias is None and activation is None:
        return y.astype(np.int32)
    y = alpha * y.astype(np.float64)
    if c is not None and beta != 0.0:
        y = y + beta * c.astype(np.float64)
    if bias is not None:
        y = y + bias.astype(np.float64)
    if activation is not None:
        kind, parameters = (activation, {}) if isinstance(activation, str) else activation
        y = apply_activation(y, kind, **parameters)
    return y


def linear(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None, *, activation: Any = None
) -> np.ndarray:
    """activation(x @ weight^T + bias): x (..., K), weight (N, K), bias (N,), the result (..., N)."""
    rows = x.reshape(-1, x.shape[-1]) if x.ndim != 2 else x
    y = gemm(rows, weight, trans_b=True, bias=bias, activation=activation)
    return y.reshape(*x.shape[:-1], weight.shape[0])
