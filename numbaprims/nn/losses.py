"""Losses with their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import numbaprims


def softmax_cross_entropy(
    logits: np.ndarray, labels: np.ndarray, *, out: np.ndarray | None = None
) -> tuple[float, np.ndarray]:
    """Compute the mean cross-entropy of softmax(logits) against labels, and its gradient.

    loss = mean over rows of log(sum_j exp(z_j)) - z_label, dlogits = (softmax(z) - onehot(label)) / rows,
    with each row's largest logit subtracted first so that nothing overflows.

    Args:
        logits: (rows, classes) floating-point.
        labels: (rows,) integers, 0 <= label < classes.
        out: (rows, classes), where the gradient goes.

    Returns:
        The loss, and the gradient with respect to the logits (rows, classes).

    Raises:
        TypeError: labels that are no integers.
        ValueError: shapes that do not fit, or a label out of range.

    Example:
        >>> import numpy as np
        >>> loss, gradient = softmax_cross_entropy(np.zeros((1, 4), np.float32), np.array([2]))
        >>> round(loss, 4), gradient.tolist()
        (1.3863, [[0.25, 0.25, -0.75, 0.25]])
    """
    return softmax_cross_entropy_by(numbaprims.exp, numbaprims.log, logits, labels, out)


def _shape(x: Any, name: str) -> tuple[int, ...]:
    """The shape of an array; TypeError for what is none."""
    try:
        shape: tuple[int, ...] = x.shape
    except AttributeError:
        raise TypeError(f"{name} must be an array, not a {type(x).__name__}") from None
    return shape


def check_rows(x: Any, labels: Any) -> None:
    """TypeError for what is no array, ValueError for samples that have not a label each, and for none."""
    given = _shape(x, "x"), _shape(labels, "labels")
    if given[1] != given[0][:1] or not len(x):
        raise ValueError(f"x is {given[0]} and labels {given[1]}; they must be as many, one or more")


def check_samples(x: Any, size: int) -> None:
    """TypeError for what is no array, ValueError for one that is not rows of so many numbers."""
    shape = _shape(x, "x")
    if len(shape) < 2 or math.prod(shape[1:]) != size:
        raise ValueError(f"x is {shape}; it must be (rows, {size})")


def check_labels(labels: Any, classes: int, name: str = "labels") -> None:
    """TypeError or ValueError for labels that are not integers from 0 to the last class, and for none."""
    if 0 in _shape(labels, name):
        raise ValueError(f"{name} are {labels.shape}; they must be one or more")
    if labels.dtype.kind not in "iu":
        raise TypeError(f"{name} are {labels.dtype}; they must be integers")
    # The reductions of the ufuncs: the methods max, min, sum and mean take 1 to 4 us more, and there are five.
    least, most = np.minimum.reduce(labels, axis=None), np.maximum.reduce(labels, axis=None)
    if least < 0 or most >= classes:
        raise ValueError(f"{name} go from {least} to {most}; they must be 0 to {classes - 1}")


def softmax_cross_entropy_by(
    exp: Callable[..., np.ndarray],
    log: Callable[..., np.ndarray],
    logits: np.ndarray,
    labels: np.ndarray,
    out: np.ndarray | None = None,
) -> tuple[float, np.ndarray]:
    """Compute `softmax_cross_entropy` with a given exp and log, so that a run on NumPy differs in them only."""
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or not logits.size:
        raise ValueError(
            f"logits are {logits.shape} and labels {labels.shape}; they must be (rows, classes) and (rows,), "
            "with one row or more"
        )
    rows, classes = logits.shape
    check_labels(labels, classes)
    shifted = logits - np.maximum.reduce(logits, axis=1, keepdims=True)
    each = np.arange(rows), labels
    chosen = shifted[each]
    gradient = exp(shifted, out=out)
    total = np.add.reduce(gradient, axis=1, keepdims=True)
    loss = float(np.add.reduce(log(total[:, 0]) - chosen)) / rows
    gradient /= total
    gradient[each] -= 1
    gradient /= rows
    return loss, gradient
