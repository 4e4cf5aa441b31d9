"""Activations and their gradients: `activation`, `activation_backward`, and a function for each kind.

The functions of one kind stand in `_activation_simple.py` and `_activation_smooth.py`, each followed by its gradient;
`_activation_call.py` has the primitives behind them, `_activation_problem.py` what these ask the dispatcher.
"""

from __future__ import annotations

from typing import Any

from numbaprims.ops import _activation_call as _call
from numbaprims.ops._activation_call import backward as _backward, forward as _forward
from numbaprims.ops._activation_docs import document
from numbaprims.ops._activation_elementary import (
    abs as abs,
    abs_backward as abs_backward,
    acos as acos,
    acos_backward as acos_backward,
    acosh as acosh,
    acosh_backward as acosh_backward,
    asin as asin,
    asin_backward as asin_backward,
    asinh as asinh,
    asinh_backward as asinh_backward,
    atan as atan,
    atan_backward as atan_backward,
    atanh as atanh,
    atanh_backward as atanh_backward,
    ceil as ceil,
    ceil_backward as ceil_backward,
    cos as cos,
    cos_backward as cos_backward,
    cosh as cosh,
    cosh_backward as cosh_backward,
    erf as erf,
    erf_backward as erf_backward,
    erfc as erfc,
    erfc_backward as erfc_backward,
    exp as exp,
    exp2 as exp2,
    exp2_backward as exp2_backward,
    exp_backward as exp_backward,
    expm1 as expm1,
    expm1_backward as expm1_backward,
    floor as floor,
    floor_backward as floor_backward,
    hard_shrink as hard_shrink,
    hard_shrink_backward as hard_shrink_backward,
    hard_sigmoid as hard_sigmoid,
    hard_sigmoid_backward as hard_sigmoid_backward,
    hard_swish as hard_swish,
    hard_swish_backward as hard_swish_backward,
    identity as identity,
    identity_backward as identity_backward,
    log as log,
    log1p as log1p,
    log1p_backward as log1p_backward,
    log2 as log2,
    log2_backward as log2_backward,
    log10 as log10,
    log10_backward as log10_backward,
    log_backward as log_backward,
    log_sigmoid as log_sigmoid,
    log_sigmoid_backward as log_sigmoid_backward,
    mish as mish,
    mish_backward as mish_backward,
    neg as neg,
    neg_backward as neg_backward,
    reciprocal as reciprocal,
    reciprocal_backward as reciprocal_backward,
    relu as relu,
    relu_backward as relu_backward,
    round as round,
    round_backward as round_backward,
    rsqrt as rsqrt,
    rsqrt_backward as rsqrt_backward,
    selu as selu,
    selu_backward as selu_backward,
    shrink as shrink,
    shrink_backward as shrink_backward,
    sigmoid as sigmoid,
    sigmoid_backward as sigmoid_backward,
    sign as sign,
    sign_backward as sign_backward,
    silu as silu,
    silu_backward as silu_backward,
    sin as sin,
    sin_backward as sin_backward,
    sinh as sinh,
    sinh_backward as sinh_backward,
    soft_shrink as soft_shrink,
    soft_shrink_backward as soft_shrink_backward,
    softsign as softsign,
    softsign_backward as softsign_backward,
    sqrt as sqrt,
    sqrt_backward as sqrt_backward,
    square as square,
    square_backward as square_backward,
    tan as tan,
    tan_backward as tan_backward,
    tanh as tanh,
    tanh_backward as tanh_backward,
    tanh_shrink as tanh_shrink,
    tanh_shrink_backward as tanh_shrink_backward,
)
from numbaprims.ops._activation_problem import ActivationProblem as ActivationProblem, example_call
from numbaprims.ops._activation_simple import (
    clip as clip,
    clip_backward as clip_backward,
    clipped_relu as clipped_relu,
    clipped_relu_backward as clipped_relu_backward,
    hard_tanh as hard_tanh,
    hard_tanh_backward as hard_tanh_backward,
    leaky_relu as leaky_relu,
    leaky_relu_backward as leaky_relu_backward,
    prelu as prelu,
    prelu_backward as prelu_backward,
    relu6 as relu6,
    relu6_backward as relu6_backward,
    threshold as threshold,
    threshold_backward as threshold_backward,
)
from numbaprims.ops._activation_smooth import (
    celu as celu,
    celu_backward as celu_backward,
    elu as elu,
    elu_backward as elu_backward,
    gelu as gelu,
    gelu_backward as gelu_backward,
    glu as glu,
    glu_backward as glu_backward,
    power as power,
    power_backward as power_backward,
    softplus as softplus,
    softplus_backward as softplus_backward,
    swish as swish,
    swish_backward as swish_backward,
)
from numbaprims.ops.activation_kinds import ALIASES, KINDS, resolve
from numbaprims.ops.primitive import problems

#: Every name that `activation` takes, each also a function of this module.
NAMES = (*KINDS, *ALIASES)

# (kind, its parameters) -> the kernel's kind and its numbers, so that a call checks them once.
_kernels: dict[Any, tuple[Any, tuple[float, ...]]] = {}


def _kernel(kind: str, parameters: dict[str, Any]) -> tuple[Any, tuple[float, ...]]:
    """What a kernel takes; ("prelu", (weight,)) for the kind with an array."""
    # names, then as many values: flat, because the hash of a tuple of pairs takes 0.1 us longer
    key: Any = (kind, *parameters, *parameters.values()) if parameters else kind
    try:
        found = _kernels.get(key)
    except TypeError:  # a parameter that cannot be hashed: an array, or what will be refused
        found = None
    if found is None:
        name, full = resolve(kind, parameters)
        if name == "prelu":
            return name, (full["weight"],)
        found = (_call.glu_kind(full["axis"]), ()) if name == "glu" else _call.kernel(kind, **parameters)
        # not by objects whose value may change: an array of one number
        if len(_kernels) < 4096 and all(type(value) in (float, int, str) for value in parameters.values()):
            _kernels[key] = found
    return found


def activation(x: Any, kind: str, *, out: Any = None, **parameters: Any) -> Any:
    """Apply an activation to every element: ``y = kind(x)``.

    Args:
        x: any shape and strides, read without a copy; float64, float32, float16 or bfloat16, the last two
            computed in float32.
        kind: "relu", "gelu", ...: each is also a function of its own, whose docstring has the formula.
        out: where y goes, of y's shape and dtype; it may be x itself, and otherwise shares no memory with x.
        **parameters: those of the kind, by the names of its function; None means the default.

    Returns:
        y, of x's shape (`glu`: half of it), dtype and library. A new array lies in memory as x does.

    Raises:
        TypeError: another dtype, mixed libraries or dtypes, an unknown or missing parameter.
        ValueError: an unknown kind, a parameter's value that is not allowed, an `out` of another shape or one
            that overlaps an input.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.activation(np.array([-1.0, 2.0]), "leaky_relu", negative_slope=0.5)
        array([-0.5,  2. ])
    """
    kernel, numbers = _kernel(kind, parameters)
    if kernel == "prelu":
        return _call.prelu_forward(x, numbers[0], out)
    return _forward((x,), kernel, numbers, out)


def activation_backward(dy: Any, x: Any, y: Any, kind: str, *, out: Any = None, **parameters: Any) -> Any:
    """Compute the gradient of an activation: ``dx = dy * kind'(x)``.

    Args:
        dy: gradient of the loss by y; any strides.
        x: the input of the forward pass, of dy's shape (`glu`: twice as long along `axis`). It may be None
            for the kinds that read y.
        y: the result of the forward pass. It is read for relu, sigmoid, tanh, exp and sqrt, and may be None
            for the others.
        kind: as in `activation`.
        out: where dx goes; it may be dy, or what is read of x and y, itself.
        **parameters: as in `activation`.

    Returns:
        dx, of dy's shape (`glu`: x's), dtype and library; for `prelu` a pair of dx and dweight.

    Raises:
        TypeError: as `activation`; an array that is needed and None.
        ValueError: as `activation`; arrays of different shapes.

    Example:
        >>> import numpy as np, numbaprims
        >>> x = np.array([-1.0, 2.0])
        >>> numbaprims.activation_backward(np.ones(2), x, None, "leaky_relu", negative_slope=0.5)
        array([0.5, 1. ])
    """
    kernel, numbers = _kernel(kind, parameters)
    reads = _call.reads(kernel, "x")
    saved = x if reads == "x" else y if reads == "y" else dy
    if saved is None:
        raise TypeError(f"{reads} is None; the gradient of {kind} is computed from it")
    if kernel == "prelu":
        return _call.prelu_backward(dy, x, numbers[0], out)
    return _backward(kernel, dy, saved, out, numbers)


_of_kinds = [globals()[name + word] for word in ("", "_backward") for name in NAMES]
for _function in _of_kinds:
    document(_function)
# `explain` asks each function what it poses
PROBLEMS = problems(activation, activation_backward, *_of_kinds)
EXAMPLES = {"activation": example_call}
