"""Elementary functions, for float32 and float64: no calls, branches or tables.

Signs of zero, infinities and NaN are those of C's math.h. The coefficients stand in `numbaprims.polynomials`
(docs/notes/minimax.py finds them again). A function whose quotient each machine computes in its own way takes it as
an argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from numbaprims.formulas.value import (
    MANTISSA,
    SHIFTER,
    V,
    at_most,
    between,
    bits,
    float_bits,
    floor,
    from_bits,
    mad,
    magnitude,
    nearest_magnitude,
    negative,
    polynomial,
    power_of_2,
    repeat_while,
    scale,
    scale_plus,
    select,
    to_float,
    with_sign_of,
)
from numbaprims.polynomials import (
    ERF_FAR,
    ERF_NEAR,
    ERF_RANGES,
    EXP,
    EXP2,
    EXP2_RANGE,
    EXP_RANGE,
    EXPM1,
    EXPM1_BORDER,
    EXPM1_HALF,
    EXPM1_RANGE,
    LN2,
    LOG2_E,
    LOG_F32,
    LOG_F64,
    NORMAL_LARGEST,
    POWER_OF_2,
    TAIL,
    TANH_LARGEST,
)

Quotient = Callable[[V, V], V]

# ---------------------------------------------------------------- exponentials: n ln 2 + r with a small r


def reduce(x: V, factor: float = 1.0, border: float = 0.0, bias: int = 0) -> tuple[V, V]:
    """(r, SHIFTER + n + bias) with factor x = n ln 2 + factor r; |n| < 2**21.  The factor is a power of 2."""
    high, low = LN2[x.width]
    shifter = SHIFTER[x.width] + bias
    shifted = mad(x, factor * LOG2_E, border) + shifter if border else mad(x, factor * LOG2_E, shifter)
    n = shifted - shifter
    return mad(n, -low / factor, mad(n, -high / factor, x)), shifted


def exp_of_rest(r: V) -> V:
    """e**r of what `reduce` leaves."""
    return polynomial(r, (1.0, 1.0, *EXP[r.width]))


def exp_in_range(x: V) -> V:
    """e**x where |n| of 2**n is at most twice the range of exponents."""
    r, shifted = reduce(x)
    return scale(exp_of_rest(r), shifted)


def exp_of_negative_in_range(x: V) -> V:
    """The bits of `exp_in_range` where x is about 0 at most: the last bits of the shifter are n and a bias, a normal
    exponent, of which a second factor, which rounds, takes back what is too much."""
    least, mantissa = EXP_RANGE[x.width][0], MANTISSA[x.width]
    spare = 32 * math.ceil(-least * LOG2_E / 32) - (float_bits(1.0, x.width) >> mantissa)
    r, shifted = reduce(x, bias=(float_bits(1.0, x.width) >> mantissa) + spare)
    return exp_of_rest(r) * from_bits(bits(shifted) << mantissa) * 2.0**-spare


def exp_and_sum(x: V, c: float) -> tuple[V, V]:
    """(e**x, e**x + c) in the same range, for a c near 1."""
    r, shifted = reduce(x)
    y = exp_of_rest(r)
    return scale(y, shifted), scale_plus(y, shifted, c)


def exp_value(x: V) -> V:
    """e**x: subnormal, 0 and infinite where it should be."""
    return exp_in_range(between(x, EXP_RANGE[x.width]))


def exp2_value(x: V) -> V:
    """2**x: subnormal, 0 and infinite where it should be."""
    z = between(x, EXP2_RANGE[x.width])
    shifted = z + SHIFTER[x.width]
    return scale(polynomial(z - (shifted - SHIFTER[x.width]), POWER_OF_2[x.width]), shifted)


def expm1_value(x: V) -> V:
    """e**x - 1, with a small relative error near 0 too."""
    r, shifted = reduce(between(x, EXPM1_RANGE[x.width]), border=EXPM1_BORDER)
    q = mad(r * r, polynomial(r, EXPM1[x.width]), r)
    # half of 2**n (1 + q) - 1, because n may be one more than exponents reach
    power = power_of_2(shifted, 0.5)
    half = mad(power, q, power - 0.5)
    # what is so small is its own result; half of a subnormal number is not exact, and -0 has become 0
    return select(magnitude(x) < 1e-30, x, half + half)


def tanh_value(x: V, quotient: Quotient[V]) -> V:
    """tanh |x| = h / (h + 1) with h = (e**2|x| - 1) / 2, whose relative error is small near 0 too."""
    r, shifted = reduce(at_most(magnitude(x), TANH_LARGEST[x.width]), factor=2.0)
    rest = mad(r * r, polynomial(r, EXPM1_HALF[x.width]), r)
    power = power_of_2(shifted)
    h = mad(power, rest, mad(power, 0.5, -0.5))
    t = quotient(h, h + 1.0)
    # The remainder h - t (h + 1) holds what rounding h + 1 and the quotient took, and 1 - t is 1 / (h + 1): 1.5 instead
    # of 2.2 ULP.  h - t is exact where h < 1.
    better = mad(mad(negative(h), t, h - t), 1.0 - t, t)
    return with_sign_of(select(h < 1.0, better, t), x)


# ---------------------------------------------------------------- logarithms: m 2**e with 3/4 <= m < 3/2


def _split(i: V) -> tuple[V, V]:
    """(bits of m, e 2**mantissa bits) of the number with the bits i."""
    low = (1 << MANTISSA[i.width]) - 1
    i = i - float_bits(0.75, i.width)
    return (i & low) + float_bits(0.75, i.width), i & ~low


def _log_of(f: V, e: V, quotient: Quotient[V], more: V | None = None) -> V:
    """log((1 + f) 2**e), where e ln 2 + log(1 + f) does not cancel; `more` is added before it is rounded."""
    high, low = LN2[f.width]
    if more is not None:
        return mad(e, high, f + mad(e, low, _rest_of_log(f, more, quotient)))
    if f.width == 32:
        rest = (f * f) * mad(f, polynomial(f, LOG_F32), -0.5)
        return mad(e, high, f + mad(e, low, rest))
    return mad(e, high, f + _rest_of_log(f, e * low, quotient))


def _rest_of_log(f: V, more: V, quotient: Quotient[V]) -> V:
    """log(1 + f) - f + more."""
    if f.width == 32:
        return mad(f * f, mad(f, polynomial(f, LOG_F32), -0.5), more)
    # 8 coefficients and a division instead of some 20 coefficients
    s = quotient(f, f + 2.0)
    z = s * s
    half = (f * 0.5) * f
    # log(1 + f) = 2 s + s R = f - f**2 / 2 + s (f**2 / 2 + R)
    return mad(f * -0.5, f, mad(s, mad(z, polynomial(z, LOG_F64), half), more))


def log_parts(x: V, quotient: Quotient[V]) -> tuple[V, V, V, Callable[[V], V]]:
    """(f, rest, e, special cases) with x = 2**e e**(f + rest)."""
    m, e = mantissa_and_exponent(x)
    f = m - 1.0
    return f, _rest_of_log(f, f.like(0.0), quotient), e, lambda result: _log_cases(x, result, 0.0)


def log1p_parts(h: V, low: V, doubled: V, quotient: Quotient[V]) -> V:
    """log(1 + h + low) of h >= 0 and a low that is little beside it; where `doubled`, log 2h of a large h."""
    mantissa = MANTISSA[h.width]
    _, e = _split(bits(h + 1.0))
    power = from_bits(float_bits(4.0, h.width) - e)
    f = mad(power, h * 0.25, mad(power, 0.25, -1.0))
    # 1 / (1 + f) to 4 digits of it
    more = (low * (power * 0.25)) * mad(f, mad(f, mad(f, -1.0, 1.0), -1.0), 1.0)
    n = to_float(e >> mantissa)
    return _log_of(f, select(doubled, n + 1.0, n), quotient, more)


def _log_cases(x: V, result: V, zero: float) -> V:
    """The result with that of `zero`, of what is below it, of inf and of NaN put in."""
    result = select(x < math.inf, result, x)
    result = select(x < zero, math.nan, result)
    return select(x.equals(zero), -math.inf, result)


def mantissa_and_exponent(x: V) -> tuple[V, V]:
    """(m, e) of x > 0, subnormal numbers too."""
    mantissa = MANTISSA[x.width]
    subnormal = x < {32: 2.0**-126, 64: 2.0**-1022}[x.width]
    m, e = _split(bits(select(subnormal, x * 2.0**mantissa, x)))
    e = to_float(e >> mantissa)
    return from_bits(m), select(subnormal, e - float(mantissa), e)


def log_value(x: V, quotient: Quotient[V]) -> V:
    """log x."""
    m, e = mantissa_and_exponent(x)
    return _log_cases(x, _log_of(m - 1.0, e, quotient), 0.0)


def log1p_value(x: V, quotient: Quotient[V], one_more: V | None = None) -> V:
    """log(1 + x), with a small relative error near 0 too; x + 1 may be given."""
    mantissa = MANTISSA[x.width]
    # 1 + x = (1 + f) 2**e with e taken from the rounded sum and f from x itself, rounded once. 4 / 2**e is a normal
    # number for every e; 1 / 2**e is not.
    _, e = _split(bits(x + 1.0 if one_more is None else one_more))
    power = from_bits(float_bits(4.0, x.width) - e)
    f = mad(power, x * 0.25, mad(power, 0.25, -1.0))
    result = _log_cases(x, _log_of(f, to_float(e >> mantissa), quotient), -1.0)
    # what is so small is its own result; a quarter of a subnormal number is not exact, and -0 has become 0
    return select(magnitude(x) < 1e-30, x, result)


# ---------------------------------------------------------------- erf, the normal distribution, powers


def erf_value(x: V) -> V:
    """erf x: near 0 a polynomial in x**2, elsewhere 1 - 2**g with a polynomial g."""
    width = x.width
    border, one, origin = ERF_RANGES[width]
    a = at_most(magnitude(x), one)
    g = polynomial(a - origin if origin else a, ERF_FAR[width])
    shifted = g + SHIFTER[width]
    r = g - (shifted - SHIFTER[width])
    far = with_sign_of(mad(power_of_2(shifted, -1.0), polynomial(r, EXP2[width]), 1.0), x)
    near = mad(x, polynomial(x * x, ERF_NEAR[width]), x)
    return select(a < border, near, far)


def gaussian_parts(a: V) -> tuple[V, V]:
    """(y, SHIFTER + n) with e**(-a**2 / 2) = y 2**n, for |a| up to where that is 0."""
    high, low = LN2[a.width]
    shifter = SHIFTER[a.width]
    shifted = mad(a * (-0.5 * LOG2_E), a, shifter)
    n = shifted - shifter
    # a**2 + 2 n ln 2: n times the upper part of ln 2 is exact, and so is a**2 until it is added where that is
    # fused; a square rounded before would cost a**2 / 4 units in the last place
    r = mad(n, low * 2.0, mad(a, a, n * (high * 2.0)))
    return polynomial(r, [c * (-0.5) ** k for k, c in enumerate((1.0, 1.0, *EXP[a.width]))]), shifted


def normal_distribution(x: V, gaussian: Callable[[V], V], quotient: Quotient[V]) -> tuple[V, V]:
    """(Phi(x), e**(-x**2 / 2)) of the normal distribution Phi, with a small relative error far below 0 too.

    W. J. Cody, Rational Chebyshev approximations for the error function, 1969: Phi(-a) / e**(-a**2 / 2) is a quotient
    of polynomials, here with positive coefficients, so that nothing cancels.
    """
    a = at_most(magnitude(x), NORMAL_LARGEST[x.width])
    e = gaussian(a)
    above, below = TAIL[x.width]
    tail = quotient(e * polynomial(a, above), polynomial(a, below))
    return select(x < 0.0, tail, 1.0 - tail), e


def fmod_value(a: V, b: V, quotient: Quotient[V]) -> V:
    """What is left of a division, with the sign of a: C's fmod, exact whatever the quotient.

    While r is b or more, r less q b 2**k: of k as large as leaves q some digits, the product and the difference are
    exact where multiply-add is fused; elsewhere q is 1 or 2.
    """
    width, mantissa = a.width, MANTISSA[a.width]
    y = magnitude(b)
    digits = mantissa - 3 if a.fused else 1
    bias = float_bits(1.0, width)

    def exponent(r: V) -> V:
        subnormal = r < {32: 2.0**-126, 64: 2.0**-1022}[width]
        found = bits(select(subnormal, r * 2.0**mantissa, r)) >> mantissa
        return select(subnormal, found - mantissa, found)

    place = exponent(y)

    def step(r: V) -> V:
        k = exponent(r) - place - digits
        k = select(k > 0, k, 0)
        half = k >> 1
        t = (y * from_bits((half << mantissa) + bias)) * from_bits(((k - half) << mantissa) + bias)
        # never less than the integer below, at most 1 more
        q = floor(quotient(r, t) + 0.25)
        less = mad(negative(q if a.fused else at_most(q, 2.0)), t, r)
        return select(less < 0.0, less + t, less)

    # nothing of infinity, and nothing by 0, which is NaN as NaN is
    r = repeat_while(magnitude(a), lambda r: (r >= y) & (r < math.inf) & (y > 0.0), step)
    return select(r < math.inf, select(y > 0.0, with_sign_of(r, a), math.nan), math.nan)


def power_cases(base: V, exponent: V, size: V) -> V:
    """base**exponent from the size |base|**exponent: the signs and special cases of IEEE 754's pow."""
    size = select(magnitude(base).equals(1.0), 1.0, size)
    whole = nearest_magnitude(exponent)
    half = whole * 0.5
    even = nearest_magnitude(half).equals(half)
    signed = select(even, size, with_sign_of(size, base))
    undefined = select(base < 0.0, select(base.equals(-math.inf), size, math.nan), size)
    result = select(whole.equals(magnitude(exponent)), signed, undefined)
    return select(exponent.equals(0.0), 1.0, result)  # whatever the base is
