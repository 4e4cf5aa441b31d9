"""Exponentials for formulas: e**(factor x) with its range clamped once, and e**x - 1 from the same work.

With AVX-512, powers of 2 by sixteenths stand in a table in one register: the polynomial for what is left then
has degree 3 instead of 6, and ln 2 is one float32 instead of two, which costs 1.9e-9 of relative error for
each power of 2 (half a unit in the last place where the argument is 20). On one Zen 4 core `exp` of float32
so runs at 9.4 G elements a second before it is clamped, where two parts and degree 6 give 5.7. With AVX2, which has no
instruction that multiplies by a power of 2, softmax's exponentials take a table of eighths. Other targets and float64
take the functions of `formulas.elementary`.
"""

from __future__ import annotations

import math

import numpy as np

from numbaprims.cpu import target
from numbaprims.cpu.simd.math.emit import SMALLEST, Value
from numbaprims.cpu.simd.math.lookup import SHORT, SIZE, has_lookup, has_short_lookup, lookup, scale_by_floor
from numbaprims.formulas import elementary
from numbaprims.formulas.elementary import exp_in_range, exp_of_negative_in_range, expm1_value, gaussian_parts
from numbaprims.formulas.value import SHIFTER, at_least, at_most, between, bits, from_bits, mad, negative, scale, select
from numbaprims.polynomials import EXP_RANGE

#: e**x is 0, rounded, below the one, subnormal below the other: of float32.
NOTHING, NORMAL = -104.0, -87.33
LOG2_E = math.log2(math.e)
LN2 = float(np.float32(math.log(2.0)))
# the two parts of ln 2, of which n times the upper one is exact
LN2_PARTS = (0.693145751953125, 1.428606765330187e-06)
# the same with 12 bits in the upper one, for an n up to 152 in sixteenths
LN2_SHORT = (0.693115234375, 3.1946184945309236e-05)

# (e**r - 1 - r) / r**2, minimax relative to e**r on |r| <= ln(2) / 32: 2**-29.2
_C2, _C3 = 0.5000161528587341, 0.166667178273201

# the same on |r| <= ln(2) / 16: 2**-25.2
_C2_SHORT, _C3_SHORT = 0.5000644481222968, 0.1666685655867517

_EXACT = np.exp2(np.arange(SIZE) / SIZE)
_ROUNDED = _EXACT.astype(np.float32)
_POWERS = _ROUNDED.tolist()
_LOST = [-0.0, *((_EXACT - _ROUNDED) / _ROUNDED).tolist()[1:]]  # e**-0 - 1 is -0
# The powers less j / 16 in their mantissas: an integer i = 16 n + j shifted by 19 has n in the exponent and j
# / 16 in the mantissa, so that the sum of its bits with those of entry j is 2**(i / 16).
_LESS_FRACTION = (_ROUNDED.view(np.int32) - (np.arange(SIZE, dtype=np.int32) << 19)).view(np.float32).tolist()

_EIGHTHS = (_ROUNDED[::2].view(np.int32) - (np.arange(SHORT, dtype=np.int32) << 20)).view(np.float32).tolist()
_HALVED = (np.array(_LESS_FRACTION, np.float32).view(np.int32) - (1 << 23)).view(np.float32).tolist()


def _rest(r: Value, factor: float) -> Value:
    """(e**(factor r) - 1) / r for a small r."""
    return mad(mad(r, _C3 * factor**3, _C2 * factor**2), r, factor)


def _limited(x: Value, factor: float, highest: float | None) -> tuple[Value, float]:
    """(z, its factor) of e**(factor x), up to what that is infinite above, or `highest`; where no register holds a
    table, which leaves out what is 0, from what it is 0 below on."""
    lowest, limit = EXP_RANGE[x.width]
    limit = limit if highest is None else highest
    if has_lookup(x):
        return (at_most(x, limit) if factor > 0 else at_least(x, -limit)), factor
    # with another sign before it is compared: LLVM makes two instructions of each of these otherwise
    return between(negative(x) if factor < 0 else x, (lowest, limit)), 1.0


def exp(x: Value, factor: float = 1.0, highest: float | None = None, *, exact: bool = False) -> Value:
    """e**(factor x), or e**highest where that is less: 0, subnormal and infinite where it should be.

    `factor` is 1 or -1. `exact` is 1 ULP everywhere; without it 1.6 ULP as far as 20 and 5 ULP at the ends.
    """
    z, factor = _limited(x, factor, highest)
    return _by_lookup(z, factor, exact=exact) if has_lookup(z) else exp_in_range(z)


def exp_of_negative(x: Value) -> Value:
    """e**x where x is about 0 at most, as `exp`: one operation of twelve less, five of twenty without a table.

    Tables give 0 where that is subnormal: beside the largest of a row it is nothing, and costs an Intel CPU 220 cycles,
    which masks of -100 met in every window of a Swin transformer.
    """
    if has_lookup(x):
        return _by_lookup(x, 1.0, NORMAL)
    if has_short_lookup(x):
        return _by_short_lookup(x)
    # by vscalef of AVX-512 any power of 2 is one instruction
    z, scales = at_least(x, EXP_RANGE[x.width][0]), "avx512f" in target.current().features
    return exp_in_range(z) if scales else exp_of_negative_in_range(z)


def exp_and_sum(x: Value, c: float, factor: float = 1.0, highest: float | None = None) -> tuple[Value, Value]:
    """(e**(factor x), e**(factor x) + c) for a c near 1, as `exp`."""
    return exp_and_sum_in_range(*_limited(x, factor, highest), c)


def one_more_than_exp(x: Value, factor: float = 1.0) -> Value:
    """e**(factor x) + 1, in which what is subnormal is lost."""
    if not has_lookup(x):
        return exp_and_sum(x, 1.0, factor)[1]
    return _by_lookup(*_limited(x, factor, None), NORMAL) + 1.0


def exp_and_sum_in_range(x: Value, factor: float, c: float) -> tuple[Value, Value]:
    """The same where e**(factor x) is finite and factor x at least the lower end of EXP_RANGE; without a table factor
    is 1."""
    if not has_lookup(x):
        return elementary.exp_and_sum(x, c)
    e = _by_lookup(x, factor)
    return e, e + c


def _by_lookup(x: Value, factor: float, least: float = NOTHING, exact: bool = False) -> Value:
    """e**(factor x), 0 where the exponent is below `least`."""
    kept = x.not_below(least) if factor > 0 else negative(x).not_below(least)
    shifter = SHIFTER[32] / SIZE
    shifted = mad(x, factor * LOG2_E, shifter)
    n = shifted - shifter
    if exact:
        r = mad(n, -LN2_PARTS[1] * factor, mad(n, -LN2_PARTS[0] * factor, x))
    else:
        r = mad(n, -LN2 * factor, x)
    power = lookup(_POWERS, bits(shifted))
    return scale_by_floor(mad(power, _rest(r, factor) * r, power), n, kept)


def _by_short_lookup(x: Value) -> Value:
    """e**x of what is about 0 at most, within 2 ULP as far as 20; 0 where it would be subnormal."""
    shifter = SHIFTER[32] / SHORT
    shifted = mad(x, LOG2_E, shifter)
    i, r = bits(shifted), mad(shifted - shifter, -LN2, x)
    power = from_bits(bits(lookup(_EIGHTHS, i)) + (i << 20))
    return select(x.not_below(NORMAL), mad(power * r, mad(mad(r, _C3_SHORT, _C2_SHORT), r, 1.0), power), 0.0)


def gaussian(a: Value) -> Value:
    """e**(-a**2 / 2) for |a| up to NORMAL_LARGEST, 1 ULP: as `gaussian_parts`, by sixteenths."""
    if not has_lookup(a):
        return scale(*gaussian_parts(a))
    shifter = SHIFTER[32] / SIZE
    shifted = mad(a * (-0.5 * LOG2_E), a, shifter)
    n = shifted - shifter
    r = mad(n, 2.0 * LN2_SHORT[1], mad(a, a, n * (2.0 * LN2_SHORT[0])))
    power = lookup(_POWERS, bits(shifted))
    return scale_by_floor(mad(power, _rest(r, -0.5) * r, power), n, n.not_below(SMALLEST[32]))


def _parts_of_expm1(x: Value, factor: float, table: list[float]) -> tuple[Value, Value]:
    """(power, rest) with e**(factor x) = power (1 + rest); the table's factor is in the power."""
    shifter = SHIFTER[32] / SIZE
    shifted = mad(x, factor * LOG2_E, shifter)
    i = bits(shifted)
    r = mad(shifted - shifter, -LN2 / factor, x)
    power = from_bits(bits(lookup(table, i)) + (i << 19))
    return power, mad(_rest(r, factor), r, lookup(_LOST, i))


def expm1(x: Value, factor: float = 1.0) -> Value:
    """e**(factor x) - 1 with a small relative error near 0 too; |factor x| <= 87 in float32."""
    if not has_lookup(x):
        return expm1_value(x if factor == 1.0 else x * factor)
    power, rest = _parts_of_expm1(x, factor, _LESS_FRACTION)
    return mad(power, rest, negative(1.0 - power))  # -0 of -0


def expm1_to_infinity(x: Value) -> Value:
    """The same of every x."""
    if not has_lookup(x):
        return expm1_value(x)
    # half of it, because 2**n may be one more than exponents reach; e**-40 is nothing beside 1
    power, rest = _parts_of_expm1(between(x, (-40.0, EXP_RANGE[32][1])), 1.0, _HALVED)
    half = mad(power, rest, negative(0.5 - power))
    return half + half
