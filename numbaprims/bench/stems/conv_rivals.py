"""Convolution by torch (oneDNN) in both layouts and with reordered weights, and by onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from numbaprims.bench import rivals
from numbaprims.bench.cases import Contender, aligned_empty, poison
from numbaprims.bench.onnx_model import Tensor, model
from numbaprims.bench.operands import on_host
from numbaprims.bench.stems.conv_operands import Operands
from numbaprims.tuning.timing import Schedule, measure

_ATTRIBUTES = {None: "none", "relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh", "silu": "swish"}


def all_rivals(p: Operands, threads: int) -> dict[str, Contender]:
    """Every rival that has the type, the direction and the epilogue."""
    if p.direction == "forward":
        return _torch(p) | _prepacked(p) | _onnxruntime(p, threads)
    return _torch_gradient(p)


def _steps(p: Operands) -> tuple[list[int], list[int], list[int], int]:
    layer = p.layer
    return list(layer.stride), list(layer.padding), list(layer.dilation), layer.groups


def _returned(torch: Any, function: Callable[[], Any]) -> Contender:
    """What a function of torch returns; its convolutions have no `out=`.

    No operand requires a gradient, so that torch records nothing; to enter `inference_mode` in each call would cost
    more than it saves (a 1x1 convolution of 14 x 14: 12.5 us instead of 11.2).
    """
    latest: list[Any] = [None]

    def call() -> None:
        latest[0] = function()

    return Contender(call, lambda: _array(torch, latest[0]))


def _array(torch: Any, tensor: Any) -> np.ndarray:
    wide = tensor.dtype in (torch.bfloat16, torch.float16)
    return np.asarray((tensor.float() if wide else tensor).contiguous().cpu().numpy())


def _both_layouts(torch: Any, *tensors: Any) -> dict[str, tuple[Any, ...]]:
    """The tensors as they are, and with the channels last: converted before anything is timed."""
    form = torch.channels_last if tensors[0].ndim == 4 else torch.channels_last_3d
    last = tuple(tensor.contiguous(memory_format=form) for tensor in tensors)
    return {"torch": tensors, "torch nhwc": last}


def _module(p: Operands) -> Any:
    """torch; on a GPU with the fastest of cuDNN's algorithms, and float32 in full, as ours is."""
    torch = rivals.load_rival("torch")
    if torch is not None and not on_host():
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, False
    return torch


def _torch(p: Operands) -> dict[str, Contender]:
    torch = _module(p)
    if torch is None or p.dtype not in ("f32", "f64", "bf16") or p.activation not in (None, "relu"):
        return {}
    stride, padding, dilation, groups = _steps(p)
    bias = None if p.bias is None else p.bias.torch
    convolve = torch.nn.functional.conv2d if len(p.layer.image) == 2 else torch.nn.functional.conv3d
    found = {}
    for name, (x, w) in _both_layouts(torch, p.x.torch, p.w.torch).items():

        def product(x: Any = x, w: Any = w) -> Any:
            y = convolve(x, w, bias, stride, padding, dilation, groups)
            return y.relu_() if p.activation else y

        found[name] = _returned(torch, product)
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
    for name, (x, w) in _both_layouts(torch, p.x.torch, p.w.torch).items():
        packed = reorder(w, padding, stride, dilation, groups, list(x.shape))

        def product(x: Any = x, packed: Any = packed) -> Any:
            return conv(x, packed, bias, padding, stride, dilation, groups, attribute, [], "")

        forms[name] = _returned(torch, product)
        forms[name].form = "channels last" if name == "torch nhwc" else "channels first"
    return {"torch prepacked": fastest(forms)}


def _torch_gradient(p: Operands) -> dict[str, Contender]:
    torch = _module(p)
    if torch is None or p.dtype not in ("f32", "f64", "bf16"):
        return {}
    if p.direction == "bias":
        layouts = _both_layouts(torch, p.y.torch)
        return {name: _returned(torch, partial(dy.sum, (0, *range(2, dy.ndim)))) for name, (dy,) in layouts.items()}
    stride, padding, dilation, groups = _steps(p)
    backward = torch.ops.aten.convolution_backward
    wanted = [p.direction == "data", p.direction == "weight", False]
    which = wanted.index(True)
    found = {}
    for name, (dy, x, w) in _both_layouts(torch, p.y.torch, p.x.torch, p.w.torch).items():

        def product(dy: Any = dy, x: Any = x, w: Any = w) -> Any:
            return backward(dy, x, w, None, stride, padding, dilation, False, [0] * len(stride), groups, wanted)[which]

        found[name] = _returned(torch, product)
    return found


def _onnxruntime(p: Operands, threads: int) -> dict[str, Contender]:
    """A session of one Conv node (ConvInteger for int8) whose input and output are bound to arrays.

    The weight is a constant of the model, so that the session packs it when it is made.  On several threads its
    workers either sleep between two runs or spin until one ends; the faster is taken, which depends on its length.
    """
    runtime = rivals.load_rival("onnxruntime")
    if runtime is None or not on_host() or p.dtype not in ("f32", "i8") or p.activation:
        return {}
    if p.dtype == "i8" and p.bias is not None:
        return {}
    layer, x, w = p.layer, p.x.storage, p.w.storage
    y = aligned_empty((layer.n, *layer.output), np.int32 if p.dtype == "i8" else x.dtype)
    poison(y)
    content = model(
        "ConvInteger" if p.dtype == "i8" else "Conv",
        [Tensor("x", x.shape, x.dtype.name)],
        Tensor("y", y.shape, y.dtype.name),
        {"w": w} | ({} if p.bias is None else {"b": p.bias.storage}),
        {
            "strides": layer.stride,
            "pads": layer.padding * 2,
            "dilations": layer.dilation,
            "group": layer.groups,
        },  # fmt: skip
    )
    forms = {"workers sleep": {"session.intra_op.allow_spinning": "0"}}
    if threads > 1:
        forms["workers spin during a run"] = {
            "session.intra_op.allow_spinning": "1", "session.force_spinning_stop": "1"
        }  # fmt: skip
    made = {name: _session(runtime, content, x, y, threads, entries, name) for name, entries in forms.items()}
    return {"onnxruntime": fastest(made)}


def _session(
    runtime: Any, content: bytes, x: np.ndarray, y: np.ndarray, threads: int, entries: dict[str, str], form: str
) -> Contender:
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, x.dtype.type, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, y.dtype.type, y.shape, y.ctypes.data)
    return Contender(lambda: session.run_with_iobinding(binding), lambda: y, form=form)


def fastest(forms: dict[str, Contender]) -> Contender:
    """The fastest of several forms of one rival."""
    if len(forms) == 1:
        return next(iter(forms.values()))
    quick = Schedule(block=8e-3, settle=2e-3, rounds=3, min_rounds=1, time_limit=1.0)
    times = measure({name: form.call for name, form in forms.items()}, quick)
    return forms[min(forms, key=lambda name: times[name].seconds)]
