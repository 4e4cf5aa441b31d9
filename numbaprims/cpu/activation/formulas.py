"""y of every kind, over vectors of float32 or float64 (relu and identity: of integers too).

Those that are arithmetic alone are shared with the GPU; here are those whose exponentials, quotients and tables are the
CPU's own.
"""

from __future__ import annotations

from numbaprims.cpu.simd.math import functions
from numbaprims.cpu.simd.math.emit import Value
from numbaprims.cpu.simd.math.exponential import exp, exp_and_sum, expm1, expm1_to_infinity
from numbaprims.cpu.simd.math.log import log1p_value
from numbaprims.cpu.simd.math.lookup import has_lookup
from numbaprims.cpu.simd.math.power import power_value
from numbaprims.cpu.simd.math.tanh import tanh_value
from numbaprims.formulas.activations import ARITHMETIC, Formula, ceil, floor, gelu_tanh_argument, leaky_relu, of_machine
from numbaprims.formulas.hyperbolic import tanh_shrink_value
from numbaprims.formulas.value import at_most, between, mad, magnitude, negative, select, with_sign_of
from numbaprims.ops.activation_kinds import SELU_ALPHA, SELU_SCALE


def expm1_below_0(x: Value) -> Value:
    """e**x - 1 for x <= 0."""
    # e**-40 is below half a unit in the last place of 1 in both types. Not at most 0: LLVM makes 0 of a half -0 so.
    return expm1(between(x, (-40.0, 1.0)))


def one_and_exp_minus(x: Value) -> Value:
    """1 + e**-x."""
    return exp_and_sum(x, 1.0, -1.0)[1]


def softsign(x: Value) -> Value:
    return x / (magnitude(x) + 1.0)


def elu(x: Value, alpha: Value) -> Value:
    return select(x > 0.0, x, expm1_below_0(x) * alpha)


def selu(x: Value) -> Value:
    return select(x > 0.0, x * SELU_SCALE, expm1_below_0(x) * (SELU_SCALE * SELU_ALPHA))


def celu(x: Value, alpha: Value) -> Value:
    # a negative alpha turns the curve round: x / alpha is large where x is small
    return select(x > 0.0, x, expm1_to_infinity(x / alpha) * alpha)


def sigmoid(x: Value) -> Value:
    return 1.0 / one_and_exp_minus(x)


def silu(x: Value) -> Value:
    return x / one_and_exp_minus(x)


def tanh(x: Value) -> Value:
    if not has_lookup(x):
        return tanh_value(x)
    # m = e**-2|x| - 1 is in (-1, 0], and tanh |x| = -m / (m + 2)
    m = expm1(at_most(magnitude(x), 20.0), -2.0)
    return with_sign_of(m / (m + 2.0), x)


def softplus_1(x: Value) -> Value:
    y = functions.softplus(x)
    # e**-20 is nothing beside 20 in float32
    return y if x.width == 32 else select(x > 20.0, x, y)


def softplus(x: Value, beta: Value, limit: Value) -> Value:
    z = x * beta
    return select(z > limit, x, functions.softplus(z) / beta)


def power(x: Value, alpha: Value, beta: Value, gamma: Value) -> Value:
    return power_value(mad(beta, x, alpha), gamma)


def gelu(x: Value) -> Value:
    return x * functions.normal_distribution(x)[0]


def gelu_tanh(x: Value) -> Value:
    # (1 + tanh u) / 2 = sigmoid 2u
    return x / one_and_exp_minus(gelu_tanh_argument(x))


def mish(x: Value) -> Value:
    # tanh(log(1 + e)) = w / (w + 2) with w = e (e + 2), which is 1 in all its digits long before e**20
    e, two_more = exp_and_sum(x, 2.0, highest=20.0)
    return x * ((e * two_more) / mad(e, two_more, 2.0))


def glu(x: Value, gate: Value) -> Value:
    return x / one_and_exp_minus(gate)


#: kind -> (formula, how many of the parameters it takes)
FORWARD: dict[str, tuple[Formula, int]] = {
    **ARITHMETIC,
    **of_machine(Value.__truediv__, functions.sqrt),
    "elu": (elu, 1),
    "selu": (selu, 0),
    "celu": (celu, 1),
    "sigmoid": (sigmoid, 0),
    "tanh": (tanh, 0),
    "softplus": (softplus, 2),
    "softplus_1": (softplus_1, 0),
    "softsign": (softsign, 0),
    "power": (power, 3),
    "gelu": (gelu, 0),
    "gelu_tanh": (gelu_tanh, 0),
    "silu": (silu, 0),
    "mish": (mish, 0),
    "exp": (lambda x: exp(x, exact=True), 0),
    "log": (functions.log, 0),
    "log2": (functions.log2, 0),
    "log10": (functions.log10, 0),
    "sqrt": (functions.sqrt, 0),
    "round": (functions.nearest, 0),
    "log1p": (log1p_value, 0),
    "log_sigmoid": (lambda x: negative(functions.softplus(negative(x))), 0),
    "tanh_shrink": (lambda x: tanh_shrink_value(x, tanh(x)), 0),
    "reciprocal": (lambda x: 1.0 / x, 0),
    "rsqrt": (lambda x: 1.0 / functions.sqrt(x), 0),
    "floor": (lambda x: floor(x, functions.nearest), 0),
    "ceil": (lambda x: ceil(x, functions.nearest), 0),
}

#: Kinds of two arrays: prelu with a slope a channel, glu with its gate.
BINARY: dict[str, Formula] = {"prelu": leaky_relu, "glu": glu}
