"""What one element does to a window's result, and one window's result to an element's gradient: for packs of channels.

Of equal elements the first is the largest, and the first NaN is larger than any number.
"""

from __future__ import annotations

from typing import Any

from numbaprims.formulas.value import mad, magnitude, negative, select
from numbaprims.gpu.device.emit import I64, types
from numbaprims.gpu.device.math import divide_value, power_value, sqrt_value
from numbaprims.gpu.device.packs import packwise
from numbaprims.gpu.device.value import Value


def _beats(best: Value, x: Value) -> Value:
    """Where x takes the place of the largest so far."""
    b = x.builder
    if not x.is_float:
        return x > best
    return x.new(b.and_(b.fcmp_unordered(">", x.value, best.value), b.fcmp_ordered("ord", best.value, best.value)))


@packwise()
def larger(best: Value, x: Value) -> Value:
    """The larger of the two: comparisons and a select, since inline PTX would keep loads from being moved before it."""
    return select(_beats(best, x), x, best)


@packwise()
def place_of_larger(where: Value, best: Value, x: Value, place: Value) -> Value:
    """Where the larger of the two lies; a place below 0 is none."""
    b = x.builder
    return select(x.new(b.or_(_beats(best, x).value, (where < 0).value)), place, where)


@packwise()
def place_of_first(where: Value, best: Value, other: Value, there: Value) -> Value:
    """Where the larger of two windows' largest lies, of equal ones the first."""
    b = best.builder
    same = best.equals(other)
    if best.is_float:
        nans = b.and_(
            b.fcmp_unordered("uno", best.value, best.value), b.fcmp_unordered("uno", other.value, other.value)
        )
        same = best.new(b.or_(same.value, nans))
    wins = b.or_(_beats(best, other).value, b.and_(same.value, (there < where).value))
    return select(best.new(b.and_((there >= 0).value, b.or_((where < 0).value, wins))), there, where)


@packwise()
def kept(x: Value, inside: Value) -> Value:
    """x, or 0 for what is outside."""
    return select(inside, x, 0.0 if x.is_float else 0)


def _as_wide(x: Value, total: Value) -> Value:
    same = x.value.type == total.value.type
    return x if same else x.new(x.builder.sext(x.value, total.value.type))


@packwise()
def plus(total: Value, x: Value) -> Value:
    """total + x; int32 is added to int64 as such."""
    return total + _as_wide(x, total)


@packwise()
def plus_magnitude(total: Value, x: Value) -> Value:
    """total + |x|."""
    return total + magnitude(x)


@packwise()
def plus_square(total: Value, x: Value) -> Value:
    """total + x**2."""
    return mad(x, x, total)


@packwise()
def plus_power(total: Value, x: Value, p: Value) -> Value:
    """total + |x|**p."""
    return total + power_value(magnitude(x), p)


@packwise()
def root(total: Value) -> Value:
    """The square root."""
    return sqrt_value(total)


@packwise()
def power(total: Value, p: Value) -> Value:
    """total**p."""
    return power_value(total, p)


@packwise()
def quotients(total: Value, count: Value) -> Value:
    """total / count."""
    return divide_value(total, count)


def _rounded(total: Value, count: Value) -> Value:
    b, kind = total.builder, total.value.type
    q = total.new(b.sdiv(total.value, count.value))
    rest = total - q * count
    below = rest < 0
    twice = select(below, rest.like(0) - rest, rest) << 1
    odd = (q & 1).equals(1)
    up = b.or_((twice > count).value, b.and_(twice.equals(count).value, odd.value))
    whole = q + select(total.new(up), select(below, q.like(-1), q.like(1)), 0)
    return whole if kind.width == 32 else total.new(b.trunc(whole.value, whole.value.type.__class__(32)))


@packwise(types.int32)
def rounded_mean(total: Value, count: Value) -> Value:
    """total / count of integers, rounded to the nearest, halves to even."""
    return _rounded(total, count)


@packwise(types.int64)
def places(where: Value) -> Value:
    """As they are stored."""
    same = where.value.type == I64
    return where if same else where.new(where.builder.sext(where.value, I64))


# ---------------------------------------------------------------- gradients


@packwise()
def gradient_of_place(total: Value, dy: Value, where: Value, place: Value) -> Value:
    """total + dy where this element was the window's largest."""
    return total + select(where.equals(_as_wide(place, where)), dy, 0.0)


@packwise()
def gradient_of_mean(total: Value, dy: Value, count: Value) -> Value:
    """total + dy / count."""
    return total + divide_value(dy, count)


def _slope(dy: Value, x: Value, y: Value, power_of_ratio: Any) -> Value:
    """dy sign(x) (|x| / y)**(p - 1), and 0 where y is: there all of the window is."""
    ratio = divide_value(magnitude(x), y)
    slope = select(x < 0.0, negative(dy), dy) * power_of_ratio(ratio)
    return select(y.equals(0.0), dy.like(0.0), slope)


@packwise()
def gradient_of_magnitude(total: Value, dy: Value, x: Value) -> Value:
    """total + the slope of lp with p = 1."""
    return total + select(x.equals(0.0), dy.like(0.0), select(x < 0.0, negative(dy), dy))


@packwise()
def gradient_of_root(total: Value, dy: Value, x: Value, y: Value) -> Value:
    """total + the slope of lp with p = 2."""
    return total + _slope(dy, x, y, lambda ratio: ratio)


@packwise()
def gradient_of_power(total: Value, dy: Value, x: Value, y: Value, p: Value) -> Value:
    """total + the slope of lp."""
    return total + _slope(dy, x, y, lambda ratio: power_value(ratio, p - 1.0))
