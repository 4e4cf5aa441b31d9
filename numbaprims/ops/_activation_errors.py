"""How exact activations are, by kind."""

from __future__ import annotations

from typing import NamedTuple


class ActivationError(NamedTuple):
    """Errors of a kind, in eps of the type that is computed in, beside the rounding of a stored half precision.

    They are relative to each value, or to the larger of it and of dy: gradients where they change sign are small
    differences of large terms. `reference` is the error that the float64 definition itself has there, by which
    float64 results may differ from it.
    """

    forward: float
    backward: float
    backward_scale: str = ""
    reference: float = 0.0


#: Of the kinds of activations; part of the one table of tolerances.
ACTIVATION_ERRORS = {
    "identity": ActivationError(0, 0),
    "relu": ActivationError(0, 0),
    "leaky_relu": ActivationError(1, 1),
    "prelu": ActivationError(1, 1),
    "clipped_relu": ActivationError(0, 0),
    "elu": ActivationError(3, 4),
    "selu": ActivationError(3, 4),
    "celu": ActivationError(3, 4),
    "sigmoid": ActivationError(4, 2),
    "tanh": ActivationError(3, 2, backward_scale="dy"),
    "softplus": ActivationError(4, 4),
    "softsign": ActivationError(2, 4),
    "abs": ActivationError(0, 0),
    "power": ActivationError(3, 4),
    "gelu": ActivationError(4, 3, "dy"),
    "gelu_tanh": ActivationError(4, 4, "dy", reference=16),
    "silu": ActivationError(4, 3, "dy", reference=24),
    "mish": ActivationError(5, 3, "dy", reference=16),
    "hard_sigmoid": ActivationError(2, 2),
    "hard_swish": ActivationError(2, 3, "dy"),
    "hard_tanh": ActivationError(0, 0),
    "exp": ActivationError(2, 1),
    "log": ActivationError(2, 1),
    "sqrt": ActivationError(1, 1),
    "square": ActivationError(1, 1),
    "round": ActivationError(0, 0),
    "clip": ActivationError(0, 0),
    "threshold": ActivationError(0, 0),
    "exp2": ActivationError(2, 2),
    "expm1": ActivationError(2, 2),
    "log1p": ActivationError(2, 2),
    "erf": ActivationError(2, 4),
    "reciprocal": ActivationError(1, 2),
    "rsqrt": ActivationError(2, 3),
    "sign": ActivationError(0, 0),
    "floor": ActivationError(0, 0),
    "ceil": ActivationError(0, 0),
    "sin": ActivationError(2, 2),
    "cos": ActivationError(2, 2),
    "tan": ActivationError(2, 2),
    "asin": ActivationError(2, 3),
    "acos": ActivationError(2, 3),
    "atan": ActivationError(2, 2),
    "sinh": ActivationError(2, 3),
    "cosh": ActivationError(2, 3),
    "asinh": ActivationError(3, 3),
    "acosh": ActivationError(3, 3),
    "atanh": ActivationError(2, 3),
    "log2": ActivationError(2, 2),
    "log10": ActivationError(2, 2),
    "erfc": ActivationError(2, 4),
    "neg": ActivationError(0, 0),
    "log_sigmoid": ActivationError(4, 4),
    "shrink": ActivationError(1, 0),
    "tanh_shrink": ActivationError(4, 6),
    "soft_shrink": ActivationError(1, 0),
    "glu": ActivationError(5, 4, "dy", reference=24),
}
