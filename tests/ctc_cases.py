"""Batches for CTC drawn for tests."""

import numpy as np


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def draw(rng, steps, batch, classes, labels, blank=0, dtype=np.float64, *, repeats=False):
    """Log-probabilities, padded targets, their lengths; the first of a batch has all steps and labels."""
    x = log_softmax(2.0 * rng.standard_normal((steps, batch, classes))).astype(dtype)
    others = np.array([c for c in range(classes) if c != blank])
    targets = rng.choice(others, (batch, labels)) if labels else np.zeros((batch, 0), int)
    if repeats:
        targets[:, 1::2] = targets[:, : labels - labels % 2 : 2]
    inputs = rng.integers(steps // 2, steps + 1, batch)
    inputs[0] = steps
    counts = rng.integers(0, labels + 1, batch)
    counts[0] = labels
    return x, targets, inputs, counts
