"""What a window does with its elements: max, average, lp norm, and their gradients.

A kind is "max", "avg", "lp_1", "lp_2", or "lp" for another p, of which the functions take `power(base, exponent)`.
"""

from __future__ import annotations

from collections.abc import Callable

from numbaprims.formulas.value import V, mad, magnitude, select

Power = Callable[[V, V], V]


def is_nan(x: V) -> V:
    """Where it is NaN."""
    return x.new(x.builder.fcmp_unordered("uno", x.value, x.value))


def quotient(a: V, b: V) -> V:
    """a / b"""
    return a.new(a.builder.fdiv(a.value, b.value))


def larger(best: V, x: V) -> V:
    """The larger of the two; NaN where either is NaN."""
    return best.greatest(x) if x.is_float else select(best < x, x, best)


def comes_first(best: V, place: V, x: V, at: V, in_order: bool) -> V:
    """Where x at a place is the maximum rather than `best`: larger, or as large at a smaller place; NaN is largest.

    `in_order`: no place is smaller than those before it.
    """
    if not x.is_float:
        return x > best if in_order else (x > best) | ((x >= best) & (at < place))
    above = x.new(x.builder.fcmp_unordered(">", x.value, best.value)) & best.equals(best)
    if in_order:
        return above
    return above | (((x >= best) | is_nan(x)) & (at < place))


def first(kind: str, x: V, p: V, power: Power[V]) -> V:
    """A window of one element."""
    if kind in ("max", "avg"):
        return x
    if kind == "lp_2":
        return x * x
    return magnitude(x) if kind == "lp_1" else power(magnitude(x), p)


def step(kind: str, total: V, x: V, p: V, power: Power[V]) -> V:
    """One more element."""
    return mad(x, x, total) if kind == "lp_2" else join(kind, total, first(kind, x, p, power))


def join(kind: str, a: V, b: V) -> V:
    """What two parts of a window give together."""
    return larger(a, b) if kind == "max" else a + b


def finish(kind: str, total: V, share: V, p: V, power: Power[V]) -> V:
    """The result of a window, of which each element is a share, but for the square root of "lp_2"."""
    if kind == "avg":
        return total * share
    return power(total, quotient(p.like(1.0), p)) if kind == "lp" else total


def gradient_term(kind: str, dy: V, y: V, p: V, power: Power[V]) -> V:
    """What one window of an lp norm gives to each of its elements, but for the element's own factor; 0 where y is."""
    if kind not in ("lp_2", "lp"):
        return dy
    by = quotient(dy, y) if kind == "lp_2" else dy * power(y, 1.0 - p)
    return select(y.equals(0.0), 0.0, by)


def gradient_end(kind: str, total: V, x: V, p: V, power: Power[V]) -> V:
    """dx of an lp norm from the sum over the windows around x: total |x|**(p - 1) sign(x)."""
    if kind in ("max", "avg"):
        return total
    if kind == "lp_2":
        return total * x
    sign = select(x > 0.0, 1.0, select(x < 0.0, x.like(-1.0), x))
    return total * sign if kind == "lp_1" else (total * power(magnitude(x), p - 1.0)) * sign
