"""Mathematics for kernels, in float32 without a float64 instruction, and in float64: no calls, branches or tables.

The polynomials are those of the CPU's vectors (docs/simd.md; docs/notes/minimax.py finds them again).  exp by one is as
fast as by the hardware's ex2: 7 multiply-adds at 128 a clock and multiprocessor against one special function at 16.
Only reciprocals and reciprocal roots come from special functions, and they are corrected by a remainder, so that their
error of 1 ULP does not reach a result (but for `exp2_fast`, of which attention makes numbers of 16 bits).  Signs of
zero, infinities and NaN are those of C's math.h.

Largest errors in units in the last place, f32 / f64 (tests/gpu/test_math.py, against float64 and mpmath):
exp 1.0, expm1 1.4, log 1.0, log1p 1.0, tanh 1.7 / 2.0, sigmoid 1.7, erf 1.5 / 1.2, sqrt and divide 0.6, power 2 (f32).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from numbaprims.formulas import elementary
from numbaprims.formulas.elementary import (
    erf_value,
    exp_and_sum,
    exp_of_rest,
    exp_value,
    expm1_value,
    gaussian_parts,
    mantissa_and_exponent,
    power_cases,
    reduce,
)
from numbaprims.formulas.value import (
    MANTISSA,
    SHIFTER,
    at_least,
    at_most,
    between,
    bits,
    from_bits,
    mad,
    magnitude,
    negative,
    polynomial,
    scale,
    select,
    with_sign_of,
)
from numbaprims.gpu.device.emit import intrinsic, types
from numbaprims.gpu.device.value import Value, approximate, scale_normal
from numbaprims.polynomials import EXP_RANGE, POWER_OF_2

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
    # a rest of 0 would make -0 a 0
    return with_sign_of(select(magnitude(rest) < math.inf, mad(rest, r, q), q), q)


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


def exp_normal_value(x: Value) -> Value:
    """e**x, 0 where that is subnormal, at most e**88 (e**709): the third of a factor, for sums with 1."""
    limits = _NORMAL_RANGE[x.width]
    r, shifted = reduce(between(x, limits))
    # What is below the range, and NaN, whose bits the sum would make finite (0x7fffffff of the hardware).
    return select(x >= limits[0], scale_normal(exp_of_rest(r), shifted), at_least(x, 0.0))


def exp_and_sum_value(x: Value, c: float) -> tuple[Value, Value]:
    """(e**x, e**x + c) for x up to 88 and a c near 1; in float32 e**x is 0 below 2**-126."""
    if x.width == 32:
        e = exp_normal_value(x)
        return e, e + c
    return exp_and_sum(at_least(x, EXP_RANGE[64][0]), c)


def gaussian_value(a: Value) -> Value:
    """e**(-a**2 / 2), 0 where that is subnormal, for |a| up to NORMAL_LARGEST."""
    y, shifted = gaussian_parts(a)
    below = a <= {32: 13.2, 64: 37.6}[a.width]
    return select(below, scale_normal(y, shifted), at_most(a, 0.0))


def normal_distribution(x: Value) -> tuple[Value, Value]:
    """(Phi(x), e**(-x**2 / 2)) of the normal distribution Phi."""
    return elementary.normal_distribution(x, gaussian_value, quotient_value)


def tanh_value(x: Value) -> Value:
    """tanh x."""
    return elementary.tanh_value(x, quotient_value)


def sigmoid_and_rest(x: Value) -> tuple[Value, Value]:
    """(s, 1 - s) of s = 1 / (1 + e**-x), both with small relative errors; in float32 they are 0 below 2**-126."""
    e, one_more = exp_and_sum_value(negative(magnitude(x)), 1.0)
    r = reciprocal_value(one_more)
    low = e * r
    below = x < 0.0
    return select(below, low, r), select(below, r, low)


def sigmoid_value(x: Value) -> Value:
    """1 / (1 + e**-x) from e**-|x|, which does not overflow and may be subnormal."""
    e, one_more = exp_and_sum(at_least(negative(magnitude(x)), EXP_RANGE[x.width][0]), 1.0)
    r = reciprocal_value(one_more)
    # the remainder holds what rounding e + 1 took: 1 - r is exact, r being at least 1/2
    r = mad(mad(negative(e), r, 1.0 - r), r, r)
    return select(x < 0.0, e * r, r)


# ---------------------------------------------------------------- logarithms


def log_value(x: Value) -> Value:
    """log x."""
    return elementary.log_value(x, quotient_value)


def log1p_value(x: Value) -> Value:
    """log(1 + x), with a small relative error near 0 too."""
    return elementary.log1p_value(x, quotient_value)


def softplus_value(x: Value) -> Value:
    """log(1 + e**x) = max(x, 0) + log(1 + e**-|x|)."""
    return at_least(x, 0.0) + log1p_value(exp_normal_value(negative(magnitude(x))))


# ---------------------------------------------------------------- powers

# (log2(m) - c s) / s**3 in powers of s**2 with s = (m - 1) / (m + 1), c = 2 log2(e), minimax relative to log2(m) for
# 3/4 <= m < 3/2: 2**-35.2
_LOG2 = (0.9617966413497925, 0.5770907402038574, 0.4112528860569, 0.3479573428630829)
_LOG2_C = (2.885390043258667, 3.851925982253235e-08)


def _power_f32(b: Value, g: Value) -> Value:
    """b**g of b >= 0 by its logarithm in two parts, 2**-31 beside each other."""
    m, e = mantissa_and_exponent(b)
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
    t = between(t, (-200.0, 200.0))
    shifted = t + SHIFTER[32]
    x = (t - (shifted - SHIFTER[32])) + rest
    return scale(polynomial(x, POWER_OF_2[32]), shifted)


def power_value(base: Value, exponent: Value) -> Value:
    """base**exponent, signs and special cases as IEEE 754's pow; in float64 the relative error is that of exponent log
    base."""
    size = magnitude(base)
    size = _power_f32(size, exponent) if base.width == 32 else exp_value(exponent * log_value(size))
    return power_cases(base, exponent, size)


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
exp2_fast = _math_function(
    lambda x: approximate("ex2", x), "2**x of a float32 by one instruction, within 2 ULP; 0 where subnormal."
)
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
