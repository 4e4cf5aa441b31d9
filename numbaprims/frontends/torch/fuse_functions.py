"""Functions and methods of torch as layers: of one tensor, and of one with parameters or numbers."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from numbaprims.frontends.torch.fuse_torchvision import FUNCTIONS
from numbaprims.fusion import layers

_f: Any = torch.nn.functional
#: Functions and methods that are an activation without arguments.
ACTIVATIONS = {
    **dict.fromkeys((_f.relu, torch.relu, torch.relu_, "relu", "relu_"), "relu"),
    **dict.fromkeys((_f.sigmoid, torch.sigmoid, torch.sigmoid_, "sigmoid", "sigmoid_"), "sigmoid"),
    **dict.fromkeys((_f.tanh, torch.tanh, torch.tanh_, "tanh", "tanh_"), "tanh"),
    **{getattr(_f, torchs): ours for torchs, ours in {
        "relu6": "relu6", "silu": "silu", "gelu": "gelu", "mish": "mish", "selu": "selu", "elu": "elu",
        "hardswish": "hard_swish", "hardsigmoid": "hard_sigmoid", "leaky_relu": "leaky_relu", "softplus": "softplus",
    }.items()},
}  # fmt: skip
SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")
PRODUCTS = (operator.mul, operator.imul, torch.mul, "mul", "mul_")
_DIFFERENCES = (operator.sub, operator.isub, torch.sub, "sub", "sub_")
_QUOTIENTS = (operator.truediv, operator.itruediv, torch.div, torch.true_divide, "div", "div_")
MATRIX_PRODUCTS = (operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm")
JOINS = (torch.cat, torch.concat, torch.concatenate)
_DROPOUTS = (_f.dropout, _f.dropout1d, _f.dropout2d, _f.dropout3d, _f.alpha_dropout, _f.feature_alpha_dropout)
#: Functions of windows whose arguments behind x are those of a module, in its order.
_MODULES = {
    getattr(_f, f"{name}_pool{rank}d"): getattr(torch.nn, f"{module}Pool{rank}d")
    for name, module in (("avg", "Avg"), ("adaptive_avg", "AdaptiveAvg"))
    for rank in (1, 2, 3)
}
_MAX_POOLS = {getattr(_f, f"max_pool{rank}d"): getattr(torch.nn, f"MaxPool{rank}d") for rank in (1, 2, 3)}


def one(target: Any, x: Any, operands: Any, words: Any, layer: Callable[[Any, int], Any]) -> Any:
    """The layer that a function of one tensor is, None where it is none; `layer` gives that of a module."""
    plain = not operands and not words.keys() - {"inplace"}
    if target in ACTIVATIONS and plain:
        return layers.Activation(ACTIVATIONS[target])
    describe = FUNCTIONS.get((getattr(target, "__module__", ""), getattr(target, "__name__", "")))
    try:
        if describe is not None and x.ndim == 4:
            return describe(tuple(x.shape[1:]), *operands, **words)
        if target is _f.layer_norm:
            return _layer_norm(x, *operands, **words)
        if target in (_f.softmax, torch.softmax, "softmax"):
            return _softmax(x, *operands, **words)
        if target in _MODULES:
            return layer(_MODULES[target](*operands, **words), x.ndim)
        if target in _MAX_POOLS and len(operands) < 5:
            return layer(_MAX_POOLS[target](*operands, **words), x.ndim)
    except TypeError:
        return None
    if target in _DROPOUTS or getattr(target, "__name__", "") == "stochastic_depth":  # torchvision's
        bound = inspect.signature(target).bind(x, *operands, **words)
        bound.apply_defaults()
        return None if bound.arguments["training"] else layers.Dropout()
    return None


def _layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    known = all(each is None or isinstance(each, torch.Tensor) for each in (weight, bias))
    return layers.LayerNorm(weight, bias, eps, len(shape)) if known and len(shape) < x.ndim else None


def _softmax(x: Any, dim: Any = None, dtype: Any = None, _stacklevel: int = 3) -> Any:
    return layers.Softmax(dim) if isinstance(dim, int) and dim % x.ndim and dtype is None else None


def with_known(target: Any, x: Any, other: Any, first: bool, shape: tuple[int, ...]) -> Any:
    """The layer that a sum, difference, product or quotient of x and a number or a parameter is, of a result of some
    shape; None where it is none.  `first` says whether x is the first operand."""
    if isinstance(other, (int, float)):
        number = float(other)
        if target in PRODUCTS:
            return layers.Scale(number)
        if target in _QUOTIENTS and first and number and math.isfinite(1.0 / number):
            return layers.Scale(1.0 / number)
        if target in SUMS or (target in _DIFFERENCES and first):
            return layers.Bias(number if target in SUMS else -number)
        return [layers.Scale(-1.0), layers.Bias(number)] if target in _DIFFERENCES else None
    if target not in (*SUMS, *PRODUCTS) or not isinstance(other, torch.Tensor):
        return None
    ones = (1,) * (len(shape) - other.ndim) + tuple(other.shape)
    if ones[0] != 1 or len(ones) > len(shape) or other.dtype != x.dtype or tuple(x.shape) != shape:
        return None
    if ones[1:] in ((shape[1],) + (1,) * (len(shape) - 2), (1,) * (len(shape) - 1)):
        return (layers.Bias if target in SUMS else layers.Scale)(other.flatten())
    values = layers.Constant(other.expand(shape)[0])
    return layers.Wired([(values, (0,)), (layers.Add() if target in SUMS else layers.Multiply(), (0, 1))])
