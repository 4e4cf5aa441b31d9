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


def _sigmoid(m: Any, y: Any) -> Any:
    return product(m, _line(y, 1.0, -2.0))


def _tanh(m: Any, y: Any) -> Any:
    return scaled(product(m, y), -2.0)


def _exp(m: Any, y: Any) -> Any:
    return m


def _sqrt(m: Any, y: Any) -> Any:
    # 1/(2y) differentiates to -1/(2y^2), which is -2 times its own square
    return scaled(f.gradient(f.gradient(m, y, "sqrt", {}), y, "sqrt", {}), -2.0)


def _log(m: Any, x: Any) -> Any:
    return scaled(f.gradient(f.gradient(m, x, "log", {}), x, "log", {}), -1.0)


def _exp2(m: Any, y: Any) -> Any:
    return scaled(m, math.log(2.0))


def _log1p(m: Any, x: Any) -> Any:
    return scaled(f.gradient(f.gradient(m, x, "log1p", {}), x, "log1p", {}), -1.0)


def _erf(m: Any, x: Any) -> Any:
    return scaled(product(f.gradient(m, x, "erf", {}), x), -2.0)


def _erfc(m: Any, x: Any) -> Any:
    return scaled(product(f.gradient(m, x, "erfc", {}), x), -2.0)


def _of_square(kind: str, times: int, factor: float) -> Any:
    """Of a slope that is 1 + x**2 or 1 - x**2 or x**2 - 1 to a power: factor x slope**times."""

    def second(m: Any, x: Any) -> Any:
        for _ in range(times):
            m = f.gradient(m, x, kind, {})
        return scaled(product(m, x), factor)

    return second


def _logarithm(kind: str, base: float) -> Any:
    def second(m: Any, x: Any) -> Any:
        return scaled(f.gradient(f.gradient(m, x, kind, {}), x, kind, {}), -math.log(base))

    return second


def _log_sigmoid(m: Any, x: Any) -> Any:
    return scaled(f.gradient(m, f.sigmoid(f.neg(x)), "sigmoid", {}), -1.0)


def _tanh_shrink(m: Any, x: Any) -> Any:
    t = f.tanh(x)
    return scaled(product(m, t - product(f.square(t), t)), 2.0)


def _reciprocal(m: Any, y: Any) -> Any:
    return scaled(product(m, y), -2.0)


def _rsqrt(m: Any, y: Any) -> Any:
    return scaled(product(m, f.square(y)), -1.5)


def _square(m: Any, x: Any) -> Any:
    return scaled(m, 2.0)


def _power(m: Any, x: Any, alpha: float, beta: float, gamma: float) -> Any:
    lower = {"alpha": alpha, "beta": beta, "gamma": gamma - 1.0}
    return scaled(f.gradient(m, x, "power", lower), beta * gamma)


def _elu(m: Any, x: Any, alpha: float) -> Any:
    return _between(f.gradient(m, x, "elu", {"alpha": alpha}), x, high=0.0)


def _selu(m: Any, x: Any) -> Any:
    return _between(f.gradient(m, x, "selu", {}), x, high=0.0)


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


def _hard_swish(m: Any, x: Any) -> Any:
    return scaled(_between(m, x, -3.0, 3.0), 1.0 / 3.0)


f.SECONDS.update({
    "sigmoid": _sigmoid, "tanh": _tanh, "exp": _exp, "sqrt": _sqrt, "log": _log, "square": _square, "power": _power,
    "elu": _elu, "selu": _selu, "celu": _celu, "softplus": _softplus, "softsign": _softsign, "silu": _silu,
    "gelu": _gelu, "mish": _mish, "hard_swish": _hard_swish, "exp2": _exp2, "expm1": _exp, "log1p": _log1p,
    "erf": _erf, "reciprocal": _reciprocal, "rsqrt": _rsqrt, "erfc": _erfc, "log_sigmoid": _log_sigmoid,
    "tanh_shrink": _tanh_shrink,
    "sin": lambda m, x: f.gradient(m, x, "cos", {}), "cos": lambda m, x: scaled(f.gradient(m, x, "sin", {}), -1.0),
    "tan": lambda m, y: scaled(product(m, y), 2.0), "sinh": lambda m, x: f.gradient(m, x, "cosh", {}),
    "cosh": lambda m, x: f.gradient(m, x, "sinh", {}), "asin": _of_square("asin", 3, 1.0),
    "acos": _of_square("acos", 3, 1.0), "atan": _of_square("atan", 2, -2.0), "asinh": _of_square("asinh", 3, -1.0),
    "acosh": _of_square("acosh", 3, -1.0), "atanh": _of_square("atanh", 2, 2.0), "log2": _logarithm("log2", 2.0),
    "log10": _logarithm("log10", 10.0),
})  # fmt: skip
