"""Softmax, its logarithm, and the losses on them by definition, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np


def _shifted(x: np.ndarray, axis: int) -> np.ndarray:
    return x - x.max(axis, keepdims=True, initial=-np.inf)


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """e**x / sum e**x."""
    e = np.exp(_shifted(x, axis))
    return e / e.sum(axis, keepdims=True)


def log_softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """x - log sum e**x."""
    d = _shifted(x, axis)
    return d - np.log(np.exp(d).sum(axis, keepdims=True))


def hardmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """1 at the first maximum."""
    y = np.zeros_like(x)
    if x.size:
        np.put_along_axis(y, x.argmax(axis, keepdims=True), 1.0, axis)
    return y


def softmax_backward(dy: np.ndarray, y: np.ndarray, axis: int = -1) -> np.ndarray:
    """y (dy - sum dy y)."""
    return y * (dy - (dy * y).sum(axis, keepdims=True))


def log_softmax_backward(dy: np.ndarray, y: np.ndarray, axis: int = -1) -> np.ndarray:
    """dy - e**y sum dy."""
    return dy - np.exp(y) * dy.sum(axis, keepdims=True)


def targets(
    x: np.ndarray, target: np.ndarray, weight: np.ndarray | None, ignore_index: int, smoothing: float
) -> tuple[np.ndarray, np.ndarray]:
    """(what -log p is multiplied by, class by class; the weight that each row counts in a mean).

    `target` has integers without the axis of the classes, 1, or the shape of x: probabilities.
    """
    classes = x.shape[1]
    w = np.ones(classes) if weight is None else weight
    along = w.reshape(-1, *(1,) * (x.ndim - 2))
    if target.ndim == x.ndim:
        return ((1 - smoothing) * target + smoothing / classes) * along, np.ones((x.shape[0], *x.shape[2:]))
    counts = target != ignore_index
    safe = np.where(counts, target, 0).astype(int)
    hot = np.moveaxis(np.eye(classes)[safe], -1, 1) * along
    factors = (1 - smoothing) * hot + smoothing / classes * along
    return factors * np.expand_dims(counts, 1), np.where(counts, w[safe], 0.0)


def rows_of(logs: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Losses of rows; what counts nothing may be -inf."""
    return -(factors * np.where(factors == 0, 0.0, logs)).sum(1)


def reduce(rows: np.ndarray, counted: np.ndarray, reduction: str) -> np.ndarray:
    """Losses of the rows as "none", "sum" or "mean" has them."""
    if reduction == "none":
        return rows
    total: Any = rows.sum()
    with np.errstate(all="ignore"):
        return np.asarray(total if reduction == "sum" else total / counted.sum())


def nll_loss(
    x: np.ndarray, target: np.ndarray, *, weight: np.ndarray | None = None, ignore_index: int = -100,
    label_smoothing: float = 0.0, reduction: str = "mean",
) -> np.ndarray:  # fmt: skip
    """-weight[target] x[target] of log-probabilities x, classes along axis 1."""
    factors, counted = targets(x, target, weight, ignore_index, label_smoothing)
    return reduce(rows_of(x, factors), counted, reduction)


def softmax_cross_entropy(x: np.ndarray, target: np.ndarray, **words: Any) -> np.ndarray:
    """`nll_loss` of `log_softmax`."""
    return nll_loss(log_softmax(x, 1), target, **words)


def row_factors(dy: np.ndarray, counted: np.ndarray, reduction: str) -> np.ndarray:
    """The gradient of each row's loss from that of the reduced one."""
    with np.errstate(all="ignore"):
        return dy / counted.sum() * np.ones(counted.shape) if reduction == "mean" else dy * np.ones(counted.shape)


def nll_loss_backward(
    dy: np.ndarray, x: np.ndarray, target: np.ndarray, *, weight: np.ndarray | None = None, ignore_index: int = -100,
    label_smoothing: float = 0.0, reduction: str = "mean",
) -> np.ndarray:  # fmt: skip
    """dx of `nll_loss`."""
    factors, counted = targets(x, target, weight, ignore_index, label_smoothing)
    return np.where(factors == 0, 0.0, -factors * np.expand_dims(row_factors(dy, counted, reduction), 1))


def softmax_cross_entropy_backward(dy: np.ndarray, x: np.ndarray, target: np.ndarray, **words: Any) -> np.ndarray:
    """dx of `softmax_cross_entropy`."""
    return log_softmax_backward(nll_loss_backward(dy, x, target, **words), log_softmax(x, 1), 1)
