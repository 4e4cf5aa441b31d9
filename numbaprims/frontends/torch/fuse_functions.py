"""Functions and methods of torch as layers: of one tensor, and of one with parameters or numbers."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from numbaprims.frontends.torch.fuse_attention import encoder_forward
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
_NEGATIVES = (operator.neg, torch.neg, "neg")
SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")
PRODUCTS = (operator.mul, operator.imul, torch.mul, "mul", "mul_")
_DIFFERENCES = (operator.sub, operator.isub, torch.sub, "sub", "sub_")
_QUOTIENTS = (operator.truediv, operator.itruediv, torch.div, torch.true_divide, "div", "div_")
MATRIX_PRODUCTS = (operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm")
JOINS = (torch.cat, torch.concat, torch.concatenate)
_SOFTMAXES = (_f.softmax, torch.softmax, "softmax")
_DROPOUTS = (_f.dropout, _f.dropout1d, _f.dropout2d, _f.dropout3d, _f.alpha_dropout, _f.feature_alpha_dropout)
#: Functions whose arguments behind x are those of a module, in its order.
_MODULES = {
    **{
        getattr(_f, f"{name}_pool{rank}d"): getattr(torch.nn, f"{module}Pool{rank}d")
        for name, module in (("avg", "Avg"), ("adaptive_avg", "AdaptiveAvg"))
        for rank in (1, 2, 3)
    },
    **{getattr(_f, name.lower()): getattr(torch.nn, name) for name in (
        "ReLU", "ReLU6", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Softplus", "Softsign", "Hardsigmoid",
        "Hardswish", "Hardtanh", "Hardshrink", "Softshrink", "Tanhshrink", "LogSigmoid", "Threshold",
    )},
    _f.leaky_relu: torch.nn.LeakyReLU,
}  # fmt: skip
_MAX_POOLS = {getattr(_f, f"max_pool{rank}d"): getattr(torch.nn, f"MaxPool{rank}d") for rank in (1, 2, 3)}


def one(target: Any, x: Any, operands: Any, words: Any, layer: Callable[[Any, int], Any]) -> Any:
    """The layer that a function of one tensor is, None where it is none; `layer` gives that of a module."""
    plain = not operands and not words.keys() - {"inplace"}
    if target in ACTIVATIONS and plain:
        return layers.Activation(ACTIVATIONS[target])
    if target in _NEGATIVES:
        return layers.Scale(-1.0)
    describe = FUNCTIONS.get((getattr(target, "__module__", ""), getattr(target, "__name__", "")))
    try:
        if describe is not None and x.ndim == 4:
            return describe(tuple(x.shape[1:]), *operands, **words)
        if target in _PARAMETRIC:
            return _PARAMETRIC[target](x, *operands, **words)
        if target in _SOFTMAXES:
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


def _known(*parameters: Any) -> bool:
    """Whether parameters are values, and no nodes of a graph."""
    return all(each is None or isinstance(each, torch.Tensor) for each in parameters)


def of_rows(n: Any, kind: Any) -> bool:
    """Whether a node, or a module of a kind, does to each row of a tensor what it does to the row alone: whether the
    first dimension may be two."""
    if kind in _SOFTMAXES:
        dim = n.args[1] if len(n.args) > 1 else n.kwargs.get("dim")
        return isinstance(dim, int) and dim < 0
    return kind in _OF_ROWS


def _layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    if not _known(weight, bias) or len(shape) >= x.ndim:  # over all images
        return None
    return layers.LayerNorm(weight, bias, eps, len(shape))


def _rms_norm(x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    if not _known(weight) or len(shape) >= x.ndim:
        return None
    return layers.RMSNorm(weight, torch.finfo(x.dtype).eps if eps is None else eps, len(shape))


def _group_norm(x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    return layers.GroupNorm(groups, weight, bias, eps) if _known(weight, bias) else None


def _batch_norm(
    x: Any, mean: Any, var: Any, weight: Any = None, bias: Any = None, training: bool = False, momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:  # fmt: skip
    if training or mean is None or not _known(mean, var, weight, bias):
        return None
    return layers.BatchNorm(weight, bias, mean, var, eps)


def _conv(
    x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    if not _known(weight, bias) or x.ndim != weight.ndim:  # torch takes a single image too
        return None
    return layers.Conv(weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    return layers.Linear(weight, bias) if _known(weight, bias) else None


def with_matrix(target: Any, bias: Any, matrix: Any) -> Any:
    """The layer that ``addmm(bias, x, matrix)`` is; None where it is none."""
    known = isinstance(bias, torch.Tensor) and isinstance(matrix, torch.Tensor) and bias.ndim == 1
    return layers.Linear(matrix.T, bias) if known and target in _MATRICES_ADDED else None


_MATRICES_ADDED = (torch.addmm, "addmm")
_PARAMETRIC: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((_f.conv1d, _f.conv2d, _f.conv3d), _conv), _f.linear: _linear, _f.batch_norm: _batch_norm,
    torch._transformer_encoder_layer_fwd: encoder_forward,
    _f.layer_norm: _layer_norm, _f.rms_norm: _rms_norm, _f.group_norm: _group_norm,
}  # fmt: skip


def _softmax(x: Any, dim: Any = None, dtype: Any = None, _stacklevel: int = 3) -> Any:
    return layers.Softmax(dim) if isinstance(dim, int) and dim % x.ndim and dtype in (None, x.dtype) else None


_OF_ROWS = {
    *ACTIVATIONS, *SUMS, *PRODUCTS, *_DIFFERENCES, *_QUOTIENTS, *MATRIX_PRODUCTS, *JOINS, *_DROPOUTS, *_NEGATIVES,
    *(function for function, module in _MODULES.items() if "Pool" not in module.__name__), *_MATRICES_ADDED,
    _f.linear, _f.layer_norm, _f.rms_norm, _f.scaled_dot_product_attention,
    torch.nn.Linear, torch.nn.LayerNorm, torch.nn.RMSNorm, torch.nn.Identity, torch.nn.Dropout,
    *(module for module in _MODULES.values() if "Pool" not in module.__name__),
}  # fmt: skip


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
