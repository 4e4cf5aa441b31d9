"""Convolution by torch (oneDNN) in both layouts and with reordered weights, and by onnxruntime."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from numbaprims.bench import rivals
from numbaprims.bench.cases import Contender
from numbaprims.bench.operands import on_host
from numbaprims.bench.stems.conv_operands import Operands
from numbaprims.bench.stems.shared import both_layouts, fastest, onnxruntime, returned, torch_module

_ATTRIBUTES = {None: "none", "relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh", "silu": "swish"}


def all_rivals(p: Operands, threads: int) -> dict[str, Contender]:
    """Every rival that has the type, the direction and the epilogue."""
    if p.direction == "forward":
        return _torch(p) | _prepacked(p) | _onnxruntime(p, threads)
    return _torch_gradient(p)


def _steps(p: Operands) -> tuple[list[int], list[int], list[int], int]:
    layer = p.layer
    return list(layer.stride), list(layer.padding), list(layer.dilation), layer.groups


def _types() -> tuple[str, ...]:
    """What torch has a convolution of that is worth a comparison: on a CPU not every version has float16."""
    return ("f32", "f64", "bf16") if on_host() else ("f32", "f64", "bf16", "f16")


def _torch(p: Operands) -> dict[str, Contender]:
    torch = torch_module()
    if torch is None or p.dtype not in _types() or p.activation not in (None, "relu"):
        return {}
    stride, padding, dilation, groups = _steps(p)
    bias = None if p.bias is None else p.bias.torch
    convolve = torch.nn.functional.conv2d if len(p.layer.image) == 2 else torch.nn.functional.conv3d
    found = {}
    for name, (x, w) in both_layouts(torch, p.x.torch, p.w.torch).items():

        def product(x: Any = x, w: Any = w) -> Any:
            y = convolve(x, w, bias, stride, padding, dilation, groups)
            return y.relu_() if p.activation else y

        found[name] = returned(torch, product)
    return found


def _prepacked(p: Operands) -> dict[str, Contender]:
    """oneDNN with its weight reordered beforehand, as torch.compile calls it: from the faster of the two layouts.

    Tensors in oneDNN's own blocked layout (`to_mkldnn`) are slower than the better of these two in every shape that
    was tried (ResNet-50's 3x3 and 1x1, one thread: 1.003 and 0.476 ms against 0.971 and 0.440).
    """
    torch = rivals.load_rival("torch")
    if torch is None or not on_host() or not torch.backends.mkldnn.is_available():
        return {}
    if p.dtype not in ("f32", "bf16") or p.activation not in _ATTRIBUTES:
        return {}
    conv = getattr(torch.ops.mkldnn, "_convolution_pointwise", None)
    reorder = getattr(torch.ops.mkldnn, "_reorder_convolution_weight", None)
    if conv is None or reorder is None:
        return {}
    stride, padding, dilation, groups = _steps(p)
    bias, attribute = None if p.bias is None else p.bias.torch, _ATTRIBUTES[p.activation]
    forms = {}
    for name, (x, w) in both_layouts(torch, p.x.torch, p.w.torch).items():
        packed = reorder(w, padding, stride, dilation, groups, list(x.shape))

        def product(x: Any = x, packed: Any = packed) -> Any:
            return conv(x, packed, bias, padding, stride, dilation, groups, attribute, [], "")

        forms[name] = returned(torch, product)
        forms[name].form = "channels last" if name == "torch nhwc" else "channels first"
    return {"torch prepacked": fastest(forms)}


def _torch_gradient(p: Operands) -> dict[str, Contender]:
    torch = torch_module()
    if torch is None or p.dtype not in _types():
        return {}
    if p.direction == "bias":
        layouts = both_layouts(torch, p.y.torch)
        return {name: returned(torch, partial(dy.sum, (0, *range(2, dy.ndim)))) for name, (dy,) in layouts.items()}
    stride, padding, dilation, groups = _steps(p)
    backward = torch.ops.aten.convolution_backward
    wanted = [p.direction == "data", p.direction == "weight", False]
    which = wanted.index(True)
    found = {}
    for name, (dy, x, w) in both_layouts(torch, p.y.torch, p.x.torch, p.w.torch).items():

        def product(dy: Any = dy, x: Any = x, w: Any = w) -> Any:
            return backward(dy, x, w, None, stride, padding, dilation, False, [0] * len(stride), groups, wanted)[which]

        found[name] = returned(torch, product)
    return found


def _onnxruntime(p: Operands, threads: int) -> dict[str, Contender]:
    """Conv, ConvInteger for int8, its weight a constant."""
    if p.dtype not in ("f32", "i8") or p.activation or p.dtype == "i8" and p.bias is not None:
        return {}
    layer = p.layer
    steps = {"strides": layer.stride, "pads": layer.padding * 2, "dilations": layer.dilation, "group": layer.groups}
    constants = {"w": p.w.storage} | ({} if p.bias is None else {"b": p.bias.storage})
    integers = p.dtype == "i8"
    return onnxruntime(
        "ConvInteger" if integers else "Conv", p.x.storage, (layer.n, *layer.output), threads,
        constants=constants, attributes=steps, dtype=np.int32 if integers else None,
    )  # fmt: skip
