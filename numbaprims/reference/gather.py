"""Pads, and elements by indices, by their definitions in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def _place(i: int, n: int, mode: str) -> int:
    """The element of n that stands at place i, -1 for the constant; a mirror at a time."""
    if mode == "edge":
        return min(max(i, 0), n - 1)
    while mode != "constant" and not 0 <= i < n:
        if mode == "wrap":
            i += n if i < 0 else -n
        elif n == 1:
            i = 0
        else:
            i = -i if i < 0 else 2 * (n - 1) - i
    return i if 0 <= i < n else -1


def maps(shape: Sequence[int], pads: Sequence[tuple[int, int]], mode: str) -> list[list[int]]:
    """Of each axis the elements that the padded one has, -1 for the constant; pads below 0 crop first."""
    found = []
    for size, (low, high) in zip(shape, pads, strict=True):
        first, end = min(size, max(0, -low)), size - max(0, -high)
        kept = max(0, end - first)
        at = [_place(i, kept, mode) for i in range(-max(0, low), kept + max(0, high))]
        found.append([each if each < 0 else each + first for each in at])
    return found


def pad(x: Array, pads: Sequence[tuple[int, int]], mode: str, value: float) -> Array:
    """y"""
    for axis, at in enumerate(maps(x.shape, pads, mode)):
        y = np.full((*x.shape[:axis], len(at), *x.shape[axis + 1 :]), value, x.dtype)
        y[(slice(None),) * axis + (np.array(at, int) >= 0,)] = np.take(x, [each for each in at if each >= 0], axis)
        x = y
    return x


def pad_backward(dy: Array, shape: Sequence[int], pads: Sequence[tuple[int, int]], mode: str) -> Array:
    """dx"""
    for axis, at in enumerate(maps(shape, pads, mode)):
        dx = np.zeros((*dy.shape[:axis], shape[axis], *dy.shape[axis + 1 :]))
        moved, source = np.moveaxis(dx, axis, 0), np.moveaxis(dy, axis, 0)
        for i, place in enumerate(at):
            if place >= 0:
                moved[place] += source[i]
        dy = dx
    return dy


def gather(x: Array, indices: Array, axis: int) -> tuple[Array, Array]:
    """(y, the place of the first index that is out of range or -1)"""
    size = x.shape[axis]
    bad = np.flatnonzero((indices.ravel() < -size) | (indices.ravel() >= size))
    if len(bad):
        return np.zeros((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])), np.full(65, bad[0], float)
    return np.take(x, indices, axis) if indices.size else np.zeros(0), np.full(65, -1.0)


def scatter(dy: Array, indices: Array, size: int, axis: int, skip: int, mean: bool) -> tuple[Array, Array]:
    """(dx, as of `gather`)"""
    behind = dy.shape[axis + indices.ndim :]
    dx = np.zeros((size, *dy.shape[:axis], *behind))
    flat = indices.ravel()
    bad = np.flatnonzero((flat < -size) | (flat >= size))
    rows = np.moveaxis(dy.reshape((*dy.shape[:axis], flat.size, *behind)), axis, 0)
    if not len(bad):
        flat = flat % size if size else flat
        for j, k in enumerate(flat):
            if k != skip:
                dx[k] += rows[j] / (np.count_nonzero(flat == k) if mean else 1)
    return np.moveaxis(dx, 0, axis), np.full(65, bad[0], float) if len(bad) else np.full(65, -1.0)


def one_hot(indices: Array, depth: int, axis: int, on: float, off: float) -> Array:
    """y"""
    places = np.where(indices < 0, indices + depth, indices)
    return np.where(
        np.expand_dims(places, axis)
        == np.expand_dims(np.arange(depth), tuple(d for d in range(indices.ndim + 1) if d != axis)),
        float(on),
        float(off),
    )
