"""Vector functions that the simd layer has for kernels, or not at all, as emitters for formulas."""

from __future__ import annotations

import math
from typing import Any

from numbaprims.cpu.activation.tables import half_normal, log1p_ratio, piecewise
from numbaprims.cpu.simd.math import emit
from numbaprims.cpu.simd.math.emit import MANTISSA, Value, at_most, mad, magnitude, select, with_sign_of
from numbaprims.cpu.simd.math.erf import erf_value
from numbaprims.cpu.simd.math.log import log1p_value
from numbaprims.cpu.simd.math.lookup import SIZE, has_lookup


def sqrt(x: Value) -> Value:
    """The correctly rounded square root."""
    vector = x.value.type
    function = emit.declare(x.builder, f"llvm.sqrt.{emit.suffix(vector)}", vector, [vector])
    return Value(x.builder, x.builder.call(function, [x.value]))


def nearest(x: Value) -> Value:
    """The nearest integer, halves to even."""
    # 2**23 (2**52) and what is above have no fraction; a sum with it is rounded to an integer
    whole = 2.0 ** MANTISSA[x.width]
    rounded = with_sign_of((magnitude(x) + whole) - whole, x)
    return select(magnitude(x) < whole, rounded, x)


def at_or_below(a: Value, b: Any) -> Value:
    """Where a <= b; nowhere that either is NaN."""
    compare = a.builder.fcmp_ordered if a.is_float else a.builder.icmp_signed
    return Value(a.builder, compare("<=", a.value, a.like(b).value))


def at_or_above(a: Value, b: Any) -> Value:
    """Where a >= b; nowhere that either is NaN."""
    return at_or_below(a.like(b), a)


def negative(x: Value) -> Value:
    """-x."""
    return x.like(-0.0) - x


def log1p_of_fraction(u: Value) -> Value:
    """log(1 + u) for 0 <= u <= 1, with a small relative error."""
    return u * piecewise(u, *log1p_ratio()) if has_lookup(u) else log1p_value(u)


def normal_distribution(x: Value) -> Value:
    """The normal distribution with an absolute error of 2**-24; 0 far below 0."""
    if not has_lookup(x):
        return mad(erf_value(x * math.sqrt(0.5)), 0.5, 0.5)
    step, rows = half_normal()
    return with_sign_of(piecewise(at_most(magnitude(x), (SIZE - 1) * step), step, rows), x) + 0.5
