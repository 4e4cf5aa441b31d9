"""Hyperbolic functions and their inverses, logarithms to other bases and erfc, for float32 and float64."""

from __future__ import annotations

import math
from collections.abc import Callable

from numbaprims.formulas.elementary import log1p_parts, log_parts, reduce
from numbaprims.formulas.value import (
    MANTISSA,
    SHIFTER,
    V,
    at_most,
    bits,
    float_bits,
    from_bits,
    mad,
    magnitude,
    negative,
    polynomial,
    power_of_2,
    scale,
    select,
    to_float,
    with_sign_of,
)
from numbaprims.polynomials import (
    ATANH,
    COSH,
    ERFC,
    ERFC_LARGEST,
    EXP,
    LN2,
    LOG2_E,
    LOG2_E_PARTS,
    LOG10_2_PARTS,
    LOG10_E_PARTS,
    SINH,
    SINH_LARGEST,
    TANH_SHRINK,
)

Quotient = Callable[[V, V], V]
Root = Callable[[V], V]

# ---------------------------------------------------------------- sinh, cosh


def _halves(x: V) -> tuple[V, V, V, V]:
    """(p, q, sinh r, cosh r - 1) of |x| = n ln 2 + r, p and q being a quarter of 2**n and of 2**-n."""
    width = x.width
    r, shifted = reduce(at_most(magnitude(x), SINH_LARGEST[width]))
    shifter = SHIFTER[width]
    p = power_of_2(shifted, 0.25)
    # beyond 2**-60 it is nothing beside p; its exponent must be a normal number's
    q = power_of_2(2.0 * shifter - at_most(shifted, shifter + 60.0), 0.25)
    z = r * r
    sine = mad(r * z, polynomial(z, SINH[width]), r)
    cosine = z * mad(z, polynomial(z, COSH[width]), 0.5)
    return p, q, sine, cosine


def sinh_value(x: V) -> V:
    """sinh x, by sinh(n ln 2 + r) = sinh(n ln 2) cosh r + cosh(n ln 2) sinh r: no term cancels another."""
    p, q, sine, cosine = _halves(x)
    minus = p - q
    half = minus + mad(p + q, sine, mad(minus, cosine, (p - minus) - q))
    # half of a subnormal number is not exact
    return select(magnitude(x) < 1e-30, x, with_sign_of(half + half, x))


def cosh_value(x: V) -> V:
    """cosh x, in the same way."""
    p, q, sine, cosine = _halves(x)
    plus = p + q
    half = plus + mad(p - q, sine, mad(plus, cosine, (p - plus) + q))
    return half + half


def tanh_shrink_value(x: V, t: V) -> V:
    """x - t with t = tanh x; up to 1.5, where more than half of it would cancel, a polynomial."""
    z = x * x
    near = (x * z) * polynomial(z, TANH_SHRINK[x.width])
    return select(magnitude(x) < 1.5, near, x - t)


# ---------------------------------------------------------------- inverses


def asinh_value(x: V, quotient: Quotient[V], root: Root[V]) -> V:
    """asinh x = log(1 + a + a**2 / (1 + sqrt(1 + a**2))) with a = |x|."""
    a = magnitude(x)
    large = a > {32: 2.0**30, 64: 2.0**60}[x.width]
    b = select(large, 1.0, a)
    square = b * b
    more = quotient(square, root(mad(b, b, 1.0)) + 1.0)
    h = b + more
    # beyond, log 2a
    whole = select(large, a, h)
    y = log1p_parts(whole, select(large, 0.0, more - (h - b)), large, quotient)
    return with_sign_of(select(a < math.inf, select(a < 1e-30, a, y), a), x)


def acosh_value(x: V, quotient: Quotient[V], root: Root[V]) -> V:
    """acosh x = log(1 + t + sqrt(t (t + 2))) with t = x - 1."""
    large = x > {32: 2.0**30, 64: 2.0**60}[x.width]
    t = select(large, 1.0, x - 1.0)
    square = mad(t, t, t + t)
    v = root(square)
    h = v + t
    whole = select(large, x, h)
    y = log1p_parts(whole, select(large, 0.0, t - (h - v)), large, quotient)
    y = select(x > 1.0, y, select(x.equals(1.0), x.like(0.0), math.nan))
    return select(x < math.inf, y, x)


def atanh_value(x: V, quotient: Quotient[V]) -> V:
    """atanh x = e ln 2 / 2 + atanh s, where (1 + a) / (1 - a) is 2**e (1 + s) / (1 - s), a = |x| and |s| < 1/4.

    s is a quotient of a - (2**e (1 - a) - 1) and a + (2**e (1 - a) + 1); below 1/3 it is x itself.
    """
    width, mantissa = x.width, MANTISSA[x.width]
    a = magnitude(x)
    u = 1.0 - a
    lost = (1.0 - u) - a
    ratio = bits(a + 1.0) - bits(u)
    e = ((ratio + (1 << (mantissa - 1))) >> mantissa) << mantissa
    power = from_bits(e + float_bits(1.0, width))
    above = mad(negative(power), lost, a - mad(power, u, -1.0))
    below = a + mad(power, u, 1.0)
    near = a < 1.0 / 3.0
    s = select(near, a, quotient(above, below))
    n = select(near, 0.0, to_float(e >> mantissa))
    z = s * s
    high, low = LN2[width]
    y = mad(n, 0.5 * high, s + mad(n, 0.5 * low, (s * z) * polynomial(z, ATANH[width])))
    y = select(a < 1.0, y, select(a.equals(1.0), a.like(math.inf), math.nan))
    return with_sign_of(select(a < 1e-30, a, select(a.equals(a), y, a)), x)


# ---------------------------------------------------------------- logarithms to other bases


def _with_base(x: V, quotient: Quotient[V], parts: tuple[float, float], of_2: tuple[float, float]) -> V:
    """The logarithm whose value of e and of 2 is given in two parts."""
    f, rest, e, cases = log_parts(x, quotient)
    # as sums, so that none is contracted with what it is added to
    high, n = mad(f, parts[0], 0.0), mad(e, of_2[0], 0.0)
    low = mad(f, parts[0], negative(high)) + mad(f, parts[1], mad(rest, parts[0], e * of_2[1]))
    whole = n + high
    return cases(whole + (((n - whole) + high) + low))


def log2_value(x: V, quotient: Quotient[V]) -> V:
    """log x to base 2, exact of powers of 2."""
    return _with_base(x, quotient, LOG2_E_PARTS[x.width], (1.0, 0.0))


def log10_value(x: V, quotient: Quotient[V]) -> V:
    """log x to base 10."""
    return _with_base(x, quotient, LOG10_E_PARTS[x.width], LOG10_2_PARTS[x.width])


# ---------------------------------------------------------------- erfc


def erfc_value(x: V, quotient: Quotient[V]) -> V:
    """1 - erf x with a small relative error far above 0 too: e**(-a**2) N(s) / (1 + a), a = |x|.

    N, a polynomial in s = (a - k) / (a + k), is between 0.56 and 1. The square is that of an upper half of a, which is
    exact, and what is left; `_lost` is what rounding took: 1.4 instead of 2 ULP.
    """
    width = x.width
    a = at_most(magnitude(x), ERFC_LARGEST[width])
    k, first, *above = ERFC[width]
    high, low = LN2[width]
    # a**2 = n ln 2 - r
    upper = from_bits(bits(a) & -(1 << {32: 12, 64: 27}[width]))
    shifted = mad(a * -LOG2_E, a, SHIFTER[width])
    n = shifted - SHIFTER[width]
    whole = mad(negative(upper), upper, mad(n, -high, 0.0))
    r = whole + mad(upper - a, upper + a, mad(n, -low, 0.0))
    e = mad(r * r, polynomial(r, EXP[width]), r)
    d, b = a + 1.0, a + k
    d_lost = a - (d - 1.0)
    both = quotient(d.like(1.0), d * b)
    inverse, s = b * both, (a - k) * (d * both)
    tail = polynomial(s, above)
    value = mad(tail, s, first)
    value_lost = mad(tail, s, first - value)
    y = mad(value, e, value)
    y_lost = mad(value, e, value - y) + value_lost
    t = y * inverse
    t = mad(mad(negative(t), d, y) + mad(negative(t), d_lost, y_lost), inverse, t)
    t = scale(t, shifted)
    return select(x < 0.0, mad(t, -1.0, 2.0), t)
