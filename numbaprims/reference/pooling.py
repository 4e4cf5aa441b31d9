"""Pooling and its gradients by definition, in float64 over (n, c, spatial...)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np


def windows(p: Any, d: int) -> list[tuple[np.ndarray, int]]:
    """(elements, how many an average counts) of each window along dimension `d` of a PoolingProblem."""
    size, found = p.size[d], []
    for o in range(p.out[d]):
        if p.adaptive:
            taps = np.arange(o * size // p.out[d], -(-(o + 1) * size // p.out[d]))
            found.append((taps, len(taps)))
            continue
        taps = o * p.stride[d] - p.before[d] + np.arange(p.kernel[d]) * p.dilation[d]
        inside = taps[(taps >= 0) & (taps < size)]
        found.append((inside, int(np.sum(taps < size + p.after[d])) if p.count_include_pad else len(inside)))
    return found


def _walk(p: Any) -> Iterator[tuple[Any, Any, int]]:
    """(output, its window as indices of the spatial dimensions, count) of each output."""
    for parts in itertools.product(*(enumerate(windows(p, d)) for d in range(len(p.size)))):
        output = tuple(o for o, _ in parts)
        window = np.ix_(*(taps for _, (taps, _) in parts))
        yield (..., *output), (..., *window), int(np.prod([count for _, (_, count) in parts]))


def _flat(seen: np.ndarray) -> np.ndarray:
    return seen.reshape(*seen.shape[:2], int(np.prod(seen.shape[2:])))


def _places(p: Any, x: np.ndarray, window: Any) -> np.ndarray:
    """The place in its plane of each window's maximum: the first NaN, else the first that is largest."""
    flat = np.ravel_multi_index(np.broadcast_arrays(*window[1:]), p.size).reshape(-1)
    return flat[np.argmax(_flat(x[window]), axis=-1)]


def forward(p: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(y, places of the maxima)."""
    y = np.zeros((*x.shape[:2], *p.out))
    places = np.zeros(y.shape, np.int64)
    for output, window, count in _walk(p):
        seen = _flat(x[window])
        if p.op == "max":
            y[output], places[output] = seen.max(axis=-1), _places(p, x, window)
        elif p.op == "avg":
            y[output] = seen.sum(axis=-1) / count
        else:
            y[output] = (np.abs(seen) ** p.p).sum(axis=-1) ** (1 / p.p)
    return y, places


def backward(p: Any, dy: np.ndarray, x: Any = None, y: Any = None, indices: Any = None) -> np.ndarray:
    """dx; of a maximum from `indices`, or from x."""
    dx = np.zeros((*dy.shape[:2], *p.size))
    planes = _flat(dx)
    for output, window, count in _walk(p):
        if p.op == "max":
            places = _places(p, x, window) if indices is None else indices[output]
            there = (places >= 0) & (places < planes.shape[-1])  # a place that is none in the plane is left out
            np.add.at(planes, (*np.nonzero(there), places[there]), dy[output][there])
            continue
        ones: Any = (..., *[None] * len(p.size))
        if p.op == "avg":
            dx[window] += (dy[output] / count)[ones]
        else:
            with np.errstate(divide="ignore", invalid="ignore"):
                by = np.where(y[output] == 0, 0.0, dy[output] * y[output] ** (1 - p.p))
            dx[window] += by[ones] * np.abs(x[window]) ** (p.p - 1) * np.sign(x[window])
    return dx
