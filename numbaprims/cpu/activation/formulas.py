"""y of every kind, over vectors of float32 or float64 (relu and identity: of integers too).

The formulas are shared with the GPU; here are the exponentials, quotients and tables that are the CPU's own.
"""

from __future__ import annotations

from numbaprims.cpu.simd.math import functions
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.math.exponential import exp, exp_and_sum, expm1, expm1_to_infinity, one_more_than_exp
from numbaprims.cpu.simd.math.log import log1p_value
from numbaprims.cpu.simd.math.lookup import has_lookup
from numbaprims.cpu.simd.math.power import power_value
from numbaprims.cpu.simd.math.tanh import tanh_value
from numbaprims.formulas.activations import ARITHMETIC, Formula, Machine, leaky_relu, of_machine
from numbaprims.formulas.value import at_most, between, magnitude, with_sign_of


def one_and_exp_minus(x: Value) -> Value:
    """1 + e**-x."""
    return one_more_than_exp(x, -1.0)


def tanh(x: Value) -> Value:
    if not has_lookup(x):
        return tanh_value(x)
    # m = e**-2|x| - 1 is in (-1, 0], and tanh |x| = -m / (m + 2)
    m = expm1(at_most(magnitude(x), 20.0), -2.0)
    return with_sign_of(m / (m + 2.0), x)


MACHINE = Machine(
    divide=Value.__truediv__,
    quotient=Value.__truediv__,
    reciprocal=lambda x: 1.0 / x,
    root=functions.sqrt,
    nearest=functions.nearest,
    exp=exp,
    exp_below_0=lambda x: exp(x, highest=0.0),
    expm1=expm1_to_infinity,
    # e**-40 is below half a unit in the last place of 1 in both types. Not at most 0: LLVM makes 0 of a half -0 so.
    expm1_below_0=lambda x: expm1(between(x, (-40.0, 1.0))),
    exp_and_2=lambda x: exp_and_sum(x, 2.0, highest=20.0),
    softplus=functions.softplus,
    sigmoid=lambda x: 1.0 / one_and_exp_minus(x),
    times_sigmoid=lambda x, z: x / one_and_exp_minus(z),
    tanh=tanh,
    power=power_value,
    normal_distribution=functions.normal_distribution,
)

#: kind -> (formula, how many of the parameters it takes)
FORWARD: dict[str, tuple[Formula, int]] = {
    **ARITHMETIC,
    **of_machine(MACHINE),
    "exp": (lambda x: exp(x, exact=True), 0),
    "log": (functions.log, 0),
    "log2": (functions.log2, 0),
    "log10": (functions.log10, 0),
    "log1p": (log1p_value, 0),
}

#: Kinds of two arrays: prelu with a slope a channel, glu with its gate.
BINARY: dict[str, Formula] = {"prelu": leaky_relu, "glu": MACHINE.times_sigmoid}
