"""Elementary functions as activations, each with its gradient: one text for all of them.

Their formulas and gradients stand in the table of kinds; here is how they are called, and what they give of an example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numbaprims.ops._activation_call import backward, forward
from numbaprims.ops.activation_kinds import KINDS

_FORWARD = """{title}: ``y = {formula}``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.{kind}(np.array([0.25, 4.0])).round(4) + 0.0
        array({y})
    """
_BACKWARD = """Gradient of `{kind}`: ``dx = {gradient}``.

    Example:
        >>> import numpy as np, numbaprims
        >>> numbaprims.{kind}_backward(np.array([1.0, 3.0]){saved}).round(4) + 0.0
        array({dx})
    """


def _pair(kind: str, title: str, y: str, dx: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The function of a kind, and its gradient."""
    formula, gradient, reads, _ = KINDS[kind]

    def function(x: Any, *, out: Any = None) -> Any:
        return forward(kind, x, out)

    def of_x(dy: Any, x: Any, *, out: Any = None) -> Any:
        return backward(kind, dy, x, out)

    def of_y(dy: Any, y: Any, *, out: Any = None) -> Any:
        return backward(kind, dy, y, out)

    def of_none(dy: Any, *, out: Any = None) -> Any:
        return backward(kind, dy, None, out)

    x = "np.array([0.25, 4.0])"
    saved = {"x": f", {x}", "y": f", numbaprims.{kind}({x})", "": ""}[reads]
    slopes: dict[str, Callable[..., Any]] = {"x": of_x, "y": of_y, "": of_none}
    slope = slopes[reads]
    function.__doc__ = _FORWARD.format(title=title, formula=formula, kind=kind, y=y)
    slope.__doc__ = _BACKWARD.format(kind=kind, gradient=gradient, saved=saved, dx=dx)
    for made, name in ((function, kind), (slope, f"{kind}_backward")):
        made.__name__ = made.__qualname__ = name
    return function, slope


exp2, exp2_backward = _pair("exp2", "Power of 2", "[ 1.1892, 16.    ]", "[ 0.8243, 33.2711]")
expm1, expm1_backward = _pair("expm1", "Exponential less 1, exact near 0", "[ 0.284 , 53.5982]", "[  1.284 , 163.7945]")
log1p, log1p_backward = _pair("log1p", "Logarithm of 1 and x, exact near 0", "[0.2231, 1.6094]", "[0.8, 0.6]")
erf, erf_backward = _pair("erf", "Error function", "[0.2763, 1.    ]", "[1.06, 0.  ]")
reciprocal, reciprocal_backward = _pair("reciprocal", "Reciprocal", "[4.  , 0.25]", "[-16.    ,  -0.1875]")
rsqrt, rsqrt_backward = _pair("rsqrt", "Reciprocal root", "[2. , 0.5]", "[-4.    , -0.1875]")
sign, sign_backward = _pair("sign", "Sign; NaN stays NaN", "[1., 1.]", "[0., 0.]")
floor, floor_backward = _pair("floor", "Rounded down", "[0., 4.]", "[0., 0.]")
ceil, ceil_backward = _pair("ceil", "Rounded up", "[1., 4.]", "[0., 0.]")
