"""erf: near 0 a polynomial in x**2, elsewhere 1 - 2**g with a polynomial g for the logarithm of 1 - erf."""

from __future__ import annotations

from numbaprims.cpu.simd.math.emit import (
    MANTISSA,
    SHIFTER,
    Value,
    at_most,
    bits,
    float_bits,
    from_bits,
    mad,
    magnitude,
    polynomial,
    select,
    vector_function,
    with_sign_of,
)

# (border of the two, where erf is 1 in all its digits, origin of g)
_RANGES = {32: (0.85, 3.95, 0.0), 64: (1.0, 5.95, 1.0)}
# erf(x) / x - 1 in x**2, minimax relative to erf(x) / x up to the border: 2**-27.1 and 2**-56.2
_NEAR = {
    32: (
        0.12837916612625122, -0.37612590193748474, 0.11282864958047867, -0.026807287707924843,
        0.0050577037036418915, -0.0006348518654704094,
    ),
    64: (
        0.12837916709551256, -0.37612638903183443, 0.11283791670941846, -0.02686617064279437,
        0.005223977603799316, -0.0008548325828089848, 0.00012055290792577062, -1.4924662866368472e-05,
        1.6446566470853948e-06, -1.6202299348553702e-07, 1.3694861338281978e-08, -7.751520304095889e-10,
    ),
}  # fmt: skip
# log2(1 - erf(x)) in x - origin, minimax relative to erf(x) from the border on: 2**-28.8 and 2**-57.6
_FAR = {
    32: (
        -0.00015078998694662005, -1.6274480819702148, -0.9183025360107422, -0.15079925954341888,
        0.03248826041817665, -0.0044981506653130054, 0.0002938475226983428,
    ),
    64: (
        -2.6684166967815997, -3.8072253458536, -1.2163466576862896, -0.05995999003694537,
        0.014475750092933394, -0.002853510140781767, 0.0003423836574926964, 3.791175156426778e-05,
        -3.918378349939624e-05, 1.3864722333910318e-05, -2.9736811880119414e-06, 2.0771049104135136e-07,
        1.3981460763253293e-07, -7.46799706940401e-08, 2.1388172117057698e-08, -4.104089827138433e-09,
        5.270949715056353e-10, -4.119653596114783e-11, 1.4838064659650775e-12,
    ),
}  # fmt: skip
# 2**r, minimax on |r| <= 1/2: 2**-23.4, which is 2**-25.5 of the result, and 2**-57.8
_EXP2 = {
    32: (
        1.0, 0.6931470036506653, 0.24022246897220612, 0.0555071085691452, 0.009671291336417198,
        0.0013269521296024323,
    ),
    64: (
        1.0, 0.6931471805599453, 0.24022650695910108, 0.05550410866482172, 0.009618129107601608,
        0.0013333558146546361, 0.0001540353044903139, 1.5252733633950606e-05, 1.3215438838338398e-06,
        1.017816004427941e-07, 7.073232645979179e-09, 4.4388644482017894e-10,
    ),
}  # fmt: skip


def erf_value(x: Value) -> Value:
    """erf x."""
    width = x.width
    border, one, origin = _RANGES[width]
    a = at_most(magnitude(x), one)
    g = polynomial(a - origin if origin else a, _FAR[width])
    shifted = g + SHIFTER[width]
    r = g - (shifted - SHIFTER[width])
    minus_power = from_bits((bits(shifted) << MANTISSA[width]) + float_bits(-1.0, width))
    far = with_sign_of(mad(minus_power, polynomial(r, _EXP2[width]), 1.0), x)
    near = mad(x, polynomial(x * x, _NEAR[width]), x)
    return select(a < border, near, far)


@vector_function(erf_value)
def erf(x):  # type: ignore[no-untyped-def]
    """The error function, 2 / sqrt(pi) times the integral of exp(-t**2) from 0 to x, of every lane.

    Within 1.5 ULP for f32 (1.6 without fused multiply-add), 1.2 for f64 (1.4).
    """
