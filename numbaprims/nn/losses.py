"""Losses with their gradients."""

from __future__ import annotations

from collections.abc import Callable

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


def check_rows(x: np.ndarray, labels: np.ndarray) -> None:
    """ValueError for samples that have not a label each, and for none."""
    if labels.shape != x.shape[:1] or not len(x):
        raise ValueError(f"x is {x.shape} and labels {labels.shape}; they must be as many, one or more")


def check_labels(labels: np.ndarray, classes: int) -> None:
    """TypeError or ValueError for labels that are not integers from 0 to the last class."""
    if labels.dtype.kind not in "iu":
        raise TypeError(f"labels are {labels.dtype}; they must be integers")
    # The reductions of the ufuncs: the methods max, min, sum and mean take 1 to 4 us more, and there are five.
    least, most = np.minimum.reduce(labels), np.maximum.reduce(labels)
    if least < 0 or most >= classes:
        raise ValueError(f"labels go from {least} to {most}; they must be 0 to {classes - 1}")


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
