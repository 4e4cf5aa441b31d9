"""Modules in the place of those of torch.nn: the same arguments, parameters, initial values and state_dict keys.

Each is a subclass of torch's, so that `isinstance` still holds, and computes by numbaprims. `inplace=True` is accepted
and changes nothing: results are new tensors.
"""

from __future__ import annotations

from typing import Any

import torch

from numbaprims.frontends.torch import activations as f
from numbaprims.frontends.torch.convolutions import conv, conv_transpose
from numbaprims.frontends.torch.dropout import dropout
from numbaprims.frontends.torch.losses import CTCLoss as CTCLoss
from numbaprims.frontends.torch.modules import Activated, Linear as Linear, batched, by_rank, twin
from numbaprims.frontends.torch.nn_attention import (
    MultiheadAttention as MultiheadAttention,
    TransformerDecoderLayer as TransformerDecoderLayer,
    TransformerEncoderLayer as TransformerEncoderLayer,
)
from numbaprims.frontends.torch.nn_normalisation import (
    BatchNorm1d as BatchNorm1d,
    BatchNorm2d as BatchNorm2d,
    BatchNorm3d as BatchNorm3d,
    CrossEntropyLoss as CrossEntropyLoss,
    GroupNorm as GroupNorm,
    InstanceNorm1d as InstanceNorm1d,
    InstanceNorm2d as InstanceNorm2d,
    InstanceNorm3d as InstanceNorm3d,
    LayerNorm as LayerNorm,
    LocalResponseNorm as LocalResponseNorm,
    LogSoftmax as LogSoftmax,
    NLLLoss as NLLLoss,
    RMSNorm as RMSNorm,
    Softmax as Softmax,
    Softmax2d as Softmax2d,
)
from numbaprims.frontends.torch.nn_padding import (
    CircularPad1d as CircularPad1d,
    CircularPad2d as CircularPad2d,
    CircularPad3d as CircularPad3d,
    ConstantPad1d as ConstantPad1d,
    ConstantPad2d as ConstantPad2d,
    ConstantPad3d as ConstantPad3d,
    ReflectionPad1d as ReflectionPad1d,
    ReflectionPad2d as ReflectionPad2d,
    ReflectionPad3d as ReflectionPad3d,
    ReplicationPad1d as ReplicationPad1d,
    ReplicationPad2d as ReplicationPad2d,
    ReplicationPad3d as ReplicationPad3d,
    ZeroPad1d as ZeroPad1d,
    ZeroPad2d as ZeroPad2d,
    ZeroPad3d as ZeroPad3d,
    padded,
)
from numbaprims.frontends.torch.nn_pooling import (
    AdaptiveAvgPool1d as AdaptiveAvgPool1d,
    AdaptiveAvgPool2d as AdaptiveAvgPool2d,
    AdaptiveAvgPool3d as AdaptiveAvgPool3d,
    AdaptiveMaxPool1d as AdaptiveMaxPool1d,
    AdaptiveMaxPool2d as AdaptiveMaxPool2d,
    AdaptiveMaxPool3d as AdaptiveMaxPool3d,
    AvgPool1d as AvgPool1d,
    AvgPool2d as AvgPool2d,
    AvgPool3d as AvgPool3d,
    LPPool1d as LPPool1d,
    LPPool2d as LPPool2d,
    LPPool3d as LPPool3d,
    MaxPool1d as MaxPool1d,
    MaxPool2d as MaxPool2d,
    MaxPool3d as MaxPool3d,
)
from numbaprims.frontends.torch.nn_recurrent import (
    GRU as GRU,
    LSTM as LSTM,
    RNN as RNN,
    GRUCell as GRUCell,
    LSTMCell as LSTMCell,
    RNNCell as RNNCell,
)
from numbaprims.frontends.torch.nn_resizing import (
    Upsample as Upsample,
    UpsamplingBilinear2d as UpsamplingBilinear2d,
    UpsamplingNearest2d as UpsamplingNearest2d,
)
from numbaprims.frontends.torch.places import Embedding as Embedding

# ---------------------------------------------------------------- convolutions


class _Conv(Activated, torch.nn.modules.conv._ConvNd):
    """
    Example:
        >>> import torch
        >>> Conv2d(3, 8, 3, padding=1, activation="relu")(torch.ones(1, 3, 5, 5)).shape
        torch.Size([1, 8, 5, 5])
    """

    def forward(self, input: Any) -> Any:
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input = padded(input, self._reversed_padding_repeated_twice, self.padding_mode)
            padding = 0
        return batched(
            conv, input, len(self.kernel_size), self.weight, self.bias, stride=self.stride, padding=padding,
            dilation=self.dilation, groups=self.groups, activation=self.activation,
        )  # fmt: skip


Conv1d, Conv2d, Conv3d = by_rank("Conv", "conv", _Conv)


class _ConvTranspose(Activated, torch.nn.modules.conv._ConvTransposeNd):
    def forward(self, input: Any, output_size: Any = None) -> Any:
        own: Any = self
        behind = own._output_padding(
            input, output_size, own.stride, own.padding, own.kernel_size, len(own.kernel_size), own.dilation
        )
        return batched(
            conv_transpose, input, len(self.kernel_size), self.weight, self.bias, stride=self.stride,
            padding=self.padding, output_padding=behind, dilation=self.dilation, groups=self.groups,
            activation=self.activation,
        )  # fmt: skip


ConvTranspose1d, ConvTranspose2d, ConvTranspose3d = by_rank("ConvTranspose", "conv_transpose", _ConvTranspose)


# ---------------------------------------------------------------- activations


#: torch's class -> the kind of activation that it is, and its attributes that are the arguments of that
ACTIVATIONS: dict[type, tuple[str, tuple[str, ...]]] = {}


def _activation(name: str, kind: str, *attributes: str) -> Any:
    """The module of an activation."""
    function = getattr(f, kind)

    class Activation(torch.nn.Module):
        def forward(self, input: Any) -> Any:
            return function(input, *(getattr(self, attribute) for attribute in attributes))

    ACTIVATIONS[getattr(torch.nn, name)] = kind, attributes
    return twin(name, kind, Activation)


ReLU = _activation("ReLU", "relu")
ReLU6 = _activation("ReLU6", "relu6")
LeakyReLU = _activation("LeakyReLU", "leaky_relu", "negative_slope")
PReLU = _activation("PReLU", "prelu", "weight")
ELU = _activation("ELU", "elu", "alpha")
SELU = _activation("SELU", "selu")
CELU = _activation("CELU", "celu", "alpha")
GELU = _activation("GELU", "gelu", "approximate")
SiLU = _activation("SiLU", "silu")
Mish = _activation("Mish", "mish")
Sigmoid = _activation("Sigmoid", "sigmoid")
Tanh = _activation("Tanh", "tanh")
Softplus = _activation("Softplus", "softplus", "beta", "threshold")
Softsign = _activation("Softsign", "softsign")
Hardsigmoid = _activation("Hardsigmoid", "hard_sigmoid")
Hardswish = _activation("Hardswish", "hard_swish")
Hardtanh = _activation("Hardtanh", "hard_tanh", "min_val", "max_val")
Hardshrink = _activation("Hardshrink", "hard_shrink", "lambd")
Softshrink = _activation("Softshrink", "soft_shrink", "lambd")
Tanhshrink = _activation("Tanhshrink", "tanh_shrink")
LogSigmoid = _activation("LogSigmoid", "log_sigmoid")
Threshold = _activation("Threshold", "threshold", "threshold", "value")
GLU = _activation("GLU", "glu", "dim")

# ---------------------------------------------------------------- dropout

_SEEDS = (1 << 63) - 1


class Dropout(torch.nn.Dropout):
    """`torch.nn.Dropout` by `numbaprims.dropout`, whose seed torch's generator draws: no mask is kept for the gradient.

    Example:
        >>> import torch
        >>> layer = Dropout(0.5)
        >>> sorted({float(y) for y in layer(torch.ones(100))}), layer.eval()(torch.ones(2))
        ([0.0, 2.0], tensor([1., 1.]))
    """

    def forward(self, input: Any) -> Any:
        return dropout(input, self.p, seed=int(torch.randint(_SEEDS, ()))) if self.training and self.p else input


# ---------------------------------------------------------------- a whole model

#: torch's module -> ours
OURS = {
    getattr(torch.nn, ours.__name__): ours
    for ours in list(globals().values())
    if isinstance(ours, type) and hasattr(torch.nn, ours.__name__)
}


#: ours -> torch's
TWINS = {ours: torchs for torchs, ours in OURS.items()}


def replace(module: Any) -> Any:
    """Let the modules of a model that have a twin here compute by numbaprims: in place, parameters and hooks stay.

    Args:
        module: any `torch.nn.Module`. Only modules of exactly torch's own classes change; subclasses, which may have
            another `forward`, stay as they are.

    Returns:
        `module`.

    Example:
        >>> import torch
        >>> replace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Softmax(1)))
        Sequential(
          (0): Linear(in_features=3, out_features=2, bias=True)
          (1): Softmax(dim=1)
        )
    """
    for each in module.modules():
        each.__class__ = OURS.get(type(each), type(each))
    return module


__all__ = [*(kind.__name__ for kind in OURS), "replace"]
