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
    32: (0.12837916612625122, -0.37612590193748474, 0.11282864958047867, -0.026807287707924843,
         0.0050577037036418915, -0.0006348518654704094),
    64: (
        0.12837916709551256, -0.37612638903183443, 0.11283791670941846, -0.02686617064279437, 0.005223977603799316,
        -0.0008548325827701687, 0.00012055290750338252, -1.4924661086653373e-05, 1.6446528586852109e-06,
        -1.6201864583162012e-07, 1.3692290429277776e-08, -7.745365082188956e-10,
    ),
}  # fmt: skip
# log2(1 - erf(x)) in x - origin, minimax relative to erf(x) from the border on: 2**-28.8 and 2**-57.6
_FAR = {
    32: (-0.00015078998694662005, -1.6274480819702148, -0.9183025360107422, -0.15079925954341888,
         0.03248826041817665, -0.0044981506653130054, 0.000293847406283021),
    64: (
        -2.6684166967815997, -3.8072253458536, -1.2163466576862896, -0.05995999003694537, 0.014475750092927633,
        -0.002853510140662752, 0.00034238365646205505, 3.7911756571824467e-05, -3.9183798874022226e-05,
        1.3864754109747346e-05, -2.973727060128102e-06, 2.077577431416395e-07, 1.397795292787786e-07,
        -7.466120749026114e-08, 2.138102348645837e-08, -4.102201466312112e-09, 5.267669039765155e-10,
        -4.1162879436032263e-11, 1.4822639284399592e-12,
    ),
}  # fmt: skip
# 2**r, minimax on |r| <= 1/2: 2**-23.4, which is 2**-25.5 of the result, and 2**-57.8
_EXP2 = {
    32: (1.0, 0.6931470036506653, 0.24022246897220612, 0.0555071085691452, 0.009671291336417198,
         0.0013269521296024323),
    64: (
        1.0, 0.6931471805599453, 0.24022650695910108, 0.05550410866482172, 0.00961812910760159, 0.0013333558146546198,
        0.00015403530449059624, 1.5252733634244692e-05, 1.3215438823452874e-06, 1.017815987591649e-07,
        7.0732351922323385e-09, 4.4388951280151323e-10,
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
    """The error function 2 / sqrt(pi) times the integral of exp(-t**2) from 0 to x, of every lane, for f32 and f64."""
