"""Second derivatives of the activations, of differentiable functions: so that all higher ones exist as well.

Each function takes m, the elements of a gradient's gradient times those of dy, and what the gradient reads, and gives
m d/ds (dx/dy) for s = x, or s = y where the gradient is a function of y. They go into the table of activations.py; a
kind that is not in it is piecewise linear, and its second derivative is 0.
"""

from __future__ import annotations

import math
from typing import Any

from numbaprims.frontends.torch import activations as f
from numbaprims.frontends.torch.recording import product, scaled


def _line(x: Any, offset: float, slope: float) -> Any:
    """offset + slope x, which in one pass has the accuracy of two operations."""
    return scaled(x, slope) + offset


def _between(m: Any, x: Any, low: float = -math.inf, high: float = math.inf) -> Any:
    """m where low <= x <= high, else 0."""
    return f.gradient(m, x, "clip", {"min": low, "max": high})


def _twice(kind: str, factor: float) -> Any:
    """Of a slope whose own is a multiple of its square."""

    def second(m: Any, s: Any) -> Any:
        return scaled(f.gradient(f.gradient(m, s, kind, {}), s, kind, {}), factor)

    return second


def _of_square(kind: str, times: int, factor: float) -> Any:
    """Of a slope of which x**2 is the variable: factor x slope**times."""

    def second(m: Any, x: Any) -> Any:
        for _ in range(times):
            m = f.gradient(m, x, kind, {})
        return scaled(product(m, x), factor)

    return second


def _tanh_shrink(m: Any, x: Any) -> Any:
    t = f.tanh(x)
    return scaled(product(m, t - product(f.square(t), t)), 2.0)


def _power(m: Any, x: Any, alpha: float, beta: float, gamma: float) -> Any:
    lower = {"alpha": alpha, "beta": beta, "gamma": gamma - 1.0}
    return scaled(f.gradient(m, x, "power", lower), beta * gamma)


def _celu(m: Any, x: Any, alpha: float) -> Any:
    return scaled(_between(f.gradient(m, x, "celu", {"alpha": alpha}), x, high=0.0), 1.0 / alpha)


def _softplus(m: Any, x: Any, beta: float, threshold: float) -> Any:
    bent = f.gradient(m, f.sigmoid(scaled(x, beta)), "sigmoid", {})
    ends = {"high": threshold / beta} if beta > 0 else {"low": threshold / beta}
    return _between(scaled(bent, beta), x, **ends)


def _softsign(m: Any, x: Any) -> Any:
    size = f.abs(x)
    return f.gradient(f.gradient(m, x, "abs", {}), size, "power", {"alpha": 1.0, "beta": 1.0, "gamma": -2.0})


def _silu(m: Any, x: Any) -> Any:
    s = f.sigmoid(x)
    bend = _line(product(x, _line(s, 1.0, -2.0)), 2.0, 1.0)
    return product(f.gradient(m, s, "sigmoid", {}), bend)


def _gelu(m: Any, x: Any, approximate: str) -> Any:
    square = f.square(x)
    if approximate == "none":
        density = scaled(f.exp(scaled(square, -0.5)), 1.0 / math.sqrt(2.0 * math.pi))
        return product(product(m, density), _line(square, 2.0, -1.0))
    # x (1 + t)/2 with t = tanh(u): t'(u) (u' + x u''/2 - x t u'^2), u = c (x + a x^3)
    c, a = math.sqrt(2.0 / math.pi), 0.044715
    t = f.tanh(scaled(product(x, _line(square, 1.0, a)), c))
    slope = _line(square, c, 3.0 * a * c)
    inner = slope + scaled(square, 3.0 * a * c) - product(product(x, t), f.square(slope))
    return product(f.gradient(m, t, "tanh", {}), inner)


def _mish(m: Any, x: Any) -> Any:
    # x t with t = tanh(softplus(x)): t'(u) (2 s + x (s (1 - s) - 2 t s^2)), s = sigmoid(x)
    s, t = f.sigmoid(x), f.tanh(f.softplus(x))
    bend = f.gradient(x, s, "sigmoid", {}) - scaled(product(product(x, t), f.square(s)), 2.0)
    return product(f.gradient(m, t, "tanh", {}), scaled(s, 2.0) + bend)


def _left(kind: str, factor: Any = lambda **parameters: 1.0) -> Any:
    """Of exponentials for negative x, beside a line."""

    def second(m: Any, x: Any, **parameters: float) -> Any:
        return scaled(_between(f.gradient(m, x, kind, parameters), x, high=0.0), factor(**parameters))

    return second


f.SECONDS.update({
    "sigmoid": lambda m, y: product(m, _line(y, 1.0, -2.0)), "tanh": lambda m, y: scaled(product(m, y), -2.0),
    "exp": lambda m, y: m, "exp2": lambda m, y: scaled(m, math.log(2.0)), "expm1": lambda m, y: m,
    # 1/(2y) differentiates to -1/(2y^2), which is -2 times its own square
    "sqrt": _twice("sqrt", -2.0), "log": _twice("log", -1.0), "log1p": _twice("log1p", -1.0),
    "log2": _twice("log2", -math.log(2.0)), "log10": _twice("log10", -math.log(10.0)),
    "square": lambda m, x: scaled(m, 2.0), "reciprocal": lambda m, y: scaled(product(m, y), -2.0),
    "rsqrt": lambda m, y: scaled(product(m, f.square(y)), -1.5), "power": _power,
    "elu": _left("elu"), "selu": _left("selu"), "celu": _left("celu", lambda alpha: 1.0 / alpha),
    "softplus": _softplus, "softsign": _softsign, "silu": _silu, "gelu": _gelu, "mish": _mish,
    "hard_swish": lambda m, x: scaled(_between(m, x, -3.0, 3.0), 1.0 / 3.0),
    "log_sigmoid": lambda m, x: scaled(f.gradient(m, f.sigmoid(f.neg(x)), "sigmoid", {}), -1.0),
    "tanh_shrink": _tanh_shrink, "erf": _of_square("erf", 1, -2.0), "erfc": _of_square("erfc", 1, -2.0),
    "sin": lambda m, x: f.gradient(m, x, "cos", {}), "cos": lambda m, x: scaled(f.gradient(m, x, "sin", {}), -1.0),
    "tan": lambda m, y: scaled(product(m, y), 2.0), "sinh": lambda m, x: f.gradient(m, x, "cosh", {}),
    "cosh": lambda m, x: f.gradient(m, x, "sinh", {}), "asin": _of_square("asin", 3, 1.0),
    "acos": _of_square("acos", 3, 1.0), "atan": _of_square("atan", 2, -2.0), "asinh": _of_square("asinh", 3, -1.0),
    "acosh": _of_square("acosh", 3, -1.0), "atanh": _of_square("atanh", 2, 2.0),
})  # fmt: skip
