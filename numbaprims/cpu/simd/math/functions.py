"""Vector functions that the simd layer has for kernels, or not at all, as emitters for formulas."""

from __future__ import annotations

import math

from numbaprims.cpu import target
from numbaprims.cpu.simd.emit import declare, suffix
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.math.exponential import exp_and_sum, gaussian
from numbaprims.cpu.simd.math.log import log1p_value, log_value
from numbaprims.cpu.simd.math.lookup import exponent, has_lookup, lookup, mantissa
from numbaprims.cpu.simd.math.tables import log1p_ratio, piecewise
from numbaprims.formulas import elementary, value
from numbaprims.formulas.hyperbolic import log2_value, log10_value
from numbaprims.formulas.value import at_least, bits, mad, magnitude, negative, polynomial
from numbaprims.polynomials import LOG10_2_PARTS

# Numbers next to 1 / m in the middle of 16 parts of [3/4, 3/2), those above 1 first: two that touch 1 are 1
# itself, and of the others the logarithm is a float32 to within 2**-11 of its last place.
_INVERSES = (
    1.0, 0.914179265499115, 0.864982545375824, 0.8206610679626465, 0.7804491519927979, 0.7440316081047058,
    0.7110862731933594, 0.6810204982757568, 1.3061445951461792, 1.2551628351211548, 1.2075895071029663,
    1.1636261940002441, 1.123076319694519, 1.084391474723816, 1.0495269298553467, 1.0,
)  # fmt: skip
_LOGARITHMS = tuple(-math.log(inverse) for inverse in _INVERSES)
# The same whose logarithms to base 2 and 10 are multiples of 2**-24 to within 2**-36.
_INVERSES_2 = (
    1.0, 0.9141810536384583, 0.8650774359703064, 0.8208286762237549, 0.7804515361785889, 0.7441802620887756,
    0.7109530568122864, 0.6808794736862183, 1.306103229522705, 1.2549718618392944, 1.2078983783721924,
    1.163947582244873, 1.1232630014419556, 1.0843342542648315, 1.0495456457138062, 1.0,
)  # fmt: skip
_INVERSES_10 = (
    1.0, 0.9141800403594971, 0.8648121356964111, 0.8205356001853943, 0.7804646492004395, 0.7440993189811707,
    0.7112023830413818, 0.6808968186378479, 1.3062422275543213, 1.2551451921463013, 1.207303762435913,
    1.1636803150177002, 1.1230548620224, 1.0840784311294556, 1.0493927001953125, 1.0,
)  # fmt: skip
# (log(1 + r) - r) / r**2, minimax relative to log(1 + r) on [-1/32, 1/16]: 2**-28.1
_LOG = (-0.5, 0.3333444595336914, -0.25006669759750366, 0.18855230510234833)


def log(x: Value) -> Value:
    """log x; 1.3 ULP.

    x = m 2**e, and m times the tabled inverse of its part is 1 + r with |r| <= 1/16.  getexp and getmant also give
    what 0, infinity, subnormal and negative numbers need: 14 instructions instead of 30.
    """
    if not has_lookup(x):
        return log_value(x)
    m = mantissa(x)
    part = bits(m) >> 19
    r = mad(m, lookup(_INVERSES, part), -1.0)
    log_m = mad(r * r, polynomial(r, _LOG), r) + lookup(_LOGARITHMS, part)
    # m < 1 is half of what the exponent counts from
    return mad(exponent(x) - exponent(m), math.log(2.0), log_m)


def log2(x: Value) -> Value:
    """log x to base 2; 1.3 ULP, as `log`."""
    if not has_lookup(x):
        return log2_value(x, Value.__truediv__)
    m = mantissa(x)
    part = bits(m) >> 19
    r = mad(m, lookup(_INVERSES_2, part), -1.0)
    whole = lookup([-math.log2(inverse) for inverse in _INVERSES_2], part) + (exponent(x) - exponent(m))
    return mad(r, polynomial(r, [c / math.log(2.0) for c in (1.0, *_LOG)]), whole)


def log10(x: Value) -> Value:
    """log x to base 10; 1.3 ULP, as `log`."""
    if not has_lookup(x):
        return log10_value(x, Value.__truediv__)
    m = mantissa(x)
    part = bits(m) >> 19
    r = mad(m, lookup(_INVERSES_10, part), -1.0)
    high, low = LOG10_2_PARTS[32]
    n = exponent(x) - exponent(m)
    tail = mad(r, polynomial(r, [c / math.log(10.0) for c in (1.0, *_LOG)]), n * low)
    return mad(n, high, lookup([-math.log10(inverse) for inverse in _INVERSES_10], part) + tail)


def sqrt(x: Value) -> Value:
    """The correctly rounded square root."""
    vector = x.value.type
    function = declare(x.builder, f"llvm.sqrt.{suffix(vector)}", vector, [vector])
    return x.new(x.builder.call(function, [x.value]))


def nearest(x: Value) -> Value:
    """The nearest integer, halves to even."""
    if target.current().has_fma:  # then there is an instruction for it too
        vector = x.value.type
        function = declare(x.builder, f"llvm.roundeven.{suffix(vector)}", vector, [vector])
        return x.new(x.builder.call(function, [x.value]))
    return value.nearest(x)


def softplus(x: Value) -> Value:
    """log(1 + e**x) = max(x, 0) + log(1 + e**-|x|)."""
    e, one_more = exp_and_sum(negative(magnitude(x)), 1.0)
    positive = at_least(x, 0.0)
    if has_lookup(x):
        return mad(e, piecewise(e, *log1p_ratio()), positive)
    return positive + log1p_value(e, one_more)


def normal_distribution(x: Value) -> tuple[Value, Value]:
    """(Phi(x), e**(-x**2 / 2))."""
    return elementary.normal_distribution(x, gaussian, Value.__truediv__)
