"""Mini-batch training of several models side by side, and what is measured of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from numbaprims.nn.losses import check_rows


class Model(Protocol):
    """What can be trained: `MLP`, `NumpyMLP`."""

    def train_step(self, x: np.ndarray, labels: np.ndarray, rate: float) -> float:
        """Take one step; give the loss before it."""

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Give the most likely class of each row."""


class History(NamedTuple):
    """Of one model: the mean loss and the seconds of each epoch."""

    losses: list[float]
    seconds: list[float]

    @property
    def seconds_per_epoch(self) -> float:
        """The median, which the first epoch with its compilation does not move."""
        return float(np.median(self.seconds))


def train(
    models: Sequence[Model],
    x: np.ndarray,
    labels: np.ndarray,
    *,
    epochs: int,
    batch: int,
    rate: float,
    seed: int = 0,
    progress: Any = None,
) -> list[History]:
    """Train models on the same batches in the same order, taking turns epoch by epoch.

    Args:
        models: what is trained.
        x: (count, pixels) samples.
        labels: (count,) integers.
        epochs: passes over all samples, each in a new random order; the last batch may be smaller.
        batch: samples of a step.
        rate: the learning rate.
        seed: of the orders.
        progress: a bar with update(n) and set_postfix_str(text) (tqdm), counting samples; None for none.

    Returns:
        One `History` for each model.

    Raises:
        ValueError: epochs or batch below 1, not a label for each sample, or no samples.
    """
    if epochs < 1 or batch < 1:
        raise ValueError(f"epochs is {epochs} and batch {batch}; both must be 1 or more")
    check_rows(x, labels)
    rng = np.random.default_rng(seed)
    histories = [History([], []) for _ in models]
    if progress is not None:
        progress.set_postfix_str("the first steps compile what is not in the cache")
    for epoch in range(epochs):
        order = rng.permutation(len(x))
        for model, history in zip(models, histories, strict=True):
            total, started = 0.0, time.perf_counter()
            for first in range(0, len(x), batch):
                chosen = order[first : first + batch]
                total += model.train_step(x[chosen], labels[chosen], rate) * len(chosen)
                if progress is not None:
                    progress.update(len(chosen))
            history.seconds.append(time.perf_counter() - started)
            history.losses.append(total / len(x))
        if progress is not None:
            progress.set_postfix_str(f"epoch {epoch + 1}, loss {histories[0].losses[-1]:.4f}")
    return histories


def accuracy(model: Model, x: np.ndarray, labels: np.ndarray) -> float:
    """Give the fraction of rows of x that a model gives their label."""
    return float((model.predict(x) == labels).mean())


def split(count: int, held_out: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split 0..count-1 at random into the indices to train on and the fraction `held_out` to test on."""
    order = np.random.default_rng(seed).permutation(count)
    tested = round(count * held_out)
    return order[tested:], order[:tested]
