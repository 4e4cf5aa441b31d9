"""Resizing by its definition, in float64 over (N, C, ...), an axis after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Taps = list[list[tuple[int, float]]]


def kernel(x: float, mode: str, a: float) -> float:
    """The weight of a pixel at a distance x: a triangle, or Keys' cubic convolution."""
    x = abs(x)
    if mode == "linear":
        return max(0.0, 1 - x)
    if x < 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def taps(n: int, m: int, step: Fraction, mode: str, align_corners: bool, antialias: bool, a: float) -> Taps:
    """(pixel, weight) of what each of m results mixes of n pixels."""
    found: Taps = []
    for o in range(m):
        if mode == "nearest":
            found.append([(min(math.floor(o * step), n - 1), 1.0)])
        elif mode == "nearest_exact":
            found.append([(min(math.floor((o + Fraction(1, 2)) * step), n - 1), 1.0)])
        elif antialias:
            wide = max(float(step), 1.0)
            center, support = float(step) * (o + 0.5), wide * (1 if mode == "linear" else 2)
            pixels = [*range(max(int(center - support + 0.5), 0), min(int(center + support + 0.5), n))]
            weights = [kernel((j - center + 0.5) / wide, mode, a) for j in pixels]
            found.append([(j, weight / sum(weights)) for j, weight in zip(pixels, weights, strict=True)])
        else:
            place = o * step if align_corners else (o + Fraction(1, 2)) * step - Fraction(1, 2)
            if mode == "linear":
                place = max(place, Fraction(0))
            first = math.floor(place)
            reach = (0, 1) if mode == "linear" else (-1, 0, 1, 2)
            pixels = [first + k for k in reach]
            found.append([(min(max(j, 0), n - 1), kernel(float(place - j), mode, a)) for j in pixels])
    return found


def forward(x: Array, tables: Sequence[Taps]) -> Array:
    """y, over the last axes of x."""
    for axis, table in enumerate(tables, x.ndim - len(tables)):
        given = np.moveaxis(x, axis, 0)
        y = np.zeros((len(table), *given.shape[1:]))
        for o, row in enumerate(table):
            for j, weight in row:
                y[o] += weight * given[j]
        x = np.moveaxis(y, 0, axis)
    return x


def backward(dy: Array, tables: Sequence[Taps], sizes: Sequence[int]) -> Array:
    """dx: each result's gradient goes back to what it has read."""
    for axis, (table, n) in enumerate(zip(tables, sizes, strict=True), dy.ndim - len(tables)):
        given = np.moveaxis(dy, axis, 0)
        dx = np.zeros((n, *given.shape[1:]))
        for o, row in enumerate(table):
            for j, weight in row:
                dx[j] += weight * given[o]
        dy = np.moveaxis(dx, 0, axis)
    return dy
