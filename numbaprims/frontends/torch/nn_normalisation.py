"""Softmax, losses and batch normalisation as modules; `numbaprims.frontends.torch.nn` gives them out."""

from __future__ import annotations

from typing import Any

import torch

from numbaprims.frontends.torch import normalisation as f, norms
from numbaprims.frontends.torch.modules import Activated, batched, by_rank

_functional: Any = torch.nn.functional
#: Frames between torch's warning of an implicit dimension and the caller of a module.
_FRAMES = 6


class Softmax(torch.nn.Softmax):
    """`torch.nn.Softmax` by `numbaprims.softmax`."""

    def forward(self, input: Any) -> Any:
        return _along(f.softmax, _axis("softmax", self.dim, input), input)


class Softmax2d(torch.nn.Softmax2d):
    """`torch.nn.Softmax2d` by `numbaprims.softmax`."""

    def forward(self, input: Any) -> Any:
        if input.ndim not in (3, 4):
            raise ValueError(f"Softmax2d takes (C, H, W) or (N, C, H, W), not {tuple(input.shape)}")
        return f.softmax(input, axis=-3)


class LogSoftmax(torch.nn.LogSoftmax):
    """`torch.nn.LogSoftmax` by `numbaprims.log_softmax`."""

    def forward(self, input: Any) -> Any:
        return _along(f.log_softmax, _axis("log_softmax", self.dim, input), input)


def _axis(name: str, dim: int | None, x: Any) -> int:
    """The dimension; where none was given, the one that torch takes, with its warning."""
    return int(_functional._get_softmax_dim(name, x.ndim, _FRAMES)) if dim is None else dim


def _along(function: Any, axis: int, x: Any) -> Any:
    """A function of the rows of x, or of the one element of a tensor without dimensions."""
    return function(x, axis=axis) if x.ndim else function(x[None], axis=axis)[0]


class LocalResponseNorm(torch.nn.LocalResponseNorm):
    """`torch.nn.LocalResponseNorm` by `numbaprims.lrn`."""

    def forward(self, input: Any) -> Any:
        return f.lrn(input, self.size, alpha=self.alpha, beta=self.beta, k=self.k)


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """`torch.nn.CrossEntropyLoss` by `numbaprims.softmax_cross_entropy`."""

    def forward(self, input: Any, target: Any) -> Any:
        return _of_batch(f.softmax_cross_entropy, self, input, target, label_smoothing=self.label_smoothing)


class NLLLoss(torch.nn.NLLLoss):
    """`torch.nn.NLLLoss` by `numbaprims.nll_loss`."""

    def forward(self, input: Any, target: Any) -> Any:
        return _of_batch(f.nll_loss, self, input, target)


def _of_batch(loss: Any, module: Any, x: Any, target: Any, **words: Any) -> Any:
    """A loss of a batch, or of one sample (C,)."""
    if target.dtype == torch.uint8:
        target = target.long()
    words |= {"weight": module.weight, "ignore_index": module.ignore_index, "reduction": module.reduction}
    if x.ndim != 1:
        return loss(x, target, **words)
    y = loss(x[None], target[None], **words)
    return y[0] if y.ndim else y


class _BatchNorm(Activated, torch.nn.modules.batchnorm._BatchNorm):
    """
    Example:
        >>> import torch
        >>> layer = BatchNorm2d(3)
        >>> layer(torch.randn(2, 3, 4, 4)).shape, int(layer.num_batches_tracked)
        (torch.Size([2, 3, 4, 4]), 1)
        >>> bool((BatchNorm2d(3, activation="relu")(torch.randn(2, 3, 4, 4)) >= 0).all())
        True
    """

    def forward(self, input: Any) -> Any:
        self._check_input_dim(input)
        track, momentum, batches = self.training and self.track_running_stats, self.momentum, self.num_batches_tracked
        if track and batches is not None and momentum is None:  # the mean of all batches
            momentum = 1.0 / (float(batches) + 1.0)
        running: Any = (self.running_mean, self.running_var)
        like = input if running[0] is None else running[0]
        scale = torch.ones(input.shape[1], dtype=like.dtype, device=like.device) if self.weight is None else self.weight
        shift = torch.zeros_like(scale) if self.bias is None else self.bias
        words: dict[str, Any] = {"eps": self.eps, "activation": self.activation}
        if not self.training and running[0] is not None:
            return f.batch_norm(input, scale, shift, *running, **words)
        if not input.numel():
            return super().forward(input)  # without statistics of its own, which leaves the running ones
        _functional._verify_batch_size(list(input.shape))
        if not track or running[0] is None:
            return f.batch_norm_train(input, scale, shift, **words)[0]
        y, _, _, *new = f.batch_norm_train(input, scale, shift, *running, momentum=momentum or 0.0, **words)
        for old, value in zip(running, new, strict=True):
            old.copy_(value)
        if batches is not None:
            batches.add_(1)
        return y


BatchNorm1d, BatchNorm2d, BatchNorm3d = by_rank("BatchNorm", "batch_norm` and `numbaprims.batch_norm_train", _BatchNorm)


# ---------------------------------------------------------------- by the statistics of each sample


def _check_shape(module: Any, x: Any) -> int:
    """How many dimensions are normalised."""
    dims = len(module.normalized_shape)
    if tuple(x.shape[x.ndim - dims :]) != tuple(module.normalized_shape):
        raise RuntimeError(f"x is of shape {tuple(x.shape)}; its last dimensions must be {module.normalized_shape}")
    return dims


class LayerNorm(torch.nn.LayerNorm):
    """`torch.nn.LayerNorm` by `numbaprims.layer_norm`."""

    def forward(self, input: Any) -> Any:
        dims = _check_shape(self, input)
        return norms.layer_norm(input, self.weight, self.bias, eps=self.eps, normalized_dims=dims)


class RMSNorm(torch.nn.RMSNorm):
    """`torch.nn.RMSNorm` by `numbaprims.rms_norm`."""

    def forward(self, input: Any) -> Any:
        eps = torch.finfo(input.dtype).eps if self.eps is None else self.eps
        return norms.rms_norm(input, self.weight, eps=eps, normalized_dims=_check_shape(self, input))


class GroupNorm(torch.nn.GroupNorm):
    """`torch.nn.GroupNorm` by `numbaprims.group_norm`."""

    def forward(self, input: Any) -> Any:
        return norms.group_norm(input, self.num_groups, self.weight, self.bias, eps=self.eps)


class _InstanceNorm(torch.nn.modules.instancenorm._InstanceNorm):
    """By torch where it tracks running statistics."""

    def forward(self, input: Any) -> Any:
        if self.track_running_stats or input.ndim < self._get_no_batch_dim():
            return super().forward(input)
        self._check_input_dim(input)
        rank = self._get_no_batch_dim() - 1
        _functional._verify_spatial_size(input.shape if input.ndim > rank + 1 else (1, *input.shape))
        return batched(norms.instance_norm, input, rank, self.weight, self.bias, eps=self.eps)


InstanceNorm1d, InstanceNorm2d, InstanceNorm3d = by_rank("InstanceNorm", "instance_norm", _InstanceNorm)
