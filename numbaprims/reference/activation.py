"""The activations and their gradients by definition, in float64.

Kinks are torch's: which side of a kink has which slope, and what a NaN input gives, is checked against torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numbaprims.ops.activation_kinds import SELU_ALPHA, SELU_SCALE, resolve

_erf, _erfc = (np.vectorize(function, otypes=[np.float64]) for function in (math.erf, math.erfc))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    # exp of a negative number in both branches: neither overflows.
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _elu(x: np.ndarray, alpha: float) -> np.ndarray:
    return np.where(x > 0, x, alpha * np.expm1(np.where(x > 0, 0, x)))


def _celu(x: np.ndarray, alpha: float) -> np.ndarray:
    return np.where(x > 0, x, alpha * np.expm1(np.where(x > 0, 0, x) / alpha))


def _gelu(x: np.ndarray, approximate: str) -> np.ndarray:
    # (1 + tanh u) / 2 = sigmoid 2u and (1 + erf u) / 2 = erfc(-u) / 2, which do not cancel far below 0
    if approximate == "tanh":
        return x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return 0.5 * x * _erfc(-x / math.sqrt(2))


def _prelu(x: np.ndarray, weight: Any) -> np.ndarray:
    return np.where(x > 0, x, _per_channel(weight, x.ndim) * x)


def _per_channel(weight: Any, ndim: int) -> np.ndarray:
    """Shape prelu's weight (C,) so that it runs along dimension 1 of x (or is one number for all of it)."""
    weight = np.asarray(weight, np.float64)
    return weight.reshape(()) if weight.size == 1 else weight.reshape(-1, *(1,) * (ndim - 2))


def _threshold(x: np.ndarray, threshold: float, value: float) -> np.ndarray:
    return np.where(x <= threshold, value, x)


def _shrink(x: np.ndarray, lambd: float, by: float) -> np.ndarray:
    return np.where(np.abs(x) <= lambd, 0.0, np.where(x > 0, x - by, x + by))


def _tanh_shrink(x: np.ndarray) -> np.ndarray:
    # x cosh x - sinh x as a sum of positive terms: x - tanh x cancels
    near = np.where(np.abs(x) < 2, x, 0.0)
    terms = sum(near ** (2 * k + 1) * (2 * k / math.factorial(2 * k + 1)) for k in range(1, 16))
    return np.where(np.abs(x) < 2, terms / np.cosh(near), x - np.tanh(x))


def _glu(x: np.ndarray, axis: int) -> np.ndarray:
    a, b = np.split(x, 2, axis)
    return a * _sigmoid(b)


_FORWARD: dict[str, Callable[..., np.ndarray]] = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x, negative_slope: np.where(x > 0, x, negative_slope * x),
    "prelu": _prelu,
    "clipped_relu": lambda x, alpha: np.minimum(np.maximum(x, 0), alpha),
    "elu": _elu,
    "selu": lambda x: SELU_SCALE * _elu(x, SELU_ALPHA),
    "celu": _celu,
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "softplus": lambda x, beta, threshold: np.where(beta * x > threshold, x, _softplus(beta * x) / beta),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "abs": np.abs,
    "power": lambda x, alpha, beta, gamma: (alpha + beta * x) ** gamma,
    "gelu": _gelu,
    "silu": lambda x: x * _sigmoid(x),
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "hard_sigmoid": lambda x: np.minimum(np.maximum(x + 3, 0), 6) / 6,
    "hard_swish": lambda x: x * np.minimum(np.maximum(x + 3, 0), 6) / 6,
    "hard_tanh": lambda x, min_val, max_val: np.minimum(np.maximum(x, min_val), max_val),
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "square": lambda x: x * x,
    "round": np.rint,
    "clip": lambda x, min, max: np.minimum(np.maximum(x, min), max),
    "threshold": _threshold,
    "glu": _glu,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log1p": np.log1p,
    "erf": _erf,
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "log2": np.log2,
    "log10": np.log10,
    "erfc": _erfc,
    "neg": np.negative,
    "log_sigmoid": lambda x: -_softplus(-x),
    "tanh_shrink": _tanh_shrink,
    "shrink": _shrink,
    "soft_shrink": lambda x, lambd: _shrink(x, lambd, lambd),
}


def _gelu_slope(x: np.ndarray, approximate: str) -> np.ndarray:
    if approximate == "tanh":
        k = 2 * math.sqrt(2 / math.pi)
        v = k * (x + 0.044715 * x**3)
        return _sigmoid(v) + x * _sigmoid(v) * _sigmoid(-v) * k * (1 + 3 * 0.044715 * x * x)
    density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return 0.5 * _erfc(-x / math.sqrt(2)) + x * density


def _silu_slope(x: np.ndarray) -> np.ndarray:
    s = _sigmoid(x)
    return s * (1 + x * (1 - s))


def _mish_slope(x: np.ndarray) -> np.ndarray:
    t = np.tanh(_softplus(x))
    return t + x * _sigmoid(x) * (1 - t * t)


def _erf_slope(x: np.ndarray) -> np.ndarray:
    # x**2 = s + rest, by Dekker's product: rounded, an exponent of 100 would cost 100 units
    x = np.clip(x, -40, 40)
    s, upper = x * x, x * (2.0**27 + 1) - (x * (2.0**27 + 1) - x)
    rest = (upper * upper - s + 2 * upper * (x - upper)) + (x - upper) ** 2
    return 2 / math.sqrt(math.pi) * np.exp(-s) * (1 - rest)


# dy/dx; where a kink is, the comparison says which side's slope counts, and what NaN gives.
_SLOPE: dict[str, Callable[..., np.ndarray]] = {
    "identity": np.ones_like,
    "relu": lambda x: np.where(x <= 0, 0.0, 1.0),
    "leaky_relu": lambda x, negative_slope: np.where(x > 0, 1.0, negative_slope),
    "prelu": lambda x, weight: np.where(x > 0, 1.0, _per_channel(weight, x.ndim)),
    "clipped_relu": lambda x, alpha: np.where((x > 0) & (x < alpha), 1.0, 0.0),
    "elu": lambda x, alpha: np.where(x > 0, 1.0, alpha * np.exp(np.minimum(x, 0))),
    "selu": lambda x: SELU_SCALE * np.where(x > 0, 1.0, SELU_ALPHA * np.exp(np.minimum(x, 0))),
    "celu": lambda x, alpha: np.where(x > 0, 1.0, np.exp(np.where(x > 0, 0, x) / alpha)),
    "sigmoid": lambda x: _sigmoid(x) * _sigmoid(-x),
    "tanh": lambda x: 1 - np.tanh(x) ** 2,
    "softplus": lambda x, beta, threshold: np.where(beta * x > threshold, 1.0, _sigmoid(beta * x)),
    "softsign": lambda x: 1 / (1 + np.abs(x)) ** 2,
    "abs": np.sign,
    "power": lambda x, alpha, beta, gamma: beta * gamma * (alpha + beta * x) ** (gamma - 1),
    "gelu": _gelu_slope,
    "silu": _silu_slope,
    "mish": _mish_slope,
    "hard_sigmoid": lambda x: np.where((x > -3) & (x < 3), 1 / 6, 0.0),
    "hard_swish": lambda x: np.where(x <= -3, 0.0, np.where(x >= 3, 1.0, x / 3 + 0.5)),
    "hard_tanh": lambda x, min_val, max_val: np.where((x > min_val) & (x < max_val), 1.0, 0.0),
    "exp": np.exp,
    "log": lambda x: 1 / x,
    "sqrt": lambda x: 0.5 / np.sqrt(x),
    "square": lambda x: 2 * x,
    "round": np.zeros_like,
    "clip": lambda x, min, max: np.where((x >= min) & (x <= max), 1.0, 0.0),
    "threshold": lambda x, threshold, value: np.where(x <= threshold, 0.0, 1.0),
    "exp2": lambda x: math.log(2) * np.exp2(x),
    "expm1": np.exp,
    "log1p": lambda x: 1 / (1 + x),
    "erf": _erf_slope,
    "reciprocal": lambda x: -1 / (x * x),
    "rsqrt": lambda x: -0.5 * (1 / np.sqrt(x)) ** 3,
    "sign": np.zeros_like,
    "floor": np.zeros_like,
    "ceil": np.zeros_like,
    "sin": np.cos,
    "cos": lambda x: -np.sin(x),
    "tan": lambda x: 1 + np.tan(x) ** 2,
    "asin": lambda x: 1 / np.sqrt((1 - x) * (1 + x)),
    "acos": lambda x: -1 / np.sqrt((1 - x) * (1 + x)),
    "atan": lambda x: 1 / (1 + x * x),
    "sinh": np.cosh,
    "cosh": np.sinh,
    "asinh": lambda x: 1 / np.hypot(x, 1),
    "acosh": lambda x: 1 / (np.sqrt(np.abs(x) - 1) * np.sqrt(np.abs(x) + 1)),
    "atanh": lambda x: 1 / ((1 - x) * (1 + x)),
    "log2": lambda x: 1 / (x * math.log(2)),
    "log10": lambda x: 1 / (x * math.log(10)),
    "erfc": lambda x: -_erf_slope(x),
    "neg": lambda x: np.full_like(x, -1),
    "log_sigmoid": lambda x: _sigmoid(-x),
    "tanh_shrink": lambda x: np.tanh(x) ** 2,
    "shrink": lambda x, lambd, by: np.where(np.abs(x) > lambd, 1.0, 0.0),
    "soft_shrink": lambda x, lambd: np.where(np.abs(x) > lambd, 1.0, 0.0),
}


def activation(x: np.ndarray, kind: str, **parameters: Any) -> np.ndarray:
    """y = kind(x), element by element, in float64 (glu: halves one axis)."""
    name, full = resolve(kind, parameters)
    with np.errstate(all="ignore"):
        return np.asarray(_FORWARD[name](np.asarray(x, np.float64), **full))


def activation_backward(dy: np.ndarray, x: np.ndarray, kind: str, **parameters: Any) -> Any:
    """dx = dy * dkind/dx at x, in float64; prelu gives (dx, dweight), dweight in its weight's shape."""
    name, full = resolve(kind, parameters)
    dy, x = np.asarray(dy, np.float64), np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        if name == "glu":
            a, b = np.split(x, 2, full["axis"])
            s = _sigmoid(b)
            return np.concatenate([dy * s, dy * a * s * (1 - s)], full["axis"])
        dx = dy * _SLOPE[name](x, **full)
        if name == "prelu":
            return dx, _prelu_dweight(dy, x, np.asarray(full["weight"]))
        return dx


def _prelu_dweight(dy: np.ndarray, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    each = np.where(x > 0, 0.0, x * dy)
    if weight.size != 1:
        each = each.sum(axis=tuple(axis for axis in range(x.ndim) if axis != 1))
    return (each if weight.size != 1 else each.sum()).reshape(weight.shape)
