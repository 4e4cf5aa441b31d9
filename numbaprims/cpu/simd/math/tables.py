"""Functions by a polynomial around each of 16 nodes, whose coefficients are looked up in registers (AVX-512)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.math.lookup import SIZE, lookup
from numbaprims.formulas.value import SHIFTER, bits, mad

Rows = tuple[tuple[float, ...], ...]


def _fit(f: Callable[[float], float], node: float, below: float, above: float, degree: int) -> np.ndarray:
    """Coefficients in d of f(node + d) for -below <= d <= above, interpolated at Chebyshev's points.

    For functions as smooth as these the largest error is within 2 % of the minimax polynomial's.
    """
    angles = np.pi * (2 * np.arange(degree + 1) + 1) / (2 * (degree + 1))
    points = (above - below) / 2 + (above + below) / 2 * np.cos(angles)
    values = [f(node + point) for point in points]
    return np.linalg.solve(np.vander(points, increasing=True), values)


@functools.cache
def log1p_ratio() -> tuple[float, Rows]:
    """(step, rows) of log(1 + u) / u on [0, 1]: 2**-25.2."""
    step = float(np.float32(1 / 15))
    half = step / 2
    rows = [_fit(lambda u: math.log1p(u) / u if u else 1.0, j * step, half if j else 0.0, half, 3) for j in range(SIZE)]
    return step, tuple(tuple(row.tolist()) for row in rows)


def piecewise(x: Value, step: float, rows: Rows) -> Value:
    """The tabled function of 0 <= x <= 15 steps."""
    shifted = mad(x, 1.0 / step, SHIFTER[32])
    i = bits(shifted)
    d = mad(shifted - SHIFTER[32], -step, x)
    columns = list(zip(*rows, strict=True))
    value = lookup(columns[-1], i)
    for column in columns[-2::-1]:
        value = mad(value, d, lookup(column, i))
    return value
