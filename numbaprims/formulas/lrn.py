"""What local response normalisation does with the sum of squares of a window, on every device."""

from __future__ import annotations

from collections.abc import Callable

from numbaprims.formulas.value import V, mad

Function = Callable[[V], V]


def factor(total: V, a: V, beta: V, k: V, exp: Function[V], log: Function[V]) -> tuple[V, V]:
    """(s, s**-beta) with s = k + a total."""
    s = mad(a, total, k)
    return s, exp(0.0 - beta * log(s))
