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
from numbaprims.frontends.torch.products import linear

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "CELU",
    "CTCLoss", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d",
    "CrossEntropyLoss", "Dropout", "ELU", "Embedding", "GELU", "GLU", "GRU", "GRUCell", "GroupNorm", "Hardshrink",
    "Hardsigmoid", "Hardswish", "Hardtanh", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "LPPool1d",
    "LPPool2d", "LPPool3d", "LSTM", "LSTMCell", "LayerNorm", "LeakyReLU", "Linear", "LocalResponseNorm", "LogSigmoid",
    "LogSoftmax", "MaxPool1d", "MaxPool2d", "MaxPool3d", "Mish", "NLLLoss", "PReLU", "RMSNorm", "RNN", "RNNCell",
    "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softmax", "Softmax2d", "Softplus", "Softshrink", "Softsign", "Tanh",
    "Tanhshrink",
    "Threshold", "Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d", "replace",
]  # fmt: skip


class Linear(torch.nn.Linear):
    """`torch.nn.Linear` by `numbaprims.linear`; `activation` is applied in the same pass.

    Example:
        >>> import torch
        >>> Linear(3, 2, activation="relu")(torch.ones(4, 3)).shape
        torch.Size([4, 2])
    """

    def __init__(self, *args: Any, activation: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.activation = activation

    def forward(self, input: Any) -> Any:
        return linear(input, self.weight, self.bias, activation=getattr(self, "activation", None))


# ---------------------------------------------------------------- convolutions


class _Conv(torch.nn.modules.conv._ConvNd):
    """What the convolutions share; `activation` is applied in the same pass."""

    def __init__(self, *args: Any, activation: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.activation = activation

    def forward(self, input: Any) -> Any:
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input = torch.nn.functional.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        x, single = _batched(input, self)
        y = conv(
            x, self.weight, self.bias, stride=self.stride, padding=padding, dilation=self.dilation, groups=self.groups,
            activation=getattr(self, "activation", None),
        )  # fmt: skip
        return y[0] if single else y


class Conv1d(_Conv, torch.nn.Conv1d):
    """`torch.nn.Conv1d` by `numbaprims.conv`."""


class Conv2d(_Conv, torch.nn.Conv2d):
    """`torch.nn.Conv2d` by `numbaprims.conv`.

    Example:
        >>> import torch
        >>> Conv2d(3, 8, 3, padding=1)(torch.ones(1, 3, 5, 5)).shape
        torch.Size([1, 8, 5, 5])
    """


class Conv3d(_Conv, torch.nn.Conv3d):
    """`torch.nn.Conv3d` by `numbaprims.conv`."""


class _ConvTranspose(torch.nn.modules.conv._ConvTransposeNd):
    """What the transposed convolutions share; `activation` is applied in the same pass."""

    def __init__(self, *args: Any, activation: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.activation = activation

    def forward(self, input: Any, output_size: Any = None) -> Any:
        own: Any = self
        behind = own._output_padding(
            input, output_size, own.stride, own.padding, own.kernel_size, len(own.kernel_size), own.dilation
        )
        x, single = _batched(input, self)
        y = conv_transpose(
            x, self.weight, self.bias, stride=self.stride, padding=self.padding, output_padding=behind,
            dilation=self.dilation, groups=self.groups, activation=getattr(self, "activation", None),
        )  # fmt: skip
        return y[0] if single else y


class ConvTranspose1d(_ConvTranspose, torch.nn.ConvTranspose1d):
    """`torch.nn.ConvTranspose1d` by `numbaprims.conv_transpose`."""


class ConvTranspose2d(_ConvTranspose, torch.nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d` by `numbaprims.conv_transpose`."""


class ConvTranspose3d(_ConvTranspose, torch.nn.ConvTranspose3d):
    """`torch.nn.ConvTranspose3d` by `numbaprims.conv_transpose`."""


def _batched(input: Any, module: Any) -> tuple[Any, bool]:
    """The input as a batch, and whether it was a single sample."""
    single = input.ndim == len(module.kernel_size) + 1
    return (input[None] if single else input), single


# ---------------------------------------------------------------- activations


class ReLU(torch.nn.ReLU):
    """`torch.nn.ReLU` by `numbaprims.relu`."""

    def forward(self, input: Any) -> Any:
        return f.relu(input)


class ReLU6(torch.nn.ReLU6):
    """`torch.nn.ReLU6` by `numbaprims.relu6`."""

    def forward(self, input: Any) -> Any:
        return f.relu6(input)


class LeakyReLU(torch.nn.LeakyReLU):
    """`torch.nn.LeakyReLU` by `numbaprims.leaky_relu`."""

    def forward(self, input: Any) -> Any:
        return f.leaky_relu(input, self.negative_slope)


class PReLU(torch.nn.PReLU):
    """`torch.nn.PReLU` by `numbaprims.prelu`."""

    def forward(self, input: Any) -> Any:
        return f.prelu(input, self.weight)


class ELU(torch.nn.ELU):
    """`torch.nn.ELU` by `numbaprims.elu`."""

    def forward(self, input: Any) -> Any:
        return f.elu(input, self.alpha)


class SELU(torch.nn.SELU):
    """`torch.nn.SELU` by `numbaprims.selu`."""

    def forward(self, input: Any) -> Any:
        return f.selu(input)


class CELU(torch.nn.CELU):
    """`torch.nn.CELU` by `numbaprims.celu`."""

    def forward(self, input: Any) -> Any:
        return f.celu(input, self.alpha)


class GELU(torch.nn.GELU):
    """`torch.nn.GELU` by `numbaprims.gelu`."""

    def forward(self, input: Any) -> Any:
        return f.gelu(input, self.approximate)


class SiLU(torch.nn.SiLU):
    """`torch.nn.SiLU` by `numbaprims.silu`."""

    def forward(self, input: Any) -> Any:
        return f.silu(input)


class Mish(torch.nn.Mish):
    """`torch.nn.Mish` by `numbaprims.mish`."""

    def forward(self, input: Any) -> Any:
        return f.mish(input)


class Sigmoid(torch.nn.Sigmoid):
    """`torch.nn.Sigmoid` by `numbaprims.sigmoid`."""

    def forward(self, input: Any) -> Any:
        return f.sigmoid(input)


class Tanh(torch.nn.Tanh):
    """`torch.nn.Tanh` by `numbaprims.tanh`."""

    def forward(self, input: Any) -> Any:
        return f.tanh(input)


class Softplus(torch.nn.Softplus):
    """`torch.nn.Softplus` by `numbaprims.softplus`."""

    def forward(self, input: Any) -> Any:
        return f.softplus(input, self.beta, self.threshold)


class Softsign(torch.nn.Softsign):
    """`torch.nn.Softsign` by `numbaprims.softsign`."""

    def forward(self, input: Any) -> Any:
        return f.softsign(input)


class Hardsigmoid(torch.nn.Hardsigmoid):
    """`torch.nn.Hardsigmoid` by `numbaprims.hard_sigmoid`."""

    def forward(self, input: Any) -> Any:
        return f.hard_sigmoid(input)


class Hardswish(torch.nn.Hardswish):
    """`torch.nn.Hardswish` by `numbaprims.hard_swish`."""

    def forward(self, input: Any) -> Any:
        return f.hard_swish(input)


class Hardtanh(torch.nn.Hardtanh):
    """`torch.nn.Hardtanh` by `numbaprims.hard_tanh`."""

    def forward(self, input: Any) -> Any:
        return f.hard_tanh(input, self.min_val, self.max_val)


class Hardshrink(torch.nn.Hardshrink):
    """`torch.nn.Hardshrink` by `numbaprims.hard_shrink`."""

    def forward(self, input: Any) -> Any:
        return f.hard_shrink(input, self.lambd)


class Softshrink(torch.nn.Softshrink):
    """`torch.nn.Softshrink` by `numbaprims.soft_shrink`."""

    def forward(self, input: Any) -> Any:
        return f.soft_shrink(input, self.lambd)


class Tanhshrink(torch.nn.Tanhshrink):
    """`torch.nn.Tanhshrink` by `numbaprims.tanh_shrink`."""

    def forward(self, input: Any) -> Any:
        return f.tanh_shrink(input)


class LogSigmoid(torch.nn.LogSigmoid):
    """`torch.nn.LogSigmoid` by `numbaprims.log_sigmoid`."""

    def forward(self, input: Any) -> Any:
        return f.log_sigmoid(input)


class Threshold(torch.nn.Threshold):
    """`torch.nn.Threshold` by `numbaprims.threshold`."""

    def forward(self, input: Any) -> Any:
        return f.threshold(input, self.threshold, self.value)


class GLU(torch.nn.GLU):
    """`torch.nn.GLU` by `numbaprims.glu`."""

    def forward(self, input: Any) -> Any:
        return f.glu(input, self.dim)


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

_OURS = {getattr(torch.nn, name): globals()[name] for name in __all__ if name != "replace"}


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
        each.__class__ = _OURS.get(type(each), type(each))
    return module
