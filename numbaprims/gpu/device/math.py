"""Mathematics for kernels, in float32 without a float64 instruction, and in float64: no calls, branches or tables.

The polynomials are those of the CPU's vectors (docs/simd.md; docs/notes/minimax.py finds them again).  exp by one is as
fast as by the hardware's ex2: 7 multiply-adds at 128 a clock and multiprocessor against one special function at 16.
Only reciprocals and reciprocal roots come from special functions, and they are corrected by a remainder, so that their
error of 1 ULP does not reach a result.  Signs of zero, infinities and NaN are those of C's math.h.

Largest errors in units in the last place, f32 / f64 (tests/gpu/test_math.py, against float64 and mpmath):
exp 1.0, expm1 1.4, log 1.0, log1p 1.0, tanh 1.7 / 2.0, sigmoid 1.7, erf 1.5 / 1.2, sqrt and divide 0.6, power 2 (f32).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from numbaprims.gpu.device.emit import intrinsic, types
from numbaprims.gpu.device.value import (
    MANTISSA,
    SHIFTER,
    Value,
    approximate,
    at_least,
    at_most,
    bits,
    float_bits,
    from_bits,
    mad,
    magnitude,
    negative,
    polynomial,
    scale,
    scale_normal,
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
    EXP_RANGE,
    EXPM1,
    EXPM1_BORDER,
    EXPM1_HALF,
    EXPM1_RANGE,
    LN2,
    LOG2_E,
    LOG_F32,
    LOG_F64,
    TANH_LARGEST,
)

# ---------------------------------------------------------------- division and roots


def reciprocal_value(x: Value) -> Value:
    """1 / x for 2**-125 <= |x| <= 2**125 (float64: 2**-1020, 2**1020)."""
    r = approximate("rcp", x)
    for _ in range(1 if x.width == 32 else 3):
        r = mad(mad(negative(x), r, 1.0), r, r)
    return r


def quotient_value(a: Value, b: Value) -> Value:
    """a / b for b as in `reciprocal_value` and results that are neither subnormal nor beyond the largest number."""
    r = approximate("rcp", b) if b.width == 32 else reciprocal_value(b)
    q = a * r
    return mad(mad(negative(b), q, a), r, q)


def divide_value(a: Value, b: Value) -> Value:
    """a / b for all numbers: b is scaled to [1/2, 1), a with it."""
    width, mantissa = b.width, MANTISSA[b.width]
    top = (1 << (width - 1 - mantissa)) - 1  # the exponent of infinities
    exponent = (bits(b) >> mantissa) & top
    turned = exponent.like(top - 2) - exponent
    factor = from_bits(select(turned > 1, turned, 1) << mantissa)
    a, b = a * factor, b * factor
    # A corrected reciprocal, lest q become infinite where the quotient is the largest number; of 0 and infinity, NaN.
    better = reciprocal_value(b)
    r = select(magnitude(better) < math.inf, better, approximate("rcp", b))
    q = a * r
    # Where an operand or q is infinite or b is 0, the remainder is NaN or infinite, and q is right.
    rest = mad(negative(b), q, a)
    return select(magnitude(rest) < math.inf, mad(rest, r, q), q)


def sqrt_value(x: Value) -> Value:
    """The square root."""
    # below, the remainder would be subnormal
    small = x < {32: 2.0**-100, 64: 2.0**-960}[x.width]
    z = select(small, x * {32: 2.0**48, 64: 2.0**256}[x.width], x)
    r = approximate("rsqrt", z)
    for _ in range(0 if x.width == 32 else 2):
        r = mad(mad(negative(z * r), r, 1.0), r * 0.5, r)
    s = z * r
    s = mad(mad(negative(s), s, z), r * 0.5, s)
    s = s * select(small, x.like({32: 2.0**-24, 64: 2.0**-128}[x.width]), 1.0)
    return select(x.equals(0.0), x, select(x.equals(math.inf), x, s))


# ---------------------------------------------------------------- exponentials

# e**x is a normal number between
_NORMAL_RANGE = {32: (-87.3, 88.0), 64: (-708.3, 709.0)}


def reduce(x: Value, factor: float = 1.0, border: float = 0.0) -> tuple[Value, Value]:
    """(r, SHIFTER + n) with factor x = n ln 2 + factor r; |n| < 2**21.  The factor is a power of 2."""
    high, low = LN2[x.width]
    shifter = SHIFTER[x.width]
    shifted = mad(x, factor * LOG2_E, border) + shifter if border else mad(x, factor * LOG2_E, shifter)
    n = shifted - shifter
    return mad(n, -low / factor, mad(n, -high / factor, x)), shifted


def _between(x: Value, limits: tuple[float, float]) -> Value:
    return at_least(at_most(x, limits[1]), limits[0])


def exp_value(x: Value) -> Value:
    """e**x: subnormal, 0 and infinite where it should be."""
    r, shifted = reduce(_between(x, EXP_RANGE[x.width]))
    return scale(polynomial(r, (1.0, 1.0, *EXP[x.width])), shifted)


def exp_normal_value(x: Value) -> Value:
    """e**x, 0 where that is subnormal, at most e**88 (e**709): the third of a factor, for sums with 1."""
    lowest, highest = _NORMAL_RANGE[x.width]
    r, shifted = reduce(_between(x, (lowest, highest)))
    return select(x < lowest, 0.0, scale_normal(polynomial(r, (1.0, 1.0, *EXP[x.width])), shifted))


def expm1_value(x: Value) -> Value:
    """e**x - 1, with a small relative error near 0 too."""
    width = x.width
    r, shifted = reduce(_between(x, EXPM1_RANGE[width]), border=EXPM1_BORDER)
    q = mad(r * r, polynomial(r, EXPM1[width]), r)
    # half of 2**n (1 + q) - 1, because n may be one more than exponents reach
    power = from_bits((bits(shifted) << MANTISSA[width]) + float_bits(0.5, width))
    half = mad(power, q, power - 0.5)
    # what is so small is its own result; half of a subnormal number is not exact, and -0 has become 0
    return select(magnitude(x) < 1e-30, x, half + half)


def tanh_value(x: Value) -> Value:
    """tanh |x| = h / (h + 1) with h = (e**2|x| - 1) / 2, whose relative error is small near 0 too."""
    width = x.width
    r, shifted = reduce(at_most(magnitude(x), TANH_LARGEST[width]), factor=2.0)
    rest = mad(r * r, polynomial(r, EXPM1_HALF[width]), r)
    power = from_bits((bits(shifted) << MANTISSA[width]) + float_bits(1.0, width))
    h = mad(power, rest, mad(power, 0.5, -0.5))
    t = quotient_value(h, h + 1.0)
    # The remainder h - t (h + 1) holds what rounding h + 1 took, and 1 - t is 1 / (h + 1).  h - t is exact where h < 1.
    better = mad(mad(negative(h), t, h - t), 1.0 - t, t)
    return with_sign_of(select(h < 1.0, better, t), x)


def sigmoid_and_rest(x: Value) -> tuple[Value, Value]:
    """(s, 1 - s) of s = 1 / (1 + e**-x), both with small relative errors; in float32 they are 0 below 2**-126."""
    z = negative(magnitude(x))
    e = exp_normal_value(z) if x.width == 32 else exp_value(z)
    r = reciprocal_value(e + 1.0)
    low = e * r
    below = x < 0.0
    return select(below, low, r), select(below, r, low)


def sigmoid_value(x: Value) -> Value:
    """1 / (1 + e**-x) from e**-|x|, which does not overflow and may be subnormal."""
    e = exp_value(negative(magnitude(x)))
    r = reciprocal_value(e + 1.0)
    # the remainder holds what rounding e + 1 took: 1 - r is exact, r being at least 1/2
    r = mad(mad(negative(e), r, 1.0 - r), r, r)
    return select(x < 0.0, e * r, r)


# ---------------------------------------------------------------- logarithms


def _split(i: Value) -> tuple[Value, Value]:
    """(bits of m, e 2**mantissa bits) of the number m 2**e with the bits i, 3/4 <= m < 3/2."""
    low = (1 << MANTISSA[i.width]) - 1
    i = i - float_bits(0.75, i.width)
    return (i & low) + float_bits(0.75, i.width), i & ~low


def _log_of(f: Value, e: Value) -> Value:
    """log((1 + f) 2**e), where e ln 2 + log(1 + f) does not cancel."""
    high, low = LN2[f.width]
    if f.width == 32:
        rest = (f * f) * mad(f, polynomial(f, LOG_F32), -0.5)
        return mad(e, high, f + mad(e, low, rest))
    # 8 coefficients and a division instead of some 20 coefficients
    s = quotient_value(f, f + 2.0)
    z = s * s
    half = (f * 0.5) * f
    # log(1 + f) = 2 s + s R = f - f**2 / 2 + s (f**2 / 2 + R)
    rest = mad(s, mad(z, polynomial(z, LOG_F64), half), e * low)
    return mad(e, high, f + mad(f * -0.5, f, rest))


def _log_cases(x: Value, result: Value, zero: float) -> Value:
    """The result with that of `zero`, of what is below it, of inf and of NaN put in."""
    result = select(x < math.inf, result, x)
    result = select(x < zero, math.nan, result)
    return select(x.equals(zero), -math.inf, result)


def _normal(x: Value) -> tuple[Value, Value]:
    """(bits of m, e as a float) of x > 0, subnormal numbers too."""
    mantissa = MANTISSA[x.width]
    subnormal = x < {32: 2.0**-126, 64: 2.0**-1022}[x.width]
    m, e = _split(bits(select(subnormal, x * 2.0**mantissa, x)))
    e = to_float(e >> mantissa)
    return m, select(subnormal, e - float(mantissa), e)


def log_value(x: Value) -> Value:
    """log x."""
    m, e = _normal(x)
    return _log_cases(x, _log_of(from_bits(m) - 1.0, e), 0.0)


def log1p_value(x: Value) -> Value:
    """log(1 + x), with a small relative error near 0 too."""
    mantissa, width = MANTISSA[x.width], x.width
    # 1 + x = (1 + f) 2**e with e taken from the rounded sum and f from x itself, rounded once. 4 / 2**e is a normal
    # number for every e; 1 / 2**e is not.
    _, e = _split(bits(x + 1.0))
    power = from_bits(e.like(float_bits(4.0, width)) - e)
    f = mad(power, x * 0.25, mad(power, 0.25, -1.0))
    result = _log_cases(x, _log_of(f, to_float(e >> mantissa)), -1.0)
    return select(magnitude(x) < 1e-30, x, result)


def softplus_value(x: Value) -> Value:
    """log(1 + e**x) = max(x, 0) + log(1 + e**-|x|)."""
    return at_least(x, 0.0) + log1p_value(exp_normal_value(negative(magnitude(x))))


# ---------------------------------------------------------------- erf


def erf_value(x: Value) -> Value:
    """erf x: near 0 a polynomial in x**2, elsewhere 1 - 2**g with a polynomial g."""
    width = x.width
    border, one, origin = ERF_RANGES[width]
    a = at_most(magnitude(x), one)
    g = polynomial(a - origin if origin else a, ERF_FAR[width])
    shifted = g + SHIFTER[width]
    r = g - (shifted - SHIFTER[width])
    minus_power = from_bits((bits(shifted) << MANTISSA[width]) + float_bits(-1.0, width))
    far = with_sign_of(mad(minus_power, polynomial(r, EXP2[width]), 1.0), x)
    near = mad(x, polynomial(x * x, ERF_NEAR[width]), x)
    return select(a < border, near, far)


# ---------------------------------------------------------------- powers

# (log2(m) - c s) / s**3 in powers of s**2 with s = (m - 1) / (m + 1), c = 2 log2(e), minimax relative to log2(m) for
# 3/4 <= m < 3/2: 2**-35.2
_LOG2 = (0.9617966413497925, 0.5770907402038574, 0.4112528860569, 0.3479573428630829)
_LOG2_C = (2.885390043258667, 3.851925982253235e-08)
# 2**f, minimax on |f| <= 1/2: 2**-28.3
_POWER_OF_2 = (
    1.0, 0.6931471824645996, 0.24022647738456726, 0.05550359934568405, 0.009618505835533142,
    0.0013390807434916496, 0.00015326458378694952,
)  # fmt: skip


def _power_f32(b: Value, g: Value) -> Value:
    """b**g of b >= 0 by its logarithm in two parts, 2**-31 beside each other."""
    m, e = _normal(b)
    m = from_bits(m)
    f = m - 1.0
    d = m + 1.0
    d_low = m - (d - 1.0)
    r = approximate("rcp", d)
    s = f * r
    s_low = mad(negative(s), d_low, mad(negative(s), d, f)) * r
    z = s * s
    p = polynomial(z, _LOG2)
    # s**3 p, and what rounding its products and s took
    u = z * s
    v = u * p
    lost = mad(s * 3.0, s_low, mad(s, s, negative(z)))
    lost = mad(s, lost, mad(z, s, negative(u)))
    lost = mad(lost, p, mad(u, p, negative(v)))
    c, c_low = _LOG2_C
    h = s * c
    low = mad(s, c, negative(h)) + mad(s_low, c, mad(s, c_low, v + lost))
    high = e + h
    low = (h - (high - e)) + low
    total = high + low
    low = low - (total - high)
    special = b.equals(0.0)
    total = select(special, -math.inf, select(b < math.inf, total, b))
    t = g * total
    rest = mad(g, low, mad(g, total, negative(t)))
    inside = magnitude(t) < 200.0
    rest = select(inside, rest, 0.0)
    t = _between(t, (-200.0, 200.0))
    shifted = t + SHIFTER[32]
    x = (t - (shifted - SHIFTER[32])) + rest
    return scale(polynomial(x, _POWER_OF_2), shifted)


def nearest_value(x: Value) -> Value:
    """The nearest integer, halves to even."""
    # 2**23 (2**52) and what is above have no fraction; a sum with it is rounded to an integer
    whole = 2.0 ** MANTISSA[x.width]
    rounded = with_sign_of((magnitude(x) + whole) - whole, x)
    return select(magnitude(x) < whole, rounded, x)


def power_value(base: Value, exponent: Value) -> Value:
    """base**exponent, signs and special cases as IEEE 754's pow; in float64 the relative error is that of exponent log
    base."""
    size = magnitude(base)
    if base.width == 32:
        result = _power_f32(size, exponent)
    else:
        result = exp_value(exponent * log_value(size))
    result = select(size.equals(1.0), 1.0, result)
    whole = nearest_value(magnitude(exponent))
    half = whole * 0.5
    even = nearest_value(half).equals(half)
    signed = select(even, result, with_sign_of(result, base))
    undefined = select(base < 0.0, select(base.equals(-math.inf), result, math.nan), result)
    result = select(whole.equals(magnitude(exponent)), signed, undefined)
    return select(exponent.equals(0.0), 1.0, result)  # whatever the base is


# ---------------------------------------------------------------- for kernels


def _math_function(value_function: Callable[..., Value], doc: str) -> Any:
    """An intrinsic of numbers that are all float32 or all float64."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        return value_function(*(Value(builder, arg) for arg in args)).value

    def number(t: Any) -> Any:
        return types.unliteral(t) if types.unliteral(t) in (types.float32, types.float64) else None

    def unary(typingctx, x):  # type: ignore[no-untyped-def]
        return None if number(x) is None else (number(x)(number(x)), codegen)

    def binary(typingctx, x, y):  # type: ignore[no-untyped-def]
        return None if number(x) is None or number(x) != number(y) else (number(x)(number(x), number(x)), codegen)

    function = binary if value_function in (divide_value, power_value) else unary
    function.__doc__ = doc
    return intrinsic(function)


exp = _math_function(exp_value, "e**x.")
expm1 = _math_function(expm1_value, "e**x - 1, with a small relative error near 0 too.")
log = _math_function(log_value, "The natural logarithm; -inf of 0, NaN of a negative number.")
log1p = _math_function(log1p_value, "log(1 + x), with a small relative error near 0 too.")
tanh = _math_function(tanh_value, "The hyperbolic tangent.")
sigmoid = _math_function(sigmoid_value, "1 / (1 + e**-x).")
softplus = _math_function(softplus_value, "log(1 + e**x).")
erf = _math_function(erf_value, "The error function.")
sqrt = _math_function(sqrt_value, "The square root.")
divide = _math_function(divide_value, "a / b, with no slow path that is called: 15 instructions.")
power = _math_function(power_value, "base**exponent; float32 without float64.")
