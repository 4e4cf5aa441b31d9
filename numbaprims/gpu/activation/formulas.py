"""y of every kind, of one number in float32 or float64.

The formulas are shared with the CPU; what differs is what is cheap: a division is six instructions, and no exponential
may overflow, because the division that follows is not the one of IEEE 754.
"""

from __future__ import annotations

from numbaprims.formulas.activations import ARITHMETIC, Formula, Machine, leaky_relu, of_machine
from numbaprims.formulas.elementary import exp_value, expm1_value
from numbaprims.formulas.value import at_most, nearest
from numbaprims.gpu.device.math import (
    divide_value,
    exp_and_sum_value,
    exp_normal_value,
    log1p_value,
    log_value,
    normal_distribution,
    power_value,
    quotient_value,
    sigmoid_and_rest,
    sigmoid_value,
    softplus_value,
    sqrt_value,
    tanh_value,
)

MACHINE = Machine(
    divide=divide_value,
    quotient=quotient_value,
    reciprocal=lambda x: divide_value(x.like(1.0), x),
    root=sqrt_value,
    nearest=nearest,
    exp=exp_value,
    exp_below_0=lambda x: exp_normal_value(at_most(x, 0.0)),
    expm1=expm1_value,
    expm1_below_0=lambda x: expm1_value(at_most(x, 1.0)),  # as on the CPU not at most 0, lest -0 become 0
    exp_and_2=lambda x: exp_and_sum_value(at_most(x, 20.0), 2.0),
    softplus=softplus_value,
    sigmoid=sigmoid_value,
    times_sigmoid=lambda x, z: x * sigmoid_and_rest(z)[0],
    tanh=tanh_value,
    power=power_value,
    normal_distribution=normal_distribution,
)

#: kind -> (formula, how many of the parameters it takes)
FORWARD: dict[str, tuple[Formula, int]] = {
    **ARITHMETIC,
    **of_machine(MACHINE),
    "exp": (exp_value, 0),
    "log": (log_value, 0),
    "log1p": (log1p_value, 0),
}

#: Kinds of two arrays: prelu with a slope a channel, glu with its gate.
BINARY: dict[str, Formula] = {"prelu": leaky_relu, "glu": MACHINE.times_sigmoid}

#: Kinds whose arithmetic is a few instructions: one kernel holds them all and is told which at run time.
CHEAP = (
    "identity", "relu", "leaky_relu", "prelu", "clipped_relu", "abs", "power_2", "hard_sigmoid", "hard_swish",
    "hard_tanh", "square", "round", "clip", "threshold",
)  # fmt: skip
