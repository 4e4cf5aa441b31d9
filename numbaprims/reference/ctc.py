"""Connectionist temporal classification by definition: Graves et al. 2006, equations 6 to 16.

In logarithms, and those in long double where the machine has one: an error of a logarithm is a relative one of what it
is of, and in float64 that of a gradient would be some 100 units in the last place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


def _states(labels: np.ndarray, blank: int) -> tuple[np.ndarray, np.ndarray]:
    """Blanks around and between the labels, and which state the one two before it may go on to."""
    states = np.full(2 * len(labels) + 1, blank)
    states[1::2] = labels
    skips = np.zeros(len(states), bool)
    skips[3::2] = labels[1:] != labels[:-1]
    return states, skips


def _behind(row: np.ndarray, by: int) -> np.ndarray:
    """Each state's value `by` states before it; -inf in front of the first."""
    return np.concatenate([np.full(by, -np.inf), row])[: len(row)]


def alphas(log_probs: np.ndarray, labels: np.ndarray, blank: int) -> np.ndarray:
    """(T + 1, 2 S + 1) logarithms: what prefixes that end in each state have in common; of no step the start alone."""
    states, skips = _states(labels, blank)
    rows = [np.where(np.arange(len(states)) == 0, 0.0, -np.inf).astype(np.longdouble)]
    for y in log_probs:
        a = rows[-1]
        a = np.logaddexp(np.logaddexp(a, _behind(a, 1)), np.where(skips, _behind(a, 2), -np.inf))
        rows.append(a + y[states])
    return np.stack(rows)


def loss(log_probs: np.ndarray, labels: np.ndarray, blank: int) -> np.longdouble:
    """-log of the probability of all paths (T,) that are `labels` without repetitions and blanks."""
    return -np.logaddexp.reduce(alphas(log_probs, labels, blank)[-1][-2:])


def posteriors(log_probs: np.ndarray, labels: np.ndarray, blank: int) -> np.ndarray:
    """(T, C): how probable each class is at each step of such a path; zeros where there is none."""
    found = np.zeros(log_probs.shape, np.longdouble)
    p = -loss(log_probs, labels, blank)
    if p == -np.inf:
        return found
    states, skips = _states(labels, blank)
    a = alphas(log_probs, labels, blank)
    b = np.where(np.arange(len(states)) >= len(states) - 2, 0.0, -np.inf).astype(np.longdouble)
    skips = np.concatenate([skips, [False, False]])[2:]
    for t in range(len(log_probs) - 1, -1, -1):
        np.add.at(found[t], states, np.exp(a[t + 1] + b - p))
        w = (b + log_probs[t][states])[::-1]
        b = np.logaddexp(np.logaddexp(w, _behind(w, 1))[::-1], np.where(skips, _behind(w, 2)[::-1], -np.inf))
    return found


def greedy(log_probs: np.ndarray, blank: int) -> tuple[list[int], float]:
    """The most probable path without repetitions and blanks, and the path's logarithm."""
    path = np.where(np.isnan(log_probs), -np.inf, log_probs).argmax(1)
    kept = np.flatnonzero((path != blank) & (np.concatenate([[-1], path[:-1]]) != path))
    return path[kept].tolist(), float(log_probs.max(1).sum()) if len(path) else 0.0


def beams(log_probs: np.ndarray, blank: int, width: int) -> list[tuple[tuple[int, ...], float]]:
    """The `width` most probable prefixes kept at each step, the best first, and their logarithms."""
    kept: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -np.inf)}
    for y in log_probs:
        found: dict[tuple[int, ...], list[float]] = {}
        for prefix, (ends_blank, ends_label) in kept.items():
            total = np.logaddexp(ends_blank, ends_label)
            here = found.setdefault(prefix, [-np.inf, -np.inf])
            here[0] = np.logaddexp(here[0], total + y[blank])
            if prefix:
                here[1] = np.logaddexp(here[1], ends_label + y[prefix[-1]])
            for label in range(len(y)):
                if label != blank:
                    more = found.setdefault((*prefix, label), [-np.inf, -np.inf])
                    before = ends_blank if prefix and prefix[-1] == label else total
                    more[1] = np.logaddexp(more[1], before + y[label])
        best = sorted(found.items(), key=lambda item: -np.logaddexp(item[1][0], item[1][1]))[:width]
        kept = {prefix: (a, b) for prefix, (a, b) in best if max(a, b) > -np.inf}
    return [(prefix, float(np.logaddexp(a, b))) for prefix, (a, b) in kept.items()]


def each(
    log_probs: np.ndarray, lengths: Sequence[int], labels: Sequence[np.ndarray]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of each sequence of a batch (T, N, C) its steps and its labels."""
    for n, (length, target) in enumerate(zip(lengths, labels, strict=True)):
        yield log_probs[:length, n], target
