"""Pooling as modules; `numbaprims.frontends.torch.nn` gives them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from numbaprims.frontends.torch import pooling as f

_POOLING = torch.nn.modules.pooling


def _batched(pool: Callable[..., Any], x: Any, rank: int, *args: Any, **words: Any) -> Any:
    """Of a batch, or of one sample."""
    if x.ndim != rank + 1:
        return pool(x, *args, **words)
    found = pool(x[None], *args, **words)
    return tuple(y[0] for y in found) if isinstance(found, tuple) else found[0]


def _window(module: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(module, name) for name in ("kernel_size", "stride", "ceil_mode", *names)}


def _rank(module: Any) -> int:
    """Of the spatial dimensions: the digit in the name of torch's class."""
    return next(int(cls.__name__[-2]) for cls in type(module).__mro__ if cls.__module__ == _POOLING.__name__)


class _MaxPool(_POOLING._MaxPoolNd):
    def forward(self, input: Any) -> Any:
        words = _window(self, "padding", "dilation", "return_indices")
        return _batched(f.max_pool, input, _rank(self), **words)


class MaxPool1d(_MaxPool, torch.nn.MaxPool1d):
    """`torch.nn.MaxPool1d` by `numbaprims.max_pool`."""


class MaxPool2d(_MaxPool, torch.nn.MaxPool2d):
    """`torch.nn.MaxPool2d` by `numbaprims.max_pool`."""


class MaxPool3d(_MaxPool, torch.nn.MaxPool3d):
    """`torch.nn.MaxPool3d` by `numbaprims.max_pool`."""


class _AvgPool(_POOLING._AvgPoolNd):
    def forward(self, input: Any) -> Any:
        if getattr(self, "divisor_override", None) is not None:
            return super().forward(input)
        words = _window(self, "padding", "count_include_pad")
        return _batched(f.avg_pool, input, _rank(self), **words)


class AvgPool1d(_AvgPool, torch.nn.AvgPool1d):
    """`torch.nn.AvgPool1d` by `numbaprims.avg_pool`."""


class AvgPool2d(_AvgPool, torch.nn.AvgPool2d):
    """`torch.nn.AvgPool2d` by `numbaprims.avg_pool`; by torch with a `divisor_override`."""


class AvgPool3d(_AvgPool, torch.nn.AvgPool3d):
    """`torch.nn.AvgPool3d` by `numbaprims.avg_pool`; by torch with a `divisor_override`."""


class _LPPool(_POOLING._LPPoolNd):
    def forward(self, input: Any) -> Any:
        if self.norm_type % 2 or self.ceil_mode:
            # torch's is no norm then: it adds up signed powers, and takes windows over the border for whole ones
            return super().forward(input)
        return _batched(f.lp_pool, input, _rank(self), p=float(self.norm_type), **_window(self))


class LPPool1d(_LPPool, torch.nn.LPPool1d):
    """`torch.nn.LPPool1d` by `numbaprims.lp_pool`; by torch with ceil_mode, or a norm that is not even."""


class LPPool2d(_LPPool, torch.nn.LPPool2d):
    """`torch.nn.LPPool2d` by `numbaprims.lp_pool`; by torch with ceil_mode, or a norm that is not even."""


class LPPool3d(_LPPool, torch.nn.LPPool3d):
    """`torch.nn.LPPool3d` by `numbaprims.lp_pool`; by torch with ceil_mode, or a norm that is not even."""


def _sizes(module: Any, input: Any) -> tuple[int, ...]:
    """The output's, of which None stands for the input's."""
    size, rank = module.output_size, _rank(module)
    each = size if isinstance(size, (tuple, list)) else (size,) * rank
    return tuple(input.shape[d - rank] if n is None else n for d, n in enumerate(each))


class _AdaptiveMaxPool(_POOLING._AdaptiveMaxPoolNd):
    def forward(self, input: Any) -> Any:
        size, rank = _sizes(self, input), _rank(self)
        return _batched(f.adaptive_max_pool, input, rank, size, return_indices=self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMaxPool, torch.nn.AdaptiveMaxPool1d):
    """`torch.nn.AdaptiveMaxPool1d` by `numbaprims.adaptive_max_pool`."""


class AdaptiveMaxPool2d(_AdaptiveMaxPool, torch.nn.AdaptiveMaxPool2d):
    """`torch.nn.AdaptiveMaxPool2d` by `numbaprims.adaptive_max_pool`."""


class AdaptiveMaxPool3d(_AdaptiveMaxPool, torch.nn.AdaptiveMaxPool3d):
    """`torch.nn.AdaptiveMaxPool3d` by `numbaprims.adaptive_max_pool`."""


class _AdaptiveAvgPool(_POOLING._AdaptiveAvgPoolNd):
    def forward(self, input: Any) -> Any:
        return _batched(f.adaptive_avg_pool, input, _rank(self), _sizes(self, input))


class AdaptiveAvgPool1d(_AdaptiveAvgPool, torch.nn.AdaptiveAvgPool1d):
    """`torch.nn.AdaptiveAvgPool1d` by `numbaprims.adaptive_avg_pool`."""


class AdaptiveAvgPool2d(_AdaptiveAvgPool, torch.nn.AdaptiveAvgPool2d):
    """`torch.nn.AdaptiveAvgPool2d` by `numbaprims.adaptive_avg_pool`."""


class AdaptiveAvgPool3d(_AdaptiveAvgPool, torch.nn.AdaptiveAvgPool3d):
    """`torch.nn.AdaptiveAvgPool3d` by `numbaprims.adaptive_avg_pool`."""
