"""Activations without parameters, each with its gradient: one text for all of them.

Their formulas and gradients stand in the table of kinds; here is how they are called, and what they give of an example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbaprims.ops._activation_call import backward, forward
from numbaprims.ops.activation_kinds import KINDS, resolve

_BOTH = "np.array([-1.0, 2.0])"
_FORWARD = """{title}: ``y = {formula}``{note}.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.{kind}({x}).round(4) + 0.0
        array({y}){source}
    """
_BACKWARD = """Gradient of `{kind}`: ``dx = {gradient}``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.{kind}_backward(np.array([1.0, 3.0]){saved}).round(4) + 0.0
        array({dx})
    """


def _pair(
    kind: str, title: str, y: str, dx: str, x: str = "np.array([0.25, 4.0])", *, note: str = "", source: str = ""
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The function of a kind, and its gradient."""
    formula, gradient, reads, _ = KINDS[kind]

    def function(x: Any, *, out: Any = None) -> Any:
        return forward((x,), kind, (), out)

    def of_x(dy: Any, x: Any, *, out: Any = None) -> Any:
        return backward(kind, dy, x, out)

    def of_y(dy: Any, y: Any, *, out: Any = None) -> Any:
        return backward(kind, dy, y, out)

    def of_none(dy: Any, *, out: Any = None) -> Any:
        return backward(kind, dy, None, out)

    source = source and f"\n\n    References:\n        {source}"
    saved = {"x": f", {x}", "y": f", numbaprims.{kind}({x})", "": ""}[reads]
    slopes: dict[str, Callable[..., Any]] = {"x": of_x, "y": of_y, "": of_none}
    slope = slopes[reads]
    function.__doc__ = _FORWARD.format(title=title, formula=formula, kind=kind, x=x, y=y, note=note, source=source)
    slope.__doc__ = _BACKWARD.format(kind=kind, gradient=gradient, saved=saved, dx=dx)
    for made, name in ((function, kind), (slope, f"{kind}_backward")):
        made.__name__ = made.__qualname__ = name
    return function, slope


identity, identity_backward = _pair("identity", "Copy", "[-1.,  2.]", "[1., 3.]", _BOTH)
relu, relu_backward = _pair("relu", "Rectified linear unit", "[0., 2.]", "[0., 3.]", _BOTH, note="; NaN stays NaN")
softsign, softsign_backward = _pair("softsign", "Algebraic sigmoid", "[-0.5   ,  0.6667]", "[0.25  , 0.3333]", _BOTH)
abs, abs_backward = _pair("abs", "Absolute value", "[1., 2.]", "[-1.,  3.]", _BOTH)
hard_sigmoid, hard_sigmoid_backward = _pair(
    "hard_sigmoid",
    "Piecewise linear sigmoid",
    "[0.3333, 0.8333]",
    "[0.1667, 0.5   ]",
    _BOTH,
    note=" (torch's slope; ONNX's default is 0.2)",
)
hard_swish, hard_swish_backward = _pair(
    "hard_swish",
    "Piecewise quadratic swish",
    "[-0.3333,  1.6667]",
    "[0.1667, 3.5   ]",
    _BOTH,
    source="Howard et al., Searching for MobileNetV3, ICCV 2019.",
)
sqrt, sqrt_backward = _pair("sqrt", "Square root", "[0.5, 2. ]", "[1.  , 0.75]", note="; NaN below 0")
square, square_backward = _pair("square", "Square", "[1., 4.]", "[-2., 12.]", _BOTH)
round, round_backward = _pair("round", "Rounded", "[0., 2.]", "[0., 0.]", "np.array([0.5, 1.6])")
selu, selu_backward = _pair(
    "selu",
    "Self-normalising elu",
    "[-1.1113,  2.1014]",
    "[0.6468, 3.1521]",
    _BOTH,
    source="Klambauer et al., Self-normalizing neural networks, NeurIPS 2017.",
)
sigmoid, sigmoid_backward = _pair("sigmoid", "Logistic function", "[0.2689, 0.8808]", "[0.1966, 0.315 ]", _BOTH)
tanh, tanh_backward = _pair("tanh", "Hyperbolic tangent", "[-0.7616,  0.964 ]", "[0.42 , 0.212]", _BOTH)
silu, silu_backward = _pair(
    "silu",
    "Sigmoid linear unit",
    "[-0.2689,  1.7616]",
    "[0.0723, 3.2724]",
    _BOTH,
    source="Elfwing et al., Sigmoid-weighted linear units, Neural Networks 107, 2018.",
)
mish, mish_backward = _pair(
    "mish",
    "Self-regularised unit",
    "[-0.3034,  1.944 ]",
    "[0.0592, 3.208 ]",
    _BOTH,
    source="Misra, Mish: a self regularized non-monotonic activation function, BMVC 2020.",
)
exp, exp_backward = _pair("exp", "Exponential function", "[0.3679, 7.3891]", "[ 0.3679, 22.1672]", _BOTH)
log, log_backward = _pair(
    "log", "Natural logarithm", "[-1.3863,  1.3863]", "[4.  , 0.75]", note="; NaN below 0, minus infinity at 0"
)
exp2, exp2_backward = _pair("exp2", "Power of 2", "[ 1.1892, 16.    ]", "[ 0.8243, 33.2711]")
expm1, expm1_backward = _pair("expm1", "Exponential less 1, exact near 0", "[ 0.284 , 53.5982]", "[  1.284 , 163.7945]")
log1p, log1p_backward = _pair("log1p", "Logarithm of 1 and x, exact near 0", "[0.2231, 1.6094]", "[0.8, 0.6]")
erf, erf_backward = _pair("erf", "Error function", "[0.2763, 1.    ]", "[1.06, 0.  ]")
reciprocal, reciprocal_backward = _pair("reciprocal", "Reciprocal", "[4.  , 0.25]", "[-16.    ,  -0.1875]")
rsqrt, rsqrt_backward = _pair("rsqrt", "Reciprocal root", "[2. , 0.5]", "[-4.    , -0.1875]")
sign, sign_backward = _pair("sign", "Sign; NaN stays NaN", "[1., 1.]", "[0., 0.]")
floor, floor_backward = _pair("floor", "Rounded down", "[0., 4.]", "[0., 0.]")
ceil, ceil_backward = _pair("ceil", "Rounded up", "[1., 4.]", "[0., 0.]")
sin, sin_backward = _pair("sin", "Sine of radians", "[ 0.2474, -0.7568]", "[ 0.9689, -1.9609]")
cos, cos_backward = _pair("cos", "Cosine of radians", "[ 0.9689, -0.6536]", "[-0.2474,  2.2704]")
tan, tan_backward = _pair("tan", "Tangent of radians", "[0.2553, 1.1578]", "[1.0652, 7.0217]")
asin, asin_backward = _pair("asin", "Inverse sine", "[0.2527, 0.5236]", "[1.0328, 3.4641]", "np.array([0.25, 0.5])")
acos, acos_backward = _pair("acos", "Inverse cosine", "[1.3181, 1.0472]", "[-1.0328, -3.4641]", "np.array([0.25, 0.5])")
atan, atan_backward = _pair("atan", "Inverse tangent", "[0.245 , 1.3258]", "[0.9412, 0.1765]")
sinh, sinh_backward = _pair("sinh", "Hyperbolic sine", "[ 0.2526, 27.2899]", "[ 1.0314, 81.9247]")
cosh, cosh_backward = _pair("cosh", "Hyperbolic cosine", "[ 1.0314, 27.3082]", "[ 0.2526, 81.8698]")
asinh, asinh_backward = _pair("asinh", "Inverse hyperbolic sine", "[0.2475, 2.0947]", "[0.9701, 0.7276]")
acosh, acosh_backward = _pair(
    "acosh", "Inverse hyperbolic cosine", "[0.6931, 2.0634]", "[1.3333, 0.7746]", "np.array([1.25, 4.0])"
)
atanh, atanh_backward = _pair(
    "atanh", "Inverse hyperbolic tangent", "[0.2554, 0.5493]", "[1.0667, 4.    ]", "np.array([0.25, 0.5])"
)
log2, log2_backward = _pair("log2", "Logarithm to base 2", "[-2.,  2.]", "[5.7708, 1.082 ]")
log10, log10_backward = _pair("log10", "Logarithm to base 10", "[-0.6021,  0.6021]", "[1.7372, 0.3257]")
erfc, erfc_backward = _pair(
    "erfc", "Complementary error function, exact far above 0", "[0.7237, 0.    ]", "[-1.06,  0.  ]"
)
neg, neg_backward = _pair("neg", "Negative", "[-0.25, -4.  ]", "[-1., -3.]")
log_sigmoid, log_sigmoid_backward = _pair(
    "log_sigmoid", "Logarithm of the sigmoid", "[-0.5759, -0.0181]", "[0.4378, 0.054 ]"
)
tanh_shrink, tanh_shrink_backward = _pair("tanh_shrink", "What tanh takes", "[0.0051, 3.0007]", "[0.06 , 2.996]")


def _number(name: str, value: Any) -> float:
    return value if type(value) is float else float(resolve("shrink", {name: value})[1][name])


def shrink(x: Any, lambd: float = 0.5, by: float = 0.0, *, out: Any = None) -> Any:
    """ONNX's Shrink: ``y = 0 if |x| <= lambd else x - by if x > 0 else x + by``.

    Args:
        lambd: up to where y is 0.
        by: ONNX's bias, by how much the rest is nearer to 0.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.shrink(np.array([-2.0, 0.25]), by=0.5)
        array([-1.5,  0. ])
    """
    return forward((x,), "shrink", (_number("lambd", lambd), _number("by", by)), out)


def shrink_backward(dy: Any, x: Any, lambd: float = 0.5, by: float = 0.0, *, out: Any = None) -> Any:
    """Gradient of `shrink`: ``dx = dy if |x| > lambd else 0``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.shrink_backward(np.array([1.0, 3.0]), np.array([-2.0, 0.25]))
        array([1., 0.])
    """
    return backward("shrink", dy, x, out, (_number("lambd", lambd), _number("by", by)))


def hard_shrink(x: Any, lambd: float = 0.5, *, out: Any = None) -> Any:
    """`shrink` by nothing: ``y = 0 if |x| <= lambd else x``.

    Args:
        lambd: up to where y is 0.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.hard_shrink(np.array([-2.0, 0.25]))
        array([-2.,  0.])
    """
    return forward((x,), "shrink", (_number("lambd", lambd),), out)


def hard_shrink_backward(dy: Any, x: Any, lambd: float = 0.5, *, out: Any = None) -> Any:
    """Gradient of `hard_shrink`: ``dx = dy if |x| > lambd else 0``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.hard_shrink_backward(np.array([1.0, 3.0]), np.array([-2.0, 0.25]))
        array([1., 0.])
    """
    return backward("shrink", dy, x, out, (_number("lambd", lambd),))


def soft_shrink(x: Any, lambd: float = 0.5, *, out: Any = None) -> Any:
    """`shrink` by what it sets to 0: ``y = 0 if |x| <= lambd else x - lambd if x > 0 else x + lambd``.

    Args:
        lambd: up to where y is 0, and by how much the rest is nearer to it.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.soft_shrink(np.array([-2.0, 0.25]))
        array([-1.5,  0. ])
    """
    return forward((x,), "soft_shrink", (_number("lambd", lambd),), out)


def soft_shrink_backward(dy: Any, x: Any, lambd: float = 0.5, *, out: Any = None) -> Any:
    """Gradient of `soft_shrink`: ``dx = dy if |x| > lambd else 0``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.soft_shrink_backward(np.array([1.0, 3.0]), np.array([-2.0, 0.25]))
        array([1., 0.])
    """
    return backward("soft_shrink", dy, x, out, (_number("lambd", lambd),))
